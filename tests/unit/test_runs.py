"""`impyard runs` on real folders, receipts and processes. (Boxes are in tests/box.)"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import cli, engine, leftovers, runs, runs_facts, runs_table
from impyard.runner.columns import cells
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.receipt_parts import first_line
from tests.support.answering import answered
from tests.support.called import Command, Result
from tests.support.person import Person


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "projéct with space"
    (root / "policies").mkdir(parents=True)
    (root / "policies" / "gateway.yaml").touch()
    return root.resolve()


@pytest.fixture
def impyard(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str) -> Result:
        status = cli.main([*args, "--project", str(project)])
        return Result(status, *capsys.readouterr())

    return call


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine whose Docker does not answer."""
    engine.client.cache_clear()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    yield
    engine.client.cache_clear()


def add_run(
    root: Path, run: str, *, ended: bool = True, runner: dict[str, str] | None = None, reason: str = "finished"
) -> RunPaths:
    """A run's folder as a run leaves it; `runner` is a process as `process_facts` tells it."""
    paths = RunPaths(root, run)
    paths.workspace.mkdir(parents=True)
    (paths.workspace / "answer.txt").write_text("4")
    began = datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    facts = runner or {"pid": "0", "start": "1", "space": leftovers.this_process()["space"]}
    receipt = Receipt(
        run=run,
        project=str(root),
        workspace=str(paths.workspace),
        model="demo",
        started=began.isoformat(timespec="milliseconds"),
        impyard="0.1.0",
        runner_pid=int(facts["pid"]),
        runner_start=facts["start"],
        runner_space=facts["space"],
        ceiling_s=1800,
        decisions={"allowed": 3, "denied": 2, "denied_hosts": {"evil.test": 2}, "seq": 5, "last": "sha256:0"},
    )
    if ended:
        receipt.ended = (began + timedelta(seconds=65)).isoformat()
        receipt.duration_s, receipt.exit_reason, receipt.exit_status = 65.0, reason, 0
    receipt.write(paths.receipt)
    return paths


OLD, MID, NEW = "20250101-000000-aaaa", "20260101-000000-bbbb", "20260101-000001-cccc"


def test_runs_are_listed_newest_last_with_state_and_counts(project: Path, impyard: Command) -> None:
    add_run(project, NEW, reason="ceiling")
    add_run(project, OLD)
    (project / "runs" / "not-a-run").mkdir()
    (project / "runs" / "decisions.jsonl").touch()
    result = impyard("runs", "list")
    assert result.status == 0
    assert result.out.splitlines() == [
        f"{OLD}\tfinished\t1 min 5 s\t3\t2\tdemo\t-",
        f"{NEW}\tceiling\t1 min 5 s\t3\t2\tdemo\t-",
    ]
    assert [json.loads(line)["state"] for line in impyard("runs", "list", "--json").out.splitlines()] == [
        "finished",
        "ceiling",
    ]


