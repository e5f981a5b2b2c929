"""The errors that people see. Programming errors stay built-in exceptions."""

from __future__ import annotations

from dataclasses import dataclass


class ImpyardError(Exception):
    """Something that the user can mend: printed as `error: <message>` and `hint: <hint>`, without a traceback.

    The message says what happened and to what, lower case, no full stop; the hint says what to do.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WrongUsage(ImpyardError):
    """What is wrong stands in the command line itself: exit status 2, whatever the command fails with else."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a policy file. `line` and `column` count from 1; 0 means the file as a whole."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.message}"


class PolicyError(ImpyardError):
    """A policy that must not be used. `faults` holds every fault found, in file order, at least one."""

    def __init__(self, faults: tuple[Fault, ...], *, hint: str | None = None) -> None:
        super().__init__("\n".join(str(fault) for fault in faults), hint=hint)
        self.faults = faults


class LogUnwritable(ImpyardError):
    """The decision could not be recorded, so the request must not be forwarded."""
