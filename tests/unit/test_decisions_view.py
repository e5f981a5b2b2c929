"""`impyard decisions` on logs that the judge's own writer made, and on what can become of such a log."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import impyard as package
from impyard.addon.judge import Decision, Nearest, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.request import Request
from impyard.runner import cli, proofs
from impyard.runner.decisions import logread
from impyard.runner.decisions.outcomes import Outcome
from impyard.runner.decisions.table import Table
from impyard.runner.decisions.view import rows_of
from impyard.runner.project import RunPaths
from tests.support.called import Command, Result
from tests.support.reading import reads_little

RUN, OTHER = "20260101-000000-aaaa", "20260101-000001-bbbb"
POLICY = "sha256:" + "a" * 64
ALLOW = Decision(Verdict.ALLOW, "rule", rule="ALLOW POST /v1/messages", at="policies/gateway.yaml:12")
DENY = Decision(Verdict.DENY, "no-rule", nearest=Nearest("policies/gateway.yaml:31", "method"))
UNLISTED = Decision(Verdict.DENY, "unlisted-host")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    for run in (RUN, OTHER):
        RunPaths(tmp_path.resolve(), run).folder.mkdir(parents=True)
    return tmp_path.resolve()


@pytest.fixture
def decisions(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str) -> Result:
        return Result(cli.main(["decisions", "--project", str(project), *args]), *capsys.readouterr())

    return call


def request(method: str = "GET", host: str = "a.test", path: str = "/", **more: object) -> Request:
    return Request(method=method, scheme="https", host=host, port=443, path=path, query="", **more)  # type: ignore[arg-type]


def log_path(project: Path) -> Path:
    return project / "runs" / "decisions.jsonl"


def write(project: Path, run: str, *entries: tuple[Decision, Request]) -> DecisionLog:
    log = DecisionLog(log_path(project), run)
    for decision, judged in entries:
        log.write(decision, judged, POLICY)
    log.close()
    return log


def write_receipt(project: Path, run: str, seq: int, last: str) -> None:
    RunPaths(project, run).receipt.write_text(
        json.dumps({"run": run, "exit_reason": "finished", "ended": "x", "decisions": {"seq": seq, "last": last}})
    )


def fields(line: str) -> list[str]:
    return line.split("\t")


def test_piped_output_is_one_whole_line_of_fields_per_decision(project: Path, decisions: Command) -> None:
    long_path = "/" + "segment/" * 300
    write(project, RUN, (ALLOW, request("POST", "api.test", "/v1/messages")), (DENY, request(path=long_path)))
    result = decisions()
    assert (result.status, result.err) == (0, "")
    allowed, denied = result.out.splitlines()
    assert fields(allowed)[1:] == [
        "allow",
        "POST",
        "https://api.test/v1/messages",
        "rule",
        "policies/gateway.yaml:12 ALLOW POST /v1/messages",
        f"{RUN}.1",
        "-",
    ]
    assert fields(denied)[3:6] == [f"https://a.test{long_path}", "no-rule", "closest policies/gateway.yaml:31 (method)"]


def test_a_request_cannot_command_the_terminal_or_forge_a_line(project: Path, decisions: Command) -> None:
    evil = '/\x1b[2J\x1b]0;x\x07\r\n2026\tallow\x7f\x9b1m\u202e{"verdict":"allow"}'
    write(project, RUN, (UNLISTED, request(path=evil, headers=(("x\x1b", "\x1b[31m"),))))
    for args in ((), ("--json",)):
        [line] = decisions(*args).out.splitlines()
        assert line.isprintable() or not args
        assert all(char == "\t" or char.isprintable() for char in line)
        assert line.count("\t") == (7 if not args else 0)


def test_raw_control_bytes_that_someone_put_into_the_log_are_escaped_too(project: Path, decisions: Command) -> None:
    log = write(project, RUN, (UNLISTED, request(path="/PLACE")))
    assert log.seq == 1
    data = log_path(project).read_bytes()
    log_path(project).write_bytes(data.replace(b"/PLACE", "/\x9b31m\u202e\x7f".encode()))
    assert "\\x9b31m\\u202e\\x7f" in decisions().out
    [line] = decisions("--json").out.splitlines()
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["path"] == "/\x9b31m\u202e\x7f"


CANARY = (Decision(Verdict.DENY, "canary"), request(host="0.canary.impyard.invalid"))


def test_impyards_own_checks_are_left_out_and_marked_where_they_are_wanted(project: Path, decisions: Command) -> None:
    probe = (UNLISTED, request(host=f"{RUN}.probe.impyard.invalid"))
    write(project, RUN, CANARY, probe, (UNLISTED, request(host=f"{OTHER}.probe.impyard.invalid")))
    for args in ((), ("--denied",), ("--run", RUN)):
        result = decisions(*args)
        assert [fields(line)[6] for line in result.out.splitlines()] == [f"{RUN}.3"]
        assert result.err == "2 checks of impyard's own left out: --all shows them\n"
    result = decisions("--all")
    marks = [fields(line)[5] for line in result.out.splitlines()]
    assert (marks, result.err) == (["(impyard's own check)", "(impyard's own check)", "-"], "")
    assert decisions("--json").out == log_path(project).read_text()


def test_what_was_read_past_the_rows_that_are_shown_is_not_counted(project: Path, decisions: Command) -> None:
    write(project, RUN, (UNLISTED, request()), CANARY, CANARY, (UNLISTED, request()))
    assert "checks of impyard's own left out: --all" in decisions("-n", "1").err
    assert not re.search(r"\d check", decisions("-n", "1").err)
    assert "2 checks of impyard's own left out" in decisions("-n", "2").err


def test_nothing_offers_to_allow_what_impyard_itself_asked(
    project: Path, decisions: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: another denial, be it older, is what the line is about."""
    told = tmp_path / "told"
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path))
    write(project, OTHER, (UNLISTED, request(host="a.example")))
    proofs.note(OTHER)
    write(project, RUN, CANARY)
    for id in (f"{RUN}.1", f"{OTHER}.1"):
        assert "policy allow" not in decisions("show", id).out
    in_terminal(project, 160, "--all", errors=told)
    said = told.read_text()
    assert f"decisions show {RUN[-4:]}.1` says more of one" in said and "policy allow" not in said
    third = "20260103-000000-cccc"
    write(project, third, CANARY, (UNLISTED, request(host="a.example")))
    assert "policy allow cccc.2" in decisions("show", f"{third}.2").out
    write(project, RUN, CANARY)
    in_terminal(project, 160, "--all", errors=told)
    said = told.read_text()
    assert "decisions show cccc.2` says more of one" in said and "policy allow cccc.2`" in said


