"""Files of a project that hold secrets: finding them, covering them in the box, and looking after the covers."""
