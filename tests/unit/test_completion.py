"""What a shell offers for a line that is being typed, asked as the shells ask; and a real bash on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impyard.addon.reasons import DECIDED
from impyard.addon.request import CANARY_SUFFIX
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from impyard.runner import completed_values, proofs
from impyard.runner.cli import main
from impyard.runner.completion import SCRIPTS
from impyard.runner.ownhosts import DEMO_HOST, probe_host
from tests.support.gateway import ROOT

RUNS = ("20260102-030405-00aa", "20260203-040506-00bb")


# What a shell would not take for one plain word.
HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "d1;touch pwned",
    "d1 ",
    "d1\n",
    "~",
    "-x",
    "*",
    "'d1",
    "d\\1",
    "!1",
    "=ls",
    "",
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two runs and a log, pi's settings with models, and a vault; we are in a folder of it."""
    project = tmp_path / "project"
    (project / "policies").mkdir(parents=True)
    (project / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    for run, prompt in zip(RUNS, ("\n fix it\nplease", "colour \x1b[31m" + "x" * 100), strict=True):
        (project / "runs" / run).mkdir(parents=True)
        receipt = {"run": run, "prompt": prompt, "clone": {"form": "sha1"} if run == RUNS[0] else {}}
        (project / "runs" / run / "run.json").write_text(json.dumps(receipt, indent=2))
    (project / "runs" / "other").mkdir()
    lines = [{"id": f"d{n}", "verdict": v, "method": "GET", "host": "a.test", "path": "/x"} for n, v in enumerate("ad")]
    lines[0]["verdict"], lines[1]["verdict"] = "allow", "deny"
    lines[0] |= {"rule": "a-read", "at": "gateway.yaml:4"}
    lines += [{**lines[1], "id": word, "host": word, "rule": word} for word in HOSTILE]
    (project / "runs" / "decisions.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines) + '{"id": "half'
    )
    pi = tmp_path / "pi"
    pi.mkdir()
    (pi / "settings.json").write_text(json.dumps({"defaultProvider": "house", "defaultModel": "m:8b"}))
    models = {"providers": {"house": {"models": [{"id": "m:8b"}, {"id": "m:70b"}, {"id": "bad name; ls"}]}}}
    (pi / "models.json").write_text(json.dumps(models))
    for name in [name for name in os.environ if name.startswith("_IMPYARD")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PI_CODING_AGENT_DIR", str(pi))
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(project / "policies")
    Vault(tmp_path / "data" / "vault").put(
        Credential(name="github", kind="api_key", key="ghp_" + "x" * 30, source="set")
    )
    return project


def offered(line: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is offered behind a line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_IMPYARD_COMPLETE", "bash_complete")
        patch.setenv("IMPYARD_LINE", line)
        assert main([]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("impyard ru", ["run", "runs"]),
        ("impyard runs show ", ["last", *RUNS[::-1]]),
        ("impyard runs stop 20260203-", [RUNS[1]]),
        ("impyard runs rm 20260203-", [RUNS[1]]),
        ("impyard decisions --run ", ["last", *RUNS[::-1]]),
        ("impyard decisions --run=2026010", [RUNS[0]]),
        ("impyard run --model ", ["demo", "house/m:8b", "house/m:70b"]),
        ("impyard run --model house/m:7", ["house/m:70b"]),
        ("impyard run --ceil", ["--ceiling"]),
        ("impyard vault remove ", ["github"]),
        ("impyard vault set g", ["github", "github-copilot", "gitlab", "google", "groq"]),
        ("impyard vault import n", ["npm", "nvidia"]),
        ("impyard completion ", list(SCRIPTS)),
        ("impyard decisions show ", ["d1", "d0"]),
        ("impyard policy replay --run ", ["last", *RUNS[::-1]]),
        ("impyard policy deny ", ["d0"]),
        ("impyard policy preset add pi", ["pip"]),
        ("impyard decisions --reason ", list(DECIDED)),
        ("impyard decisions --reason secret", ["secret-in-request"]),
        ("impyard decisions --host ", ["a.test"]),
        ("impyard decisions --since ", ["30m", "2h", "1d", "7d", "today", "yesterday"]),
        ("impyard decisions rotate --older-than 9", ["90d"]),
        ("impyard runs prune --older-than 9", ["90d"]),
        ("impyard runs prune --keep ", []),
        ("impyard runs diff ", [RUNS[0]]),
        ("impyard runs apply ", [RUNS[0]]),
        ("impyard decisions --rule ", ["a-read", "gateway.yaml:4"]),
        ("impyard policy explain PA", ["PATCH"]),
        ("impyard runs --project /nowhere show ", []),
        ("impyard nothing ", []),
        ("impyard runs show 'un", []),
        ("", [*(name for name in ("run", "init"))]),
    ],
)
def test_what_is_offered(place: Path, capfd: pytest.CaptureFixture[str], line: str, found: list[str]) -> None:
    values = [item.removeprefix("plain,") for item in offered(line, capfd)]
    assert values[: len(found)] == found if not line else values == found


def test_decisions_are_offered_as_the_table_shows_them(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """impyard's own checks, which it leaves out, are not among them."""
    asked = {"verdict": "deny", "reason": "no-rule", "method": "GET", "scheme": "https", "port": 443, "path": "/"}
    own = (probe_host(RUNS[0]), f"x{CANARY_SUFFIX}", DEMO_HOST)
    hosts = (*own, "ollama.impyard.internal", "b.example")
    lines = [{**asked, "id": f"{RUNS[0]}.{n}", "host": host} for n, host in enumerate(hosts, 1)]
    (place / "runs" / "decisions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert offered("impyard decisions show ", capfd) == ["plain,00aa.5", "plain,00aa.4"]
    assert offered("impyard policy allow 2026", capfd) == [f"plain,{RUNS[0]}.5"]
    assert offered("impyard decisions --host ", capfd) == ["plain,b.example", "plain,ollama.impyard.internal"]


def test_only_what_a_rule_can_allow_is_offered_to_be_allowed(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = {"verdict": "deny", "method": "GET", "scheme": "https", "host": "a.example", "port": 443, "path": "/"}
    reasons = ("no-rule", "private-address", "policy-broken", "malformed", "rule", "unlisted-host")
    lines = [{**asked, "id": f"{RUNS[0]}.{n}", "reason": reason} for n, reason in enumerate(reasons, 1)]
    lines.append({**lines[0], "id": f"{RUNS[0]}.7", "host": "intra.test"})
    lines.append({**lines[0], "id": f"{RUNS[0]}.8", "verdict": "allow", "reason": "rule"})
    (place / "runs" / "decisions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert offered("impyard policy allow ", capfd) == ["plain,00aa.6", "plain,00aa.1"]
    assert offered("impyard policy allow --over-deny ", capfd) == ["plain,00aa.6", "plain,00aa.5", "plain,00aa.1"]
    assert offered("impyard policy deny ", capfd) == ["plain,00aa.8"]
    assert len(offered("impyard decisions show ", capfd)) == 8


def test_what_prove_asked_is_not_offered(
    place: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"verdict": "deny", "method": "GET", "scheme": "https", "port": 443, "path": "/", "host": "b.example"}
    lines = [{**asked, "id": f"{run}.1", "run": run, "reason": "no-rule"} for run in RUNS]
    (place / "runs" / "decisions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    theirs = [f"plain,{run}.1" for run in RUNS[::-1]]
    assert offered("impyard policy allow 2026", capfd) == theirs
    (data := tmp_path / "data").mkdir(exist_ok=True)
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(data))
    proofs.note(RUNS[1])
    assert offered("impyard policy allow 2026", capfd) == theirs[1:]


def test_the_newest_run_is_offered_where_it_has_a_clone(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    newest = place / "runs" / "20260301-000000-00cc"
    newest.mkdir()
    (newest / "run.json").write_text(json.dumps({"prompt": "x", "clone": {"form": "sha1"}}, indent=2))
    assert offered("impyard runs diff ", capfd) == [f"plain,{run}" for run in ("last", newest.name, RUNS[0])]


def test_files_are_left_to_the_shell(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert offered("impyard run --policy ", capfd) == ["file,"]
    assert offered("impyard runs apply --take src/", capfd) == ["file,src/"]


def test_a_pipe_in_the_logs_place_keeps_nobody_waiting(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = place / "runs" / "decisions.jsonl"
    log.unlink()
    os.mkfifo(log)
    assert offered("impyard decisions show ", capfd) == []


def test_of_a_long_receipt_only_the_beginning_is_read(place: Path) -> None:
    receipt = place / "runs" / RUNS[0] / "run.json"
    receipt.write_text(json.dumps({"run": RUNS[0], "prompt": 'say "a\\"', "files": ["x" * 100_000]}, indent=2)[:-9])
    assert completed_values._about(receipt.parent) == 'say "a\\"'


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_runs_come_with_their_prompts_escaped_and_short(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_IMPYARD_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "impyard runs show ")
    monkeypatch.setenv("COMP_CWORD", {"zsh": "3", "fish": ""}[shell])
    assert main([]) == 0
    out = capfd.readouterr().out
    assert "fix it" in out and "please" not in out
    assert {"zsh": "colour \\\\x1b[31m", "fish": "colour "}[shell] in out and "\x1b" not in out and "x" * 70 not in out
    assert out.index(RUNS[1]) < out.index(RUNS[0])


@pytest.mark.parametrize("asked", ["bash_source", "csh_complete", "bash", "1", "zsh_complete"])
def test_a_question_that_makes_no_sense_is_not_answered(
    asked: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_IMPYARD_COMPLETE", asked)
    monkeypatch.delenv("COMP_WORDS", raising=False)
    assert main(["run", "x"]) == 0
    assert capfd.readouterr() == ("", "")


def test_each_shell_has_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script


def test_a_real_bash_completes_on_a_terminal(place: Path, tmp_path: Path) -> None:
    """The words that it cuts at colons, too; and what cannot be completed says nothing."""
    command = tmp_path / "bin" / "impyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m impyard.runner "$@"\n')
    command.chmod(0o755)
    (tmp_path / "rc").write_text("PS1='ready> '\nset +o history\nsource <(impyard completion bash)\n")
    inner, outer = pty.openpty()
    env = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "200"}
    env["HOME"] = str(tmp_path)
    shell = ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]
    process = subprocess.Popen(shell, stdin=outer, stdout=outer, stderr=outer, env=env, start_new_session=True)
    os.close(outer)
    shown = b""

    def until(word: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 30
        while word not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(inner, 4096)
        shown = shown.partition(word)[2]

    try:
        until(b"ready> ")
        os.write(inner, b"impyard runs show 20260203\t")
        until(f"{RUNS[1]} ".encode())
        os.write(inner, b"\x15impyard run --model house/m:7\t")
        until(b"house/m:70b ")
        os.write(inner, b"\x15impyard vault remove g\t")
        until(b"github ")
        os.write(inner, b"\x15~/bin/impyard repo\t")
        until(b"~/bin/impyard report ")
        os.write(inner, b"\x15impyard decisions show $(\t\x15impyard nothing at all \t\x15echo en'd'\r")
        until(b"echo en'd'")
        until(b"end")
        assert b"rror" not in shown
    finally:
        process.kill()
        process.wait()
        os.close(inner)
