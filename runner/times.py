"""Times as the receipts write them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """This moment, ISO 8601 in UTC with milliseconds: `2026-11-29T17:03:12.636Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
