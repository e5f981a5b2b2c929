"""What a box gets in place of credentials, and the runs that are refused since their model would get none."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.runner.agent import Agent, choose_agent, demo_agent
from impyard.runner.keys import standins
from impyard.runner.keys.firstuse import State
from impyard.runner.keys.standins import Binding, Keys

HOST = "api.anthropic.com"
POLICY = """\
networkPolicies:
  - host: api.anthropic.com
    policies:
      - {action: ALLOW, method: POST, path: /v1/messages}
  - host: "*.example.org"
    policies:
      - {action: ALLOW, method: POST, path: /v1/messages}
  - host: house.internal
    upstream: http://127.0.0.1:4000
    policies:
      - {action: ALLOW, method: POST, path: /v1/messages}
"""


def credential(name: str, **more: Any) -> Credential:
    return Credential(name=name, kind="api_key", **{"key": f"stand-in-of-{name}", **more})


def keys(*bindings: Binding, missing: str = "") -> Keys:
    names = {binding.credential for binding in bindings} - {missing}
    return Keys({name: credential(name) for name in names}, bindings)


def bound(name: str, host: str = HOST, **more: Any) -> Binding:
    return Binding(credential=name, host=host, at="policies/gateway.yaml:2", **more)


class Place:
    """A project with a policy, and a user without anything."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.policy = folder / "policies" / "gateway.yaml"
        self.policy.parent.mkdir()
        self.policy.write_text(POLICY)
        self.environ = {"HOME": str(folder)}

    def agent(self, model: str = "anthropic/claude", **custom: Any) -> Agent:
        if custom:
            (self.root / ".pi" / "agent").mkdir(parents=True, exist_ok=True)
            providers = {"providers": {model.partition("/")[0]: custom}}
            (self.root / ".pi" / "agent" / "models.json").write_text(json.dumps(providers))
        return choose_agent(model, self.environ)

    def stand_in(self, keys: Keys, agent: Agent, kept: State = "there") -> Credential | None:
        return standins.for_agent(keys, agent, self.environ, [self.policy], self.root, kept)

    def refused(self, keys: Keys, agent: Agent, kept: State = "there") -> tuple[str, str]:
        with pytest.raises(ImpyardError) as refused:
            self.stand_in(keys, agent, kept)
        return refused.value.message, str(refused.value.hint)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def test_the_model_gets_the_stand_in_of_what_the_policy_binds_to_its_host(place: Place) -> None:
    found = keys(bound("anthropic", "else.test"), bound("anthropic"), bound("github", "api.github.com"))
    assert place.stand_in(found, place.agent()) == credential("anthropic")
    assert place.stand_in(keys(bound("work")), place.agent(), "none") == credential("work")
    assert place.stand_in(keys(bound("anthropic", f"{HOST}:8443")), place.agent()) == credential("anthropic")


def test_a_policy_that_leaves_the_model_without_is_refused_with_the_line_to_add(place: Place) -> None:
    message, hint = place.refused(keys(bound("anthropic", "else.test")), place.agent())
    assert message.startswith("policies/gateway.yaml:2: ") and HOST in message
    assert hint == "add this line to that entry: `inject: anthropic`"


def test_the_line_for_a_custom_provider_has_the_headers_of_its_api(place: Place) -> None:
    entry = {"baseUrl": "https://house.internal", "api": "anthropic-messages", "headers": {"x-team": "$T"}}
    message, hint = place.refused(Keys(), place.agent("house/m", **entry))
    assert message.startswith("policies/gateway.yaml:8: ")
    line = 'inject: {credential: house, headers: {x-api-key: "{key}", x-team: "{x-team}"}, over_http: true}'
    assert hint == f"add this line to that entry: `{line}`"


def test_a_host_that_only_a_wildcard_covers_or_nothing_needs_an_entry(place: Place) -> None:
    message, hint = place.refused(Keys(), place.agent("house/m", baseUrl="https://llm.example.org", apiKey="x"))
    assert message.startswith("policies/gateway.yaml:5: ") and "write an entry for llm.example.org" in hint
    message, hint = place.refused(Keys(), place.agent("house/m", baseUrl="https://llm.test", apiKey="x"))
    assert "llm.test" in message and "host: llm.test" in hint and 'authorization: "Bearer {key}"' in hint


