"""What `runs apply` would do: the agent's changes, brought together with your checkout as it is now.

Each file by itself, three ways: what the agent was given, what it left, what you have. Yours counts as git would store
it, by your own settings; no filter is run for that. A file that you changed and did not commit is not touched, unless
you have it just as the agent got it. Only looks, and stores what was merged in the scratch repository.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from impyard.runner.clone.batch import Batch
from impyard.runner.clone.git import Entry, Project, blob_id
from impyard.runner.clone.held import held_back
from impyard.runner.clone.paths import LINK, SUBMODULE, remark
from impyard.runner.clone.places import NOWHERE, Place, is_emptied, look
from impyard.runner.clone.work import Work

ATTRIBUTES = ("text", "crlf", "eol", "ident", "working-tree-encoding", "filter")
FILES = ("100644", "100755")
BINARY_BYTES = 8000  # git looks for a NUL in them (xdiff-interface.c, FIRST_FEW_BYTES)
# What stands in the way and is not committed: it can be put away.
NOT_COMMITTED = "you have changed it and not committed that"
IN_THE_WAY = "a file of yours is there"
OTHER = "something else has its place"


@dataclass(frozen=True, slots=True)
class Step:
    """One file to write, or to remove (`entry` None). `kind` is "add", "change", "delete" or "merge"; `place` is what
    lies there once the plan's removals are made, `seen` what lies there now; `converts`: git changes the bytes when it
    checks this file out; `remark` for people."""

    path: bytes
    kind: str
    entry: Entry | None
    place: Place
    converts: bool = False
    remark: str = ""
    seen: Place = NOWHERE


@dataclass(slots=True)
class Plan:
    """`steps` in the order of paths. `held` are changes that are not taken, with why, and whether naming them helps;
    `refused` those that cannot be brought together with your checkout; `same` how many you have already."""

    steps: list[Step] = field(default_factory=list)
    held: dict[bytes, tuple[str, bool]] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    same: int = 0


def make_plan(work: Work, project: Project, take: Collection[bytes]) -> Plan:
    """What would be done. `take` are changes to take that are held back otherwise. Raises ImpyardError and OSError."""
    with _Yours(work, project, work.left.changes) as looks:
        return _plan(work, project, take, looks)


def _plan(work: Work, project: Project, take: Collection[bytes], looks: _Yours) -> Plan:
    changes = work.left.changes
    filters = {path: name for path in changes if (name := looks.filter_of(path))}
    plan = Plan(held=held_back(work, project, take, filters))
    for path, name in filters.items():
        plan.held[path] = (f"your git has a filter for it (`{name}`), which is not run here", False)
    wanted = {path: entry for path, entry in changes.items() if path not in plan.held}
    for path, new in sorted(wanted.items()):
        seen = place = look(project.root, path)
        if place.kind in ("over a link", "in the way", "folder") and _gives_way(place, path, wanted, project.root):
            place = NOWHERE
        step, reason = _decide(looks, path, work.base.get(path), new, place)
        if reason:
            plan.refused[path] = reason
        elif step is not None:
            plan.steps.append(replace(step, seen=seen))
        else:
            plan.same += 1
    return plan


_KEPT = Entry("", "")


class _Yours(AbstractContextManager["_Yours"]):
    """The checkout as git sees it: what is committed, what is staged, and what your attributes say."""

    def __init__(self, work: Work, project: Project, paths: Collection[bytes]) -> None:
        self.work, self.project = work, project
        self.head = project.tree(project.head)
        self.staged, self.open, self.sparse = project.index()
        self.attributes = _attributes(project, paths)
        self.autocrlf = (project.setting("core.autocrlf") or "false").lower() in ("true", "input")

        others = [work.scratch.objects, *work.scratch.others]
        self._stored = Batch(partial(project.start, others=others))
        self._checked_out = Batch(partial(project.start, others=others), filters=True)

    def __exit__(self, *_: object) -> None:
        self._stored.__exit__()
        self._checked_out.__exit__()

    def filter_of(self, path: bytes) -> str:
        value = self.attributes.get(path, {}).get("filter", "")
        return value if value not in ("", "unspecified", "unset") else ""

    def converts(self, path: bytes) -> bool:
        found = self.attributes.get(path, {})
        return self.autocrlf or any(value not in ("unspecified", "unset") for value in found.values())

    def entry(self, path: bytes, place: Place) -> Entry | None:
        """What git would store of this place; None where there is nothing."""
        form = self.work.made.form
        if place.kind == "link":
            return Entry(LINK, blob_id(place.data, form))
        if place.kind != "file":
            return None
        name = blob_id(place.data, form)
        if self.converts(path) and name not in (known := list(dict.fromkeys(entry.id for entry in self._known(path)))):
            full = os.fsencode(self.project.prefix) + path
            for one in known:  # as it was checked out: what git would make of it needs a process for each file
                if self._checked_out.content(one, full) == place.data:
                    return Entry(FILES[place.is_program], one)
            words: tuple[str | bytes, ...] = ("hash-object", b"--path=" + full, "--stdin")
            name = self.project.git(*words, stdin=place.data, doing="read your files", at_top=True).decode().strip()
        return Entry(FILES[place.is_program], name)

    def is_clean(self, path: bytes, mine: Entry | None) -> bool:
        """Whether all of it is committed."""
        committed, staged = self.head.get(path), self.staged.get(path)
        if path in self.open:
            return False
        if mine is None:
            return committed is None and staged is None
        return mine.same(committed) and mine.same(staged)

    def is_text(self, new: Entry | None) -> bool:
        """Whether `runs diff` shows what is in a file of the agent's, by git's rule."""
        return new is None or b"\0" not in self.work.scratch.content(new.id)[:BINARY_BYTES]

    def content(self, entry: Entry) -> bytes:
        return self._stored.content(entry.id)

    def _known(self, path: bytes) -> list[Entry]:
        trees: tuple[Mapping[bytes, Entry | None], ...] = (self.staged, self.work.base, self.work.left.changes)
        return [entry for tree in trees if (entry := tree.get(path)) is not None and entry.mode in FILES]


def _decide(yours: _Yours, path: bytes, old: Entry | None, new: Entry | None, place: Place) -> tuple[Step | None, str]:
    """The step, or why there can be none; neither where there is nothing to do."""
    if place.kind == "over a link":
        return None, "a folder on the way to it is a link"
    if place.kind in ("in the way", "folder", "other"):
        return None, OTHER
    mine = yours.entry(path, place)
    kind = "delete" if new is None else "add" if mine is None else "change"
    step = Step(path, kind, new, place, yours.converts(path), remark(path, new, old, yours.is_text(new)))
    staged = yours.staged.get(path)
    if mine is None and path in yours.sparse:
        has_it = new is not None and new.same(staged)
        return None, "" if has_it else "your sparse checkout leaves it out"
    if new is None and mine is None:
        return None, ""
    if new is not None and new.same(mine):
        return None, ""
    if staged is not None and staged.mode == SUBMODULE:
        return None, "it is a submodule of yours"
    is_free = mine is None and old is None and yours.is_clean(path, mine)
    if is_free or (mine is not None and mine.same(old)):
        return step, ""
    if not yours.is_clean(path, mine):
        if _is_merged(yours, step, old, new, mine):
            return None, ""
        return None, NOT_COMMITTED if staged else IN_THE_WAY
    if mine is None:
        return None, "you have removed it, the agent has changed it"
    if new is None:
        return None, "you have changed it, the agent has removed it"
    if old is None or not {old.mode, new.mode, mine.mode} <= set(FILES):
        return None, "both of you have made it"
    return _merge(yours, step, old, new, mine)


def _is_merged(yours: _Yours, step: Step, old: Entry | None, new: Entry | None, mine: Entry | None) -> bool:
    """Whether yours is what an `apply` before has made of what you had committed."""
    committed = yours.head.get(step.path)
    if committed is None or old is None or new is None or mine is None:
        return False
    if not {old.mode, new.mode, committed.mode} <= set(FILES):
        return False
    merged, _ = _merge(yours, step, old, new, committed)
    return merged is not None and mine.same(merged.entry)


def _merge(yours: _Yours, step: Step, old: Entry, new: Entry, mine: Entry) -> tuple[Step | None, str]:
    """Both changes in one file."""
    mode = new.mode if new.mode != old.mode else mine.mode
    if new.id == old.id:
        merged = mine.id
    else:
        scratch = yours.work.scratch
        folder = scratch.folder / "merge"
        folder.mkdir(exist_ok=True)
        files = [folder / name for name in ("yours", "before", "agent")]
        contents = (yours.content(mine), scratch.content(old.id), scratch.content(new.id))
        for file, data in zip(files, contents, strict=True):
            file.write_bytes(data)
        status, data = scratch.ask("merge-file", "-p", "-q", *files, doing="merge", fine=range(256))
        if status:  # the number of conflicts; 255 for what is no text
            return None, "you and the agent have changed the same lines" if status < 128 else "it is no text to merge"
        merged = scratch.put(data)
    entry = Entry(mode, merged)
    if entry.same(mine):
        return None, ""
    return Step(step.path, "merge", entry, step.place, step.converts, step.remark), ""


def _gives_way(place: Place, path: bytes, wanted: Mapping[bytes, Entry | None], root: Path) -> bool:
    """Whether what lies at, or on the way to, a path is removed by the same plan."""
    if wanted[path] is None:
        return True  # it is gone
    if place.kind == "folder":
        return is_emptied(root, path, lambda inner: wanted.get(inner, _KEPT) is None)
    parts = path.split(b"/")
    return any(wanted.get(b"/".join(parts[:depth]), _KEPT) is None for depth in range(1, len(parts)))


def _attributes(project: Project, paths: Collection[bytes]) -> dict[bytes, dict[str, str]]:
    prefix = os.fsencode(project.prefix)
    names = b"".join(prefix + path + b"\0" for path in paths)
    words = ("check-attr", "-z", "--stdin", *ATTRIBUTES)
    fields = project.git(*words, stdin=names, doing="read your attributes", at_top=True).split(b"\0")
    found: dict[bytes, dict[str, str]] = {}
    for path, name, value in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        found.setdefault(path[len(prefix) :], {})[name.decode()] = value.decode("utf-8", "replace")
    return found
