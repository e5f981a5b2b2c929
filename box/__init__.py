"""What goes into the image of the box: the relay and its probes (standard library only, Python 3.10), pi's pins."""
