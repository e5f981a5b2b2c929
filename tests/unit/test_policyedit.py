"""New rules go into a policy's text; nothing else in it changes, and they mean what they should."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml

from impyard.runner.policy.edit import CannotEdit, NewEntry, NewRule, insert_entry, insert_rule, insert_text

DEFAULT = (Path(__file__).parents[2] / "policies" / "default.yaml").read_bytes()
RULE = NewRule(("GET",), r"/repos/a\.b", comment=("seen once", "in run x"))
ENTRY = NewEntry("api.example.org", (RULE,), port=8443)

BLOCK = b"""\
networkPolicies:
  - host: a.example
    policies:
      - action: ALLOW  # why
        method: GET
        path: /a
      # no secrets
      - action: DENY
        method: "*"
        path: /secret
"""


def added(old: bytes, new: bytes) -> list[str]:
    """The lines that are new; asserts that no line went or changed."""
    lines = difflib.ndiff(old.decode().splitlines(keepends=True), new.decode().splitlines(keepends=True))
    kept = [line for line in lines if not line.startswith("?")]
    assert not [line for line in kept if line.startswith("-")]
    return [line[2:] for line in kept if line.startswith("+")]


def rules(data: bytes, entry: int) -> list[str]:
    return [rule["path"] for rule in yaml.safe_load(data)["networkPolicies"][entry]["policies"]]


@pytest.mark.parametrize(("at", "paths"), [(None, ["/a", "/secret", RULE.path]), (1, ["/a", RULE.path, "/secret"])])
def test_a_rule_goes_where_it_is_wanted(at: int | None, paths: list[str]) -> None:
    new = insert_rule(BLOCK, 0, RULE, at)
    assert rules(new, 0) == paths
    assert added(BLOCK, new) == [
        "      # seen once\n",
        "      # in run x\n",
        "      - action: ALLOW\n",
        "        method: GET\n",
        "        path: /repos/a\\.b\n",
    ]


def test_what_stands_above_a_rule_stays_with_it() -> None:
    new = insert_rule(BLOCK, 0, RULE, 1)
    assert b"      # no secrets\n      - action: DENY\n" in new


@pytest.mark.parametrize("entry", range(5))
def test_the_shipped_policy_gets_new_lines_only(entry: int) -> None:
    assert len(added(DEFAULT, insert_rule(DEFAULT, entry, RULE))) == 5
    assert added(DEFAULT, insert_entry(DEFAULT, ENTRY, entry))
    assert added(DEFAULT, insert_entry(DEFAULT, ENTRY)) == [
        "\n",
        "  - host: api.example.org\n",
        "    port: 8443\n",
        "    policies:\n",
        "      # seen once\n",
        "      # in run x\n",
        "      - action: ALLOW\n",
        "        method: GET\n",
        "        path: /repos/a\\.b\n",
    ]


FLOW = b"networkPolicies:\n- host: a.b\n  policies: [%b]\n"
ONE, TWO = b"{action: ALLOW, method: GET, path: /1}", b"{action: DENY, method: GET, path: /2}"


@pytest.mark.parametrize(
    "inside",
    [
        ONE + b", " + TWO,
        ONE + b", " + TWO + b",",
        b"\n    " + ONE + b", # one\n    " + TWO + b" # two\n  ",
        b"\n    " + ONE + b",\n    " + TWO + b",\n  ",
        b"\n    " + ONE + b",\n    " + TWO,
        b"\n    " + ONE + b"\n    , " + TWO + b"\n    ,\n  ",
    ],
    ids=["one line", "comma", "lines and comments", "lines and comma", "bracket behind", "commas first"],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_list_in_brackets_is_kept_one(inside: bytes, at: int) -> None:
    old = FLOW % inside
    new = insert_rule(old, 0, RULE, at)
    assert rules(new, 0)[at] == RULE.path and len(rules(new, 0)) == 3
    assert b"{action: ALLOW, method: GET, path: /repos/a\\.b}" in new and b"# seen once" in new
    for part in (ONE, TWO, b"# one", b"# two"):
        assert (part in old) == (part in new)


@pytest.mark.parametrize("break_", ["\r\n", "\r", "\n"], ids=["crlf", "cr", "lf"])
@pytest.mark.parametrize("bom", [b"\xef\xbb\xbf", b""], ids=["bom", ""])
def test_line_ends_and_a_mark_at_the_beginning_stay(break_: str, bom: bytes) -> None:
    old = bom + BLOCK.decode().replace("\n", break_).encode()
    for new in (insert_rule(old, 0, RULE), insert_entry(old, ENTRY), insert_rule(old, 0, RULE, 0)):
        text = new.removeprefix(bom).decode()
        assert new.startswith(bom) and "\ufeff" not in text
        assert text.count(break_) == len(text.splitlines()) and text.replace(break_, "").isprintable()


@pytest.mark.parametrize(
    "old",
    [
        b"networkPolicies: []\n",
        b"networkPolicies: [] # none\n",
        b"networkPolicies: []",
        b"networkPolicies: [\n]",
        b"{networkPolicies: []}\n",
        b'{"networkPolicies": []}',
        b"---\nnetworkPolicies: []\n...\n",
    ],
)
def test_an_empty_policy_gets_its_first_entry(old: bytes) -> None:
    new = insert_entry(old, ENTRY)
    assert yaml.safe_load(new)["networkPolicies"][0]["host"] == ENTRY.host
    assert (b"# none" in old) == (b"# none" in new)


def test_json_stays_json() -> None:
    import json

    old = b'{"networkPolicies": [{"host": "a.b", "policies": [{"action": "DENY", "method": "*", "path": "/"}]}]}'
    for new in (insert_rule(old, 0, RULE), insert_entry(old, ENTRY), insert_entry(old, ENTRY, 0)):
        assert RULE.path in json.dumps(json.loads(new)).replace("\\\\", "\\")


def test_the_end_of_a_file_may_lack_its_line_break_or_have_a_mark() -> None:
    assert insert_entry(BLOCK[:-1], ENTRY).startswith(BLOCK)
    marked = BLOCK + b"...\n"
    assert insert_entry(marked, ENTRY).endswith(b"...\n")


SHARED = b"""\
networkPolicies:
  - host: a.example
    policies: &all
      - {action: ALLOW, method: GET, path: /a}
  - host: b.example
    policies: *all