@pytest.mark.parametrize(
    "denied",
    [
        (UNLISTED, request(host="intra.test")),
        (Decision(Verdict.DENY, "private-address"), request(host="a.example")),
        (Decision(Verdict.DENY, "malformed"), request(host="a.example")),
        (Decision(Verdict.DENY, "policy-broken"), request(host="a.example")),
    ],
    ids=lambda denied: denied[0].reason,
)
def test_the_table_offers_to_allow_only_what_a_rule_can_allow(
    project: Path, tmp_path: Path, denied: tuple[Decision, Request]
) -> None:
    told = tmp_path / "told"
    write(project, RUN, denied)
    in_terminal(project, 160, errors=told)
    said = told.read_text()
    assert f"decisions show {RUN[-4:]}.1` says more of one" in said and "lets it through" not in said
    write(project, OTHER, (UNLISTED, request(host="a.example")), denied)
    in_terminal(project, 160, errors=told)
    assert "`impyard policy allow bbbb.1` lets it through" in told.read_text()
    (project / "policies" / "gateway.yaml").write_text("networkPolicies: 7\n")
    in_terminal(project, 160, errors=told)
    assert "`impyard policy check` what is wrong with the policy" in told.read_text()


def test_what_prove_asked_is_left_out_but_where_it_is_named(
    project: Path, decisions: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path))
    denied = (UNLISTED, request(host="host.docker.internal"))
    write(project, RUN, denied)
    write(project, OTHER, denied)
    proofs.note(RUN)
    assert [fields(line)[6] for line in decisions("--denied").out.splitlines()] == [f"{OTHER}.1"]
    assert decisions("--denied").err == "1 check of impyard's own left out: --all shows them\n"
    for args in (("--all",), ("--run", RUN)):
        rules = {fields(line)[6]: fields(line)[5] for line in decisions(*args).out.splitlines()}
        assert rules.pop(f"{RUN}.1") == "(impyard's own check)"
        assert set(rules.values()) <= {"-"}, "others have no such mark"
    for columns in (80, 160):
        shown = in_terminal(project, columns, "--all", errors=(told := tmp_path / "told"))
        assert "".join(without_colours(shown)).count("(own check)") == 1
        in_terminal(project, columns, "--run", RUN, errors=told)
        assert "policy allow" not in told.read_text()


def test_an_agent_cannot_hide_behind_impyards_own_checks(project: Path, decisions: Command) -> None:
    probe = (UNLISTED, request(host=f"{RUN}.probe.impyard.invalid"))
    write(project, RUN, CANARY, probe, (ALLOW, request()), CANARY, probe)
    write(project, "gateway-20260101-000000-cccc", CANARY)
    shown = [fields(line)[6] for line in decisions().out.splitlines()]
    assert shown == [f"{RUN}.{seq}" for seq in (3, 4, 5)] + ["gateway-20260101-000000-cccc.1"]
    assert "own check" not in decisions().out


