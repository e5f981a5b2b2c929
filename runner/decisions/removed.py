"""What to say of decisions that are gone because `impyard decisions rotate --older-than` removed their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from impyard.addon.errors import ImpyardError
from impyard.runner.text import columns_of, counted, visible, wrapped
from impyard.runner.typed import as_typed

if TYPE_CHECKING:
    from impyard.runner.decisions.filelist import Known


def files(known: Known, log: Path) -> dict[str, int]:
    """The files of a log that were removed on purpose, and how many lines were in each."""
    return {name: count for name, count in known.removed.items() if name.startswith(f"{log.stem}-")}


def words(log: Path, known: Known | None = None, run: str | None = None) -> str:
    """How much of a log was removed on purpose, and by what; of a run, where more is known of that. Nothing where
    nothing was, or that cannot be read."""
    if known is None:
        from impyard.runner.decisions.filelist import FileList  # it loads the judge, which the views do without

        try:
            known = FileList(log.parent).read()
        except ImpyardError:
            return ""
    if run is not None and (known_of_run := of_run(known, run)):
        return known_of_run
    gone = files(known, log)
    if not gone:
        return ""
    lines, count = counted(sum(gone.values()), "older line"), counted(len(gone), "file")
    last = f", the last of them {max(gone)}," if len(gone) > 1 else f", {max(gone)},"
    verb = "was" if sum(gone.values()) == 1 else "were"
    return as_typed(f"{lines} in {count}{last} {verb} removed by `impyard decisions rotate --older-than`")


def of_run(known: Known, run: str) -> str:
    """How much of a run was removed on purpose, by what and when; nothing where nothing of it is known to be."""
    if run not in known.ends:
        return ""
    count, _ = known.ends[run]
    day = known.when.get(known.last_file.get(run, ""), "")[:10]
    verb, on = "was" if count == 1 else "were", f" on {day}" if day else ""
    what = f"{counted(count, 'line')} of run {run} {verb} removed by `impyard decisions rotate --older-than`{on}"
    return as_typed(what)


def say(log: Path, known: Known | None = None, run: str | None = None) -> None:
    """Note it on stderr, where there is anything to say."""
    if text := words(log, known, run):
        import click  # the rest is also for those who print nothing

        click.echo(wrapped(f"note: {visible(text)}", columns_of(sys.stderr), "  "), err=True)
