"""What a long life and a violent death leave behind: nothing. The tests run short forms of the same.

`python -m tests.soak --help`. One module for each thing that is done; the others are what they share.
"""
