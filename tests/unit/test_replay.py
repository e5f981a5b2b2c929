"""Judging recorded decisions again: the judge's own verdict on what was recorded, and nothing guessed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.decisions import encode_decision
from impyard.addon.judge import Decision, Secret, Verdict, denial, judge
from impyard.addon.log import DecisionLog
from impyard.addon.policy import Policy, read_policy
from impyard.addon.reasons import REASONS
from impyard.addon.request import Request
from impyard.addon.rules import Inject, Upstream
from impyard.runner import cli
from impyard.runner.policy.replay import AFTER_RULES, BEFORE_RULES, BY_RULES, UNSEEN, Judged, Recorded, Replay
from tests.attacks.test_properties_policy import (
    asked,
    odd_paths,
    odd_queries,
    plain_paths,
    plain_queries,
    request_for,
    written,
)
from tests.attacks.test_properties_policy import policies as some_policies
from tests.support.fuzz import examples
from tests.support.policymodel import Asked

decode = msgspec.json.Decoder(Recorded).decode
RUN = "20261130-080000-abcd"
OLD = """\
networkPolicies:
  - host: a.test
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*, name: pub}
      - {action: ALLOW, method: POST, path: /up, max_body: 10, name: up}
      - {action: ALLOW, method: GET, path: /q, query: {token: "[0-9]+", page: "[0-9]+"}, name: asks}
"""


def loaded(text: str) -> Policy:
    return read_policy([(Path("/project/policies/gateway.yaml"), text.encode())], root=Path("/project"))


def recorded(decision: Decision, request: Request) -> Recorded:
    """The decision through the log's own writer, and back."""
    line = encode_decision(
        ts="2026-11-30T08:00:00.000Z", id=f"{RUN}.9", run=RUN, seq=9, decision=decision, request=request,
        policy_hash="", prev="",
    )  # fmt: skip
    return decode(line)


def sent(question: Asked, more: tuple[tuple[str, str], ...]) -> Request:
    """The request as the gateway takes it: what it asks to switch to stands in a header."""
    request = request_for(question)
    upgrade = (("Upgrade", request.upgrade),) if request.upgrade else ()
    return replace(request, headers=request.headers + upgrade + more)


def get(path: str, method: str = "GET", **more: Any) -> Request:
    path, _, query = path.partition("?")
    return Request(method, "https", "a.test", 443, path, query, host_header="a.test", sni="a.test", **more)


def again(request: Request, new: str, old: str = OLD, decision: Decision | None = None) -> Judged:
    """What becomes of a request that was judged, or decided, under one policy, under another."""
    return Replay(loaded(new))(recorded(decision or judge(request, loaded(old)), request))


# -- the same word as the judge's ------------------------------------------------------------------------------------


any_asked = st.one_of(asked(plain_paths, plain_queries), asked(odd_paths, odd_queries))
overrides = st.sampled_from(
    [(), (("X-HTTP-Method-Override", "PUT"),), (("X-Original-URL", "/a/b?q=1"),), (("x-rewrite-url", "/a"), ("a", "b")),
     (("X-HTTP-Method", "a b"),)]
)  # fmt: skip


@examples(50)
@given(some_policies, any_asked, overrides)
def test_under_the_same_policy_it_says_what_was_recorded(
    entries: list[dict[str, Any]], question: Asked, more: tuple[tuple[str, str], ...]
) -> None:
    policy = loaded(written(entries)[0])
    request = sent(question, more)
    decision = judge(request, policy)
    line = recorded(decision, request)
    judged = Replay(policy)(line)
    assert judged.allowed is decision.allowed and not judged.otherwise
    if decision.reason in BY_RULES:
        assert judged.decision is not None
        assert (judged.decision.verdict, judged.decision.reason, judged.decision.rule, judged.decision.at) == (
            decision.verdict, decision.reason, decision.rule, decision.at,
        )  # fmt: skip


