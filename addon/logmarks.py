"""What those who write a log and those who read it must agree on."""

# Follows what a failed write left behind. No line with this end is JSON, not even one that lacked only its newline: its
# request was denied, so it must not read as a decision.
TORN = b" (torn)\n"
