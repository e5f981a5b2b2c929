"""`impyard report` on runs as they lie in a project: whole ones, broken ones, hostile ones and huge ones."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.decisions import line_hash
from impyard.addon.judge import Decision, Secret, Verdict
from impyard.addon.rules import Inject
from impyard.runner import cli, engine
from impyard.runner.decisions import logread, rotation
from impyard.runner.decisions.logfiles import Log, only, rotated
from impyard.runner.report import agent as report_agent
from impyard.runner.report import requests as report_requests
from impyard.runner.report.style import CSS
from tests.support import called, manydecisions
from tests.support.recorded import ALLOW, DENY, RUN, UNLISTED, Recorded, call, request, said, usage
from tests.unit.test_markup import HOSTILE, Parsed


class Result(called.Result):
    @property
    def page(self) -> Parsed:
        assert self.status == 0, self.err
        return Parsed(self.out)

    @property
    def text(self) -> str:
        """What one reads, in a line; elements stand apart."""
        assert self.status == 0, self.err
        body = re.sub(r"<head>.*</head>", "", self.out, flags=re.S)
        return " ".join(html.unescape(re.sub(r"</[^>]*>", "", re.sub(r"<(?!/)[^>]*>", " ", body))).split())


Report = Callable[..., Result]


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    engine.client.cache_clear()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    return Recorded(tmp_path.resolve() / "project")


@pytest.fixture
def report(run: Recorded, capsys: pytest.CaptureFixture[str]) -> Report:
    def make(*args: str, output: str | None = "-") -> Result:
        capsys.readouterr()
        where = ["-o", output] if output else []
        status = cli.main(["report", "--project", str(run.root), *where, *args])
        return Result(status, *capsys.readouterr())

    return make


def test_a_whole_run_is_told(run: Recorded, report: Report) -> None:
    run.prompt("mend it\nand commit")
    inject = Inject("github", (), "policies/gateway.yaml:4")
    run.decide(ALLOW, request("POST", "model.test", "/v1/messages"))
    run.decide(
        ALLOW, request("POST", "model.test", "/v1/messages"), status=None, error="[Errno 111] Connect call failed"
    )
    run.decide(Decision(Verdict.ALLOW, "rule", inject=inject, injected=("authorization",)), request("GET", "api.test"))
    for number in range(4):
        run.decide(UNLISTED, request("GET", "evil.example", f"/item/{number}"))
    run.decide(DENY, request("PUT", "api.example.org", "/a"))
    secret = Secret("github", "sentinel", "header x-a")
    run.decide(Decision(Verdict.DENY, "secret-in-request", secret=secret), request("POST", "paste.test", "/"))
    model: dict[str, Any] = {"provider": "p", "model": "m", "stopReason": "toolUse"}
    run.events(
        {"type": "session", "timestamp": "2026-01-01T00:00:00.000Z"},
        said("user", "mend it\nand commit", began=run.began),
        said(
            "assistant",
            "I look",
            blocks=[call("1", "bash", command="make test")],
            usage=usage((9, 1, 5, 2), 0.25),
            **model,
        ),
        said("toolResult", "1 failed", toolCallId="1", isError=True, durationMs=1500, after_s=1.5),
        said("assistant", "Done", usage=usage((10, 2, 0, 0), 0.5), **model, after_s=2),
    )
    run.end(prompt="mend it … (+1 line)", credentials={"github": 1}, files=[{"path": "a.txt", "bytes": 3}])
    text = report().text
    assert f"impyard, run {RUN} mend it … ✓ finished" in text
    assert "Allowed 3 1 of them failed Denied 6 Sent 300 B Received 6.0 KB" in text
    assert "Model calls 2 1 tool call Tokens 29 3 of them output Cost $0.75" in text
    assert "✗ denied GET evil.example/item/{n} 4 times" in text
    assert "unlisted-host: no entry of the policy is about the host" in text
    assert "The closest rule is policies/gateway.yaml:31; the request differs in its method" in text
    assert f"impyard policy allow {RUN}.8 --project {shlex.quote(str(run.root))}" in text
    assert "It held the stand-in of github in the header x-a" in text
    assert text.count("policy allow") == 2, "nothing is proposed for a secret"
    assert "! failed POST model.test/v1/messages" in text and "connection refused" in text
    assert "bash make test 1.5 s · failed 1 failed" in text
    assert "with github" in text and "github on 1 request" in text
    assert "a.txt (3 B)" in text
    assert "✓ verified: 9 lines" in text and "the one that the receipt names" in text
    assert "1 denied request held a secret" in text


def test_rules_for_all_are_offered_only_where_there_are_rules(run: Recorded, report: Report) -> None:
    run.decide(UNLISTED, request("GET", "intra.test", "/"))
    run.decide(Decision(Verdict.DENY, "private-address"), request("GET", "a.example", "/"))
    run.decide(DENY, request("GET", "10.0.0.1", "/"))
    run.end()
    assert "policy suggest" not in report().text and "policy allow" not in report().text
    run.decide(UNLISTED, request("GET", "a.example", "/x"))
    run.decide(UNLISTED, request("GET", "b.example", "/x"))
    text = report().text
    assert "Rules for those that a rule can allow, as small as they can be" in text and text.count("policy allow") == 2


def test_the_page_loads_nothing_runs_nothing_and_says_so_in_its_policy(run: Recorded, report: Report) -> None:
    for hostile in HOSTILE:
        run.decide(UNLISTED, request(hostile[:100], f"{hostile}.test", f"/{hostile}?javascript:alert(1)"))
        run.decide(ALLOW, request("GET", "a.test", f"/{hostile}"), error=hostile)
    run.prompt("\n".join(HOSTILE))
    bad = "\n".join(HOSTILE)
    blocks = [call(bad, bad, command=bad), call("2", "bash", command=bad)]
    run.events(
        said("user", bad),
        said(
            "assistant",
            bad,
            blocks=blocks,
            provider=bad,
            model=bad,
            stopReason="error",
            errorMessage=bad,
            usage=usage((1, 1, 0, 0), 1),
        ),
        said("toolResult", bad, toolCallId="2"),
    )
    names = {"policy": {"files": HOSTILE, "hash": bad}, "image": {"id": bad}, "ca": bad, "refused_key": bad}
    run.end("agent-error", error=bad, model=bad, credentials={bad: 1}, files=[{"path": bad}], links=HOSTILE, **names)
    result = report()
    allowed = {"a", "meta", "style"}
    tags = {tag for tag, _ in result.page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "input", "video", "audio"}
    assert allowed <= tags
    for _, attributes in result.page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style", "srcset")]
        assert attributes.get("href", "#").startswith("#")  # type: ignore[union-attr]
    csp = next(a["content"] for t, a in result.page.elements if t == "meta" and a.get("http-equiv"))
    assert csp is not None and csp.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in csp
    shown = set(result.out) - {"\n"}
    assert all(char.isprintable() for char in shown)
    assert r"\u202egnp.exe" in result.text and r"\x1b[31m" in result.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in result.out


def test_without_a_run_it_is_the_newest_and_without_a_file_it_lies_in_the_runs_folder(
    run: Recorded, report: Report, tmp_path: Path
) -> None:
    run.end()
    newer = Recorded(run.root, "20260101-000001-bbbb")
    newer.end()
    result = report(output=None)
    path = newer.paths.folder / "report.html"
    assert result.out.startswith(str(path)) and path.stat().st_mode & 0o777 == 0o600
    assert newer.run in path.read_text() and run.run not in path.read_text()
    assert report(RUN[:-2], output=str(tmp_path / "r.html")).status == 0
    assert run.run in (tmp_path / "r.html").read_text()


def test_a_changed_line_is_named(run: Recorded, report: Report) -> None:
    for number in range(3):
        run.decide(UNLISTED, request("GET", "evil.test", f"/{number}"))
    run.end()
    log = run.paths.runs / "decisions.jsonl"
    assert "✓ verified" in report().text
    log.write_bytes(log.read_bytes().replace(b'"path":"/1"', b'"path":"/9"'))
    text = report().text
    assert "✗ broken" in text and "line 2: edited: the line after it does not agree with it" in text
    assert "The decision log is not as it was written" in text


def opened_file(path: Path) -> Log:
    found = only(path)
    assert found is not None
    return found


def test_of_a_long_log_only_the_files_of_the_runs_time_are_opened(
    run: Recorded, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in the middle of two months, of which a file stands for each two days; the log's last one holds a run of
    now."""
    now = datetime.now(UTC)
    began = now - timedelta(days=60)
    lines = 30 * manydecisions.RUN_LINES
    manydecisions.write_many(
        run.paths.runs,
        lines,
        part_bytes=manydecisions.RUN_LINES * manydecisions.BYTES_A_LINE,
        since=began,
        until=now,
    )
    old = [each.path for each in rotated(run.paths.runs / "decisions.jsonl")]
    assert len(old) == 29
    with opened_file(old[14]) as log:
        own = [json.loads(line) for line in logread.raw_lines(log)]
        end = line_hash(list(logread.raw_lines(log))[-1])
    name = own[0]["run"]
    assert {line["run"] for line in own} == {name}
    middle = Recorded(run.root, name, datetime.fromisoformat(own[0]["ts"]))
    counts = {"allowed": sum(line["verdict"] == "allow" for line in own), "denied": 50, "seq": len(own), "last": end}
    middle.end(ended=own[-1]["ts"], decisions=counts)
    opened: list[str] = []
    open_really = os.open

    def noted(path: Any, *args: Any, **more: Any) -> int:
        opened.append(Path(path).name if isinstance(path, str | Path) else "")
        return open_really(path, *args, **more)

    monkeypatch.setattr(os, "open", noted)
    text = report(name).text
    assert "Allowed 450 Denied 50" in text and "✓ verified: 500 lines" in text and "Received 5.6 MB" in text, text
    files = {each for each in opened if each.startswith(("decisions-", "outcomes-"))}
    assert old[14].name in files and len(files) <= 6, "those within a day of it, of both kinds"

    # What is missing there is looked for everywhere before anything is said of it, and named by its file.
    stamp = old[14].name.removeprefix("decisions-")
    old[14].rename(old[14].with_name("decisions-" + stamp.replace(stamp[:4], "2020", 1)))
    assert "✓ verified: 500 lines" in report(name).text
    [moved] = run.paths.runs.glob("decisions-2020*")
    with opened_file(moved) as log:
        whole = log.pread(log.size, 0)
    moved.unlink()
    moved.with_suffix("").write_bytes(whole.replace(own[99]["path"].encode(), b"/other"))
    assert f"line 100 of {moved.with_suffix('').name}: edited" in report(name).text


