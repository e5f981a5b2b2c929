"""Times as people give them to `--since` and `--until`, as the log writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class When(click.ParamType[str]):
    """A time: so long ago (`30m`, `2h`, `7d`), or a date with or without a time of day, in this machine's time unless
    it names another. The value is as the log writes times: UTC with milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        try:
            if ago := _AGO.fullmatch(text.lower()):
                moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            else:
                moment = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"`{text}` is no time: write 2h, 7d, 2026-11-30 or 2026-11-30T17:00", param, ctx)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
