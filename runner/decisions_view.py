"""`impyard decisions`: what the judge decided, read from the log. It only reads, and takes no line on trust."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import msgspec

from impyard.runner import logread, runs
from impyard.runner.project import find_root
from impyard.runner.text import visible

INTERRUPTED = 130
OWN_CHECK = "(impyard's own check)"


class Nearest(msgspec.Struct, frozen=True):
    """The rule that came closest to a request that no rule decided, and the field that failed."""

    at: str
    failed: str


class Entry(msgspec.Struct, frozen=True):
    """The fields of a decision line that are shown. Unknown fields are left alone, missing ones are damage."""

    ts: str
    id: str
    run: str
    verdict: str
    reason: str
    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    rule: str | None = None
    at: str | None = None
    nearest: Nearest | None = None

    @property
    def url(self) -> str:
        """The request's URL; a port that is the scheme's own is left out. Query values come redacted from the log."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == {"https": 443, "http": 80}.get(self.scheme) else f":{self.port}"
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{host}{port}{self.path}{query}"

    @property
    def is_own_check(self) -> bool:
        """Whether this asks for a name that impyard itself asks for before an agent starts. The agent could ask for it
        too, so such a line is marked and never hidden."""
        return self.reason == "canary" or self.host == f"{self.run}.probe.impyard.invalid"


def parse(text: bytes) -> Entry | None:
    """The decision that a log line holds, or None when the line is damaged."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


_DECODER = msgspec.json.Decoder(Entry)


class Selection:
    """Which lines are wanted; counts what it had to leave out as damaged."""

    def __init__(self, run: str | None, denied: bool) -> None:
        self.run = run
        self.denied = denied
        self.damaged = 0
        self.first_damage: logread.Line | None = None
        # A line without these bytes cannot be wanted, which spares a million-line log the parsing.
        self.needles = [
            needle.encode("utf-8", "surrogateescape") for needle in (run, "deny" if denied else None) if needle
        ]

    def __call__(self, line: logread.Line) -> bool:
        if any(needle not in line.text for needle in self.needles):
            return False
        entry = parse(line.text)
        if entry is None:
            self.damaged += 1
            if self.first_damage is None or line.offset < self.first_damage.offset:
                self.first_damage = line
            return False
        return (self.run is None or entry.run.startswith(self.run)) and not (self.denied and entry.verdict != "deny")


@click.command()
@click.option("--project", type=click.Path(path_type=Path), help="The project's folder (default: found from here).")
@click.option(
    "--run", "run", metavar="ID", help="Only this run; the beginning of its id will do, `last` is the newest."
)
@click.option("--denied", is_flag=True, help="Only denials.")
@click.option(
    "-n",
    "count",
    metavar="N",
    default=50,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many, counted from the newest.",
)
@click.option("--follow", is_flag=True, help="Go on with each new decision until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="The log's own lines, as JSON.")
@click.option(
    "--verify",
    "verifying",
    is_flag=True,
    help="Check the whole log's hash chains against each other and the runs' receipts.",
)
def decisions(
    project: Path | None, run: str | None, denied: bool, count: int, follow: bool, as_json: bool, verifying: bool
) -> int:
    """Show what the judge decided, newest last.

    In a terminal a table; piped, one line per decision with tab-separated fields: time, verdict, method,
    place, reason, rule, id. Damaged lines are left out and counted on stderr.
    """
    root = find_root(project)
    log = root / "runs" / "decisions.jsonl"
    if verifying and (denied or follow):
        raise click.UsageError("--verify reads the whole log; it goes with --run and --json only")
    unknown = None
    if run is not None:
        try:
            run = runs.resolve(root, run)
        except runs.UnknownRun as exc:
            if not run:
                raise
            unknown = exc
    try:
        if verifying:
            from impyard.runner.decisions_check import verify_log  # it loads the judge, which the views do without

            found = verify_log(root, log, run, as_json)
        else:
            found = show(log, run, denied=denied, count=count, following=follow, as_json=as_json)
    except KeyboardInterrupt:  # how following ends; nothing was left half done
        return INTERRUPTED
    if unknown and not found and not ((denied or not count) and _knows(log, run)):
        raise unknown
    return 0


def show(log: Path, run: str | None, *, denied: bool, count: int, following: bool, as_json: bool) -> bool:
    """Print the last `count` wanted lines of `log`, then, if `following`, each new one. Whether there was any."""
    selection = Selection(run, denied)
    descriptor = logread.open_log(log)
    if descriptor is None and not following:
        click.echo(f"no decisions yet: {log} does not exist", err=True)
        return False
    size, lines = 0, []
    if descriptor is not None:
        try:
            size = _whole_size(descriptor) if following else os.fstat(descriptor).st_size
            lines = logread.last(descriptor, count, selection, size, selection.needles)
        finally:
            os.close(descriptor)
    emit = emitter(as_json)
    emit(lines)
    warn_of_damage(selection, log)
    if not following:
        if not lines and not as_json:
            click.echo(_nothing(selection, count), err=True)
        return bool(lines)
    for line in logread.follow(log, size):
        damaged = selection.damaged
        if selection(line):
            emit([line])
        elif selection.damaged > damaged:
            click.echo(f"warning: damaged line at byte {line.offset} of {log}", err=True)
    return True


def _knows(log: Path, run: str | None) -> bool:
    """Whether the log has a decision of this run at all."""
    selection = Selection(run, denied=False)
    descriptor = logread.open_log(log)
    if descriptor is None:
        return False
    try:
        return bool(logread.last(descriptor, 1, selection, needles=selection.needles))
    finally:
        os.close(descriptor)


def warn_of_damage(selection: Selection, log: Path) -> None:
    """Say on stderr how many damaged lines were met and what kind the first one is."""
    line = selection.first_damage
    if line is None:
        return
    kind = "is no decision" if line.ended else "is half-written: its end is missing"
    count = "1 damaged line" if selection.damaged == 1 else f"{selection.damaged} damaged lines, the first"
    click.echo(f"warning: {count} left out: byte {line.offset} of {log} {kind}", err=True)
    click.echo("hint: `impyard decisions --verify` checks every line", err=True)


def _nothing(selection: Selection, count: int) -> str:
    if count == 0:
        return "nothing shown: -n is 0"
    kind = "denials" if selection.denied else "decisions"
    return f"no {kind}" + (f" of run {visible(selection.run)}" if selection.run else " yet")


def _whole_size(descriptor: int) -> int:
    """The file's size up to its last newline, so that following begins with the line that is being written."""
    last = next(logread.from_end(descriptor), None)
    if last is None:
        return 0
    return last.offset + len(last.text) + 1 if last.ended else last.offset