@examples(50)
@given(some_policies, some_policies, st.lists(any_asked, min_size=1, max_size=4), overrides)
def test_under_another_policy_it_says_what_the_judge_says_of_the_request_itself(
    old: list[dict[str, Any]], new: list[dict[str, Any]], questions: list[Asked], more: tuple[tuple[str, str], ...]
) -> None:
    before, after = loaded(written(old)[0]), loaded(written(new)[0])
    replay = Replay(after)
    for question in questions:
        request = sent(question, more)
        judged = replay(recorded(judge(request, before), request))
        if judged.allowed is not None:
            assert judged.allowed is judge(request, after).allowed
        else:
            assert judged.why


secrets = st.sampled_from(["token=abc", "page=7", "token=7", "_method[token]=PUT", "token=a;page=7", "sk-" + "a" * 20,
                           "x=//u:p@h/", "page=7&code=1", "token=%33", "page=<redacted>"])  # fmt: skip
paths = st.sampled_from(["/q", "/pub/a", "/pub/sk-" + "a" * 20, "/pub/a;token=1", "/pub/" + "a" * 5000, "/up",
                         "/pub/" + "*" * 8, "/pub//u:p@h/x"])  # fmt: skip

some_headers = st.sampled_from(
    [(), (("x-original-url", "/pub/a?token=1"),), (("x-original-url", "/a"), ("x-original-url", "/pub/b")),
     (("a", "b"),) * 70, (("a", "b"),) * 70 + (("x-http-method", "PUT"),)]
)  # fmt: skip


@examples(60)
@given(st.sampled_from(["GET", "POST", "sk-" + "a" * 20]), paths, st.lists(secrets, max_size=4).map("&".join),
       some_headers, st.sampled_from([0, 10, 11, None]))  # fmt: skip
def test_what_was_not_recorded_as_it_was_is_never_guessed(
    method: str, path: str, query: str, headers: tuple[tuple[str, str], ...], body: int | None
) -> None:
    request = get(path, method, headers=headers, body_bytes=body)
    request = replace(request, query=query)
    judged = again(request, OLD)
    assert judged.allowed in (None, judge(request, loaded(OLD)).allowed)


def test_a_redacted_value_counts_only_where_a_rule_asks_for_it() -> None:
    wide = "networkPolicies:\n  - host: a.test\n    policies: [{action: ALLOW, method: GET, path: /.*}]\n"
    assert again(get("/q?token=7&page=7"), wide).allowed is True
    judged = again(get("/q?token=7&page=7"), OLD)
    assert (judged.allowed, judged.why) == (None, "a value of its query that a rule asks for was redacted")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (get("/pub/ghp_" + "a" * 36), "its path was redacted"),
        (get("/pub/" + "a" * 5000), "its path was cut"),
        (get("/pub/" + "*" * 12), "its path was masked"),
        (get("/pub/x", headers=(("a", "b"),) * 65), "it had more headers than were recorded"),
        (get("/pub/x?a=" + "b" * 5000), "its query was cut"),
        (get("/pub/x", headers=(("x-original-url", "/a"), ("x-original-url", "/b"))), "a header that names another"),
    ],
)
def test_it_says_why_a_decision_cannot_be_judged_again(request_: Request, why: str) -> None:
    judged = again(request_, OLD)
    assert judged.allowed is None
    assert judged.why.startswith(why)
    assert again(get("/pub/x"), OLD).allowed is True  # the control


def test_a_line_of_another_version_is_not_judged() -> None:
    line = recorded(judge(get("/pub/x"), loaded(OLD)), get("/pub/x"))
    replay = Replay(loaded(OLD))
    assert "without its headers" in replay(msgspec.structs.replace(line, headers=None)).why
    assert "a reason that this one does not know" in replay(msgspec.structs.replace(line, reason="moon")).why


# -- what was decided before or after the rules ----------------------------------------------------------------------


def test_every_reason_has_its_treatment() -> None:
    assert BY_RULES | BEFORE_RULES | AFTER_RULES | set(UNSEEN) == set(REASONS) - {"upstream"}


