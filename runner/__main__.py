"""`python -m impyard.runner` and the command `impyard`: the command line, in a Python that takes names for UTF-8.

Ends without a word when Ctrl-C comes while it is still loading.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        import resource

        # A core dump lies in the working folder, the project perhaps, and what imports a key has it in memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if sys.getfilesystemencoding() != "utf-8":
            _start_again_in_utf8()
        from impyard.runner.cli import main as cli

        return cli()
    except KeyboardInterrupt:
        return 130


def _start_again_in_utf8() -> None:
    """Become a Python that reads and writes the names of files as UTF-8, whatever the locale is.

    The box, the engine and the log know paths as UTF-8 only. The terminal keeps the locale's encoding.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    environment = {"PYTHONIOENCODING": f"{encoding}:backslashreplace", **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], environment)


if __name__ == "__main__":
    sys.exit(main())