def test_a_run_with_nothing_but_own_checks_is_known(project: Path, decisions: Command) -> None:
    """Its folder may be pruned: then only the log knows it."""
    run = "20250101-000000-dddd"
    write(project, run, CANARY)
    result = decisions("--run", run)
    assert (result.status, result.out) == (0, "")
    assert result.err.splitlines()[0] == f"no decisions of run {run} but those of impyard itself"
    assert result.err.splitlines()[1:] == ["1 check of impyard's own left out: --all shows them"]


@pytest.mark.parametrize("odd", [{"path": "/\udcff"}, {"headers": (("x-a", "\udcff"),)}], ids=["path", "header"])
def test_no_byte_that_is_no_utf8_hides_a_request(project: Path, decisions: Command, odd: dict[str, Any]) -> None:
    write(project, RUN, (DENY, request(host="evil.test", **odd)), (DENY, request()))
    for args in ((), ("--csv",), ("--summary",), ("--denied", "-n", "all"), ("--json",)):
        result = decisions(*args)
        assert "evil.test" in result.out and "damaged" not in result.err
    assert "evil.test" in decisions("show", "aaaa.1").out
    assert json.loads(decisions("show", "aaaa.1", "--json").out)


def test_that_there_are_older_ones_is_said(project: Path, decisions: Command) -> None:
    """Control: with room for all of them, nothing is said."""
    write(project, RUN, *((ALLOW, request(path=f"/{number}")) for number in range(4)))
    for args in ((), ("--json",)):
        result = decisions("-n", "3", *args)
        assert result.out.count("\n") == 3 and "/0" not in result.out
        assert result.err == "only the newest 3: -n 30 shows more\n"
        assert decisions("-n", "4", *args).err == ""


def write_outcomes(project: Path, *outcomes: tuple[str, int | None, str | None]) -> None:
    log = OutcomeLog(project / "runs" / "outcomes.jsonl", RUN)
    for id, status, error in outcomes:
        log.write(id, status, 0, 0, 1.0, error)
    log.close()


def test_what_became_of_an_allowed_request_is_shown(project: Path, decisions: Command) -> None:
    write(project, RUN, *((ALLOW, request(path=f"/{number}")) for number in range(1, 6)), (DENY, request()))
    write_outcomes(
        project,
        (f"{RUN}.2", None, "[Errno 111] Connect call failed ('127.0.0.1', 9)"),
        (f"{RUN}.1", 200, None),
        (f"{RUN}.4", 200, "the origin's \x1b[2Janswer broke off"),
        (f"{OTHER}.1", 500, None),
        (f"{RUN}.3", 503, None),
    )
    with (project / "runs" / "outcomes.jsonl").open("ab") as file:
        file.write(b'{"ts":1}\n\xff[\n{"half')
    found = [(fields(line)[1], fields(line)[7]) for line in decisions().out.splitlines()]
    assert found == [
        ("allow", "200"),
        ("failed", "connection refused"),
        ("allow", "503"),
        ("failed", r"200: the origin's \x1b[2Janswer broke off"),
        ("allow", "-"),
        ("deny", "-"),
    ]
    for columns in (60, 80, 160):
        text = " ".join(" ".join(without_colours(in_terminal(project, columns))).split())
        for part in ("200", "503", "failed", "refused", "answer"):
            assert part in text


def test_what_was_denied_after_all_has_not_failed(project: Path, decisions: Command) -> None:
    write(project, RUN, *((ALLOW, request(path=f"/{number}")) for number in range(3)))
    body, later = "secret-in-request: the body held a value of credential key", "no-rule: judged again before it went"
    write_outcomes(project, (f"{RUN}.1", None, body), (f"{RUN}.2", None, later), (f"{RUN}.3", None, f"it said {later}"))
    found = [(fields(line)[1], fields(line)[7]) for line in decisions().out.splitlines()]
    assert found == [("allow", body), ("allow", later), ("failed", f"it said {later}")]


def test_outcomes_that_cannot_be_read_are_said_and_the_decisions_shown(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()))
    (project / "runs" / "outcomes.jsonl").mkdir()
    result = decisions()
    assert (result.status, result.out.count("\n")) == (0, 1)
    assert result.err.startswith("warning: what became of the requests is not shown: ")


def test_only_the_end_of_the_outcomes_is_read(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()), (ALLOW, request()))
    old = b'{"ts":"2001-01-01T00:00:00.000Z","id":"x.1"}\n'
    with (project / "runs" / "outcomes.jsonl").open("wb") as file:
        file.truncate(20 * 10**9)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + old)
    write_outcomes(project, (f"{RUN}.1", 200, None))  # that of the other is missing
    with reads_little():
        assert [fields(line)[7] for line in decisions().out.splitlines()] == ["200", "-"]


def test_denied_run_and_count_choose_the_lines(project: Path, decisions: Command) -> None:
    for number in range(30):
        write_one = DENY if number % 3 == 0 else ALLOW
        write(project, RUN if number % 2 else OTHER, (write_one, request(path=f"/{number}")))
    paths = [fields(line)[3].rpartition("/")[2] for line in decisions("--denied").out.splitlines()]
    assert paths == [str(number) for number in range(0, 30, 3)]
    paths = [fields(line)[3].rpartition("/")[2] for line in decisions("--run", RUN, "-n", "3").out.splitlines()]
    assert paths == ["25", "27", "29"]
    assert decisions("--run", "last", "--denied").out.count("\n") == 5
    assert decisions("-n", "0").out == ""