def test_a_model_without_a_credential_is_refused_with_the_ways_to_one(place: Place) -> None:
    for found in (Keys(), keys(bound("anthropic", missing=True), missing="anthropic")):
        message, hint = place.refused(found, place.agent(), "none")
        assert message == "no credentials for the model provider `anthropic`"
        for way in ("ANTHROPIC_API_KEY", "auth.json", "impyard vault set anthropic", "--model demo"):
            assert way in hint
    message, hint = place.refused(Keys(), place.agent(), "removed")
    assert "removed" in message and "impyard vault import anthropic" in hint
    message, hint = place.refused(keys(bound("work", missing=True), missing="work"), place.agent())
    assert "`work`" in message and "policies/gateway.yaml:2" in message and "impyard vault set work" in hint


def test_the_demo_model_goes_on_without_unless_its_key_was_removed(place: Place) -> None:
    host = demo_agent().host() or ""
    without = keys(bound("demo", host, missing=True), missing="demo")
    assert place.stand_in(without, demo_agent(), "none") is None
    message, hint = place.refused(without, demo_agent(), "removed")
    assert message == "the credential `demo` of the model's provider was removed from the vault"
    assert hint == "`impyard vault import demo`"
    assert place.stand_in(keys(bound("demo", host)), demo_agent()) == credential("demo")


def test_tools_find_stand_ins_in_variables_and_files(place: Place) -> None:
    npm = {"env": ("NPM_TOKEN",), "files": ((".npmrc", "//{host}/:_authToken={key}"),)}
    notes: list[str] = []
    found = keys(
        bound("npm", "registry.test", **npm),
        bound("npm", "npm.test:8443", **npm),
        bound("github", "api.github.com", env=("GH_TOKEN",)),
        bound("github", "github.com", env=("GH_TOKEN",), files=((".config/gh/hosts", "a\nb {key}\n"),)),
    )
    env, files = standins.for_tools(found, None, notes.append)
    assert env == {"NPM_TOKEN": "stand-in-of-npm", "GH_TOKEN": "stand-in-of-github"}
    lines = "//registry.test/:_authToken=stand-in-of-npm\n//npm.test:8443/:_authToken=stand-in-of-npm\n"
    assert files == {".npmrc": lines, ".config/gh/hosts": "a\nb stand-in-of-github\n"}
    assert notes == []
    home = place.root / "home"
    home.mkdir()
    standins.write_files(files, home)
    assert stat.S_IMODE((home / ".npmrc").stat().st_mode) == 0o600
    assert (home / ".config" / "gh" / "hosts").read_text() == "a\nb stand-in-of-github\n"


def test_a_missing_credential_of_a_tool_is_told_with_the_command_and_a_models_is_not(place: Place) -> None:
    notes: list[str] = []
    found = Keys({}, (bound("github", missing=True, env=("GH_TOKEN",)), bound("openai", missing=True)))
    assert standins.for_tools(found, place.agent(), notes.append) == ({}, {})
    (note,) = notes
    assert "`github`" in note and "policies/gateway.yaml:2" in note and "vault set github" in note


def test_a_credential_that_was_removed_is_told_with_the_variable_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", "ghp_of-the-shell")
    monkeypatch.delenv("IMPYARD_COMMAND", raising=False)
    found = keys(bound("github", "api.github.com", missing=True), missing="github")
    for removed, said in (
        ({"github"}, "you removed it; `impyard vault import github` takes it from GH_TOKEN"),
        ((), "`impyard vault set github` stores it"),
    ):
        notes: list[str] = []
        standins.for_tools(found, None, notes.append, removed)
        assert notes[0].endswith(said)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "agent/auth.json", "", "a\nb"])
def test_a_file_that_would_not_be_in_home_or_would_be_pis_is_refused(place: Place, path: str) -> None:
    found = keys(bound("npm", files=((path, "{key}"),)))
    with pytest.raises(ImpyardError, match="no place for a file"):
        standins.for_tools(found, None, print)


def test_a_field_that_the_credential_has_not_is_named_and_no_value(place: Place) -> None:
    with pytest.raises(ImpyardError, match=r"wants \{access\}") as refused:
        standins.for_tools(keys(bound("npm", files=((".npmrc", "{access}"),))), None, print)
    assert "stand-in" not in str(refused.value) + str(refused.value.hint)


def test_what_the_gateway_says_is_read_or_refused_without_its_words() -> None:
    said = {"sentinels": {"npm": msgspec.to_builtins(credential("npm"))}, "bindings": []}
    assert standins.read_keys({"event": "ready", "keys": said}).sentinels == {"npm": credential("npm")}
    assert standins.read_keys({"event": "ready"}) == Keys()
    with pytest.raises(ImpyardError) as refused:
        standins.read_keys({"keys": {"sentinels": {"npm": {"key": "a-value"}}}})
    assert "a-value" not in str(refused.value) and refused.value.__cause__ is None
