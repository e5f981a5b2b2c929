"""What the gateway and the command line cost, as ratios between runs that alternate on one machine.

`python -m tests.bench --help`. One module for each thing that is measured; the others are what they share.
"""