def test_json_gives_the_logs_own_lines(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()), (DENY, request(path="/x")))
    assert decisions("--json").out == log_path(project).read_text()
    assert [json.loads(line)["verdict"] for line in decisions("--json", "--denied").out.splitlines()] == ["deny"]


@pytest.mark.parametrize("args", [(), ("-n", "all"), ("--json",), ("--csv",), ("--summary",), ("--denied",)], ids=str)
def test_somebody_new_is_told_what_makes_decisions(project: Path, decisions: Command, args: tuple[str, ...]) -> None:
    shutil.rmtree(project / "runs")
    result = decisions(*args)
    words = " ".join(result.err.split())
    assert result.status == 0, "no decision is no fault"
    assert f'no decisions yet in {project}; `impyard run "…"` makes some' == words
    assert result.out.count("\n") == ("--csv" in args), "but for the heading of a table"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), 'no decisions yet in {}; `impyard run "…"` makes some. Waiting for the first; Ctrl-C ends it'),
        (("--denied",), 'no decisions yet in {}; `impyard run "…"` makes some. Waiting for them; Ctrl-C ends it'),
        (("-n", "0"), ""),
    ],
)
def test_following_says_what_it_waits_for(
    project: Path, decisions: Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(project / "runs")
    monkeypatch.setattr("impyard.runner.decisions.view.follow_log", stop)
    result = decisions("--follow", *args)
    assert (result.status, result.out, " ".join(result.err.split())) == (0, "", words.format(project))
    (project / "runs").mkdir()
    write(project, RUN, (ALLOW, request()))
    result = decisions("--follow", "--run", RUN, "--host", "b.test")
    assert (
        result.err == f"no decisions of run {RUN} that these options ask for so far. Waiting for them; Ctrl-C ends it\n"
    )
    assert decisions("--follow").err == ""


def test_the_last_run_is_not_waited_for_where_there_is_none(project: Path, decisions: Command) -> None:
    shutil.rmtree(project / "runs")
    result = decisions("--follow", "--run", "last")
    assert (result.status, "there are no runs in" in result.err) == (1, True)


def test_no_log_and_an_empty_log_are_said_and_no_error(project: Path, decisions: Command) -> None:
    result = decisions()
    assert (result.status, result.out) == (0, "")
    assert "no decisions yet" in result.err
    log_path(project).touch()
    assert (decisions().status, decisions().out) == (0, "")


def test_a_run_that_does_not_exist_is_one_clear_error(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()))
    for args in ((), ("--denied",), ("--verify",), ("--json",)):
        result = decisions("--run", "20270101-000000-ffff", *args)
        assert result.status == 1
        assert result.err.startswith("error: there is no run '20270101-000000-ffff'")
        assert (result.err.count("\n"), result.out) == (2, "")
    assert decisions("--run", "2026").status == 1  # it means two runs
    assert "\x1b" not in decisions("--run", "\x1b[31m\udcff").err


def test_a_run_without_a_folder_is_found_in_the_log(project: Path, decisions: Command) -> None:
    write(project, "gateway-20260101-000000-cccc", (ALLOW, request()))
    assert decisions("--run", "gateway").out.count("\n") == 1
    result = decisions("--run", "gateway", "--denied")
    assert (result.status, result.out) == (0, "")


@pytest.mark.parametrize(
    "damage",
    [
        b"{half",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"ts":1}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"x" * 3_000_000,
        b'{"verdict":"deny"}',
    ],
    ids=lambda value: f"{value[:8]!r}…{len(value)}",
)
@pytest.mark.parametrize("where", ["before", "between", "after", "unended"])
def test_damage_is_reported_and_the_other_lines_are_shown(
    project: Path, decisions: Command, damage: bytes, where: str
) -> None:
    write(project, RUN, (ALLOW, request(path="/1")), (DENY, request(path="/2")))
    first, second = log_path(project).read_bytes().splitlines(keepends=True)
    content = {
        "before": damage + b"\n" + first + second,
        "between": first + damage + b"\n" + second,
        "after": first + second + damage + b"\n",
        "unended": first + second + damage,
    }[where]
    log_path(project).write_bytes(content)
    result = decisions()
    assert result.status == 0
    assert [fields(line)[3] for line in result.out.splitlines()] == ["https://a.test/1", "https://a.test/2"]
    assert "1 damaged line left out" in result.err
    assert ("half-written" in result.err) == (where == "unended")
    assert decisions("--verify").status == 1


