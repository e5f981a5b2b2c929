"""Verdicts. Most are data: tests/cases/*.yaml, each with a policy and requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.errors import Fault, PolicyError
from impyard.addon.judge import Decision, Nearest, Verdict, denial, judge
from impyard.addon.paths import MatchFailed, Paths
from impyard.addon.policy import Policy, read_policy
from impyard.addon.readings import Ambiguous, readings
from impyard.addon.reasons import HINTS, REASONS
from impyard.addon.request import Request

CASES = Path(__file__).parents[1] / "cases"
FILE = Path("/project/policies/gateway.yaml")


def policy_of(text: str) -> Policy:
    return read_policy([(FILE, text.encode())], root=Path("/project"))


def request_of(url: str = "https://ok.test/", *, surrogate: bool = False, **changes: Any) -> Request:
    """A request for `url` in which everything agrees, then changed."""
    scheme, _, rest = url.partition("://")
    authority, slash, target = rest.partition("/")
    path, _, query = (slash + target).partition("?")
    parts = urlsplit(f"{scheme}://{authority}")
    host = parts.hostname or ""
    values: dict[str, Any] = {
        "method": "GET",
        "scheme": scheme,
        "host": host,
        "port": parts.port or {"https": 443, "http": 80}[scheme],
        "path": "/\ud800" if surrogate else path,
        "query": query,
        "host_header": authority,
        "sni": host if scheme == "https" else None,
    }
    values |= changes
    values["headers"] = tuple((name, value) for name, value in values.get("headers", ()))
    return Request(**values)


def load_cases() -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        for case in content["cases"]:
            found.append(pytest.param(content["policy"], case, id=f"{path.stem}: {case['description']}"))
    return found


@pytest.mark.parametrize(("policy", "case"), load_cases())
def test_case(policy: str, case: dict[str, Any]) -> None:
    decision = judge(request_of(**case["request"]), policy_of(policy))
    assert (decision.verdict.value, decision.reason) == (case["verdict"], case["reason"])
    if "rule" in case:
        assert decision.rule == case["rule"]
    if "nearest" in case:
        assert decision.nearest is not None
        assert decision.nearest.failed == case["nearest"]
    if "upstream" in case:
        assert str(decision.upstream) == case["upstream"]
    if "max_body" in case:
        assert decision.max_body == case["max_body"]
    if "inject" in case:
        assert (decision.inject and decision.inject.credential) == case["inject"]
    assert (decision.hint == "") == decision.allowed


def test_every_case_says_what_it_expects() -> None:
    for parameters in load_cases():
        case = parameters.values[1]
        assert set(case) <= {
            *("description", "request", "verdict", "rule", "reason", "nearest", "upstream", "max_body", "inject")
        }
        assert case["reason"] in REASONS


SMALL = """\
networkPolicies:
  - host: ok.test
    policies:
      - action: ALLOW
        method: GET
        path: /a/.*
      - action: DENY
        method: "*"
        path: /a/secret
        name: secret
      - action: ALLOW
        method: POST
        path: /b