ALL = """\
networkPolicies:
  - host: a.test
    policies: [{action: ALLOW, method: "*", path: .*, websocket: true}]
"""
NONE = "networkPolicies: []\n"


@pytest.mark.parametrize("reason", sorted(BEFORE_RULES))
def test_what_no_policy_can_allow_stays_denied(reason: str) -> None:
    assert again(get("/pub/x"), ALL, decision=denial(reason)).allowed is False


def test_a_secret_stays_denied_but_where_the_policy_lets_it_go() -> None:
    decision = replace(denial("secret-in-request"), secret=Secret("github", "sentinel", "header x"))
    assert again(get("/pub/x"), ALL, decision=decision).allowed is False
    bound = ALL.replace("    policies", "    inject: github\n    policies")
    assert again(get("/pub/x"), bound, decision=decision).allowed is None
    passing = ALL.replace("    policies", "    sentinels: pass\n    policies")
    assert again(get("/pub/x"), passing, decision=decision).allowed is None
    value = replace(decision, secret=Secret("github", "value", "body"))
    assert again(get("/pub/x"), passing, decision=value).allowed is False
    assert (
        again(get("/pub/x"), bound.replace("ALLOW", "DENY").replace(", websocket: true", ""), decision=value).allowed
        is False
    )


def test_a_private_address_stays_one_unless_the_policy_leads_elsewhere() -> None:
    assert again(get("/pub/x"), ALL, decision=denial("private-address")).allowed is False
    led = ALL.replace("    policies", "    upstream: http://127.0.0.1:9\n    policies")
    assert again(get("/pub/x"), led, decision=denial("private-address")).allowed is True
    assert again(get("/pub/x"), NONE, decision=denial("private-address")).allowed is False


def test_a_missing_credential_stays_missing_and_another_one_is_not_known() -> None:
    missing = replace(denial("credential-unavailable"), inject=Inject("github", (), "x:1", False, (), (), ()))
    github = ALL.replace("    policies", "    inject: github\n    policies")
    assert again(get("/pub/x"), github, decision=missing).allowed is False
    assert again(get("/pub/x"), github.replace("github", "gitlab"), decision=missing).allowed is None
    assert again(get("/pub/x"), ALL, decision=missing).allowed is True


def test_what_nobody_looked_at_is_denied_or_not_known() -> None:
    for reason in UNSEEN:
        assert again(get("/pub/x"), NONE, decision=denial(reason)).allowed is False
        assert again(get("/pub/x"), ALL, decision=denial(reason)).allowed is None


def test_another_credential_or_place_is_told_of_an_allowed_request() -> None:
    allowed = Decision(Verdict.ALLOW, "rule", "x", "y:1")
    assert again(get("/pub/x"), ALL, decision=allowed).otherwise is False
    led = replace(allowed, upstream=Upstream("http", "127.0.0.1", 9))
    assert again(get("/pub/x"), ALL, decision=led).otherwise is True
    assert again(
        get("/pub/x"), ALL.replace("    policies", "    inject: github\n    policies"), decision=allowed
    ).otherwise


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path.resolve()
    (root / "policies").mkdir()
    (root / "runs").mkdir()
    (root / "policies" / "gateway.yaml").write_text(OLD)
    monkeypatch.chdir(root)
    log = DecisionLog(root / "runs" / "decisions.jsonl", RUN)
    policy = loaded(OLD)
    for request in (
        *(get(f"/pub/{number}") for number in range(3)),
        *(get(f"/repos/{number}/issues") for number in range(5)),
        get("/pub/\x1b[2J"),
        get("/pub/ghp_" + "a" * 36),
        get("/x", "DELETE"),
    ):
        log.write(judge(request, policy), request, policy.hash)
    log.close()
    return root


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(["policy", "replay", *words])
    return status, *capsys.readouterr()


NEW = OLD.replace("/pub/.*", '"/repos/[0-9]+/issues"')