@pytest.mark.parametrize("after", [0, 2])
def test_lines_in_old_files_that_were_removed_on_purpose_are_no_fault(
    run: Recorded, report: Report, after: int
) -> None:
    for number in range(3):
        run.decide(UNLISTED, request("GET", "evil.test", f"/{number}"))
    rotation.rotate(run.paths.runs)
    for number in range(after):
        run.decide(UNLISTED, request("GET", "evil.test", f"/after/{number}"))
    run.end()
    list(rotation.pack_all(run.paths.runs, settled_s=0))
    [gone] = rotation.remove_before(run.paths.runs, datetime.now(UTC) + timedelta(days=1))
    text = report().text
    assert "3 lines of the decision log are in none of its files any more" in text
    assert "broken" not in text and "not as it was written" not in text and "The receipt counts" not in text
    (run.paths.runs / "rotated.jsonl").unlink()
    assert "✗ broken" in report().text, f"nothing says that {gone} was removed on purpose"


def test_counts_that_differ_from_the_receipts_are_said(run: Recorded, report: Report) -> None:
    run.decide(UNLISTED, request())
    run.end(decisions={"allowed": 7, "denied": 1})
    assert "The receipt counts 7 allowed and 1 denied requests, the log has 0 and 1." in report().text


@pytest.mark.parametrize("rest", [0, 2])
def test_lines_that_were_removed_as_asked_are_no_fault_and_the_receipt_counts_them(
    run: Recorded, report: Report, rest: int
) -> None:
    runs = run.paths.runs
    for number in range(3):
        run.decide(ALLOW, request(path=f"/{number}"))
        run.decide(UNLISTED, request("GET", "evil.test", f"/{number}"))
    rotation.rotate(runs)
    for number in range(rest):
        run.decide(UNLISTED, request("GET", "late.test", f"/{number}"))
    run.end()
    assert len(list(rotation.pack_all(runs, settled_s=0))) == 2
    gone = rotation.remove_before(runs, datetime.now(UTC) + timedelta(minutes=1))
    assert len(gone) == 2
    text = report().text
    assert "not as it was written" not in text and "broken" not in text
    assert (
        "6 lines of the decision log are in none of its files any more: `impyard decisions rotate --older-than`" in text
    )
    assert f"Allowed 3 by the receipt Denied {3 + rest} by the receipt" in text
    if rest:
        assert "✓ verified: 2 lines" in text and "Before them, 6 older lines went" in text
        log = runs / "decisions.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
        assert "✗ broken" in report().text, "what comes after is still checked"
    else:
        assert "nothing left to check: the 6 older lines" in text