@pytest.mark.parametrize(("columns", "beside"), [(160, True), (80, False), (40, False)])
def test_a_terminal_says_what_each_run_was_about(
    project: Path, impyard: Command, monkeypatch: pytest.MonkeyPatch, columns: int, beside: bool
) -> None:
    paths = add_run(project, OLD)
    receipt = json.loads(paths.receipt.read_bytes())
    paths.receipt.write_text(json.dumps({**receipt, "prompt": "東x" * 100}))
    monkeypatch.setattr(runs_table, "columns_of", lambda stream: columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = impyard("runs", "list").out.splitlines()
    assert all(cells(line) <= columns for line in shown)
    assert shown[-1].startswith(OLD if beside else "  東") and shown[-1].endswith("…")
    assert cells(shown[-1]) > columns - 3, "as much of it as there is room for"


def test_list_is_the_command_when_none_is_given(project: Path, impyard: Command) -> None:
    add_run(project, OLD)
    assert impyard("runs").out == impyard("runs", "list").out
    assert cli.main(["runs", "--project", str(project), "show", "last"]) == 0


def test_a_terminal_gets_no_line_that_it_would_break(
    project: Path, impyard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = add_run(project, OLD)
    digest = "sha256:" + "0123456789abcdef" * 4
    receipt = json.loads(paths.receipt.read_bytes())
    policy = {"files": ["policies/gateway.yaml", "policies/more.yaml"], "hash": digest}
    more = {"policy": policy, "image": {"id": digest}, "error": "one word after the other " * 6, "workspace": "/w"}
    secret = {"credential": "github", "kind": "value", "where": "body", "method": "POST", "host": "a.test", "count": 1}
    more |= {"secrets": [{**secret, "path": "/aaaaaaaaaaaaaaaaaaaaaaaaa"}], "ca": "0123456789abcdef" * 4}
    paths.receipt.write_text(json.dumps({**receipt, **more}))
    assert impyard("runs", "show").out.count(digest) == 2, "a pipe"
    monkeypatch.setattr(runs_facts, "columns_of", lambda stream: 80)
    shown = impyard("runs", "show").out.splitlines()
    assert "policy       policies/gateway.yaml, policies/more.yaml sha256:0123456789ab…" in shown
    assert "image        sha256:0123456789ab…" in shown and "authority    0123456789ab…" in shown
    assert [line for line in shown if len(line) > 80 and not line.startswith("look")] == []
    at = next(number for number, line in enumerate(shown) if line.startswith("error"))
    assert shown[at + 1].startswith(" " * 13) and shown[at + 2].strip() == "word after the other"


def test_the_cut_of_a_prompt_is_marked() -> None:
    assert first_line(b"\n do it \n") == "do it"
    assert first_line(b"do it\nwell\n") == "do it … (+1 line)"
    assert first_line(b"do \x1b[1m it\r\n\nwell") == "do \\x1b[1m it … (+2 lines)"
    assert "more)…" in first_line(b"x" * 1000 + b"\ny") and first_line(b"x" * 1000 + b"\ny").endswith(" … (+1 line)")


def test_that_there_are_older_runs_is_said(project: Path, impyard: Command) -> None:
    for run in (OLD, MID, NEW):
        add_run(project, run)
    for args in ((), ("--json",)):
        result = impyard("runs", "list", "-n", "2", *args)
        assert (result.out.count("\n"), result.err) == (
            2,
            f"1 older: impyard runs list -n 3 --project {shlex.quote(str(project))}\n",
        )
        assert impyard("runs", "list", "-n", "3", *args).err == ""


def test_no_runs_is_said_and_no_error(project: Path, impyard: Command) -> None:
    result = impyard("runs", "list")
    assert (result.status, result.out) == (0, "")
    assert "no runs yet" in result.err


def test_a_linked_folder_is_no_run(project: Path, impyard: Command, tmp_path: Path) -> None:
    add_run(project, NEW)
    (tmp_path / "elsewhere").mkdir()
    (project / "runs" / OLD).symlink_to(tmp_path / "elsewhere")
    assert impyard("runs", "list").out.count("\n") == 1


@pytest.mark.parametrize("named", [NEW, NEW[:-3], "last"])
def test_a_run_is_found_by_its_id_the_beginning_of_it_and_last(project: Path, impyard: Command, named: str) -> None:
    add_run(project, OLD)
    add_run(project, NEW)
    result = impyard("runs", "show", named)
    assert result.status == 0
    assert result.out.splitlines()[0].split() == ["run", NEW]
    assert "evil.test (2)" in result.out


def test_show_tells_what_was_asked_and_where_every_word_of_the_answer_is(
    project: Path, impyard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = add_run(project, OLD)
    receipt = {**json.loads(paths.receipt.read_bytes()), "prompt": "fix the failing \x1btest"}
    paths.receipt.write_text(json.dumps(receipt))
    before = impyard("runs", "show", OLD).out
    paths.stdout.touch()
    paths.session.mkdir(exist_ok=True)
    monkeypatch.setenv("IMPYARD_COMMAND", "bin/impyard")
    facts = dict(line.split(maxsplit=1) for line in impyard("runs", "show", OLD).out.splitlines())
    assert facts["prompt"] == r"fix the failing \x1btest"
    assert (facts["transcript"], facts["session"]) == (str(paths.stdout), str(paths.session))
    assert "transcript" not in before, "the control: a run that never had a box"
    assert facts["look"] == f"bin/impyard decisions --run {OLD} --project {shlex.quote(str(project))}"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("2026", "means 2 runs"),
        ("ccc", "there is no run"),
        ("20270101-000000-aaaa", "there is no run"),
        ("../../etc", "there is no run"),
        ("", "there is no run"),
        ("not-a-run", "there is no run"),
    ],
)
def test_a_run_that_is_not_there_is_one_clear_error(project: Path, impyard: Command, named: str, said: str) -> None:
    add_run(project, MID)
    add_run(project, NEW)
    (project / "runs" / "not-a-run").mkdir()
    for command in ("show", "stop"):
        result = impyard("runs", command, named)
        assert (result.status, result.out) == (1, "")
        assert said in result.err
        assert result.err.count("error:") == 1


def test_the_end_of_an_id_that_the_tables_show_is_enough_where_it_means_one_run(
    project: Path, impyard: Command
) -> None:
    begun_alike = "20260102-000000-2025"
    for run in (OLD, MID, NEW, begun_alike):
        add_run(project, run)
    for run in (OLD, MID, NEW):
        assert impyard("runs", "show", run[-4:]).out.splitlines()[0].split() == ["run", run]
    result = impyard("runs", "stop", "2025")  # the beginning of one, the end of another
    assert (result.status, result.out) == (1, "")
    assert result.err == f"error: '2025' means 2 runs\nhint: give more of its id: {begun_alike}, {OLD}\n"
    add_run(project, f"20260401-000000-{NEW[-4:]}")
    assert "means 2 runs" in impyard("runs", "show", NEW[-4:]).err


def test_a_damaged_receipt_is_shown_as_such(project: Path, impyard: Command) -> None:
    paths = add_run(project, OLD)
    paths.receipt.write_text("{half")
    os.utime(paths.folder, (0, 0))
    assert impyard("runs", "list").out.startswith(f"{OLD}\t?\t-\t-\t-\t-")
    result = impyard("runs", "show", OLD)
    assert result.status == 0
    assert "cannot read the receipt" in result.out
    assert impyard("runs", "show", OLD, "--json").status == 1


def test_a_receipt_that_cannot_be_read_is_never_called_running(project: Path, impyard: Command) -> None:
    """Control: in a folder of the same age, a receipt that is missing means a run that begins."""
    paths = add_run(project, OLD)
    paths.receipt.unlink()
    assert impyard("runs", "list").out.startswith(f"{OLD}\trunning\t")
    paths.receipt.mkdir()  # as unreadable for root as for anybody else
    assert impyard("runs", "list").out.startswith(f"{OLD}\tunreadable\t-\t-\t-\t-")
    result = impyard("runs", "show", OLD)
    assert (result.status, result.out.splitlines()[1].split()) == (0, ["state", "unreadable"])
    assert result.out.splitlines()[2] == f"receipt    cannot read the receipt {paths.receipt}: is a directory"
    assert "cannot read the receipt" in impyard("runs", "show", OLD, "--json").err
    result = impyard("runs", "stop", OLD)
    assert (result.status, result.out) == (1, "")
    assert "cannot read the receipt" in result.err
    assert impyard("runs", "stop", "--all").status == 0
    impyard("runs", "prune", "--keep", "0", "--yes")
    assert runs.ids(project) == [OLD]
    paths.receipt.rmdir()
    paths.receipt.write_text("{half")
    assert impyard("runs", "list").out.startswith(f"{OLD}\t?\t")


def test_receipt_text_cannot_command_the_terminal(project: Path, impyard: Command) -> None:
    paths = add_run(project, OLD)
    receipt = json.loads(paths.receipt.read_bytes())
    receipt.update(
        model="\x1b[31mred", exit_reason="\x1b]0;x\x07", error="a\nb", files=[{"path": "\x1b[2J", "bytes": 1}]
    )
    paths.receipt.write_text(json.dumps(receipt))
    for command in (("list",), ("show", OLD)):
        assert "\x1b" not in impyard("runs", *command).out


def test_receipts_of_odd_shapes_are_shown(project: Path, impyard: Command) -> None:
    paths = add_run(project, OLD)
    odd = {
        "run": OLD,
        "ended": 1,
        "decisions": [],
        "files": {"a": 1},
        "policy": "x",
        "duration_s": "long",
        "probes": [1],
    }
    paths.receipt.write_text(json.dumps(odd))
    assert impyard("runs", "list").status == 0
    assert impyard("runs", "show", OLD).status == 0


ODD = ["text", -1, 10**400, True, None, [1, [2]], {"a": {"b": 1}}, "\x1b[2J\nhint: forged", "\ud800"]
FULL = Receipt("r", "/p", "/p/w", "m", "s", "0", 7, "1", "s", 60.0, exit_reason="finished")


@pytest.mark.usefixtures("no_engine")
def test_receipts_of_any_content_are_shown_or_told_of(project: Path, impyard: Command) -> None:
    """No error of impyard's own, nothing that a terminal obeys, no line that is not impyard's."""
    paths = add_run(project, OLD)
    good = asdict(FULL)
    changes = [{key: value} for key in good for value in ODD]
    for value in ODD:
        changes += [{"files": [{"path": value, "bytes": value}]}, {"traffic": {"bytes_up": value}}]
        changes += [{"decisions": {"allowed": value, "denied_hosts": {str(value): value}}}, {"image": {"id": value}}]
    texts = [json.dumps({**good, **change}) for change in changes]
    texts += [json.dumps({**good, key: math.inf}) for key in good]
    texts += ["", "{", "[" * 100_000, '{"run": 1e999}', '{"run": ' + "9" * 9999 + "}"]
    for text in texts:
        paths.receipt.write_text(text)
        for command in (("list",), ("show", OLD), ("stop", OLD), ("list", "--json"), ("show", OLD, "--json")):
            result = impyard("runs", *command)
            everything = result.out + result.err
            assert "internal error" not in everything, (text[-200:], command, everything)
            assert "\x1b" not in everything and "\nhint: forged" not in everything, (text[-200:], command)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_a_receipt_that_none_can_be_keeps_nobody(project: Path, impyard: Command, kind: str) -> None:
    paths = add_run(project, OLD)
    paths.receipt.unlink()
    if kind == "pipe":
        os.mkfifo(paths.receipt)
    elif kind == "device":
        paths.receipt.symlink_to("/dev/zero")
    else:
        paths.receipt.touch()
        os.truncate(paths.receipt, 2**40)
    assert impyard("runs", "list").status == 0
    shown = impyard("runs", "show", OLD)
    assert shown.status == 0 and f"cannot read the receipt {paths.receipt}: it is " in shown.out


@pytest.mark.usefixtures("no_engine")
def test_a_folder_with_a_run_id_that_is_no_time_is_as_old_as_it_is(project: Path, impyard: Command) -> None:
    for name in ("99999999-999999-abcd", "00000000-000000-abcd"):
        (folder := RunPaths(project, name).folder).mkdir(parents=True)
        FULL.write(folder / "run.json")
    os.utime(folder, (0, 0))
    assert impyard("runs", "prune", "--older-than", "1", "--yes").status == 0
    assert not folder.exists() and (folder.parent / "99999999-999999-abcd").exists()


@pytest.mark.usefixtures("no_engine")
def test_prune_removes_old_runs_and_keeps_the_log_and_the_rest(project: Path, impyard: Command) -> None:
    for run in (OLD, MID, NEW):
        add_run(project, run)
    log = project / "runs" / "decisions.jsonl"
    log.write_text("{}\n")
    assert impyard("runs", "prune", "--keep", "1", "--yes").status == 0
    assert runs.ids(project) == [NEW]
    assert log.read_text() == "{}\n"


def test_rm_removes_the_runs_that_are_named(project: Path, impyard: Command) -> None:
    for run in (OLD, MID, NEW):
        add_run(project, run)
    assert impyard("runs", "rm", "aaaa").status == 1, "there is nobody to ask"
    assert impyard("runs", "rm", "nosuch", "aaaa", "--yes").status == 1
    assert runs.ids(project) == [NEW, MID, OLD]
    assert impyard("runs", "rm", "aaaa", "last", OLD, "--yes").out.startswith("removed 2 runs, ")
    assert runs.ids(project) == [MID]
    assert impyard("runs", "rm").status == 2


@pytest.mark.parametrize(
    ("typed", "meant"), [(["runs", "delete"], "rm"), (["runs", "remove"], "rm"), (["vault", "rm"], "remove")]
)
def test_other_words_for_removing_are_understood(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.usefixtures("no_engine")
def test_rm_of_a_run_that_is_kept_fails(project: Path, impyard: Command) -> None:
    add_run(project, OLD, ended=False)
    add_run(project, MID)
    result = impyard("runs", "rm", OLD, MID, "--yes")
    assert (result.status, runs.ids(project)) == (1, [OLD])
    assert f"kept {OLD}: " in result.err


def test_what_goes_is_shown_as_a_person_knows_it(project: Path) -> None:
    for number, run in enumerate((OLD, MID, NEW)):
        paths = add_run(project, run)
        receipt = json.loads(paths.receipt.read_bytes())
        clone = [{}, {"run": MID}, {"run": NEW, "applied": "2026-01-02"}][number]
        receipt |= {"prompt": f"prompt {number} " + "x" * 200, "clone": clone, "files": [{"path": "a", "bytes": 1}]}
        paths.receipt.write_text(json.dumps(receipt))
    command = [sys.executable, "-m", "impyard", "runs", "rm", OLD, MID, NEW, "--project", str(project)]
    person = Person(command, env=dict(os.environ), cwd=project, columns=120)
    try:
        lines = person.wait_for("workspaces too? [y/N]: ").decode().splitlines()
        person.type("n\n")
        assert person.finish() == 1
    finally:
        person.close()
    size = r" +\d+(\.\d)? [KMG]?B +"
    for line, wanted in zip(
        lines,
        (
            rf"  {OLD}  2025-01-01 00:00{size}finished +prompt 0 x+…",
            rf"  {MID}  2026-01-01 00:00{size}finished, changes not applied  prompt 1 x+…",
            rf"  {NEW}  2026-01-01 00:00{size}finished +prompt 2 x+…",
        ),
        strict=False,
    ):
        assert re.fullmatch(wanted, line) and len(line) <= 120, line
    assert runs.ids(project) == [NEW, MID, OLD]


def test_prune_by_age_counts_days_from_the_runs_beginning(project: Path, impyard: Command) -> None:
    recent = f"{datetime.now(UTC) - timedelta(days=2):%Y%m%d-%H%M%S}-dddd"
    for run in (OLD, recent):
        add_run(project, run)
    assert impyard("runs", "prune", "--older-than", "3", "--yes").status == 0
    assert runs.ids(project) == [recent]
    assert impyard("runs", "prune", "--older-than", "1.5", "--yes").status == 0
    assert runs.ids(project) == []


@pytest.mark.parametrize(("age", "kept"), [("1w", True), ("50h", True), ("47h", False), ("1d 12h", False)])
def test_prune_takes_an_age_as_rotating_logs_does(project: Path, impyard: Command, age: str, kept: bool) -> None:
    recent = f"{datetime.now(UTC) - timedelta(days=2):%Y%m%d-%H%M%S}-dddd"
    add_run(project, recent)
    assert impyard("runs", "prune", "--older-than", age, "--yes").status == 0
    assert runs.ids(project) == ([recent] if kept else [])


def test_prune_with_both_options_removes_only_what_both_name(project: Path, impyard: Command) -> None:
    recent = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-dddd"
    for run in (OLD, MID, recent):
        add_run(project, run)
    assert impyard("runs", "prune", "--older-than", "1", "--keep", "2", "--yes").status == 0
    assert runs.ids(project) == [recent, MID]


def test_prune_asks_and_removes_nothing_when_there_is_nobody_to_ask(project: Path, impyard: Command) -> None:
    add_run(project, OLD)
    result = impyard("runs", "prune", "--keep", "0")
    assert result.status == 1
    assert "--yes" in result.err
    assert runs.ids(project) == [OLD]


@pytest.mark.parametrize(
    ("typed", "status", "left"),
    [(b"n\n", 1, True), (b"\n", 1, True), (b"\x03", 130, True), (b"\x04", 130, True), (b"y\n", 0, False)],
    ids=["no", "nothing", "ctrl-c", "ctrl-d", "control: yes"],
)
def test_prune_says_what_becomes_of_an_answer(project: Path, typed: bytes, status: int, left: bool) -> None:
    add_run(project, OLD)
    words = ["runs", "prune", "--keep", "0", "--project", str(project)]
    ended, shown = answered(words, b"workspaces too? [y/N]: ", typed)
    assert ended == status
    assert (runs.ids(project) == [OLD]) == left
    assert shown[-1].startswith("nothing removed" if left else "removed 1 run, ")


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--keep", "-1"),
        ("--older-than", "-1"),
        ("--keep", "x"),
        *(("--older-than", odd) for odd in ("nan", "inf", "1e308", "-inf", "", "2999-01-01")),
    ],
)
def test_prune_without_a_sensible_limit_is_a_usage_error(project: Path, impyard: Command, args: tuple[str]) -> None:
    add_run(project, OLD)
    assert impyard("runs", "prune", "--yes", *args).status == 2
    assert runs.ids(project) == [OLD]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def process_facts(pid: int) -> dict[str, str]:
    """What a runner with this process number would have written of itself."""
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return {"pid": str(pid), "start": start, "space": leftovers.this_process()["space"]}


