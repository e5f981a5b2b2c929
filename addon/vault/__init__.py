"""Credentials on the host's side: the store, what stands in for them in the box, and where they may go."""
