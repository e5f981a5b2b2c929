"""What the judge decided in one run, folded so that a page can hold it, and whether the log of it is whole.

One pass over the decision log and one over the outcomes. What is kept does not grow with the run, but for eight bytes
a decision: requests that differ in a number or a hash only are one group, and of too many groups the rest is counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from impyard.addon.decisions import verify
from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import lines, logread, outcomes
from impyard.runner.decisions.filelist import FileList
from impyard.runner.decisions.lines import Entry
from impyard.runner.decisions.logfiles import Log, open_log, text_of
from impyard.runner.decisions.logread import lines_of
from impyard.runner.decisions.numbered import Numbered
from impyard.runner.decisions.outcomes import path_beside
from impyard.runner.decisions.pathshape import shape
from impyard.runner.decisions.read import began_at
from impyard.runner.times import seconds_of

MAX_ROWS = 400  # groups in the timeline
MAX_ROWS_A_GAP = 15  # of them between two steps of the agent
MAX_DENIED = 60  # kinds of denials that are shown: the most frequent of those that are told apart
MAX_KINDS, MAX_KINDS_A_HOST = 240, 8  # of denials that are told apart
MAX_HOSTS = 1000
MAX_FAULTS = 20
BARS = 60  # of the picture of the run
_MOST_JOINED = 4_000_000  # decisions of a run whose outcome is looked for


class Fault(NamedTuple):
    """What is wrong with the log. file: a rotated one's name, else empty; line: its number there, 0 for none."""

    file: str
    line: int
    what: str


@dataclass(slots=True)
class Group:
    """Requests that are alike. `entry` is the first of them, `times` how many there were.

    `path` is theirs where they have the same, else its shape; `mixed` ones have but host and reason in common. `failed`
    were allowed and came to nothing, `error` says why of one of them.
    """

    entry: Entry
    path: str
    at: float
    times: int = 0
    last_at: float = 0.0
    failed: int = 0
    error: str = ""
    status: int | None = None
    up: int = 0
    down: int = 0
    place: int = 0
    mixed: bool = False


@dataclass(slots=True)
class Host:
    """One host with its port, where that is not the usual one."""

    name: str
    first_at: float
    last_at: float
    allowed: int = 0
    denied: int = 0
    failed: int = 0
    up: int = 0
    down: int = 0
    place: int = 0


@dataclass(slots=True)
class Gap:
    """The requests between two steps of the agent: groups, and how many more were left out of them."""

    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)
    more_allowed: int = 0
    more_denied: int = 0


@dataclass(slots=True)
class Requests:
    """All that the log says of a run. Times are seconds since 1970, sizes bytes.

    `own` are impyard's own checks, which count nowhere else. `gaps[n]` holds the requests before step n. `hosts_more`
    stands for all hosts beyond those told apart, `denied_more` counts denials beyond the groups that were kept.
    """

    lines: int = 0
    damaged: int = 0
    own: int = 0
    allowed: int = 0
    denied: int = 0
    failed: int = 0
    up: int = 0
    down: int = 0
    first_at: float | None = None
    last_at: float | None = None
    gaps: dict[int, Gap] = field(default_factory=dict)
    rows: int = 0
    denials: dict[tuple[object, ...], Group] = field(default_factory=dict)
    denied_more: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)
    hosts_more: Host | None = None
    bars: Bars | None = None
    faults: list[Fault] = field(default_factory=list)
    faults_more: int = 0
    removed: int = 0  # lines of the run that were in files which `rotate --older-than` removed
    credentials: dict[str, int] = field(default_factory=dict)
    secrets: int = 0
    outcomes_damaged: int = 0