def test_changes_are_grouped_with_what_opens_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "new.yaml").write_text(NEW)
    status, out, err = call(capsys, "--policy", "new.yaml")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "deny -> allow: 5 decisions"
    assert lines[1].split() == ["5", "GET", "https://a.test/repos/{n}/issues"]
    assert lines[2].strip() == f"was no-rule, now new.yaml:4 pub; as {RUN}.4"
    assert lines[3] == "allow -> deny: 3 decisions"
    assert "unchanged: 2 decisions (0 allow, 2 deny)" in lines
    assert any(line.endswith(f"its path was redacted; as {RUN}.10") for line in lines)
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("policy", "fails"),
    [
        (NEW, {"deny-to-allow", "allow-to-deny", "any", "unknown"}),
        (OLD, {"unknown"}),
        (NONE, {"allow-to-deny", "any", "unknown"}),
    ],
)
def test_it_fails_on_what_it_is_told_to(
    project: Path, capsys: pytest.CaptureFixture[str], policy: str, fails: set[str]
) -> None:
    (project / "new.yaml").write_text(policy)
    for change in ("deny-to-allow", "allow-to-deny", "any", "unknown"):
        status, _, _ = call(capsys, "--policy", "new.yaml", "--fail-on", change)
        assert status == (change in fails), change


def test_as_json_it_has_all_of_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "new.yaml").write_text(NEW)
    (project / "runs" / "decisions.jsonl").open("ab").write(b'{"half')
    _, out, err = call(capsys, "--policy", "new.yaml", "--json")
    found = json.loads(out)
    assert [change["change"] for change in found["changes"]] == ["deny-to-allow", "allow-to-deny"]
    assert (found["decisions"], found["damaged"], found["unchanged"]) == (11, 1, {"allow": 0, "deny": 2})
    assert "1 damaged line" in err


def test_a_broken_policy_or_no_log_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "new.yaml").write_text("networkPolicies: [{host: a.test}]\n")
    status, _, err = call(capsys, "--policy", "new.yaml", "--fail-on", "deny-to-allow")
    assert status == 1 and "new.yaml:1:19: an entry needs policies" in err
    (project / "runs" / "decisions.jsonl").unlink()
    status, _, err = call(capsys)
    assert (status, err) == (0, "no decisions to judge again\n")
    (project / "new.yaml").write_text(NEW)
    assert call(capsys, "--policy", "new.yaml", "--fail-on", "deny-to-allow")[0] == 1  # nothing was looked at


def test_a_damaged_line_cannot_be_judged_again_either(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(keepends=True) if b"redacted" not in line))
    assert call(capsys, "--fail-on", "unknown")[0] == 0
    log.open("ab").write(b'{"half\n')
    assert call(capsys, "--fail-on", "unknown")[0] == 1


def test_since_leaves_out_what_is_older(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unchanged: 10 decisions" in call(capsys, "--since", "1h")[1]
    assert call(capsys, "--since", "2100-01-01")[2] == "no decisions to judge again\n"
    status, _, err = call(capsys, "--since", "soon")
    assert status == 2 and "`soon` is no time" in err


def test_a_hundred_thousand_decisions_take_seconds(tmp_path: Path) -> None:
    """5 s are promised for 100,000: a tenth of them here, in processor time, as others use this machine too."""
    from impyard.runner.decisions.lines import Selection
    from impyard.runner.policy.replay_cmd import replayed

    log = tmp_path / "decisions.jsonl"
    policy = loaded(OLD)
    request = get("/pub/0", headers=(("accept", "*/*"), ("user-agent", "node"), ("content-type", "application/json")))
    line = encode_decision(
        ts="2026-11-30T08:00:00.000Z", id=f"{RUN}.9", run=RUN, seq=9, decision=judge(request, policy), request=request,
        policy_hash=policy.hash, prev="sha256:" + "0" * 64,
    )  # fmt: skip
    with log.open("wb") as file:
        for number in range(10_000):
            file.write(line.replace(b"/pub/0", b"/pub/%d" % number))

    def took() -> float:
        started = time.process_time()
        assert replayed(log, Selection(), loaded(NEW)).count == 10_000
        return time.process_time() - started

    assert any(took() < 0.5 for _ in range(3))