def test_a_run_that_goes_on_or_was_lost_gives_what_there_is(run: Recorded, report: Report) -> None:
    run.decide(UNLISTED, request("GET", "evil.test"))
    run.end(None)
    text = report().text
    assert "Whether the run still goes on is not known" in text
    assert "There is no record of what the agent did" in text and "The prompt cannot be read" in text
    assert "✗ denied GET evil.test/" in text and "no receipt says which is the last" in text
    with (run.paths.runs / "decisions.jsonl").open("ab") as log:
        log.write(b'{"ts":"2026-01-01T00:00:00.000Z","run":"%s","half' % RUN.encode())
    assert "torn" in report().text, "nobody writes it any more"


def test_a_run_without_receipt_log_or_anything_is_a_page_that_says_so(run: Recorded, report: Report) -> None:
    (run.paths.runs / "decisions.jsonl").unlink(missing_ok=True)
    os.utime(run.paths.folder, (0, 0))
    text = report().text
    assert "! without a receipt" in text and "There is no receipt that can be read" in text
    assert "nothing to check" in text


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b'{"type":"message_update"}\n'], ids=["empty", "damaged", "skipped"])
def test_events_without_an_end_are_read_in_part(
    run: Recorded, report: Report, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """The box writes them, for as long as the disk takes them."""
    monkeypatch.setattr(report_agent, "MAX_LINES", 50)
    monkeypatch.setattr(report_agent, "MAX_RECORDS", 50)
    run.events(said("user", "the beginning"))
    (stdout,) = run.root.glob("runs/*/stdout.jsonl")
    with stdout.open("ab") as file:
        file.write(line * 45)
    assert "only its beginning was read" not in report().text
    with stdout.open("ab") as file:
        file.write(line * 100)
    text = report().text
    assert "the beginning" in text and "stdout.jsonl is so long that only its beginning was read" in text


def test_damaged_lines_are_counted_and_never_fatal(run: Recorded, report: Report) -> None:
    garbage = [b"\xff\xfe\0", b"[" * 5000, b"{}", b"null", b'{"type":3}', b'{"type":"message_end","message":[]}']
    run.events(said("user", "hello"), *garbage, b'{"type":"message_end","x":"' + b"a" * (1 << 20) + b'"}')
    odd = {"timestamp": "soon", "usage": {"input": -5, "output": True, "cost": {"total": 1e999}}, "content": 7}
    run.events(b'{"type":"message_end","message":{"role":"assistant","timestamp":1e400}}')
    run.events({"type": "message_end", "message": {"role": "assistant", **odd, "usage": {"input": "many", "cost": 3}}})
    run.decide(UNLISTED, request())
    log = run.paths.runs / "decisions.jsonl"
    run.end()
    with log.open("ab") as file:
        file.write(b'{"run":"%s","verdict":"deny"}\n' % RUN.encode() + b"\xff\n" + b"x" * (2 << 20) + b"\n")
    (run.paths.runs / "outcomes.jsonl").write_bytes(b'"%s" \n\xff\n' % RUN.encode())
    text = report().text
    assert "lines of stdout.jsonl cannot be read" in text
    assert "1 line of stdout.jsonl is too long" in text
    assert "1 line of the decision log cannot be read" in text
    assert "hello" in text and "✗ denied GET a.test/" in text


def test_no_other_runs_request_passes_for_one_of_this(run: Recorded, report: Report) -> None:
    run.decide(ALLOW, request())
    other = Recorded(run.root, RUN[:-4] + "bbbb")
    other.decide(ALLOW, request())
    other.decide(DENY, request(host=RUN, headers=(("x-a", RUN),)))
    other.outcomes.write(f"{other.run}.1", 200, 7, 5_000_000, 1.0, f'"{RUN}.1"', RUN)
    run.end()
    result = report(run.run)
    assert "✓ verified: 1 line," in result.text and "5.0 MB" not in result.text


LARGE = 10**400


@pytest.mark.parametrize("number", [LARGE, -LARGE, 1e308, True, "x", [1.5], None], ids=lambda value: str(value)[:5])
def test_no_number_of_the_box_or_the_receipt_is_fatal(run: Recorded, report: Report, number: object) -> None:
    usage = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), number) | {"cost": {"total": number}}
    odd = {"provider": "p", "model": "m", "timestamp": number, "durationMs": number, "usage": usage}
    run.events(said("user", "hello"), {"type": "message_end", "message": {"role": "assistant", **odd}})
    run.events({"type": "usage", "provider": "p", "model": "m", "usage": usage})
    run.decide(UNLISTED, request())
    names = ("model", "workspace", "started", "exit_status", "ca", "resumes", "ceiling_s", "prompt", "error", "pi")
    receipt: dict[str, Any] = dict.fromkeys(names, number)
    run.end("finished", **receipt, image={"id": number}, policy={"hash": number, "files": [number]})
    assert "hello" in report().text