def test_prune_never_removes_a_run_whose_runner_lives(
    project: Path, impyard: Command, sleeper: subprocess.Popen[bytes]
) -> None:
    add_run(project, OLD, ended=False, runner=process_facts(sleeper.pid))
    assert impyard("runs", "list").out.split("\t")[1] == "running"
    result = impyard("runs", "prune", "--keep", "0", "--yes")
    assert "it is running" in result.err
    assert runs.ids(project) == [OLD]


def test_another_process_with_the_runners_number_is_not_the_runner(
    project: Path, impyard: Command, sleeper: subprocess.Popen[bytes]
) -> None:
    add_run(project, OLD, ended=False, runner={**process_facts(sleeper.pid), "start": "1"})
    [run] = runs.look(project, [OLD])
    assert run.runner is None
    assert run.state == "lost"
    assert sleeper.poll() is None


@pytest.mark.usefixtures("no_engine")
def test_prune_keeps_a_run_of_which_it_cannot_know_whether_it_lives(project: Path, impyard: Command) -> None:
    add_run(project, OLD, ended=False)
    add_run(project, MID)
    result = impyard("runs", "prune", "--keep", "0", "--yes")
    assert runs.ids(project) == [OLD]
    assert f"kept {OLD}" in result.err
    assert impyard("runs", "stop", OLD).status == 1


