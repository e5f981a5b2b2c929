"""What of pi's files goes into the box holds no secret, wherever people keep one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.runner.agent import choose_agent, write_agent_folder
from impyard.runner.keys.pikeys import custom_credential, login_credential
from impyard.runner.keys.plainpi import fault_of_address, plain_extra, plain_provider

SECRET = "Zq8RealSecret5tW0xY7bN3mK9pL2cV6dF4gH1jS"

PLAIN: dict[str, Any] = {
    "name": "My gateway (EU)",
    "baseUrl": "https://llm.example.org:8443/v1",
    "api": "openai-completions",
    "authHeader": True,
    "compat": {"supportsStore": False, "maxTokensField": "max_tokens", "promptCacheKeyMode": "auto"},
    "headers": {"anthropic-beta": "a-2025-01-01,b"},
    "models": [
        {
            "id": "org/model-1.5:free",
            "name": "Model 1.5",
            "reasoning": True,
            "thinkingLevelMap": {"high": "hard", "max": None},
            "input": ["text", "image"],
            "cost": {"input": 3, "output": 15.5, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": 200000,
            "maxTokens": 8000,
            "samplingParams": {"temperature": 0.2, "stop": ["END"]},
            "inputLimits": {"images": {"resize": {"maxWidth": 800}}},
        }
    ],
    "modelOverrides": {"org/other": {"contextWindow": 1000, "compat": {"supportsThinkingTokenBudget": True}}},
}


def test_what_pi_documents_comes_through_as_it_is() -> None:
    found = plain_provider({**PLAIN, "apiKey": SECRET})
    assert (found.entry, found.headers, found.left_out) == (PLAIN, (), ())


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({"token": SECRET}, "token"),
        ({"name": SECRET + "\n"}, "name"),
        ({"compat": {"chatTemplateKwargs": {"password": "x"}}}, "compat.chatTemplateKwargs.password"),
        ({"compat": {"openRouterRouting": {"only": [SECRET * 2]}}}, "compat.openRouterRouting.only"),
        ({"models": [{"id": "m", "samplingParams": {"user": "sk-" + SECRET}}]}, "models.0.samplingParams.user"),
        ({"modelOverrides": {"m": {"unknown": 1}}}, "modelOverrides.m.unknown"),
        ({"modelOverrides": {"m": {"cost": {"input": "pw-1"}}}}, "modelOverrides.m.cost.input"),
        ({"compat": {"unheardOf": "pw-1"}}, "compat.unheardOf"),
        ({"models": [{"id": "m", "samplingParams": {"user": "pw-1"}}]}, "models.0.samplingParams.user"),
        ({SECRET: 1}, "…"),
    ],
)
def test_what_may_be_a_secret_is_left_out_and_named(change: dict[str, Any], left_out: str) -> None:
    found = plain_provider(change)
    assert found.left_out == (left_out,)
    assert SECRET not in json.dumps(found.entry)


def test_headers_at_every_level_become_fields_of_the_credential(tmp_path: Path) -> None:
    entry = {
        "baseUrl": "https://llm.example.org",
        "headers": {"x-pat": "one"},
        "models": [{"id": "m", "headers": {"x-sign": "two", "accept": "a/b"}}],
        "modelOverrides": {"other": {"headers": {"x-note": "Bearer three"}}},
    }
    credential = custom_credential("mine", entry, {}, tmp_path)
    assert credential.fields == {"x-pat": "one", "x-sign": "two", "x-note": "Bearer three", "x-note.bare": "three"}
    (tmp_path / "models.json").write_text(json.dumps({"providers": {"mine": entry}}))
    agent = choose_agent("mine/m", {"PI_CODING_AGENT_DIR": str(tmp_path)})
    stand_in = Credential("mine", "api_key", fields={name: f"in-{name}" for name in credential.fields})
    (tmp_path / "home").mkdir()
    folder = write_agent_folder(agent, stand_in, tmp_path / "home")
    written = json.loads((folder / "models.json").read_text())["providers"]["mine"]
    assert written["headers"] == {"x-pat": "in-x-pat"}
    assert written["models"][0]["headers"] == {"accept": "a/b", "x-sign": "in-x-sign"}
    assert written["modelOverrides"]["other"]["headers"] == {"x-note": "in-x-note"}


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("https://llm.example.org", ""),
        ("http://10.0.0.1:8080/v1/", ""),
        ("https://[2001:db8::1]/v1", ""),
        (f"https://user:{SECRET}@llm.example.org", "holds a user"),
        (f"https://llm.example.org/v1?key={SECRET}", "holds a query"),
        (f"https://llm.example.org/v1#{SECRET}", "holds a query"),
        (f"https://llm.example.org/sk-{SECRET}/v1", "holds what looks like a key"),
        ("http://[::1", "is no URL of a host"),
        ("https://llm.example.org:99999", "is no URL of a host"),
        ("ftp://llm.example.org", "is no URL of a host"),
        ("llm.example.org", "is no URL of a host"),
        (7, "is no text"),
    ],
)
def test_an_address_holds_nothing_but_where_it_is(address: object, fault: str, tmp_path: Path) -> None:
    assert fault_of_address(address) == fault
    entries: list[dict[str, Any]] = [{"baseUrl": address}, {"models": [{"id": "m", "baseUrl": address}]}]
    for entry in entries:
        (tmp_path / "models.json").write_text(json.dumps({"providers": {"mine": entry}}))
        if not fault:
            choose_agent("mine/m", {"PI_CODING_AGENT_DIR": str(tmp_path)})
            continue
        with pytest.raises(ImpyardError) as refused:
            choose_agent("mine/m", {"PI_CODING_AGENT_DIR": str(tmp_path)})
        assert SECRET not in f"{refused.value.message} {refused.value.hint}"


def test_of_a_login_only_what_pi_reads_and_is_no_secret_stays() -> None:
    kept = {
        "enterpriseUrl": "git.example.org",
        "availableModelIds": ["gpt-5", "o3"],
        "env": {"AWS_REGION": "eu-west-1", "CLOUDFLARE_ACCOUNT_ID": "0123456789abcdef0123456789abcdef"},
    }
    assert plain_extra(kept) == kept
    env = {"HTTPS_PROXY": "http://u:pw@p", "DB_PASS": "x", "PWD2": "y", "AWS_REGION": SECRET * 2}
    assert plain_extra({"env": env, "enterpriseUrl": "https://u:pw@git.example.org", "note": SECRET}) == {}


_leaf = st.one_of(st.just(SECRET), st.just(f"http://u:{SECRET}@h"), st.integers(), st.booleans(), st.text(max_size=8))
_name = st.sampled_from(
    "name headers models modelOverrides compat samplingParams env apiKey id key x-a baseUrl enterpriseUrl "
    f"availableModelIds cost access thinkingLevelMap accept HTTPS_PROXY {SECRET}".split()
)
_any = st.recursive(_leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_name, inner, max_size=4))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(_name, _any, max_size=6))
def test_no_planted_secret_is_in_what_the_box_gets_nor_in_a_message(entry: dict[str, Any]) -> None:
    found = plain_provider(entry)
    said = [json.dumps(found.entry), *found.left_out, json.dumps(plain_extra(entry))]
    for make in (custom_credential, login_credential):
        try:
            made = make("mine", entry, {}, Path("/pi/file.json"))
        except ImpyardError as exc:
            said.append(f"{exc.message} {exc.hint}")
        else:
            said.append(repr(made) + json.dumps(dict(made.extra)))
    assert SECRET not in "".join(said)