def test_a_whole_last_line_without_newline_is_shown(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()), (DENY, request()))
    log_path(project).write_bytes(log_path(project).read_bytes()[:-1])
    result = decisions()
    assert (result.out.count("\n"), result.err) == (2, "")


def test_verify_accepts_what_was_written(project: Path, decisions: Command) -> None:
    first = write(project, RUN, (ALLOW, request()), (DENY, request()))
    write(project, OTHER, (DENY, request()))
    write_receipt(project, RUN, first.seq, first.last_hash)
    result = decisions("--verify")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("ok: 3 lines")
    assert json.loads(decisions("--verify", "--json").out) == {
        "ok": True,
        "lines": 3,
        "removed": {"files": 0, "lines": 0},
        "faults": [],
    }


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (lambda lines: [*lines[:1], lines[1].replace(b"/two", b"/2wo"), *lines[2:]], 2, "edited"),
        (lambda lines: [lines[0], *lines[2:]], 2, "missing"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2, "missing"),
        (lambda lines: lines[:3], 3, "the end of run"),
        (lambda lines: [*lines[:3], lines[3].replace(b"/four", b"/5our")], 4, "not the last line"),
        (lambda lines: [*lines, lines[3]], 5, "repeated"),
        (lambda lines: [*lines[:1], lines[1][:-20] + b"\n", *lines[2:]], 2, "torn"),
        (lambda lines: [*lines[:3], lines[3][:-20]], 4, "torn"),
        (lambda lines: [], 0, "no line of run"),
    ],
    ids=["edited", "removed", "reordered", "tail-cut", "last-edited", "repeated", "torn", "half-written", "emptied"],
)
def test_verify_names_the_first_broken_line(
    project: Path, decisions: Command, change: Callable[[list[bytes]], list[bytes]], line: int, what: str
) -> None:
    paths = ("/one", "/two", "/three", "/four")
    log = write(project, RUN, *((ALLOW, request(path=path)) for path in paths))
    write_receipt(project, RUN, log.seq, log.last_hash)
    lines = log_path(project).read_bytes().splitlines(keepends=True)
    log_path(project).write_bytes(b"".join(change(lines)))
    result = decisions("--verify")
    assert result.status == 1
    assert what in result.err
    assert (f"decisions.jsonl:{line}: " if line else "decisions.jsonl: ") in result.err
    document = json.loads(decisions("--verify", "--json").out)
    assert document["ok"] is False
    first = document["faults"][0]
    assert first["line"] == line
    assert first["byte"] == len(b"".join(change(lines)[: max(line - 1, 0)]))
    assert not line or f"(byte {first['byte']})" in result.err


def test_verify_of_one_run_leaves_the_others_faults_out(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request(path="/one")), (ALLOW, request()))
    write(project, OTHER, (ALLOW, request(path="/two")), (ALLOW, request()))
    log_path(project).write_bytes(log_path(project).read_bytes().replace(b"/two", b"/2wo"))
    assert decisions("--verify").status == 1
    assert decisions("--verify", "--run", RUN).status == 0
    result = decisions("--verify", "--run", OTHER)
    assert result.status == 1
    assert "decisions.jsonl:3:" in result.err


def test_verify_of_one_run_is_not_led_by_what_others_asked_for(project: Path, decisions: Command) -> None:
    write(project, RUN, (ALLOW, request()), (ALLOW, request(path="/x")))
    named = request(host=RUN, path=f"/{RUN}", headers=(("x-a", RUN), ("x-b", f'"run":"{RUN}"')))
    write(project, OTHER, (ALLOW, request()), (DENY, named))
    result = decisions("--verify", "--run", RUN)
    assert (result.status, result.out[:11]) == (0, "ok: 2 lines")
    with log_path(project).open("ab") as file:
        file.write(b'{"id":"%s.3","run":"' % RUN.encode())
    assert "decisions.jsonl:5: " in decisions("--verify", "--run", RUN).err, "of a damaged one it is what it says"
    assert "there is no run 'abcd'" in decisions("--verify", "--run", "abcd").err


def test_verify_of_a_removed_log_misses_the_lines_that_receipts_count(project: Path, decisions: Command) -> None:
    result = decisions("--verify")  # nothing recorded, nothing missing
    assert (result.status, "nothing to check" in result.out) == (0, True)
    write_receipt(project, RUN, 3, POLICY)
    assert decisions("--verify").status == 1


def test_verify_in_a_folder_without_runs_is_an_error(tmp_path: Path, decisions: Command) -> None:
    (tmp_path / "empty").mkdir()
    result = decisions("--verify", "--json", "--project", str(tmp_path / "empty"))
    assert (result.status, result.out) == (1, "")
    assert "there is no log: " in result.err


@pytest.mark.parametrize("other", ["--denied", "--follow"])
def test_verify_with_a_filter_is_a_usage_error(decisions: Command, other: str) -> None:
    assert decisions("--verify", other).status == 2