def test_prune_keeps_a_run_whose_runner_cannot_be_seen_from_here(project: Path, impyard: Command) -> None:
    elsewhere = {"pid": "77", "start": "1", "space": "another boot"}
    young = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-aaaa"
    add_run(project, young, ended=False, runner=elsewhere)
    add_run(project, OLD, ended=False, runner=elsewhere)  # its ceiling has long passed, so that nothing of it can live
    result = impyard("runs", "prune", "--keep", "0", "--yes")
    assert "another boot" in result.err
    assert runs.ids(project) == [young]


@pytest.mark.usefixtures("no_engine")
def test_prune_keeps_a_run_that_has_no_receipt_yet(project: Path, impyard: Command) -> None:
    RunPaths(project, OLD).folder.mkdir(parents=True)
    impyard("runs", "prune", "--keep", "0", "--yes")
    assert runs.ids(project) == [OLD]


def test_prune_removes_nothing_when_runs_is_a_link(project: Path, impyard: Command, tmp_path: Path) -> None:
    add_run(project, OLD)
    (project / "runs").rename(tmp_path / "elsewhere")
    (project / "runs").symlink_to(tmp_path / "elsewhere")
    assert impyard("runs", "prune", "--keep", "0", "--yes").status == 1
    assert (tmp_path / "elsewhere" / OLD / "run.json").exists()


