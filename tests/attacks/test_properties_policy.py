"""Every reading of a request must be allowed: the judge beside a slow and obvious model of the policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, find, given, note
from hypothesis import strategies as st

from impyard.addon import judge as judging
from impyard.addon import readings as reading
from impyard.addon.judge import Decision, judge
from impyard.addon.policy import Policy, read_policy
from impyard.addon.request import Request
from impyard.runner.policy.explain import explain
from tests.support.fuzz import examples
from tests.support.policymodel import Asked, Entry, Ruled, rule_on

HOSTS = ["a.test", "x.a.test", "y.x.a.test", "xa.test", "test", "b.test", "127.0.0.1"]
# What RE2 and Python's `re` understand alike.
EXPRESSIONS = ["/.*", "/a", "/a/.*", "/a(/.*)?", "/[^/]+", "/[^/]+/b", "/a/b", "/b.*", "/.*b", "(?i)/A/.*", "/a|/b",
               "/a%2fb", "/a b", "/é.*", ".*", "/a/\\.\\..*", "//.*", "/(a|b)/[a-z]+", "\\*"]  # fmt: skip

rules = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["ALLOW", "ALLOW", "DENY"]),
        "method": st.one_of(
            st.sampled_from(["*", "GET", "POST"]),
            st.lists(st.sampled_from(["GET", "POST", "PUT", "*"]), min_size=1, max_size=3),
        ),
        "path": st.sampled_from(EXPRESSIONS),
    },
    optional={
        "websocket": st.booleans(),
        "query": st.dictionaries(
            st.sampled_from(["q", "r"]), st.sampled_from(["1", "[12]", ".*", "a b", ""]), min_size=1
        ),
        "max_body": st.sampled_from([0, 5, "1k"]),
    },
).map(lambda rule: {key: value for key, value in rule.items() if key != "max_body" or rule["action"] == "ALLOW"})
entries = st.fixed_dictionaries(
    {
        "host": st.sampled_from([*HOSTS, "*", "*.a.test", "*.test", "*.x.a.test"]),
        "policies": st.lists(rules, min_size=1, max_size=5),
    },
    optional={
        "port": st.sampled_from([80, 443, 8443]),
        "scheme": st.sampled_from(["https", "http", ["http", "https"]]),
    },
)
policies = st.lists(entries, min_size=1, max_size=4)
# All about one host, so that what is searched is the rules.
narrow = st.lists(rules, min_size=1, max_size=5).map(lambda found: [{"host": "a.test", "policies": found}])

plain_paths = st.lists(st.sampled_from(["a", "b", "c", "A", "b.c"]), max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
odd_paths = st.lists(
    st.sampled_from(["a", "b", "/", "/", "..", ".", "%2e", "%2E%2e", "%2f", "%5c", "\\", ";", ";x=1", "%3b", "%20",
                     "%61", "%252e", "%252f", "%C3%A9", "%00", "%", "%ff", "%3f", "%23"]),
    max_size=7,
).map(lambda parts: "/" + "".join(parts))  # fmt: skip
plain_queries = st.sampled_from(["", "q=1", "q=2&r=1", "q=1&q=3", "r=", "z=1"])
odd_queries = st.lists(
    st.sampled_from(
        ["q", "r", "=", "=1", "=2", "&", ";", "+", "%20", "%71", "a", "q[]=2", "%26", "%3d1", "_method=PUT"]
    ),
    max_size=6,
).map("".join)


def asked_here(paths: st.SearchStrategy[str], queries: st.SearchStrategy[str]) -> st.SearchStrategy[Asked]:
    methods, sockets = st.sampled_from(["GET", "POST"]), st.sampled_from([False, False, True])
    return st.builds(Asked, methods, st.just("https"), st.just("a.test"), st.just(443), paths, queries, sockets)


def asked(paths: st.SearchStrategy[str], queries: st.SearchStrategy[str]) -> st.SearchStrategy[Asked]:
    return st.builds(
        Asked,
        method=st.sampled_from(["GET", "GET", "POST", "PUT", "get"]),
        scheme=st.sampled_from(["https", "https", "http"]),
        host=st.sampled_from(HOSTS),
        port=st.sampled_from([443, 443, 443, 80, 8443]),
        path=paths,
        query=queries,
        websocket=st.sampled_from([False, False, True]),
        body=st.sampled_from([0, 0, 5, 6, 1024, 1025, None]),
    )


def written(policy: list[Entry]) -> tuple[str, dict[tuple[int, int], str]]:
    """The policy as a file, one rule a line, and where each rule stands in it."""
    lines, places = ["networkPolicies:"], {}
    for number, entry in enumerate(policy):
        for place, (key, value) in enumerate((key, value) for key, value in entry.items() if key != "policies"):
            lines.append(f"{'    ' if place else '  - '}{key}: {json.dumps(value)}")
        lines.append("    policies:")
        for place, rule in enumerate(entry["policies"]):
            lines.append(f"      - {json.dumps(rule, ensure_ascii=False)}")
            places[number, place] = f"policies/gateway.yaml:{len(lines)}"
    return "\n".join(lines) + "\n", places


def loaded(text: str) -> Policy:
    return read_policy([(Path("/project/policies/gateway.yaml"), text.encode())], root=Path("/project"))


def request_for(asked: Asked, **changes: Any) -> Request:
    usual = {"https": 443, "http": 80}[asked.scheme]
    request = Request(
        asked.method, asked.scheme, asked.host, asked.port, asked.path, asked.query,
        body_bytes=asked.body,
        host_header=asked.host if asked.port == usual else f"{asked.host}:{asked.port}",
        sni=asked.host if asked.scheme == "https" and not asked.host[0].isdigit() else None,
        upgrade="websocket" if asked.websocket else "",
        headers=(("X-HTTP-Method-Override", asked.override),) if asked.override else (),
    )  # fmt: skip
    return replace(request, **changes)


def both(policy: list[Entry], asked: Asked) -> tuple[Ruled, Decision, str | None]:
    """The model's word, the judge's, and where the model's rule stands."""
    text, places = written(policy)
    note(text)
    ruled, decision = rule_on(policy, asked), judge(request_for(asked), loaded(text))
    note(f"{ruled}\n{decision}")
    return ruled, decision, places[ruled.rule] if ruled.rule else None


