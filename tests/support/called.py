"""What a command of impyard's said when it was called in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """The exit status, and what went to standard output and to standard error."""

    status: int
    out: str
    err: str


Command = Callable[..., Result]