def test_a_receipt_of_any_size_is_a_page_of_bounded_size(run: Recorded, report: Report) -> None:
    long = "x" * 1_000_000
    names = ("ca", "resumes", "workspace", "model", "error", "pi")
    more: dict[str, Any] = dict.fromkeys(names, long)
    run.end(long, **more, image={"id": long}, policy={"hash": long}, probes=[{"name": long, "ok": False}] * 3)
    assert len(report().out) < 200_000


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"])
def test_no_time_of_the_log_or_the_receipt_is_fatal(run: Recorded, report: Report, time: str) -> None:
    run.decide(UNLISTED, request())
    run.end(started=time, ended=time)
    log = run.paths.runs / "decisions.jsonl"
    log.write_bytes(re.sub(rb'"ts":"[^"]*"', b'"ts":"%s"' % time.encode(), log.read_bytes()))
    assert "✗ denied GET a.test/" in report().text


@pytest.mark.parametrize("name", ["runs/decisions.jsonl", f"runs/{RUN}/stdout.jsonl", f"runs/{RUN}/prompt.txt"])
def test_a_pipe_in_a_files_place_hangs_nobody(run: Recorded, report: Report, name: str) -> None:
    run.end()
    (run.root / name).unlink(missing_ok=True)
    os.mkfifo(run.root / name)
    text = report().text
    assert "is not an ordinary file" in text or "prompt.txt is no file" in text


