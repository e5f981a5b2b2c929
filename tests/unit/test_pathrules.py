"""Expressions for paths: exact where nothing else is known, a pattern where values of a kind were seen often enough."""

from __future__ import annotations

import time

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.readings import readings
from impyard.runner.policy.pathrules import NoRule, exact, path_rules
from tests.support.fuzz import examples

SHA = "0123456789abcdef0123456789abcdef01234567"
UUID = "01234567-89ab-4def-8123-456789abcde{}"


def expressions(*paths: str, patterns: bool = True) -> list[str]:
    return [rule.expression for rule in path_rules(paths, patterns=patterns)]


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (["/a.b/(c)"], [r"/a\.b/\(c\)"]),
        (["/i/1", "/i/2"], ["/i/(1|2)"]),
        (["/i/1", "/i/2", "/i/1"], ["/i/(1|2)"]),
        (["/i/1", "/i/2", "/i/30"], ["/i/[0-9]+"]),
        (["/i/1", "/i/2", "/i/30", "/j"], ["/i/[0-9]+", "/j"]),
        (["/a/1/b/1", "/a/1/b/2", "/a/1/b/3", "/a/2/b/3"], ["/a/1/b/[0-9]+", "/a/2/b/3"]),
        (["/a/1/b/1", "/a/2/b/2", "/a/3/b/3"], ["/a/[0-9]+/b/[0-9]+"]),
        (["/v1/x", "/v2/x", "/v3/x"], ["/(v1|v2|v3)/x"]),
        (["/u/ada", "/u/bob", "/u/eve", "/u/dan"], ["/u/(ada|bob|eve|dan)"]),
        ([f"/c/{SHA[n:] + SHA[:n]}" for n in range(3)], ["/c/[0-9a-f]{40}"]),
        (
            [f"/u/{UUID.format(n)}/x" for n in range(3)],
            ["/u/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/x"],
        ),
        ([f"/p/p-4.17.{n}.tgz" for n in range(3)], [r"/p/p-[0-9]+(\.[0-9]+){2}\.tgz"]),
        (["/facade", "/decade", "/ada1"], ["/(facade|decade|ada1)"]),
        (["/x", "/", "/y"], ["/(x|y)", "/"]),
    ],
)
def test_evidence_makes_the_expression(paths: list[str], wanted: list[str]) -> None:
    assert sorted(expressions(*paths)) == sorted(wanted)


def test_without_patterns_only_what_was_asked_for_matches() -> None:
    assert expressions("/i/1", "/i/2", "/i/3", patterns=False) == ["/i/(1|2|3)"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/@scope%2fname", "/@scope(%2f|/)name"),
        ("/a%20b", "/a(%20| )b"),
        ("/%e2%80%ae", r"/(%e2%80%ae|\x{202e})"),
        ("*", r"\*"),
    ],
)
def test_an_encoded_character_is_written_in_both_forms(path: str, wanted: str) -> None:
    assert exact(path) == wanted


@pytest.mark.parametrize(
    "path", ["/a/../b", "/a//b", "/%2e%2e/b", "/a;x=1/b", "/a%5cb", "/a%3fb", "/a%00b", "/%zz", "/.."]
)
def test_no_rule_is_written_for_a_trick(path: str) -> None:
    with pytest.raises(NoRule):
        exact(path)


def test_a_list_does_not_grow_for_ever() -> None:
    found = path_rules([f"/x/{'abcdefghij'[n % 10] * 12}{n // 10}q/y" for n in range(40)])
    assert len(found) > 3 and max(len(rule.expression) for rule in found) < 130
    assert sum(len(rule.paths) for rule in found) == 40


def test_paths_of_an_attacker_take_no_time() -> None:
    wide = [["3" if at == n + 1 else "2" if at == n else "1" for at in range(300)] for n in range(200)]
    began = time.process_time()
    found = path_rules("/" + "/".join(row) for row in wide)
    assert len(found) == len(wide) and time.process_time() - began < 3


segments = st.sampled_from(
    ["a", "b.c", "1", "22", "333", "9" * 12, "v1.2.3", "1.2.4", "x-7.js", SHA, SHA[1:8], "(", "+*", "a%2fb", "%C3%89"]
)
paths = st.lists(segments, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@examples(80)
@given(st.lists(paths, min_size=1, max_size=14), st.booleans())
def test_every_reading_of_every_path_matches_and_a_list_matches_nothing_else(asked: list[str], patterns: bool) -> None:
    found = path_rules(asked, patterns=patterns)
    assert sorted(path for rule in found for path in rule.paths) == sorted(set(asked))
    for rule in found:
        expression = re2.compile(rule.expression)
        assert all(expression.fullmatch(way) for path in rule.paths for way in readings(path))
        assert all(count >= 3 for _, count in rule.places) and (patterns or not rule.places)
        if not rule.places:
            others = {way for path in asked if path not in rule.paths for way in readings(path)}
            others -= {way for path in rule.paths for way in readings(path)}
            assert not any(expression.fullmatch(other) for other in others)
