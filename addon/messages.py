"""The gateway's own messages on standard error: what broke, for whoever looks for the reason. Not the record."""

from __future__ import annotations

import logging

# A box can cause one with each connection, and they go into a file on the host's disk.
MOST = 2000


class Bounded(logging.Filter):
    """Lets the first `most` messages pass, says that more came, and drops the rest."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._left = most

    def filter(self, record: logging.LogRecord) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        if self._left == 0:
            record.msg, record.args, record.exc_info = "too many messages; this is the last one", (), None
        return True


def to_stderr() -> None:
    """Print warnings and errors of this process, with the time, as many as are worth reading."""
    handler = logging.StreamHandler()
    handler.addFilter(Bounded())
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s", handlers=[handler]
    )