"""


def test_a_decision_names_file_and_line_of_its_rule() -> None:
    policy = policy_of(SMALL)
    assert judge(request_of("https://ok.test/a/x"), policy).at == "policies/gateway.yaml:4"
    denied = judge(request_of("https://ok.test/a/secret"), policy)
    assert (denied.rule, denied.at) == ("secret", "policies/gateway.yaml:7")


def test_a_denial_names_the_rule_that_came_closest() -> None:
    policy = policy_of(SMALL)
    by_method = judge(request_of("https://ok.test/a/x", method="POST"), policy)
    assert by_method.nearest == Nearest("policies/gateway.yaml:4", "method")
    by_path = judge(request_of("https://ok.test/bb", method="POST"), policy)
    assert by_path.nearest == Nearest("policies/gateway.yaml:11", "path")
    by_host = judge(request_of("https://www.ok.test/a/x"), policy)
    assert by_host.nearest == Nearest("policies/gateway.yaml:2", "host")
    assert judge(request_of("https://elsewhere.example/"), policy).nearest is None


def test_a_broken_policy_denies_everything_and_says_where() -> None:
    broken = PolicyError((Fault("policies/gateway.yaml", 7, 3, "unknown key"),))
    decision = judge(request_of(), broken)
    assert (decision.verdict, decision.reason) == (Verdict.DENY, "policy-broken")
    assert decision.at == "policies/gateway.yaml:7"
    assert judge(request_of(), PolicyError((Fault("x.yaml", 0, 0, "missing"),))).at == "x.yaml"


def test_the_canary_is_denied_as_such_even_when_the_policy_is_broken() -> None:
    broken = PolicyError((Fault("x.yaml", 0, 0, "missing"),))
    canary = request_of("http://0123456789abcdef0123456789abcdef.canary.impyard.invalid/")
    assert judge(canary, broken).reason == "canary"
    assert judge(canary, policy_of(SMALL)).reason == "canary"


def test_a_decision_carries_the_whole_inject_of_its_entry() -> None:
    rules = "policies: [{action: ALLOW, method: GET, path: /}]"
    policy = policy_of(f"networkPolicies: [{{host: ok.test, inject: npm, {rules}}}]")
    assert judge(request_of(), policy).inject is policy.entries[0].inject is not None


def test_an_expression_that_cannot_be_matched_is_never_taken_for_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    open_but_one = """\
networkPolicies:
  - {host: "*", policies: [{action: ALLOW, method: GET, path: /.*}]}
  - {host: ok.test, policies: [{action: DENY, method: GET, path: /admin}]}
"""
    policy = policy_of(open_but_one)
    assert judge(request_of("https://ok.test/x"), policy).allowed  # control: with working matching it is allowed

    class NoMemory:
        def Match(self, path: str) -> None:
            return None

    monkeypatch.setattr(policy.entries[1]._paths._parts[0], "_set", NoMemory())
    assert judge(request_of("https://ok.test/x"), policy).reason == "judge-error"


def test_paths_tell_failure_from_no_match() -> None:
    paths = Paths(["/a"])
    assert paths.matching("/b") == []
    assert paths.matching("/a") == [0]
    paths._parts[0]._places = range(5)
    with pytest.raises(MatchFailed):
        paths.matching("/a")


def test_a_slow_expression_does_not_stall_the_judge() -> None:
    policy = policy_of('networkPolicies: [{host: ok.test, policies: [{action: ALLOW, method: GET, path: "/(a+)+$"}]}]')
    assert not judge(request_of("https://ok.test/" + "a" * 50_000 + "b"), policy).allowed


# --- wording ------------------------------------------------------------------------------------------------------

# pi retries an error whose text matches; a denial is final.
RETRIED = re.compile(
    r"\d|time.?out|timed out|server error|connection refused|connection closed|rate limit|too many requests|overloaded"
    r"|internal error|service unavailable|network error|terminated|ended without|quota exceeded|billing",
    re.IGNORECASE,
)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_no_hint_makes_an_agent_try_again(reason: str) -> None:
    assert not RETRIED.search(denial(reason).hint)


def test_hints_belong_to_reasons() -> None:
    assert set(HINTS) <= set(REASONS)
    made_elsewhere = {"private-address", "log-unwritable", "upstream"}
    assert set(REASONS) - set(HINTS) == made_elsewhere


@pytest.mark.parametrize(("policy", "case"), load_cases())
def test_no_denial_makes_an_agent_try_again(policy: str, case: dict[str, Any]) -> None:
    hint = judge(request_of(**case["request"]), policy_of(policy)).hint
    assert not RETRIED.search(hint)
    assert hint.isprintable() and not hint.endswith(".")


# --- properties ---------------------------------------------------------------------------------------------------

OPEN = """\
networkPolicies:
  - host: "*"
    policies:
      - {action: ALLOW, method: "*", path: "(?s).*", query: {a: "(?s).*"}, websocket: true, max_body: 10}
      - {action: ALLOW, method: "*", path: "(?s).*"}
      - {action: DENY, method: DELETE, path: "/x(?s).*"}
