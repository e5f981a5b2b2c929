"""The receipt: whole or not at all, and readable again."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import leftovers
from impyard.runner.agent import demo_agent
from impyard.runner.plan import Plan
from impyard.runner.project import RunPaths
from impyard.runner.receipt import EXITS, read_receipt
from impyard.runner.receipt_parts import first_receipt
from impyard.runner.user import box_user
from tests.support.receipts import receipt


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    receipt(decisions={"allowed": 3}, error="ä\n").write(path)
    data = read_receipt(path)
    assert data["exit_reason"] == "running"
    assert data["decisions"] == {"allowed": 3}
    assert data["error"] == "ä\n"


def test_a_second_writing_replaces_the_first_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    receipt().write(path)
    receipt(exit_reason="finished").write(path)
    assert read_receipt(path)["exit_reason"] == "finished"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_second_writing_keeps_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    receipt().write(path)
    os.chown(path, 54321, 54321)
    receipt(exit_reason="finished").write(path)
    assert path.stat().st_uid == 54321


def test_a_failed_writing_leaves_the_old_receipt_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.mkdir()
    with pytest.raises(OSError):
        receipt().write(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_a_name_that_is_no_unicode_does_not_lose_the_receipt(tmp_path: Path) -> None:
    receipt(files=[{"path": "\udcff", "bytes": 1}]).write(tmp_path / "run.json")
    assert read_receipt(tmp_path / "run.json")["run"] == "20261129-120000-ab12"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}'])
def test_what_is_no_receipt_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ImpyardError) as refused:
        read_receipt(tmp_path / "run.json")
    assert refused.value.hint


def test_a_missing_receipt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImpyardError, match="no receipt"):
        read_receipt(tmp_path / "run.json")


def test_the_exit_statuses_are_the_documented_ones() -> None:
    documented = {
        "finished": 0,
        "agent-error": 1,
        "ceiling": 124,
        "refused": 125,
        "gateway-lost": 126,
        "interrupted": 130,
        "out-of-memory": 137,
    }
    assert {reason: EXITS[reason] for reason in documented} == documented


def test_a_run_that_begins_says_its_prompt_at_once(tmp_path: Path) -> None:
    plan = Plan(tmp_path, (), ceiling_s=60, agent=demo_agent(), prompt=b"first\nsecond")
    user = box_user(1001, 1001, {})
    begun = first_receipt(plan, RunPaths(tmp_path, "r"), tmp_path, user, leftovers.this_process(), "0")
    assert begun.prompt == "first … (+1 line)"
    assert begun.prompt_sha256 == hashlib.sha256(b"first\nsecond").hexdigest()