"""


@pytest.mark.parametrize("entry", [0, 1])
def test_rules_that_entries_share_are_left_alone(entry: int) -> None:
    with pytest.raises(CannotEdit, match="once for several"):
        insert_rule(SHARED, entry, RULE)
    assert rules(insert_entry(SHARED, ENTRY), 2) == [RULE.path]


@pytest.mark.parametrize(
    "text", ["*", "on", "null", "12", "a: b", "x #y", "- a", "'", '"', "[a", "{", "é", "\u202e", ""]
)
def test_a_value_is_read_as_it_was_meant(text: str) -> None:
    rule = NewRule(("GET", "NO"), "/" + text, query=((text or "k", text),), name="a: #b", comment=("x\n- y",))
    for old in (BLOCK, FLOW % ONE):
        found = yaml.safe_load(insert_rule(old, 0, rule))["networkPolicies"][0]["policies"][-1]
        assert found == {**rule.data(), "query": {text or "k": text}}


def test_text_that_is_written_already_keeps_its_comments() -> None:
    text = "# a preset\n- host: c.example\n  policies: # all of it\n    - {action: ALLOW, method: GET, path: /.*}\n"
    new = insert_text(DEFAULT, text)
    assert added(DEFAULT, new) == ["\n", *(f"  {line}\n" for line in text.splitlines())]
    flow = b"networkPolicies: [{host: a.b, policies: [" + ONE + b"]}]\n"
    assert rules(insert_text(flow, text), 1) == ["/.*"] and b"# a preset" in insert_text(flow, text)


@pytest.mark.parametrize("old", [b"", b"\xff", b"a: [", b"networkPolicies: 3\n", b"[]", b"networkPolicies:\n"])
def test_what_is_no_policy_is_refused(old: bytes) -> None:
    with pytest.raises(CannotEdit):
        insert_entry(old, ENTRY)
