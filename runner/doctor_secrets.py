"""What `impyard doctor` says of secrets in the project: where they are and of which kind, never what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.doctor import Check
from impyard.runner.text import counted, visible

LISTED = 20  # files that a run keeps from the box
LISTED_SPOTS = 200


def secret_checks(project: Path | None, *, thorough: bool) -> Iterator[Check]:
    """What a run keeps from the box; `thorough`: and the secrets in the files that it shows."""
    from impyard.certs.authority import data_dir
    from impyard.runner.project import check_root, find_root
    from impyard.runner.secretfiles.scan import CHANNEL, scan, shown

    root = find_root(project)
    try:
        check_root(root, (data_dir(),))
    except ImpyardError:
        return  # said of the project already, and too much to look through
    found = scan([root])
    files = [f"{item.how}: {shown(item.path, root)} ({item.kind})" for item in found if item.kind != CHANNEL]
    more = [f"and {len(files) - LISTED} more"] if len(files) > LISTED else []
    yield Check("secrets", "ok", "\n".join([*files[:LISTED], *more]) or "no file that a run would keep from the box")
    if thorough:
        yield _in_files(root, [item.path for item in found])


def _in_files(root: Path, kept: list[Path]) -> Check:
    from impyard.runner.secretfiles.scan import shown
    from impyard.runner.secretfiles.search import search

    result = search(root, kept)
    looked = f"{counted(result.files, 'file')} looked through" + ("" if result.complete else ", and there are more")
    if not result.spots:
        return Check("in files", "ok" if result.complete else "warn", f"no secret that the box would see; {looked}")
    spots = [f"{shown(spot.path, root)}:{spot.line}  {spot.kind}" for spot in result.spots]
    more = [f"and {len(spots) - LISTED_SPOTS} more"] if len(spots) > LISTED_SPOTS else []
    return Check(
        "in files",
        "warn",
        visible(looked) + ", and the box sees:\n" + "\n".join([*spots[:LISTED_SPOTS], *more]),
        "move what is a real secret to a file like .env, which the box does not see, and replace it where it was used",
    )
