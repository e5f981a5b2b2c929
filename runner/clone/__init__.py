"""A clone of the project for the agent to work on, and what it did there: `run --clone`, `runs diff`, `runs apply`."""
