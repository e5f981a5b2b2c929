"""Many expressions on one path: none of those that match is lost, however they are divided."""

from __future__ import annotations

import pytest
import re2
from hypothesis import example, given
from hypothesis import strategies as st

from impyard.addon import paths as pathing
from impyard.addon.paths import PART_RULES, BadExpressions, MatchFailed, Paths, beginning, path_options
from tests.support.fuzz import examples

pieces = st.sampled_from(
    ["/", "a", "b", "ab", "-", "%2f", ".", "\\.", "\\(", "\\)", "(", ")", "(?:", "(?i)", "|", "[", "]", "[^/]",
     "[(]", "[)|]", "[[:alpha:]]", "\\Q", "\\E", "^", "$", "*", "+", "?", "{0,1}", "{0}", "{2}", "\\b", "é", "(a|b)",
     "(?:/|b)", "(?s)", "(?-i)", "(?:)", "()", "(?P<n>", "\\C", "\\pL", "\\x{61}"]
)  # fmt: skip
expressions = st.lists(pieces, max_size=10).map("".join)
texts = st.text("/ab%2f-.()|é", max_size=8)


def compiled(expression: str) -> re2._Regexp | None:
    try:
        return re2.compile(expression, path_options())
    except re2.error:
        return None


@examples(600)
@given(expressions, texts)
@example("/a(b|c)|/d", "/d")
@example("/a[(]b|/c[)]", "/c)")
@example("/a\\Q(b|c)\\E|/d", "/d")
@example("/(a\\(a|b)", "/b")
@example("/a(?:b|c)|d(?:e|f)", "df")
@example("/ab*", "/a")
@example("/ab{0}c", "/ac")
@example("/ab(?i)*", "/a")
@example("/ab\\Q\\E?", "/a")
@example("/ab+(?s)(?-i){0}c", "/ac")
def test_what_matches_begins_as_it_must(expression: str, text: str) -> None:
    if (known := compiled(expression)) is not None and known.fullmatch(text):
        assert text.startswith(beginning(expression))


@pytest.mark.parametrize(
    ("expression", "begins"),
    [
        ("/repos/a-b_c/x", "/repos/a-b_c/x"),
        ("/repos/a-b_c/[^/]+", "/repos/a-b_c"),
        ("/v1/(users|repos)/x", "/v1"),
        ("/v1/(?:users|repos)/x", "/v1"),
        ("/v1/items?", "/v1/item"),
        ("/v1/items+", "/v1/item"),
        ("/" + "a" * 100, "/" + "a" * 62),
        ("/a|/b", ""),
        ("/a(b|c)|/d", ""),
        ("(?i)/a", ""),
        (".*", ""),
        ("", ""),
    ],
)
def test_the_beginning_is_what_is_plain_to_see(expression: str, begins: str) -> None:
    assert beginning(expression) == begins


def expressions_like(number: int) -> str:
    forms = ("/v{}/x{}(/.*)?", "/[a-z]+/x{1}", "/a{}|/x{}", "/v{0}/(x|y){1}", "(?i)/V{}/X{}", "/v{}?/x{}", "/.*{1}")
    return forms[number % len(forms)].format(number % 3, number % 50)


@pytest.mark.parametrize("size", [PART_RULES, PART_RULES + 1, 3 * PART_RULES])
def test_however_many_there_are_all_that_match_are_found(size: int) -> None:
    written = [expressions_like(number) for number in range(size)]
    one_by_one = {expression: re2.compile(expression, path_options()) for expression in written}
    paths = Paths(written)
    for path in ("/v1/x7", "/v2/x1/y", "/x7", "/a1", "/V0/x3", "/v/x5", "/", "/v1/y9", "/q", "x"):
        expected = [n for n in reversed(range(size)) if one_by_one[written[n]].fullmatch(path)]
        assert paths.matching(path) == expected


@pytest.mark.parametrize("odd", ["/secret/b(?i)*", "/secret/b\\Q\\E*", "/secret/b+(?s){0}"])
def test_an_odd_expression_among_many_is_not_lost(odd: str) -> None:
    paths = Paths(["/.*", *(f"/{n}" for n in range(PART_RULES)), odd])
    assert paths.matching("/secret/") == [PART_RULES + 1, 0]
    assert paths.matching("/other/") == [0]


def test_a_path_is_held_only_against_what_begins_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = pathing._Part.matching

    def counted(part: pathing._Part, path: str) -> list[int]:
        asked.append(1)
        return ask(part, path)

    monkeypatch.setattr(pathing._Part, "matching", counted)
    paths = Paths([f"/{n:05}/.*" for n in range(10 * PART_RULES)])
    assert paths.matching("/00007/x") == [7]
    assert paths.matching("/none") == []
    assert len(asked) == 1
    assert len(Paths([f"/x/.*{n}" for n in range(3 * PART_RULES)]).matching("/x/1")) == 1  # control: nothing to go by
    assert len(asked) == 4


def test_all_that_cannot_be_parsed_is_named() -> None:
    for size in (4, 2 * PART_RULES):
        written = [f"/a{n}" for n in range(size)]
        written[1], written[-1] = "/(", "/a**"
        with pytest.raises(BadExpressions) as caught:
            Paths(written)
        assert list(caught.value.places) == [1, size - 1]


def test_one_set_of_several_that_fails_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(["/.*", *(f"/{n}" for n in range(2 * PART_RULES))])

    class NoMemory:
        def Match(self, path: str) -> None:
            return None

    assert paths.matching("/7") == [8, 0]
    monkeypatch.setattr(paths._parts[0], "_set", NoMemory())
    with pytest.raises(MatchFailed):
        paths.matching("/7")


def test_long_expressions_are_divided_sooner() -> None:
    few = Paths([f"/{n}/" + "x" * 50 for n in range(PART_RULES + 1)])
    long = Paths([f"/{n}/" + "x" * 500 for n in range(PART_RULES + 1)])
    assert len(long._parts) > len(few._parts) == 2
    assert long.matching("/8/" + "x" * 500) == [8]