def emitter(as_json: bool) -> Callable[[list[logread.Line]], None]:
    """What prints wanted lines on stdout: as JSON, as a table in a terminal, or as one plain line each."""
    if as_json:
        return lambda lines: _write(json_line(line.text) for line in lines)
    if not sys.stdout.isatty():
        return lambda lines: _write(plain_line(entry) for entry in _entries(lines))
    # rich is slow to import, and only a terminal needs it.
    from impyard.runner.decisions_table import Table

    table = Table()
    return lambda lines: table.add(_entries(lines))


def _entries(lines: Iterable[logread.Line]) -> list[Entry]:
    return [entry for line in lines if (entry := parse(line.text)) is not None]


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plain_line(entry: Entry) -> str:
    """One decision as tab-separated fields, nothing shortened, no control character left."""
    fields = (entry.ts, entry.verdict, entry.method, entry.url, entry.reason, rule_text(entry), entry.id)
    return "\t".join(visible(field) for field in fields)


def rule_text(entry: Entry) -> str:
    """The deciding rule and its place, or the rule that came closest, or a mark, or `-`."""
    if entry.at is not None:
        return f"{entry.at} {entry.rule}" if entry.rule else entry.at
    if entry.nearest is not None:
        return f"closest {entry.nearest.at} ({entry.nearest.failed})"
    return entry.rule or (OWN_CHECK if entry.is_own_check else "-")


def json_line(text: bytes) -> str:
    """The line as it is in the log; one that holds raw characters that a terminal obeys is written in ASCII escapes."""
    line = text.decode("utf-8", "replace")
    if line.isprintable():
        return line
    return json.dumps(json.loads(line), separators=(",", ":"), ensure_ascii=True)
