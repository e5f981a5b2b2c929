"""Standard input, output and error as a command may use them: all three are there, and a fault of one has a name.

Nothing here prints or decides an exit status; the command line does (cli.main).
"""

from __future__ import annotations

import io
import os
import sys


class OutputError(OSError):
    """Standard output does not take what a command prints. `cause` is the system's own error.

    `errno` stays unset, since click ends the process by itself when it sees a broken pipe.
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__((cause.strerror or str(cause)).lower())
        self.cause = cause

    @property
    def is_reader_gone(self) -> bool:
        """Whether the program behind the pipe has ended, as `head` does once it has seen enough."""
        return isinstance(self.cause, BrokenPipeError)


class _Output(io.TextIOWrapper):
    """Standard output, with its faults as OutputError."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as exc:
            raise OutputError(exc) from exc

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as exc:
            raise OutputError(exc) from exc


class _Words(io.TextIOWrapper):
    """Standard error. That nobody can read a remark is no reason to end what a command does."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            return


def prepare() -> bool:
    """Make the three streams fit for a command; call it once, first. False when standard output is closed.

    A descriptor that is closed is filled with /dev/null: the next file opened would get its number, and with it what is
    meant for a person. A character that a terminal lacks is written as an escape.
    """
    is_open = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _fill(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115 - for the process's whole life
    for name, kind in (("stdout", _Output), ("stderr", _Words)):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:
            # The old wrapper, kept alive by sys.__stdout__, shares the buffer and holds nothing back.
            stream.flush()
            wrapped = kind(
                stream.buffer,
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, wrapped)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return is_open


def give_up() -> None:
    """Send what is still held back for standard output nowhere: Python would complain once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _fill(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.close(null)  # somebody has opened a file meanwhile, which now has the number
    else:
        os.set_inheritable(null, True)
