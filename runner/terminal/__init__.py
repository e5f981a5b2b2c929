"""pi's own terminal UI in the box, and what of its output reaches the terminal of a person: `run -i`."""
