"""What a run imports before its gateway starts, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.agent import choose_agent, demo_agent
from impyard.runner.demo import account_key
from impyard.runner.keys import firstuse


class Place:
    """A user with a home, a data folder and one policy file."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"HOME": str(folder)}
        self.policy = folder / "gateway.yaml"
        self.policy.write_text("networkPolicies: []\n")
        self.vault = Vault(default_dir())
        self.notes: list[str] = []

    def bring(self, model: str = "openai/gpt", **environ: str) -> str:
        everything = {**self.environ, **environ}
        agent = choose_agent(model, everything)
        return firstuse.bring(agent, [self.policy], everything, self.notes.append)

    def has(self) -> dict[str, str]:
        return {name: each.key for name, each in self.vault.read().credentials.items()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    return Place(tmp_path)


def test_the_models_credential_is_imported_on_its_first_use_and_said_once(place: Place) -> None:
    for _ in range(2):
        assert place.bring(OPENAI_API_KEY="sk-from-the-environment", GROQ_API_KEY="gsk-not-asked-for") == "there"
    assert place.has() == {"openai": "sk-from-the-environment"}
    (note,) = place.notes
    assert "openai" in note and "OPENAI_API_KEY" in note and "sk-from" not in note


def test_a_changed_source_is_followed_and_one_that_is_gone_is_not_missed(place: Place) -> None:
    place.bring(OPENAI_API_KEY="sk-the-first-of-them")
    assert place.bring(OPENAI_API_KEY="sk-the-second-of-them") == "there"
    assert place.has() == {"openai": "sk-the-second-of-them"} and len(place.notes) == 2
    assert place.bring() == "there" and len(place.notes) == 2


def test_what_was_set_by_hand_or_removed_is_left_alone(place: Place) -> None:
    place.vault.put(Credential(name="openai", kind="api_key", key="sk-set-by-hand", source="set"))
    assert place.bring(OPENAI_API_KEY="sk-from-the-environment") == "there"
    assert place.has() == {"openai": "sk-set-by-hand"}
    place.vault.remove("openai")
    assert place.bring(OPENAI_API_KEY="sk-from-the-environment") == "removed"
    assert place.has() == {} and place.notes == []


def test_without_any_source_there_is_none(place: Place) -> None:
    assert place.bring() == "none"
    assert not default_dir().exists()


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        ("    inject: github", True),
        ('    inject: "github"', True),
        ("    inject: {credential: github, over_http: true}", True),
        ("    inject:\n      credential: github", True),
        ("    # inject: github", False),
        ("    inject: gitlab # not inject: github", False),
        ("    inject: github-git", False),
        ("    name: github", False),
    ],
)
def test_a_token_of_a_tool_is_imported_when_the_policy_names_it(place: Place, line: str, imported: bool) -> None:
    place.policy.write_text(f"networkPolicies:\n  - host: api.github.com\n{line}\n")
    place.bring("demo", GH_TOKEN="ghp_of_the_environment")
    assert ("github" in place.has()) == imported


def test_the_demo_models_key_is_that_of_its_account(place: Place) -> None:
    key = account_key(default_dir())
    assert place.bring("demo") == "there"
    assert place.has() == {"demo": key}
    assert account_key(default_dir()) == key
    assert oct((default_dir() / "demo-account").stat().st_mode)[-3:] == "600"


def test_pis_login_is_imported_with_its_file(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / ".pi" / "agent"
    folder.mkdir(parents=True)
    login = {"type": "oauth", "access": "sk-ant-oat01-x", "refresh": "sk-ant-ort01-y", "expires": 4_000_000_000_000}
    (folder / "auth.json").write_text(json.dumps({"anthropic": login}))
    assert place.bring("anthropic/claude") == "there"
    stored = place.vault.read().credentials["anthropic"]
    assert (stored.kind, stored.pi_file) == ("oauth", str(folder / "auth.json"))
    assert demo_agent().provider == "demo"
