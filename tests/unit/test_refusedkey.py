"""Which key a provider refused, read from the logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from impyard.runner.keys.refusedkey import refused_key, words

RUN = "20261129-120000-ab12"
KEY = "sk-ant-api03-0123456789"
TS = "2026-11-29T12:00:00.000Z"


def logs(folder: Path, status: int | None, *, run: str = RUN, **changes: Any) -> Path:
    """The two logs of a run with one call of its model."""
    line = {"ts": TS, "id": f"{run}.3", "run": run, "seq": 3, "verdict": "allow", "reason": "rule", "method": "POST"}
    line |= {"scheme": "https", "host": "api.anthropic.com", "port": 443, "path": "/v1/messages"}
    line |= {"credential": "anthropic", "injected": ["x-api-key"], **changes}
    (folder / "decisions.jsonl").write_text(json.dumps(line, separators=(",", ":")) + "\n")
    (folder / "outcomes.jsonl").write_text(json.dumps({"ts": TS, "id": f"{run}.3", "status": status}) + "\n")
    return folder / "decisions.jsonl"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    vault = Vault(tmp_path / "vault")
    vault.put(Credential("anthropic", "api_key", key=KEY, source="pi"))
    return vault


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_the_provider_refused_is_named_with_its_source_and_the_next_command(
    tmp_path: Path, vault: Vault, status: int
) -> None:
    said = refused_key(logs(tmp_path, status), RUN, "anthropic", None, vault)
    assert said == "anthropic, from pi's auth.json; `impyard vault set anthropic` stores another"


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (200, {}),
        (429, {}),
        (None, {}),
        (403, {"verdict": "deny", "reason": "no-rule", "injected": []}),  # the gateway's own
        (401, {"credential": "github", "host": "api.github.com"}),  # not the model's
        (401, {"run": "20261129-120000-cd34"}),
    ],
)
def test_any_other_end_of_a_call_blames_no_key(
    tmp_path: Path, vault: Vault, status: int | None, changes: dict[str, Any]
) -> None:
    assert refused_key(logs(tmp_path, status, **changes), RUN, "anthropic", "api.anthropic.com", vault) is None
    assert refused_key(tmp_path / "none", RUN, "anthropic", None, vault) is None


def test_the_words_fit_where_the_key_came_from() -> None:
    def said(**more: Any) -> str:
        return words(Credential(**{"name": "openai", "kind": "api_key", "key": KEY, **more}))

    assert said(source="set").startswith("openai, set by hand;")
    assert said(source="env:OPENAI_API_KEY").startswith("openai, from the variable OPENAI_API_KEY;")
    assert "log in again with `pi`" in said(kind="oauth", source="pi", pi_file="/p/auth.json")
    assert "`impyard vault import demo`" in said(name="demo", source="demo")
    assert KEY not in said(source="pi")