def test_an_interactive_run_is_read_from_its_session_and_no_link_there_is_followed(
    run: Recorded, report: Report, tmp_path: Path
) -> None:
    (tmp_path / "secret.jsonl").write_text(
        json.dumps({"type": "message", "message": said("user", "STOLEN")["message"]})
    )
    (run.paths.session / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    os.mkfifo(run.paths.session / "b.jsonl")
    old = {
        "type": "message",
        "timestamp": "2020-01-01T00:00:00Z",
        "message": said("user", "of an earlier run")["message"],
    }
    new = {"type": "message", "timestamp": run.began.isoformat(), "message": said("user", "typed here")["message"]}
    (run.paths.session / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (old, new)))
    run.end()
    text = report().text
    assert "typed here" in text and "STOLEN" not in text and "of an earlier run" not in text


def test_what_looks_like_a_key_is_not_shown_around(run: Recorded, report: Report) -> None:
    key = "ghp_" + "A1b2" * 9
    run.prompt(f"use {key}")
    run.events(said("user", f"use {key}"), said("assistant", "x" * (report_agent.TEXT_CHARS - 10) + f" {key}"))
    run.end()
    result = report()
    assert "ghp_" not in result.out and "<redacted>" in result.text


@pytest.mark.parametrize(("over", "words"), [(1, "(1 more character)"), (2, "(2 more characters)")])
def test_how_much_of_a_long_text_is_left_out_is_counted(run: Recorded, report: Report, over: int, words: str) -> None:
    run.prompt("go")
    run.events(said("user", "go"), said("assistant", "x" * (report_agent.TEXT_CHARS + over)))
    run.end()
    assert words in report().text


