"""Points in time as people type them for `--since`, `--until` and `--older-than`. UTC, as the logs are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

EXAMPLES = "2h, 30m, 3d, yesterday, 2026-11-29, 2026-11-29T17:30"
AGES = "90d, 12w, 2026-11-29"
_DAYS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,9})?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NAMES = r"(s)(?:ec(?:ond)?s?)?|(m)(?:in(?:ute)?s?)?|(h)(?:ours?)?|(d)(?:ays?)?|(w)(?:eeks?)?"
_AGO = re.compile(rf"(\d{{1,9}})\s*(?:{_NAMES})(?![a-z])\s*")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def moment(text: str, now: datetime) -> datetime | None:
    """The time that `text` means, None when it means none: ISO 8601, a date, `17:30` of today, `2h` or `1d 12h` ago,
    `today`, `yesterday`, `now`."""
    said = text.strip().lower().removesuffix(" ago")
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    try:
        if said in named:
            return named[said]
        if clock := _CLOCK.fullmatch(said):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return midnight.replace(hour=hour, minute=minute, second=second)
        if said and not _AGO.sub("", said):
            return now - timedelta(seconds=sum(int(n) * _UNITS["".join(unit)] for n, *unit in _AGO.findall(said)))
        given = datetime.fromisoformat(text.strip())
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class Age(click.ParamType[datetime]):
    """How old something is, or since when it is there: `90d`, `90` or `1.5` days, a date. A time to come is none."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        said, now = str(value).strip(), datetime.now(UTC)
        found = now - timedelta(days=float(said)) if _DAYS.fullmatch(said) else moment(said, now)
        if found is None:
            long_ago = " that a date can say" if _AGO.match(said.lower()) else ""
            self.fail(f"`{value}` is no age{long_ago}; such are {AGES}", param, ctx)
        if found > now:
            self.fail(f"`{value}` is a time to come; give an age, such as {AGES}", param, ctx)
        return found


class When(click.ParamType[str]):
    """An option's point in time, as the logs write theirs, so that both compare as text."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = moment(str(value), datetime.now(UTC))
        if found is None:
            self.fail(f"`{value}` is no time; such are {EXAMPLES}", param, ctx)
        return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
