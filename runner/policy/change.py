"""The last steps of a command that changes a policy: what else it decides otherwise, the yes, and the writing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.addon.policy import Policy, shown
from impyard.runner.decisions.lines import Selection
from impyard.runner.policy import write as policywrite
from impyard.runner.policy.loaded import policy_of
from impyard.runner.policy.put import Contents
from impyard.runner.policy.read import read_files
from impyard.runner.policy.recorded import decisions, key_of, upgrade_of
from impyard.runner.policy.replay import NotRecorded, Recorded, Replay
from impyard.runner.text import columns_of, shortened, visible, wrapped
from impyard.runner.typed import as_typed

LONGEST = 120  # characters of a request that is named
SHOWN = 5  # other requests that a change decides otherwise
MOST_ASKED = 50_000  # different requests that are judged again
# Denials for want of a rule: one that is made for a request answers those like it as well.
MEANT = ("no-rule", "unlisted-host", "websocket")


@dataclass(frozen=True, slots=True)
class Flip:
    """A recorded request, other than those that the change is for, which it decides otherwise."""

    what: str
    id: str
    opened: bool


def read(paths: Sequence[Path], root: Path | None) -> tuple[Contents, Policy]:
    """The policy's files and what they say. Raises PolicyError for one that must not be used."""
    contents = tuple(read_files(paths, root))
    return contents, policy_of(contents, root)


def flips(log: Path, hosts: Iterable[str], before: Policy, after: Policy, wanted: Collection[Recorded]) -> list[Flip]:
    """What of all that was recorded for these hosts the two policies decide differently, each request once.

    wanted: the requests that the change is for. One that differs from them in what a rule for them cannot tell apart,
    above all in its query, is meant too, unless something that a person wrote denied it. A change of an entry about one
    host decides nothing about others.
    """
    found: list[Flip] = []
    seen: set[tuple[str, ...]] = {_whole(asked) for asked in wanted}
    alike = {key_of(asked) for asked in wanted}
    was, is_now = Replay(before), Replay(after)
    meant = set(hosts)
    most = len(seen) + MOST_ASKED
    for asked in decisions(log, Selection(hosts=sorted(meant))):
        if asked.host not in meant or (key := _whole(asked)) in seen or len(seen) > most:
            continue
        seen.add(key)
        with suppress(NotRecorded):
            then, opened = was.decision(asked), is_now.decision(asked).allowed
            if then.allowed is opened:
                continue
            if key_of(asked) in alike and (then.allowed or then.reason in MEANT):
                continue
            query = f"?{asked.query}" if asked.query else ""
            found.append(Flip(" ".join(key_of(asked)) + query, asked.id, opened))
    return found


def _whole(asked: Recorded) -> tuple[str, ...]:
    """All that tells recorded requests apart."""
    return *key_of(asked), asked.query, upgrade_of(asked)


def carry_out(before: Contents, after: Contents, root: Path, others: Sequence[Flip], *, yes: bool) -> bool:
    """Show the differences, say what else changes, ask, and replace the files; whether it was done.

    With `yes` the caller holds the lock (`lock`) from before the files were read. Raises ImpyardError.
    """
    changed = [(path, old, new) for (path, old), (_, new) in zip(before, after, strict=True) if old != new]
    for path, old, new in changed:
        policywrite.check_changeable(path, root)
        policywrite.show_diff(policywrite.diff(old, new, shown(path, root)))
    say_flips(others)
    if yes and others:
        raise unasked()
    now = dict(before)
    for path, old, new in changed:
        if not policywrite.sure(path, root, yes=yes):
            return False
        policywrite.check_same(tuple(now.items()), root, but=path)
        policywrite.replace(path, root, old, new, is_locked=yes)
        now[path] = new
        click.echo(f"changed {visible(shown(path, root))}; it counts from the next request on", err=True)
    return True


def unasked() -> ImpyardError:
    """For --yes where more changes than what was asked for."""
    return ImpyardError(
        "more would change than what was asked for, so nothing was written unasked",
        hint="look at it, and answer the question without --yes",
    )


def lock(paths: Sequence[Path], held: ExitStack) -> None:
    """Hold the locks of these files' folders, for a change that nobody is asked about."""
    for folder in sorted({path.resolve().parent for path in paths}):
        held.enter_context(policywrite.locked(folder / "policy"))


def say_flips(others: Sequence[Flip]) -> None:
    """Name, on stderr, what else the change decides otherwise."""
    for opened, words in ((True, "allow"), (False, "deny")):
        some = [flip for flip in others if flip.opened is opened]
        if some:
            click.secho(f"this would also {words} what was recorded as:", fg="red", err=True)
            for flip in some[:SHOWN]:
                click.echo(visible(f"  {shortened(flip.what, LONGEST)} ({flip.id})"), err=True)
            if len(some) > SHOWN:
                click.echo(f"  and {len(some) - SHOWN} more", err=True)


def say(text: str, **style: bool | str) -> None:
    """A remark on stderr; commands in it as they can be typed, what a terminal would obey escaped."""
    text = wrapped(visible(as_typed(text)), columns_of(sys.stderr), "  ")
    click.secho(text, err=True, **style)  # type: ignore[arg-type]