"""
OPEN_POLICY = policy_of(OPEN)
ANY_TEXT = st.text(max_size=40) | st.sampled_from(["", "GET", "ok.test", "/", "/%2e%2e/x", "a=b", "websocket", "1.0"])


@given(
    st.builds(
        Request,
        method=ANY_TEXT,
        scheme=ANY_TEXT | st.just("https"),
        host=ANY_TEXT,
        port=st.integers(-(10**30), 10**30) | st.just(443),
        path=ANY_TEXT.map("/".__add__) | ANY_TEXT,
        query=ANY_TEXT,
        http=ANY_TEXT,
        headers=st.lists(st.tuples(ANY_TEXT | st.just("x-original-url"), ANY_TEXT), max_size=3).map(tuple),
        body_bytes=st.none() | st.integers(),
        host_header=st.none() | ANY_TEXT,
        sni=st.none() | ANY_TEXT,
        upgrade=ANY_TEXT,
    )
)
def test_no_request_breaks_the_judge(request: Request) -> None:
    decision = judge(request, OPEN_POLICY)
    assert isinstance(decision, Decision)
    assert decision.reason in REASONS
    assert not RETRIED.search(decision.hint)


RULES = st.lists(
    st.tuples(
        st.sampled_from(["ALLOW", "DENY"]),
        st.sampled_from(["GET", "POST", "*"]),
        st.sampled_from(["/a", "/a/.*", "/.*", "/[ab]", "/b(/.*)?", "/a%2fb", "/.*b", "/a/b"]),
    ),
    min_size=1,
    max_size=6,
)
HOSTS = st.sampled_from(["ok.test", "*.test", "*", "*.ok.test", "other.test"])
POLICIES = st.lists(st.tuples(HOSTS, RULES), max_size=5)


def modelled(policy: list[tuple[str, list[tuple[str, str, str]]]], host: str, method: str, path: str) -> bool:
    """The policy in its plainest words: the last matching rule wins, every reading is allowed."""
    for reading in readings(path):
        verdict = "DENY"
        for pattern, rules in policy:
            if pattern not in ("*", host) and not (pattern[0] == "*" and host.endswith(pattern[1:])):
                continue
            for action, wanted, expression in rules:
                if wanted in ("*", method) and re.fullmatch(expression, reading, re.DOTALL):
                    verdict = action
        if verdict == "DENY":
            return False
    return True


@given(
    POLICIES,
    st.sampled_from(["ok.test", "a.ok.test", "other.test", "elsewhere.example"]),
    st.sampled_from(["GET", "POST"]),
    st.lists(st.sampled_from(["a", "b", "/", "%2f", "..", ".", "%61", "//", ";"]), max_size=6).map(
        lambda pieces: "/" + "".join(pieces)
    ),
)
def test_the_judge_agrees_with_a_plain_model_of_the_policy(
    policy: list[tuple[str, list[tuple[str, str, str]]]], host: str, method: str, path: str
) -> None:
    entries = [
        {"host": pattern, "policies": [{"action": a, "method": m, "path": p} for a, m, p in rules]}
        for pattern, rules in policy
    ]
    loaded = policy_of(yaml.safe_dump({"networkPolicies": entries}))
    decision = judge(request_of(f"https://{host}{path}", method=method), loaded)
    try:
        expected = modelled(policy, host, method, path)
    except Ambiguous:
        expected = False
    assert decision.allowed == expected


def test_a_method_is_no_longer_than_what_the_log_shows() -> None:
    """The log cuts names: what it could not show whole is not forwarded."""
    policy = policy_of('networkPolicies: [{host: ok.test, policies: [{action: ALLOW, method: "*", path: "/.*"}]}]')
    assert judge(request_of(method="X" * 32), policy).allowed
    assert judge(request_of(method="X" * 33), policy).reason == "malformed"