@pytest.mark.parametrize("count", ["-1", "x", ""])
def test_a_count_that_is_none_is_a_usage_error(decisions: Command, count: str) -> None:
    assert decisions("-n", count).status == 2


def test_a_log_that_is_no_file_is_one_clear_error(project: Path, decisions: Command) -> None:
    log_path(project).mkdir()
    for args in ((), ("--verify",), ("--follow",)):
        result = decisions(*args)
        assert result.status == 1
        assert "not an ordinary file" in result.err


# -- the real command, in a process of its own -----------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "impyard.runner", "decisions"]
CHECKOUT = Path(str(package.__file__)).parent.parent


def in_terminal(
    project: Path, columns: int, *args: str, term: str = "xterm-256color", errors: Path | None = None
) -> str:
    """What the command shows in a terminal that is `columns` wide, colours and all. errors: where its errors go."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**os.environ, "TERM": term}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        env.pop(name, None)
    with open(errors or os.devnull, "wb") as sink:
        process = subprocess.Popen(
            [*COMMAND, "--project", str(project), *args],
            stdin=slave,
            stdout=slave,
            stderr=sink if errors else None,
            env=env,
            cwd=CHECKOUT,
        )
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux: the last process has closed the other side
            break
        if not data:
            break
        shown += data
    os.close(master)
    assert process.wait(10) == 0
    return shown.decode()


def without_colours(text: str) -> list[str]:
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "").splitlines()]


@pytest.mark.attack("F45")
@pytest.mark.parametrize("columns", [0, 80, 160])
def test_a_denial_after_a_redirect_says_which_answer_led_there(project: Path, decisions: Command, columns: int) -> None:
    led = dataclasses.replace(UNLISTED, led_by=f"{RUN}.1")
    write(project, RUN, (ALLOW, request("GET", "api.test", "/download")), (led, request(path="/x")))
    shown = "".join(without_colours(in_terminal(project, columns))) if columns else decisions().out
    assert shown.count("redirected") == 1
    assert columns or fields(shown.splitlines()[1])[5] == f"- redirected by {RUN}.1"


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_request_that_fails_later_has_room_in_the_table_that_is_followed(project: Path, columns: int) -> None:
    write(project, RUN, (ALLOW, request()), (ALLOW, request(path="/later")))
    rows = rows_of([logread.Line(0, line) for line in log_path(project).read_bytes().splitlines()])
    console = Console(file=io.StringIO(), width=columns, height=25)
    table = Table(console)
    table.add(rows[:1])
    came = Outcome("", rows[1].entry.id, error="upstream: no connection to a.test")
    table.add([rows[1]._replace(outcome=came)])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    [failed] = [number for number, line in enumerate(lines) if " failed " in line]
    assert len(lines) - failed <= 3, lines


def test_a_check_at_80_columns_has_no_colon_before_its_mark(project: Path) -> None:
    write(project, RUN, CANARY)
    assert "canary (own check)" in "\n".join(without_colours(in_terminal(project, 80, "--all")))


KEYS: list[dict[str, Any]] = [
    {"verdict": "allow", "reason": "rule", "at": "policies/gateway.yaml:9", "credential": "github"}
    | {"injected": ["authorization"]},
    {"secret": {"credential": "github", "kind": "sentinel", "where": "header x-foo"}, "reason": "secret-in-request"}
    | {"credential": "github", "follows": f"{RUN}.1"},
    {"credential": "openai", "reason": "credential-unavailable", "at": "policies/gateway.yaml:12"},
]


@pytest.mark.parametrize("columns", [0, 80, 160])
def test_the_credential_and_the_secret_that_was_found_are_shown(
    project: Path, decisions: Command, columns: int
) -> None:
    write(project, RUN, *[(UNLISTED, request("POST", "api.test", "/x"))] * 3)
    lines = [json.loads(line) for line in log_path(project).read_text().splitlines()]
    log_path(project).write_text("".join(json.dumps({**a, **b}) + "\n" for a, b in zip(lines, KEYS, strict=True)))
    shown = in_terminal(project, columns) if columns else decisions().out
    text = " ".join(" ".join(without_colours(shown)).split())
    if columns == 80:
        assert "with github" in text and "no credential openai" in text and "stand-in of" in text
    else:
        rules = [fields(line)[5] for line in shown.splitlines()] if not columns else [text]
        for rule, words in zip(
            rules * (3 if columns else 1), ("with github", "x-foo", "no credential openai"), strict=True
        ):
            assert words in rule
        assert "secret-in-request" in text and "credential-unavailable" in text
    assert max(map(len, without_colours(shown))) <= (columns or 1000)


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_fits_the_terminal_and_shows_everything(project: Path, decisions: Command, columns: int) -> None:
    write(
        project,
        RUN,
        (ALLOW, request("POST", "api.test", "/v1/messages")),
        (DENY, request("DELETE", "github.test", "/some/long/name/of/a/repository/that/goes/on/and/on/to/the/end")),
        (UNLISTED, request(path="/\x1b[31mred\x1b[0m")),
    )
    shown = in_terminal(project, columns)
    lines = without_colours(shown)
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in "".join(lines)  # nothing but our own colours
    assert "\x1b[31mred" not in shown
    text = "".join("".join(lines).split())
    for part in ("api.test/v1/messages", "gateway.yaml:12", "unlisted-host", "closest", "gateway.yaml:31", "(method)"):
        assert part in text
    assert "aaaa.2" in text and decisions("show", "aaaa.2").status == 0  # what the table shows is enough
    assert "\x1b[1;31mdeny" in shown and "\x1b[32mallow" in shown


@pytest.mark.parametrize("columns", [60, 80, 120, 160])
def test_the_outcome_and_the_mark_of_a_cut_are_not_broken(project: Path, columns: int) -> None:
    allowed, long = request("POST", "api.test", "/v1/messages"), request(path="/" + "abcdefghij" * 60)
    write(project, RUN, (ALLOW, allowed), (ALLOW, allowed), (UNLISTED, long))
    write_outcomes(project, (f"{RUN}.1", 200, None), (f"{RUN}.2", None, "[Errno 111] Connect call failed"))
    lines = without_colours(in_terminal(project, columns))
    ends = {80: "answer: 200", 160: "gateway.yaml:12 ALLOW POST /v1/messages 200 aaaa.1"}
    assert any(ends.get(columns, "200") in " ".join(line.split()) for line in lines)
    assert not any(line.endswith("answer:") for line in lines)
    assert any(re.search(r"…\(\d+ more\)…", line) for line in lines)


@pytest.mark.parametrize("columns", [40, 52])
def test_a_decision_takes_few_lines_of_a_narrow_terminal(project: Path, columns: int) -> None:
    long = request("POST", "registry.npms.test", "/-/npm/v1/security/advisories/bulk")
    write(project, RUN, (ALLOW, long), (DENY, long))
    write_outcomes(project, (f"{RUN}.1", 200, None))
    lines = without_colours(in_terminal(project, columns))
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 2 + 2 * (240 // columns), lines
    text = "".join("".join(lines).split())
    for part in ("registry.npms.test/-/npm/v1/security", "answer:200", "aaaa.1", "closest", "gateway.yaml:31(method)"):
        assert part in text


@pytest.mark.parametrize("columns", [40, 60, 160])
@pytest.mark.parametrize("args", [(), ("--summary",)], ids=str)
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_no_line_of_a_table_ends_in_blanks_for_who_copies_it(
    project: Path, args: tuple[str, ...], columns: int, term: str
) -> None:
    write(project, RUN, (ALLOW, request("POST", "api.test", "/v1/messages")), (DENY, request(path="/a/long/path" * 9)))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", in_terminal(project, columns, *args, term=term)).splitlines()
    assert len(lines) > 3 and [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("args", [(), ("--summary",)], ids=str)
def test_a_dumb_terminal_has_its_own_width(project: Path, args: tuple[str, ...]) -> None:
    write(project, RUN, (DENY, request(path="/a/long/path/of/a/request" * 3)))
    widest = [max(map(len, in_terminal(project, at, *args, term="dumb").splitlines())) for at in (60, 160)]
    assert widest[0] <= 60 and 80 < widest[1] <= 160


@pytest.mark.parametrize("failed", [False, True])
def test_following_shows_decisions_whose_outcomes_cannot_be_read(
    project: Path, decisions: Command, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("impyard.runner.decisions.view.follow_log", stop)
    write(project, RUN, (ALLOW, request(host="seen.test")))
    (project / "runs" / "outcomes.jsonl").mkdir()
    result = decisions("--follow", *(["--failed"] if failed else []))
    assert ("seen.test" in result.out, "not an ordinary file" in result.err) == (not failed, True)
    assert result.status == failed


def test_the_table_has_no_colours_where_they_are_not_wanted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, RUN, (DENY, request()))
    monkeypatch.setenv("TERM", "dumb")
    env = {**os.environ, "NO_COLOR": "1"}
    out = subprocess.run([*COMMAND, "--project", str(project)], capture_output=True, env=env, cwd=CHECKOUT, check=True)
    assert b"\x1b" not in out.stdout


def test_follow_shows_new_decisions_at_once_and_ends_with_ctrl_c(project: Path) -> None:
    assert logread.POLL_S < 0.5
    log = DecisionLog(log_path(project), RUN)
    log.write(ALLOW, request(path="/old"), POLICY)
    process = subprocess.Popen(
        [*COMMAND, "--project", str(project), "--follow", "-n", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert process.stdout is not None
    try:
        assert "/old" in process.stdout.readline()
        for number in range(3):
            log.write(DENY, request(path=f"/new{number}"), POLICY)
            assert f"/new{number}" in process.stdout.readline(), "shown although nothing follows it"
        log.write(ALLOW, request(path="/fails"), POLICY)
        assert fields(process.stdout.readline())[1] == "allow"
        write_outcomes(project, (f"{RUN}.5", None, "no answer"))
        assert fields(process.stdout.readline().rstrip())[1:8:6] == ["failed", "no answer"]
        write_outcomes(project, (f"{RUN}.1", 200, None), (f"{RUN}.6", None, "early"))
        log.write(ALLOW, request(path="/early"), POLICY)  # its outcome was read first
        assert [fields(process.stdout.readline())[1] for _ in range(2)] == ["allow", "failed"]
    finally:
        process.send_signal(2)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 0  # following is ended so
    assert err == ""


def test_following_a_run_ends_with_it_and_shows_all_of_its_lines(project: Path) -> None:
    log = write(project, RUN, (ALLOW, request(path="/old")))
    lives = {"run": RUN, "runner_pid": os.getpid(), "runner_start": "", "runner_space": "", "exit_reason": "running"}
    RunPaths(project, RUN).receipt.write_text(json.dumps(lives))
    command = [*COMMAND, "--project", str(project), "--run", "last", "--follow"]
    shutil.rmtree(RunPaths(project, OTHER).folder)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert process.stdout is not None
    try:
        assert "/old" in process.stdout.readline()
        log.write(DENY, request(path="/new"), POLICY)
        assert "/new" in process.stdout.readline()
        assert process.poll() is None
        for number in range(50):
            log.write(ALLOW, request(path=f"/{number}"), POLICY)
        write_outcomes(project, (f"{RUN}.{log.seq}", None, "no answer"))
        write_receipt(project, RUN, log.seq, log.last_hash)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    rows = [fields(line.rstrip("\n")) for line in out.splitlines()]
    assert [row[3].rpartition("/")[2] for row in rows if row[1] == "allow"] == [str(number) for number in range(50)]
    assert [row[6:] for row in rows if row[1] == "failed"] == [[f"{RUN}.{log.seq}", "no answer"]]


@pytest.mark.parametrize(
    "receipt",
    [{"ended": "x"}, {"ended": None, "runner_pid": 1, "runner_start": "0", "started": "2026-01-01T00:00:00Z"}],
    ids=["ended", "runner gone"],
)
@pytest.mark.parametrize("args", [(), ("--json",), ("--denied",), ("--failed",), ("--host", "b.test")], ids=str)
def test_following_a_run_that_has_ended_shows_it_and_ends(
    project: Path, decisions: Command, receipt: dict[str, Any], args: tuple[str, ...]
) -> None:
    write(project, RUN, (ALLOW, request()), (DENY, request(path="/x")))
    whole = {"run": RUN, "ceiling_s": 1, **receipt}
    RunPaths(project, RUN).receipt.write_text(json.dumps(whole))
    result = decisions("--run", RUN, "--follow", *args)
    shown = {(): 2, ("--json",): 2, ("--denied",): 1}.get(args, 0)
    assert (result.status, result.out.count("\n")) == (0, shown)
    assert "Waiting" not in result.err and bool(result.err) is not bool(shown)


def test_a_reader_that_goes_away_is_no_traceback(project: Path) -> None:
    log = DecisionLog(log_path(project), RUN)
    for number in range(3000):
        log.write(ALLOW, request(path=f"/{number}"), POLICY)
    command = " ".join([*COMMAND, "--project", f"'{project}'", "-n", "3000", "| head -1"])
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=CHECKOUT, check=True)
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1


def test_the_last_page_of_a_huge_log_reads_only_its_end(project: Path, decisions: Command) -> None:
    write(project, RUN, *((ALLOW, request(path=f"/{number}")) for number in range(60)))
    whole = log_path(project).read_bytes()
    with log_path(project).open("r+b") as file:  # 20 GB in front that would take minutes and all memory to read
        file.truncate(20 * 10**9)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + whole)
    with reads_little():
        result = decisions()
    assert result.out.count("\n") == 50


def test_a_page_of_plain_lines_loads_neither_docker_nor_the_judge_nor_rich(project: Path) -> None:
    write(project, RUN, (ALLOW, request()))
    code = (
        "import sys; from impyard.runner.cli import main\n"
        f"status = main(['decisions', '--project', {str(project)!r}])\n"
        "print(status, [name for name in ('docker', 'mitmproxy', 'rich', 're2', 'yaml') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, check=True).stdout
    assert out.splitlines()[-1] == "0 []"


def test_a_rule_and_a_credential_of_one_name_are_told_apart(project: Path) -> None:
    write(project, RUN, (UNLISTED, request("POST", "api.test", "/x")))
    line = json.loads(log_path(project).read_text())
    line |= {"at": "policies/gateway.yaml:8", "rule": "anthropic", "credential": "anthropic", "reason": "rule"}
    log_path(project).write_text(json.dumps(line) + "\n")
    text = " ".join(" ".join(without_colours(in_terminal(project, 160))).split())
    assert "gateway.yaml:8 rule anthropic; no credential" in text
