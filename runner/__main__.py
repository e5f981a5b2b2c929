"""`python -m impyard.runner`: the command line, with a silent end when Ctrl-C comes while it is still loading."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        from impyard.runner.cli import main as cli

        return cli()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
