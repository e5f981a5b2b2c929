"""A log of very many decisions, with outcomes, as the judge would have written them: real lines, told apart by their
numbers, times, paths and chain."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from impyard.addon.decisions import GENESIS, encode_decision, encode_outcome
from impyard.addon.judge import Decision, Nearest, Verdict
from impyard.addon.request import Request
from impyard.runner.decisions.logfiles import stamp_of
from impyard.runner.decisions.rotation import pack_all

BYTES_A_LINE = 1100
RUN_LINES = 500
_TS, _ID, _RUN, _PREV = "2026-01-01T00:00:00.000Z", "20260101-000000-aaaa.987654321", "20260101-000000-aaaa", GENESIS
_HEADERS = tuple((f"x-header-{n}", f"the value of header {n}") for n in range(8))
_ALLOW = Decision(Verdict.ALLOW, "rule", rule="ALLOW GET /packages/.*", at="policies/gateway.yaml:12")
_DENY = Decision(Verdict.DENY, "no-rule", nearest=Nearest("policies/gateway.yaml:31", "method"))


def write_many(runs: Path, count: int, *, part_bytes: int, since: datetime, until: datetime) -> None:
    """Logs of `count` decisions in `runs`, spread over the time, in rotated files of some `part_bytes` each.

    Raises OSError when the disk has not the room, which is looked at for each file.
    """
    runs.mkdir(parents=True, exist_ok=True)
    decisions, outcomes = runs / "decisions.jsonl", runs / "outcomes.jsonl"
    a_part = max(part_bytes // BYTES_A_LINE, 1)
    step = (until - since) / max(count, 1)
    lines = _lines(since, step)
    for begin in range(0, count, a_part):
        if shutil.disk_usage(runs).free < 4 * part_bytes + (1 << 30):
            raise OSError(f"the disk of {runs} is nearly full")
        end = min(begin + a_part, count)
        with decisions.open("wb") as log, outcomes.open("wb") as came:
            for _ in range(begin, end):
                line, outcome = next(lines)
                log.write(line)
                came.write(outcome)
        if end < count:
            stamp = stamp_of(since + step * end)
            for path in (decisions, outcomes):
                path.rename(path.with_name(f"{path.stem}-{stamp}{path.suffix}"))
            list(pack_all(runs, settled_s=0))


def _lines(since: datetime, step: timedelta) -> Iterator[tuple[bytes, bytes]]:
    """Decisions with their outcomes, nothing for a denial: the judge's own lines with other numbers in them."""
    forms = [_form(_ALLOW, host) for host in ("packages.test", "git.test", "files.test")]
    forms.append(_form(_DENY, "denied.test"))
    outcome = encode_outcome(ts=_TS, id=_ID, run=_RUN, status=200, up=0, down=12345, ms=12.3, error=None, redirect=None)
    number, prev, run = 0, GENESIS, ""
    while True:
        at = since + step * number
        seq = number % RUN_LINES + 1
        if seq == 1:
            run, prev = f"{at:%Y%m%d-%H%M%S}-{number // RUN_LINES & 0xFFFF:04x}", GENESIS
        ts = f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
        token = hashlib.blake2s(number.to_bytes(8, "big")).hexdigest()
        which = 3 if number % 10 == 9 else number % 3
        line = forms[which] % (ts, run, seq, run, seq, number % 3000, token[:24], token[24:48], prev)
        data = line.encode()
        prev = "sha256:" + hashlib.sha256(data[:-1]).hexdigest()
        came = outcome.replace(_TS.encode(), ts.encode()).replace(_ID.encode(), f"{run}.{seq}".encode())
        yield data, came.replace(_RUN.encode(), run.encode()) if which < 3 else b""
        number += 1


def _form(decision: Decision, host: str) -> str:
    """A line with `%s` for what differs."""
    request = Request(
        *("GET", "https", host, 443, "/packages/PATH/TOKEN"), headers=(*_HEADERS, ("x-request-id", "REQUEST"))
    )
    line = encode_decision(
        ts=_TS, id=_ID, run=_RUN, seq=987654321, decision=decision, request=request, policy_hash=GENESIS, prev="PREV"
    ).decode()
    marks = [(f'"{_TS}"', '"%s"'), (f'"{_ID}"', '"%s.%d"'), (f'"{_RUN}"', '"%s"'), ("987654321", "%d")]
    marks += [("PATH", "%d"), ("TOKEN", "%s"), ("REQUEST", "%s"), ("PREV", "%s")]
    for mark, form in marks:
        assert line.count(mark) == 1, mark
        line = line.replace(mark, form)
    return line
