"""impyard: run a coding agent in a locked box whose every request is judged by rules you can read.

This package is an import name only: its members are links to the folders at the top of the repository.
"""
