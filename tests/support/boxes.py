"""What every test against the real engine needs: the engine, the image, and projects that must leave nothing behind.

Fixtures; a conftest.py imports those that its tests use.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import engine
from impyard.runner.image import ensure_image
from tests.support.engineproxy import ENGINE_SOCKET
from tests.support.gateway import ROOT
from tests.support.project import PLAIN_POLICY, Caller, Project


def skip(reason: str) -> None:
    """Skip a test; where everything must run, fail instead."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"this cannot be left out in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def box_image() -> str:
    """The id of the box's image. No engine: skipped; an engine, but no image: failed."""
    try:
        engine.describe()
    except ImpyardError as exc:
        skip(exc.message)
    return ensure_image(lambda line: print(line, file=sys.stderr))


@pytest.fixture
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a file system")


@pytest.fixture(scope="session")
def this_user() -> Caller:
    """Whoever runs the tests, with an empty home."""
    user = pwd.getpwuid(os.geteuid())
    return Caller(user.pw_uid, user.pw_gid, user.pw_name, Path(user.pw_dir))


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[Caller]:
    """A user who may use Docker and nothing else; made for this session when root runs the tests."""
    if os.geteuid() != 0:
        user = pwd.getpwuid(os.geteuid())
        yield Caller(user.pw_uid, user.pw_gid, user.pw_name, Path(user.pw_dir))
        return
    name = f"impyard-t{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--user-group", name], check=True, capture_output=True)
    try:
        user = pwd.getpwnam(name)
        with tempfile.TemporaryDirectory(prefix="impyard-open-") as folder:
            prefix = _as_user(user, os.stat(ENGINE_SOCKET).st_gid, Path(folder))
            program = [*prefix, sys.executable, "-c", "import impyard.runner.cli"]
            if subprocess.run(program, env={"PYTHONPATH": str(ROOT)}, check=False, cwd="/").returncode != 0:
                skip("an ordinary user cannot run this Python")
            yield Caller(user.pw_uid, user.pw_gid, name, Path(user.pw_dir), prefix)
    finally:
        subprocess.run(["userdel", "--force", "--remove", name], check=False, capture_output=True)


def _as_user(user: pwd.struct_passwd, group: int, scratch: Path) -> tuple[str, ...]:
    """What to put before a command, so that root runs it as `user`, who is also in `group`.

    This checkout and its Python may lie in a folder that is closed to others. Then, for this command alone, that folder
    shows nothing but them, in a mount namespace of its own.
    """
    steps = ["set -e"]
    needed = sorted({Path(path).resolve() for path in (sys.prefix, sys.base_prefix, ROOT)})
    for number, closed in enumerate(sorted({found for path in needed if (found := _closed(path))})):
        aside = scratch / str(number)
        aside.mkdir()
        steps += [f"mount --rbind {closed} {aside}", f"mount -t tmpfs -o mode=755 none {closed}"]
        for path in needed:
            if path.is_relative_to(closed):
                steps += [f"mkdir -p {path}", f"mount --rbind {aside / path.relative_to(closed)} {path}"]
    steps.append(f'exec setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --groups={group} -- "$@"')
    return ("unshare", "--mount", "--propagation=private", "bash", "-c", "\n".join(steps), "bash")


def _closed(path: Path) -> Path | None:
    """The outermost folder above `path` that others may not pass."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


class MakeProject(Protocol):
    def __call__(self, policy: str | None = ..., *, name: str = ..., caller: Caller | None = ...) -> Project: ...


@pytest.fixture
def make_project(this_user: Caller, box_image: str) -> Iterator[MakeProject]:
    """Makes projects. When the test is over, nothing of their runs may be left."""
    made: list[Project] = []
    with contextlib.ExitStack() as folders:

        def make(policy: str | None = PLAIN_POLICY, *, name: str = "project", caller: Caller | None = None) -> Project:
            who = caller or this_user
            where = str(who.home) if who.prefix else None  # pytest's own folders are closed to others
            base = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="impyard-test-", dir=where)))
            project = Project(base.resolve(), policy, name=name, caller=who)
            made.append(project)
            return project

        yield make
        left = [line for project in made for line in project.leftovers()]
        for project in made:
            project.clean()
    assert left == []


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project()


@pytest.fixture
def ordinary_container(box_image: str) -> Callable[..., str]:
    """Runs a shell command in a container of the same image as `docker run` makes it, without impyard; its output.

    The control of every denial. `options` are docker-py's.
    """

    def run(command: str, **options: Any) -> str:
        container = engine.client().containers.create(box_image, ["-c", command], entrypoint="/bin/bash", **options)
        try:  # not run()'s own output: it follows the log, whose end it can miss
            container.start()
            status = container.wait(timeout=60)["StatusCode"]
            output = bytes(container.logs(stderr=False)).decode()
            assert status == 0, bytes(container.logs()).decode()
            return output
        finally:
            container.remove(force=True)

    return run


@pytest.fixture(scope="module")
def module_project(this_user: Caller, box_image: str) -> Iterator[Project]:
    """A project for all tests of a module. When they are over, nothing of its runs may be left."""
    with tempfile.TemporaryDirectory(prefix="impyard-test-") as folder:
        shared = Project(Path(folder).resolve(), caller=this_user)
        yield shared
        left = shared.leftovers()
        shared.clean()
    assert left == []