def test_a_huge_run_is_a_page_of_bounded_size(run: Recorded, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = "&<>\"'" * 60
    for number in range(700):
        run.events(
            said("assistant", nasty * 10, after_s=number / 500, blocks=[call(str(number), "bash", command=nasty)])
        )
        run.events(said("toolResult", nasty * 99, toolCallId=str(number), after_s=number / 500))
        run.decide(UNLISTED, request("GET", f"h{number}x.test", f"/{'abcdefghijklmnop'[number % 16] * 3}{nasty}"))
        run.decide(ALLOW, request("GET", "a.test", f"/{number}"))
    run.end()
    monkeypatch.setattr(report_requests, "MAX_HOSTS", 100)
    result = report()
    assert len(result.out.encode()) < 2_000_000
    text = result.text
    assert "Allowed 700 Denied 700" in text
    assert "steps of the agent are left out here" in text
    assert re.search(r"… and other requests here: \d+ allowed, \d+ denied", text)
    assert "other denied requests are left out here" in text
    assert re.search(r"more than \d+ other hosts", text)


def test_a_host_that_is_asked_for_many_things_does_not_hide_the_others(run: Recorded, report: Report) -> None:
    for number in range(400):
        name = "".join("abcdefghij"[int(digit)] for digit in f"{number:03}")
        run.decide(UNLISTED, request("GET", "many.test", f"/{name}"))
    for number in range(30):
        run.decide(UNLISTED, request("GET", f"h{number}.test", "/"))
    run.end()
    text = report().text
    assert text.count("denied GET many.test/") == 8 + report_requests.MAX_ROWS_A_GAP, "in the kinds and the timeline"
    assert "✗ denied other requests to many.test 392 times" in text and "denied GET h29.test/" in text
    assert "27 other kinds of denied requests" in text and "left out here" not in text


def test_bytes_are_those_of_every_request_also_of_those_without_a_row(
    run: Recorded, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_requests, "MAX_ROWS", 2)
    monkeypatch.setattr(report_requests, "MAX_HOSTS", 1)
    for name in "abcd":
        run.decide(ALLOW, request("GET", f"{name}.test", f"/{name}"))
    run.end()
    text = report().text
    assert "Sent 400 B Received 8.0 KB" in text and "… and other requests here: 2 allowed, 0 denied" in text
    assert "more than 0 other hosts 3 0 300 B 6.0 KB" in text


def test_a_link_in_the_files_place_is_replaced_and_not_followed(run: Recorded, report: Report, tmp_path: Path) -> None:
    run.end()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (run.paths.folder / "report.html").symlink_to(victim)
    assert report(output=None).status == 0
    assert victim.read_text() == "mine" and not (run.paths.folder / "report.html").is_symlink()


@pytest.mark.parametrize("place", ["workspace/r.html", "session/r.html", "../elsewhere/r.html"])
def test_nothing_is_written_where_the_agent_can(run: Recorded, report: Report, place: str) -> None:
    (run.paths.runs / "elsewhere").mkdir()
    run.end(workspace=str(run.paths.runs / "elsewhere"))
    result = report(output=str(run.paths.folder / place))
    assert result.status == 1 and "lies where the agent can write" in result.err
    assert not list(run.root.rglob("r.html"))


@pytest.mark.parametrize(
    "place",
    ["runs/decisions.jsonl", "runs/new.html", "runs/{}/run.json", "policies/gateway.yaml", "/dev/stdout", "link"],
)
def test_nothing_but_a_report_is_replaced(run: Recorded, report: Report, place: str) -> None:
    """And no link: that of /dev is the machine's. Control: a report, and an empty file, are."""
    run.end()
    (run.root / "policies").mkdir(exist_ok=True)
    (run.root / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    (run.root / "link").symlink_to("policies/gateway.yaml")
    target = run.root / place.format(run.paths.id)
    if place == "/dev/stdout":
        (run.root / "dev").mkdir()
        target = run.root / "dev" / "stdout"
        target.symlink_to("/proc/self/fd/1")
    before = {path: os.readlink(path) if path.is_symlink() else path.read_bytes() for path in files_in(run.root)}
    result = report(output=str(target))
    assert result.status == 1 and "-o" in result.err
    after = {path: os.readlink(path) if path.is_symlink() else path.read_bytes() for path in files_in(run.root)}
    assert before == after
    (run.root / "empty").touch()
    for name in ("empty", "empty", f"runs/{run.paths.id}/other.html"):
        assert report(output=str(run.root / name)).status == 0


@pytest.mark.parametrize(("script", "said"), [("echo noise; exit 3", True), ("exit 0", False), (None, True)])
def test_a_machine_without_a_browser_says_so_in_a_line(
    run: Recorded, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: bool
) -> None:
    run.end()
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        for name in ("xdg-open", "open"):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
    result = report("--open", output=None)
    assert result.status == 0 and "noise" not in result.out + result.err
    assert result.err == (f"no browser was found; open {run.paths.folder}/report.html yourself\n" if said else "")


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(
    run: Recorded, report: Report, tmp_path: Path
) -> None:
    run.end()
    for target in (tmp_path / "none" / "r.html", tmp_path, Path("/dev/null")):
        result = report(output=str(target))
        assert result.status == 1 and result.err.startswith("error: ") and "hint: name another" in result.err
    assert report(output="-").status == 0
    assert report("--open", output="-").status == 2
    assert sorted(path.name for path in run.paths.folder.iterdir()) == ["run.json", "session", "workspace"]


def test_every_text_has_contrast_in_light_and_dark() -> None:
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in re.findall(r":root \{(.*?)\}", CSS, re.S)
    ]
    for theme in themes[:2]:
        for ink in ("text", "quiet", "good", "bad", "warn", "link"):
            for paper in ("page", "card", "soft"):
                assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper)
        for paper in ("bad-soft", "warn-soft"):
            assert contrast(theme["text"], theme[paper]) >= 7


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)
