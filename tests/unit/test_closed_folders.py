"""Folders of a project that are closed to whoever looks: each command says what it can, without a traceback."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import docker  # noqa: F401  # loaded while we are still who may read Python's own files
import pytest

from impyard.runner import cli, engine
from impyard.runner.project import find_root
from tests.support.recorded import ALLOW, DENY, RUN, Recorded, request


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """A run of an ordinary user, who is this process meanwhile: root may read all."""
    engine.client.cache_clear()
    datetime.strptime("0", "%S")  # loads what it needs, too
    folder = Path(tempfile.mkdtemp(prefix="impyard-test-"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
    was_root = os.geteuid() == 0
    try:
        if was_root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        made = Recorded(folder / "project")
        made.decide(ALLOW, request("GET", "a.test", "/x"))
        made.decide(DENY, request("GET", "b.test", "/y"))
        made.end()
        monkeypatch.chdir(made.root)
        yield made
    finally:
        if was_root:
            os.seteuid(0)
        for closed in ("policies", "runs", f"runs/{RUN}"):
            (folder / "project" / closed).chmod(0o700)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("closed", "args", "status", "said"),
    [
        ("policies", ["decisions"], 0, "b.test"),
        ("policies", ["decisions", "--verify"], 0, "ok: 2 lines"),
        (f"runs/{RUN}", ["decisions"], 0, "b.test"),
        (f"runs/{RUN}", ["decisions", "--verify"], 0, f"the receipt of run {RUN} cannot be read"),
        (f"runs/{RUN}", ["report"], 1, "cannot write"),
        (f"runs/{RUN}", ["runs", "show"], 0, "unreadable"),
        ("runs", ["decisions"], 1, "cannot read"),
        ("runs", ["decisions", "--verify"], 1, "cannot read"),
        ("runs", ["decisions", "--failed"], 1, "cannot read"),
        ("runs", ["report"], 1, "cannot read"),
    ],
)
def test_a_closed_folder_is_named(
    run: Recorded, capsys: pytest.CaptureFixture[str], closed: str, args: list[str], status: int, said: str
) -> None:
    (run.root / closed).chmod(0)
    assert cli.main(args) == status
    out, err = capsys.readouterr()
    assert said in out + err and "internal error" not in err


def test_no_project_further_up_is_taken_for_one_whose_policy_is_closed(run: Recorded) -> None:
    inner = Recorded(run.root / "inner").root
    (inner / "policies").chmod(0)
    assert find_root(start=inner) == inner
    (inner / "policies").chmod(0o700)
    shutil.rmtree(inner / "policies")
    assert find_root(start=inner) == run.root


def test_a_report_that_may_not_be_read_is_not_replaced(run: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    file = run.root / "r.html"
    assert cli.main(["report", "-o", str(file)]) == 0
    file.chmod(0o200)
    assert cli.main(["report", "-o", str(file)]) == 1
    assert "is no report that you may read" in capsys.readouterr().err