@pytest.mark.attack("46", "49", "67", "68", "73", "74")
@examples(250)
@given(policies, asked(plain_paths, plain_queries))
def test_on_plain_requests_the_judge_and_the_model_say_the_same(policy: list[Entry], asked: Asked) -> None:
    ruled, decision, at = both(policy, asked)
    assert decision.allowed == ruled.allowed
    assert decision.at == (at if decision.reason in ("rule", "body-limit") else None)
    assert (decision.reason == "body-limit") == ruled.too_large
    assert (decision.reason == "rule") == (ruled.rule is not None and not ruled.too_large)
    if decision.allowed and "max_body" in (rule := _rule(policy, ruled)):
        assert decision.max_body == {"1k": 1024}.get(rule["max_body"], rule["max_body"])


def _rule(policy: list[Entry], ruled: Ruled) -> dict[str, Any]:
    assert ruled.rule is not None
    found: dict[str, Any] = policy[ruled.rule[0]]["policies"][ruled.rule[1]]
    return found


def only(**rule: Any) -> list[Entry]:
    """A policy with one rule about a.test."""
    return [{"host": "a.test", "policies": [{"action": "ALLOW", "method": "GET", "path": "/.*", **rule}]}]


@pytest.mark.attack("58", "59", "61", "62", "64", "65", "70")
@examples(500)
@given(narrow, st.one_of(asked_here(odd_paths, plain_queries), asked_here(plain_paths, odd_queries)))
@example(only(query={"q": "1"}), Asked("GET", "https", "a.test", 443, "/a", "r=2;q=1"))  # one field for most servers
def test_what_one_reading_denies_the_judge_denies(policy: list[Entry], asked: Asked) -> None:
    ruled, decision, _ = both(policy, asked)
    assert ruled.allowed or not decision.allowed


@pytest.mark.attack("71")
@examples(80)
@given(policies, asked(plain_paths, plain_queries), st.sampled_from(["DELETE", "put", " POST ", "GET"]))
def test_a_method_in_a_header_must_be_allowed_too(policy: list[Entry], asked: Asked, override: str) -> None:
    ruled, decision, _ = both(policy, replace(asked, override=override))
    assert decision.allowed == ruled.allowed


@examples(150)
@given(policies, asked(st.one_of(plain_paths, odd_paths), st.one_of(plain_queries, odd_queries)))
def test_what_is_explained_is_what_is_judged(policy: list[Entry], asked: Asked) -> None:
    text = written(policy)[0]
    note(text)
    request, judged = request_for(asked), loaded(text)
    explained, decision = explain(request, judged), judge(request, judged)
    note(repr(explained))
    assert explained.decision == decision
    winners = [each for each in explained.considered if each.won]
    matching = [each for each in explained.considered if each.failed is None]
    assert winners == matching[-1:]
    if decision.reason == "rule":
        assert [each.rule.at for each in winners] == [decision.at]
    if decision.allowed:
        assert all(reading.allowed for reading in explained.readings)
    elif explained.readings and decision.reason != "body-limit":
        assert not all(reading.allowed for reading in explained.readings)
    if decision.nearest is not None and explained.readings and decision.nearest.failed != "action":
        (nearest,) = [each for each in explained.considered if each.rule.at == decision.nearest.at]
        assert nearest.failed == decision.nearest.failed