class Bars:
    """How many requests were allowed and denied over time, in a fixed number of spans that grow with the run."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.span_s = 0.05
        self.allowed = [0] * BARS
        self.denied = [0] * BARS

    def add(self, at: float, allowed: int, denied: int) -> None:
        at = max(at - self.start, 0.0)
        while at >= self.span_s * BARS:
            self.span_s *= 2
            for bars in (self.allowed, self.denied):
                bars[:] = [*(sum(bars[n : n + 2]) for n in range(0, BARS, 2)), *[0] * (BARS // 2)]
        self.allowed[int(at / self.span_s)] += allowed
        self.denied[int(at / self.span_s)] += denied


def read(
    log: Path,
    run: str,
    steps: Sequence[float],
    end: tuple[int, str] | None,
    *,
    start: float,
    ended: bool,
    until: float | None = None,
) -> Requests:
    """What `log`, and the outcomes beside it, say of `run`. steps: when the agent did something, in order.

    end: the number and hash of the run's last line, by its receipt. A run that has not `ended` may have a line that is
    half-written. until: when it ended. Files of the log that by their names are of other times are not opened, unless
    something is missing in the others. Raises ImpyardError for a log that cannot be read; one that is missing is empty.
    """
    before = {name: last for name, last in _removed(log).items() if name == run}
    began, over = began_at(run), _over(until)
    reader = _read(log, run, _Reader(run, steps, start), end, before, began, over, torn=ended)
    if reader.found.faults and (began or over):
        began = over = None
        reader = _read(log, run, _Reader(run, steps, start), end, before, began, over, torn=ended)
    found = reader.found
    found.removed = sum(seq for seq, _ in before.values())
    if found.allowed and (came := open_log(path_beside(log), since=began, until=over)) is not None:
        with came:
            reader.join(came)
    return found


def _over(until: float | None) -> str | None:
    """The time in which nothing of a run is written any more, as the log writes times."""
    try:
        return None if until is None else text_of(datetime.fromtimestamp(until + 1, UTC))
    except (ValueError, OverflowError, OSError):  # a receipt may say anything
        return None


def _read(
    log: Path,
    run: str,
    reader: _Reader,
    end: tuple[int, str] | None,
    before: dict[str, tuple[int, str]],
    since: str | None,
    until: str | None,
    *,
    torn: bool,
) -> _Reader:
    """The reader, when it has seen the run's lines in the files of these times, and what is wrong with them."""
    with open_log(log, since=since, until=until) or nullcontext() as decisions:
        numbered = Numbered(decisions, run)
        own = (line for line in numbered.lines() if torn or line.endswith(b"\n"))
        faults = verify(map(reader.seen, own), receipts={run: end} if end else {}, before=before)
        for fault in faults[:MAX_FAULTS]:
            file, line, _ = numbered.place(fault.line)
            reader.found.faults.append(Fault(file if file != log.name else "", line, fault.what))
    reader.found.faults_more = len(faults) - len(reader.found.faults)
    return reader


def _removed(log: Path) -> dict[str, tuple[int, str]]:
    """Where chains stood in files that were removed on purpose, as far as that is known."""
    try:
        return FileList(log.parent).read().ends
    except ImpyardError:
        return {}


