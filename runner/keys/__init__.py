"""Where the user's credentials come from, their way into the vault, and what a box gets in their place."""
