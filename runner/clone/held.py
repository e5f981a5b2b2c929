"""Which of an agent's changes are held back until they are asked for by name: what changes what runs, or who decides.

One rule for all: a path is held back when git would obey it, by its name or by what your own settings and repository
name, and a link when it leads out, over whatever other links. What is held back changes where the rest leads, so this
is looked at again until nothing more is found.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from impyard.runner.clone.git import Entry, Project
from impyard.runner.clone.links import Links
from impyard.runner.clone.obeyed import Obeyed, named_by_git
from impyard.runner.clone.paths import LINK, REPOSITORY, in_repository, may_be_secret, repositories, why_held
from impyard.runner.clone.work import Work

TURNS = 20  # then all links are held back
Held = dict[bytes, tuple[str, bool]]
_KEPT = Entry("", "")


def held_back(work: Work, project: Project, take: Collection[bytes], others: Collection[bytes] = ()) -> Held:
    """The agent's changes that are taken only by name, with why, and whether naming them helps; those in `take` are
    not among them. `others` are changes that are not made anyway."""
    changes = {path: entry for path, entry in work.left.changes.items() if path not in others}
    texts = {path: work.scratch.content(entry.id) for path, entry in changes.items() if entry and entry.mode == LINK}
    own = _own_links(work, changes)
    named = named_by_git(project)
    now = Links(project.root, {})
    found: Held = {}
    for path, reason in _by_names(work, project, changes).items():
        if not taken(path, take):
            found[path] = (reason, True)
    for turn in range(TURNS + 1):
        left = {path: entry for path, entry in changes.items() if path not in found}
        links = Links(project.root, {path: texts.get(path) for path in left})
        more = _by_places(left, texts, own, links, Obeyed(named, (now, links)))
        if turn == TURNS:
            more |= {path: "it is one of many links that lead over one another" for path in left if path in texts}
        more = {path: reason for path, reason in more.items() if not taken(path, take)}
        if not more:
            break
        found |= {path: (reason, True) for path, reason in more.items()}
    return found


def taken(path: bytes, take: Collection[bytes]) -> bool:
    return any(path == name or path.startswith(name + b"/") for name in take)


def _by_names(work: Work, project: Project, changes: Mapping[bytes, Entry | None]) -> dict[bytes, str]:
    """What is held back for what it is called, or holds."""
    top = os.fsencode(project.root)
    kept = [path for path in work.base if changes.get(path, _KEPT) is not None]
    new = [path for path, entry in changes.items() if entry]
    bare = repositories(new, kept, lambda path: os.path.lexists(top + b"/" + path))
    if not project.prefix:
        bare.discard(b"")  # git sees the .git there first
    found: dict[bytes, str] = {}
    for path, entry in changes.items():
        is_file = entry is not None and entry.mode != LINK
        data = work.scratch.content(entry.id) if entry and is_file and may_be_secret(path) else None
        if reason := why_held(path, entry, data):
            found[path] = reason
        elif entry is not None and in_repository(path, bare):
            found[path] = REPOSITORY
    return found


def _by_places(
    changes: Mapping[bytes, Entry | None],
    texts: Mapping[bytes, bytes],
    own: Mapping[bytes, bytes],
    links: Links,
    obeyed: Obeyed,
) -> dict[bytes, str]:
    """What is held back for where it lies, or leads."""
    found: dict[bytes, str] = {}
    for path, entry in changes.items():
        reason = obeyed.why(path, is_gone=entry is None)
        if not reason and path in texts:
            reason = links.why_held(path, texts[path])[0]
        if reason:
            found[path] = reason
    if len(found) < len(changes):
        for path, text in own.items():
            reason, way = links.why_held(path, text)
            if reason:
                found |= {inner: "a link of yours would lead out over it" for inner in way if inner in changes}
    return found


def _own_links(work: Work, changes: Mapping[bytes, Entry | None]) -> dict[bytes, bytes]:
    """The links that the agent was given and has left as they are: a change beside them may turn them."""
    own = [(path, entry) for path, entry in work.base.items() if entry.mode == LINK and path not in changes]
    return {path: work.scratch.content(entry.id) for path, entry in own}