class _Reader:
    def __init__(self, run: str, steps: Sequence[float], start: float) -> None:
        self.found = Requests()
        self._run = run
        self._steps = steps
        self._start = start
        # For each decision by its number: its group's and its host's place in the lists, from 1 on.
        self._group_of, self._host_of = array("I"), array("I")
        self._groups: list[Group] = []
        self._hosts: list[Host] = []
        self._kinds: dict[tuple[str, int, str], int] = {}

    def seen(self, line: bytes) -> bytes:
        """Takes note of a line, and gives it back."""
        entry = lines.parse(line)
        if entry is None:
            self.found.damaged += 1
        elif entry.run == self._run:
            self._see(entry)
        return line

    def _see(self, entry: Entry) -> None:
        found = self.found
        found.lines += 1
        if entry.is_own_check:
            found.own += 1
            return
        at = seconds_of(entry.ts)
        at = at if at is not None else found.last_at or self._start
        times = max(entry.times, 1)
        allowed, denied = (times, 0) if entry.verdict == "allow" else (0, times)
        found.first_at = at if found.first_at is None else min(found.first_at, at)
        found.last_at = at if found.last_at is None else max(found.last_at, at)
        found.denied += denied
        found.allowed += allowed
        if found.bars is None:
            found.bars = Bars(min(at, self._start))
        found.bars.add(at, allowed, denied)
        if entry.injected and entry.credential and not denied:
            name = entry.credential
            if name in found.credentials or len(found.credentials) < 100:
                found.credentials[name] = found.credentials.get(name, 0) + 1
        found.secrets += entry.secret is not None
        host = self._host(entry, at, allowed, denied)
        group = self._in_gap(entry, at, allowed, denied)
        if denied:
            self._denial(entry, at, denied)
        elif 0 < entry.seq < _MOST_JOINED:
            for places, place in ((self._group_of, group), (self._host_of, host)):
                if entry.seq >= len(places):
                    places.extend(array("I", bytes(4 * (entry.seq + 1 - len(places)))))
                places[entry.seq] = place

    def _host(self, entry: Entry, at: float, allowed: int, denied: int) -> int:
        found = self.found
        port = "" if entry.port in (80, 443) else f":{entry.port}"
        name = f"[{entry.host}]{port}" if ":" in entry.host else f"{entry.host}{port}"
        host = found.hosts.get(name)
        if host is None and len(found.hosts) >= MAX_HOSTS:
            name, host = "", found.hosts_more
        if host is None:
            host = Host(name, at, at, place=len(self._hosts) + 1)
            self._hosts.append(host)
            if name:
                found.hosts[name] = host
            else:
                found.hosts_more = host
        host.first_at, host.last_at = min(host.first_at, at), max(host.last_at, at)
        host.denied += denied
        host.allowed += allowed
        return host.place

    def _in_gap(self, entry: Entry, at: float, allowed: int, denied: int) -> int:
        """Puts the request between the steps; the place of its group, 0 when it is only counted."""
        found = self.found
        gap = found.gaps.setdefault(bisect_right(self._steps, at), Gap())
        key = _alike(entry)
        group = gap.groups.get(key)
        if group is None:
            if len(gap.groups) >= MAX_ROWS_A_GAP or found.rows >= MAX_ROWS:
                gap.more_denied += denied
                gap.more_allowed += allowed
                return 0
            group = gap.groups[key] = Group(entry, entry.path, at)
            found.rows += 1
            self._groups.append(group)
            group.place = len(self._groups)
        _join(group, entry, at, allowed + denied)
        return group.place

    def _denial(self, entry: Entry, at: float, times: int) -> None:
        denials = self.found.denials
        key = _alike(entry)
        group, mixed = denials.get(key), False
        if group is None:
            place = (entry.host, entry.port, entry.reason)
            # Of a host that is asked for very many things, the rest is one kind.
            if mixed := self._kinds.get(place, 0) >= MAX_KINDS_A_HOST:
                key = place
                group = denials.get(key)
            elif len(denials) < MAX_KINDS:
                self._kinds[place] = self._kinds.get(place, 0) + 1
        if group is None:
            if len(denials) >= MAX_KINDS:
                self.found.denied_more += times
                return
            group = denials[key] = Group(entry, entry.path, at, mixed=mixed)
        _join(group, entry, at, times)

    def join(self, log: Log) -> None:
        """Add what became of the allowed requests."""
        needle, of_run = f'"{self._run}.'.encode("utf-8", "surrogateescape"), f"{self._run}."
        nobody = Group(Entry("", "", "", "", "", "", "", "", 0, ""), "", 0.0)
        for line in (line for _, piece in logread.blocks(log, 0, log.size, (needle,)) for line in lines_of(piece)):
            if needle not in line:
                continue
            came = outcomes.parse(line)
            if came is None:
                self.found.outcomes_damaged += line.endswith(b"\n")
                continue
            number = came.id.removeprefix(of_run)
            if number == came.id or not number.isdecimal() or len(number) > 18:
                continue
            seq = int(number)
            if not 0 < seq < len(self._host_of) or not self._host_of[seq]:
                continue
            host = self._hosts[self._host_of[seq] - 1]
            group = self._groups[self._group_of[seq] - 1] if self._group_of[seq] else nobody
            self._host_of[seq] = 0  # one outcome for each
            up, down, failed = came.bytes_up, came.bytes_down, came.failed
            for part in (group, host, self.found):
                part.up += up
                part.down += down
                part.failed += failed
            if failed:
                group.error = group.error or came.text
            elif group.status is None:
                group.status = came.status


def _alike(entry: Entry) -> tuple[object, ...]:
    """What requests have in common that are shown as one."""
    secret = entry.secret and (entry.secret.credential, entry.secret.kind, entry.secret.where)
    why = (entry.verdict, entry.reason, entry.at, entry.nearest, secret)
    return (entry.method, entry.scheme, entry.host, entry.port, shape(entry.path), *why)


def _join(group: Group, entry: Entry, at: float, times: int) -> None:
    group.times += times
    group.at, group.last_at = min(group.at, at), max(group.last_at, at)
    if entry.path != group.entry.path:
        group.path = shape(group.entry.path)
