"""The host side: the click CLI and what it drives."""
