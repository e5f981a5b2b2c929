"""Short ways of the policy commands, which must say what the long ones say."""

from __future__ import annotations

import re

import pytest
import yaml

from impyard.runner.policy import edit, regexask, regexlang
from impyard.runner.policy.regexlang import Unknown, parse

EXPRESSIONS = [
    *(
        "/a/b-c_d~e:f@g%20",
        "/ab*",
        "/ab+c?",
        "/ab{2}",
        "/ab{2,}c",
        "/a{x}",
        "a",
        "a?",
        "",
        "/a|b/c|",
        "/(?i)ab/c",
        "(?i)/ab",
    ),
    *(
        "/a(?i:bc)d*",
        "/a(b|cd*)e",
        "/v1.0/[a-z]+/x",
        r"/a\.b\d+c",
        "^/ab$",
        "/a^b",
        "/(?P<n>ab)c{1,3}?",
        "/a(?s).*b",
        "/é/ab*",
    ),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_runs_of_plain_characters_are_the_same_tree(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def tree() -> object:
        try:
            return parse(expression)
        except Unknown:
            return Unknown

    fast = tree()
    with monkeypatch.context() as patch:
        patch.setattr(regexlang, "_PLAIN_RUN", re.compile(r"(?!)"))
        assert tree() == fast
    if isinstance(fast, regexlang.Series):
        each = (regexask.sample(fast, number) for number in range(regexask.MAX_SAMPLES))
        assert regexask._samples(fast) == tuple(sorted(dict.fromkeys(each), key=len))


@pytest.mark.parametrize(
    "text", ["*", "/", "", "a", "/a b", "/a?b", "/a#b", "/a\nb", "/\x7f", "/\xa0", "/é", "/\U0010ffff", "/a[]^-\\b"]
)
def test_a_text_is_a_path_for_the_pattern_as_for_a_look_at_each_character(text: str) -> None:
    for alphabet in (regexask._READ, regexask._SENT):
        each = all(any(low <= ord(char) <= high for low, high in alphabet) for char in text)
        assert regexask._is_path(text, alphabet) == ((text == "*" or text.startswith("/")) and each)


@pytest.mark.parametrize(
    ("entries", "is_short"),
    [
        ("[]", True),
        ("[{host: a.test, policies: [{action: ALLOW, method: [GET, yes, 1, null, ~, '']}]}]", True),
        ("\n- host: a.test # x\n  policies:\n  - action: ALLOW\n    path: |\n      /a\n    query: {}\n", True),
        ("\n- {host: a.test, host: b.test}\n", True),
        ("[&a {host: a.test}, *a]", False),
        ("[{[a, b]: c}]", False),
    ],
)
def test_entries_read_from_places_are_those_that_yaml_loads(
    entries: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"networkPolicies: {entries}"
    loads: list[str] = []

    def load(text: str, Loader: type) -> object:
        loads.append(text)
        return load_really(text, Loader=Loader)

    load_really = yaml.load
    monkeypatch.setattr(yaml, "load", load)
    file = edit._File(text.encode())
    if "[a, b]" in entries:
        with pytest.raises(yaml.YAMLError, match="unhashable"):
            file.loaded()
    else:
        assert file.loaded() == load_really(text, Loader=yaml.BaseLoader)["networkPolicies"]
        assert file.loaded() is not file.loaded()
    assert (not loads) == is_short
