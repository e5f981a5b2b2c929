"""Times as the receipts write them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """This moment, ISO 8601 in UTC with milliseconds: `2026-11-29T17:03:12.636Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: object) -> float | None:
    """A time as receipts and logs write it, in seconds since 1970; None for what is none, or cannot be printed in every
    time zone."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if 1 < moment.year < 9999 else None
    except (ValueError, OverflowError):
        return None
