"""Lints: each with its message, silent where there is nothing, and never wrong about what a rule does."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.judge import judge
from impyard.addon.paths import path_options
from impyard.addon.policy import Policy, load_policy, read_policy
from impyard.runner.policy import lint_shadow as policylint_shadow
from impyard.runner.policy import regexask
from impyard.runner.policy.asked import asked, sent
from impyard.runner.policy.lint import CODES, Lint, lints
from impyard.runner.policy.regexask import is_within, meet, samples_of, tree_of
from impyard.runner.policy.regexlang import Unknown, automaton, parse
from tests.attacks.test_properties_policy import asked as asked_anywhere
from tests.attacks.test_properties_policy import (
    asked_here,
    narrow,
    odd_paths,
    odd_queries,
    plain_paths,
    plain_queries,
    policies,
    request_for,
    written,
)
from tests.support.fuzz import examples
from tests.support.policymodel import Asked, Entry

TESTS = Path(__file__).parents[1]
POLICIES = TESTS.parent / "policies"
CASES = sorted((TESTS / "cases" / "lints").glob("*.yaml"))


def lints_of(text: str) -> list[Lint]:
    return lints([(Path("/p/gateway.yaml"), text.encode())], root=Path("/p"))


def codes_of(text: str) -> list[str]:
    return [lint.code for lint in lints_of(text)]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_has_just_these_lints(path: Path) -> None:
    found = lints([(path, path.read_bytes())], root=path.parent)
    assert "".join(f"{lint}\n    {lint.instead}\n" for lint in found) == path.with_suffix(".txt").read_text()


def test_every_lint_has_a_case() -> None:
    found = {code for path in CASES for code in re.findall(r":\d+: ([a-z-]+): ", path.with_suffix(".txt").read_text())}
    assert found == set(CODES)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_an_example_is_said_to_be_it_is(path: Path) -> None:
    policy = load_policy([path])
    for lint in lints([(path, path.read_bytes())], root=path.parent):
        if lint.example:
            method, _, url = lint.example.partition(" ")
            allowed = judge(sent(asked(method, url)), policy).allowed
            says = {"allow": True, "denie": False, "not allowed": False, "not denied": True}
            words = re.findall(r"not allowed|not denied|allow|denie", lint.message)
            assert words, lint
            if lint.code not in ("deny-nothing", "deny-children", "wide-inject"):
                assert allowed == says[words[-1]], lint


SHIPPED = [POLICIES / "default.yaml", *sorted((POLICIES / "presets").glob("*.yaml"))]


@pytest.mark.parametrize(
    "path", [path for path in SHIPPED if not path.name.endswith("_test.yaml")], ids=lambda p: p.stem
)
def test_what_is_shipped_has_none(path: Path) -> None:
    # Presets have places for what is found on a machine: hosts, and parts of paths.
    hosts = re.sub(r"(host: .?)\{([a-z-]+)\}", r"\1\2.example.org", path.read_text())
    text = re.sub(r"\{([a-z-]+)\}", lambda name: "" if name[1] == "prefix" else "part", hosts)
    assert lints([(path, text.encode())]) == []


def load_text(text: str) -> Policy:
    return read_policy([(Path("/p/gateway.yaml"), text.encode())], root=Path("/p"))


def test_a_later_file_may_change_what_an_earlier_one_says() -> None:
    rule = "networkPolicies: [{{host: a.test, policies: [{{action: {}, method: GET, path: {}}}]}}]"
    first, second = rule.format("ALLOW", "/docs/.*").encode(), rule.format("DENY", "/.*").encode()
    both = [(Path("/p/a.yaml"), first), (Path("/p/b.yaml"), second)]
    assert lints(both) == []
    as_one = first[:-1] + second.removeprefix(b"networkPolicies: [").join([b", ", b""])
    assert [lint.code for lint in lints([(Path("/p/a.yaml"), as_one)])] == ["never-decides"]


def test_lints_come_in_the_order_of_files_and_lines() -> None:
    text = (
        "networkPolicies:\n  - host: {}.test\n    policies:\n"
        + "      - {{action: ALLOW, method: GET, path: /{}.*}}\n" * 2
    )
    contents = [(Path(f"/p/{name}.yaml"), text.format(name, "x", "y").encode()) for name in ("b", "a")]
    found = lints(contents, root=Path("/p"))
    assert [(lint.file, lint.line) for lint in found] == [("b.yaml", 4), ("b.yaml", 5), ("a.yaml", 4), ("a.yaml", 5)]


def test_a_large_policy_is_looked_through_in_seconds() -> None:
    rules = "".join(
        f"      - {{action: {'ALLOW' if n % 3 else 'DENY'}, method: GET, path: '/o{n}/[^/]+'}}\n" for n in range(400)
    )
    found = codes_of(f"networkPolicies:\n  - host: a.test\n    policies:\n{rules}")
    assert set(found) == {"deny-nothing"}


# --- soundness ----------------------------------------------------------------------------------------------------

WITHOUT_EFFECT = ("never-decides", "deny-nothing", "pointless-query")
several = st.lists(
    st.one_of(
        asked_here(odd_paths, plain_queries),
        asked_here(plain_paths, odd_queries | plain_queries),
        asked_anywhere(plain_paths, plain_queries),
    ),
    min_size=4,
    max_size=12,
)


def changed_by(policy: list[Entry], requests: Sequence[Asked]) -> str | None:
    """A rule that a lint calls without effect, and without which some request is decided otherwise; None for none."""
    text, places = written(policy)
    judged = load_text(text)
    lines = {int(at.rpartition(":")[2]): place for place, at in places.items()}
    for lint in lints_of(text):
        if lint.code in WITHOUT_EFFECT:
            number, place = lines[lint.line]
            rules = [rule for each, rule in enumerate(policy[number]["policies"]) if each != place]
            left: Any = [
                *policy[:number],
                *([{**policy[number], "policies": rules}] if rules else []),
                *policy[number + 1 :],
            ]
            without = load_text(written(left)[0] if left else "networkPolicies: []")
            for request in map(request_for, requests):
                if judge(request, judged).allowed != judge(request, without).allowed:
                    return f"{text}\n{lint}\n{request}"
    return None


# Few expressions, so that many rules are about the same paths.
crowded = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(["ALLOW", "DENY"]),
            "method": st.sampled_from(["GET", "*", ["GET", "POST"]]),
            "path": st.sampled_from(["/.*", "/a/.*", "/a", "/[^/]+", "/(a|b)", "/.*b", "/a(/b)?", "/b/."]),
        },
        optional={"query": st.sampled_from([{"q": "1"}, {"q": ".*"}]), "websocket": st.booleans()},
    ),
    min_size=2,
    max_size=5,
).map(lambda found: [{"host": "a.test", "policies": found}])


@examples(150)
@given(narrow | crowded | policies, several)
def test_without_a_rule_that_has_no_effect_nothing_changes(policy: list[Entry], requests: list[Asked]) -> None:
    assert changed_by(policy, requests) is None


def test_control_a_lint_that_takes_any_rule_for_the_wider_one_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [{"action": "ALLOW", "method": "GET", "path": path} for path in ("/[^/]+", "/a")]
    policy, requests = [{"host": "a.test", "policies": rules}], [Asked("GET", "https", "a.test", 443, "/b", "")]
    assert changed_by(policy, requests) is None
    monkeypatch.setattr(policylint_shadow, "is_within", lambda inner, outer: True)
    assert changed_by(policy, requests) is not None


ATOMS = ["a", "b", "/", "\\.", ".", "[^/]", "[a-c]", "\\d", "\\w", "\\W", "k", "s", "[[:alpha:]]", "(?i:k)",
         "(?i:[a-s])", "[^k]", "(?i:[^k])", "1", "\\x41", "\\x{17f}", "(?i:\\w)", "%2f", "é", "-", "{"]  # fmt: skip
expressions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda each: f"(?i){each}"),
        inner.map(lambda each: f"(|{each})"),
        inner.map(lambda each: f"/{each}"),
    ),
    max_leaves=8,
)
texts = st.text("ab/.kKsS1A-%2fé\u017f\u212a{B", max_size=6)


def accepts(expression: str, text: str) -> bool:
    made = automaton([parse(expression)])
    states = made.closure((0,))
    for char in text:
        states = made.after(states, ord(char))
    return made.final in states


@examples(120)
@given(expressions, st.lists(texts, min_size=8, max_size=16))
def test_an_expression_means_what_it_means_to_re2(expression: str, tried: list[str]) -> None:
    try:
        compiled = re2.compile(expression, path_options())
        tree_of.cache_clear()
        known = [*tried, *samples_of(expression)]
        mine = [accepts(expression, text) for text in known]
    except (re2.error, Unknown):
        return
    assert mine == [bool(compiled.fullmatch(text)) for text in known]
    assert all(mine[len(tried) :])


@examples(80)
@given(expressions, st.booleans())
def test_whether_a_path_is_matched_is_what_a_search_for_one_says(expression: str, as_sent: bool) -> None:
    for each in (expression, f"/{expression}"):
        try:
            found = regexask.matches_any(each, as_sent=as_sent)
            alphabet = regexask._SENT if as_sent else regexask._READ
            automata = regexask._automaton_of((each,)), regexask._automaton_of(("(?s).*",))
            assert found == regexask._finds(*automata, also=True, alphabet=alphabet)
        except Unknown:
            continue


@examples(150)
@given(expressions, expressions, st.integers())
def test_what_is_said_of_two_expressions_holds_for_their_texts(one: str, other: str, seed: int) -> None:
    one, other = f"/{one}", f"/{other}"
    try:
        first, second = re2.compile(one, path_options()), re2.compile(other, path_options())
        within, met = is_within(one, [other]), meet(one, other)
    except (re2.error, Unknown):
        return
    chooser = random.Random(seed)
    for text in [
        *samples_of(one),
        *("/" + "".join(chooser.choices("ab/.kK1-", k=chooser.randrange(4))) for _ in range(40)),
    ]:
        if first.fullmatch(text):
            assert second.fullmatch(text) or not within
            assert met or not second.fullmatch(text)


@pytest.mark.parametrize("expression", ["/\\pL+", "/a\\b", "/(/|$)x", "/(?m)a", "/a$b", "/(a{1,900}){1,9}"])
def test_what_is_not_understood_gets_no_answer(expression: str) -> None:
    if tree_of(expression) is None:
        return
    with pytest.raises(Unknown):
        is_within(expression, ["/"])


def test_the_document_lists_the_lints_there_are() -> None:
    text = (TESTS.parent / "docs" / "policy-tools.md").read_text()
    listed = re.search(r"<!-- lints -->\n(.*?)<!-- /lints -->", text, re.S)
    assert listed is not None
    assert listed[1] == "".join(f"| `{code}` | {about} |\n" for code, about in CODES.items())
