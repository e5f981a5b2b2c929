"""Times as the receipts write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def now() -> str:
    """This moment, ISO 8601 in UTC with milliseconds: `2026-11-29T17:03:12.636Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: object) -> float | None:
    """A time as receipts and logs write it, in seconds since 1970; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        seconds = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None