def test_prune_follows_no_link_out_of_the_runs(project: Path, impyard: Command, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    paths = add_run(project, OLD)
    (paths.workspace / "link").symlink_to(outside)
    (paths.workspace / "shut" / "in").mkdir(parents=True)
    (paths.workspace / "shut").chmod(0)
    assert impyard("runs", "prune", "--keep", "0", "--yes").status == 0
    assert not paths.folder.exists()
    assert (outside / "keep").exists()


def test_stop_ends_a_runner_that_has_no_box_yet(
    project: Path, impyard: Command, sleeper: subprocess.Popen[bytes]
) -> None:
    pytest.importorskip("docker")
    try:
        engine.client()
    except ImpyardError as exc:
        pytest.skip(exc.message)
    add_run(project, OLD, ended=False, runner=process_facts(sleeper.pid))
    began = time.monotonic()
    result = impyard("runs", "stop", OLD)
    assert (result.status, result.out) == (0, f"stopped {OLD}\n")
    assert sleeper.wait(5) == -15
    assert time.monotonic() - began < 5


def test_stop_wants_runs_or_all(project: Path, impyard: Command) -> None:
    assert impyard("runs", "stop").status == 2
    assert impyard("runs", "stop", "--all", "x").status == 2


@pytest.mark.usefixtures("no_engine")
def test_prune_keeps_a_run_in_whose_workspace_another_went_on(project: Path, impyard: Command) -> None:
    """With both gone, both go."""
    before, after = add_run(project, OLD), add_run(project, NEW)
    receipt = json.loads(after.receipt.read_bytes())
    after.receipt.write_text(json.dumps({**receipt, "workspace": str(before.workspace), "resumes": OLD}))
    result = impyard("runs", "prune", "--keep", "1", "--yes")
    assert result.status == 0 and f"kept {OLD}: run {NEW} goes on in its workspace" in result.err
    assert before.workspace.is_dir() and f"resumes      {OLD}" in impyard("runs", "show", NEW).out
    assert impyard("runs", "prune", "--keep", "0", "--yes").status == 0
    assert not before.folder.exists() and not after.folder.exists()