# Entries of one host, each with its own credential or none, that allow much and so differ in little else.
KEYS = [
    None,
    {"credential": "one", "headers": {"x-key": "{key}"}},
    {"credential": "two", "headers": {"x-key": "{key}"}},
]
broad = st.fixed_dictionaries(
    {
        "action": st.just("ALLOW"),
        "method": st.sampled_from(["*", "*", "GET", "PUT"]),
        "path": st.sampled_from(["/.*", "/.*", "/a.*", "/b.*", "/[^/]+", "/.*/b"]),
    }
)
binding = st.lists(
    st.tuples(st.sampled_from(KEYS), broad).map(
        lambda pair: {"host": "a.test", **({"inject": pair[0]} if pair[0] else {}), "policies": [pair[1]]}
    ),
    min_size=2,
    max_size=3,
)
few_steps = st.lists(st.sampled_from(["a", "b", "/", "/..", "%2f", "%61", ";x"]), min_size=1, max_size=4).map(
    lambda parts: "/" + "".join(parts)
)
overridden = st.tuples(asked_here(few_steps, st.just("")), st.sampled_from(["", "GET", "PUT"])).map(
    lambda pair: replace(pair[0], override=pair[1], websocket=False)
)


def misled(policy: list[Entry], asked: Asked) -> bool:
    """Whether a request gets a credential, or none, although some reading of it leads to another."""
    ruled, decision, _ = both(policy, asked)
    wanted = {(policy[number].get("inject") or {}).get("credential") for number in ruled.entries}
    return decision.allowed and wanted != {decision.inject.credential if decision.inject else None}


@examples(150)
@given(binding, overridden)
def test_a_credential_is_put_on_only_where_every_reading_leads_to_it(policy: list[Entry], asked: Asked) -> None:
    assert not misled(policy, asked)


def test_control_a_judge_that_takes_the_first_readings_credential_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_leads_alike", lambda a, b: True)
    find(st.tuples(binding, overridden), lambda pair: misled(*pair), settings=examples(150, shrink=False))


open_to_all = [{"host": "*", "policies": [{"action": "ALLOW", "method": "*", "path": "/.*"}]}]
spellings = st.sampled_from(
    [
        "a.test",
        "A.test",
        "a.test.",
        "a.test:443",
        "a.test:80",
        "b.test",
        "a.test@b.test",
        "a.test, b.test",
        "",
        "[::1]",
        "a.test:",
    ]
)


@pytest.mark.attack("32", "40", "41", "47", "50", "56")
@examples(100)
@given(spellings, spellings)
def test_whoever_names_another_host_is_denied(header: str, sni: str) -> None:
    request = request_for(Asked("GET", "https", "a.test", 443, "/", ""), host_header=header, sni=sni)
    same = header.lower() in ("a.test", "a.test.", "a.test:443") and sni.lower() in ("a.test", "a.test.")
    assert judge(request, loaded(written(open_to_all)[0])).allowed == same


ALLOW = {"action": "ALLOW", "method": "GET", "path": "/.*"}
guarded = [{"host": "a.test", "policies": [ALLOW, {**ALLOW, "action": "DENY", "path": "/b"}]}]


@pytest.mark.attack("58", "59", "61", "62", "64", control=True)
@pytest.mark.parametrize(
    ("without", "path"),
    [
        ("_decode", "/%62"),
        ("_resolve_dots", "/a/../b"),
        ("_backslash_is_slash", "/a\\..\\..\\b"),
        ("_collapse", "//b"),
        ("_without_parameters", "/a/..;x=1/b"),
    ],
)
def test_control_without_one_step_its_reading_gets_through(
    monkeypatch: pytest.MonkeyPatch, without: str, path: str
) -> None:
    request, policy = Asked("GET", "https", "a.test", 443, path, ""), loaded(written(guarded)[0])
    assert not judge(request_for(request), policy).allowed
    alike = {"_decode": ["_decode", "_decode_but_slash", "_decode_unreserved"],
             "_collapse": ["_collapse", "_without_authority", "_without_loose_authority"],
             "_without_parameters": ["_without_parameters", "_cut"]}.get(without, [without])  # fmt: skip
    monkeypatch.setattr(reading, "_STEPS", tuple(step for step in reading._STEPS if step[0].__name__ not in alike))
    assert judge(request_for(request), policy).allowed
    assert not rule_on(guarded, request).allowed


@pytest.mark.attack("65", "70", "71", control=True)
def test_control_a_judge_that_reads_only_what_was_sent_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "readings", lambda path: (path,))
    policy = loaded(written(guarded)[0])

    def wrong(path: str) -> bool:
        request = Asked("GET", "https", "a.test", 443, path, "")
        return judge(request_for(request), policy).allowed and not rule_on(guarded, request).allowed

    assert len(find(odd_paths, wrong, settings=examples(400))) <= len("/%62")
