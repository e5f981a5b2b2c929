"""A project on an engine of the tests' own, and what is there of both: whatever a run leaves behind shows."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.runner.image import ensure_image
from tests.bench.table import Row
from tests.support.ownengine import CGROUPS, OwnEngine, mounts_under, own_engine
from tests.support.project import Caller, Project
from tests.support.waiting import wait_until

# An engine keeps some descriptors for a while (its own events, containerd's streams).
MORE_HANDLES = 8
SETTLE_S = 15.0


def this_caller() -> Caller:
    """Whoever runs this."""
    user = pwd.getpwuid(os.geteuid())
    return Caller(user.pw_uid, user.pw_gid, user.pw_name, Path(user.pw_dir))


@contextlib.contextmanager
def engine_with_image(*, live_restore: bool = False) -> Iterator[OwnEngine]:
    """An engine of our own that has the box's image."""
    with own_engine(ensure_image(lambda line: print(line, file=sys.stderr)), live_restore=live_restore) as own:
        yield own


@dataclass(slots=True)
class Bed:
    """One project on one engine. `before`: what there was in the beginning, and how many open files the engine had.
    `run_s`: how long a run takes."""

    own: OwnEngine
    project: Project
    before: frozenset[str]
    handles: int
    run_s: float

    def leftovers(self, settle_s: float = SETTLE_S) -> list[str]:
        """What is there now that was not there in the beginning, after an engine has had time for what it does late."""
        found: list[str] = []

        def is_settled() -> bool:
            found[:] = self._leftovers()
            return not found

        with contextlib.suppress(AssertionError):
            wait_until(is_settled, settle_s)
        return found

    def recount(self) -> None:
        """After the engine has been started anew."""
        self.handles = handles(self.own)

    def _leftovers(self) -> list[str]:
        left = self.project.leftovers() + sorted(things(self.own, self.project) - self.before)
        if (more := handles(self.own) - self.handles) > MORE_HANDLES:
            left.append(f"{more} more open files of the engine")
        return left


@contextlib.contextmanager
def bed(own: OwnEngine) -> Iterator[Bed]:
    """A project whose temporary files lie in a folder of their own. One run has warmed it up."""
    with tempfile.TemporaryDirectory(prefix="impyard-soak-") as folder:
        base = Path(folder).resolve()
        project = Project(base, caller=this_caller(), own=own)
        (base / "tmp").mkdir()
        project.env["TMPDIR"] = str(base / "tmp")
        try:
            first = project.demo("write 4 to answer.txt")
            assert first.code == 0, first
            yield Bed(own, project, things(own, project), handles(own), first.seconds)
        finally:
            project.clean()


def things(own: OwnEngine, project: Project) -> frozenset[str]:
    """What a run could leave on this machine outside its own folder, each as a line of text."""
    base = project.base
    found = [f"container {line}" for line in own.docker("ps", "-a", "--format", "{{.Names}} {{.State}}").splitlines()]
    found += [f"volume {name}" for name in own.docker("volume", "ls", "-q").split()]
    found += [f"network {name}" for name in own.docker("network", "ls", "--format", "{{.Name}}").split()]
    found += [f"image {name}" for name in own.docker("image", "ls", "-aq", "--no-trunc").split()]
    found += [f"process {pid}: {line}" for pid, line in project.processes().items()]
    found += [f"shim {line}" for line in own.processes("containerd-shim").values()]
    for folder in (base, own.folder):  # network namespaces too: the engine holds one by a mount
        found += [f"mount {point}" for point in mounts_under(folder)]
    for line in Path("/proc/net/unix").read_text().splitlines():
        path = line.partition(" /")[2]
        if f"/{path}".startswith(f"{base}/"):
            found.append(f"socket /{path}")
    found += [f"group {path}" for path in CGROUPS.glob(f"*/{own.folder.name}/*") if path.is_dir()]
    found += [f"temporary file {path}" for path in (base / "tmp").rglob("*")]
    found += [f"file {path}" for path in (*project.runs.glob(".*"), *project.runs.glob("*/.*"))]
    return frozenset(found)


def handles(own: OwnEngine) -> int:
    """How many files the engine and its containerd have open."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (own.pid, *own.processes("containerd --config")))


def verdict(what: str, figure: str, wrong: Sequence[str], target: str, note: str = "") -> Row:
    """A line of the table: what was wrong, or that nothing was."""
    for text in wrong:
        print(f"  {what}: {text}", file=sys.stderr, flush=True)
    return Row(what, figure, f"{len(wrong)} wrong" if wrong else "", target, not wrong, note)
