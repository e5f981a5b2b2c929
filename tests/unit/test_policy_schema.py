"""The JSON Schema, as editors use it: it takes each policy that loads, and refuses what a schema can refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.unit.test_policy import BROKEN, POLICIES, TESTS

SCHEMA = json.loads((POLICIES / "gateway.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
# Wrong in a way that no schema can say: expressions, what a value means, what other entries say, YAML itself.
BEYOND = {
    *("bare_star", "comment", "control", "documents", "duplicates", "empty", "not_utf8", "syntax", "tab"),
    *("tagged", "tags_inside", "inject_home", "merge_key"),
}


def loading() -> Iterator[Any]:
    for path in (POLICIES / "default.yaml", *sorted((TESTS / "cases" / "lints").glob("*.yaml"))):
        yield pytest.param(path.read_text(), id=path.stem)
    for path in sorted((TESTS / "cases").glob("*.yaml")):
        yield pytest.param(yaml.safe_load(path.read_text())["policy"], id=path.stem)


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", list(loading()))
def test_it_takes_what_loads(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("path", [path for path in BROKEN if path.stem not in BEYOND], ids=lambda path: path.stem)
def test_it_refuses_what_a_schema_can_refuse(path: Path) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("host", ["a.test:8443", "https://a.test", "api.*.test", ".a.test", "a.test/x", ""])
def test_it_refuses_what_is_no_host(host: str) -> None:
    rule = {"action": "ALLOW", "method": "GET", "path": "/"}
    good, bad = ({"networkPolicies": [{"host": each, "policies": [rule]}]} for each in ("a.test", host))
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid(bad)


def test_each_key_has_words_for_who_points_at_it() -> None:
    for name in ("entry", "inject", "rule"):
        for key, value in SCHEMA["definitions"][name]["properties"].items():
            assert len(value.get("description", "")) > 20, f"{name}.{key}"


def test_the_policy_that_init_writes_names_the_schema_beside_it() -> None:
    first = (POLICIES / "default.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=./")
    assert (POLICIES / name).is_file()
