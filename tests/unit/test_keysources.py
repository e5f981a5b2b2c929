"""Every way a credential comes in, and how the vault follows its source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.vault import store
from impyard.addon.vault.credential import Credential, Failure, TokenEndpoint
from impyard.addon.vault.store import Vault
from impyard.runner.demo import account_key
from impyard.runner.keys import pifiles
from impyard.runner.keys.pifiles import header_field, literal, resolve_template
from impyard.runner.keys.sources import Found, available, first_of, follow, take
from tests.support.waiting import wait_until

OAT = "sk-ant-oat01-aaaaaaaaaaaaaaaa"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".pi" / "agent").mkdir(parents=True)
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault")


def pi_file(environ: dict[str, str], name: str, content: Any) -> Path:
    path = Path(environ["HOME"]) / ".pi" / "agent" / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def found(environ: dict[str, str], name: str, vault: Vault) -> Found:
    return first_of(available(environ, vault.folder))[name]


def got(environ: dict[str, str], name: str, vault: Vault) -> Credential:
    return found(environ, name, vault).get()


def login(access: str = "access-1", refresh: str = "refresh-1", expires: int = 2_000, **more: Any) -> dict[str, Any]:
    return {"type": "oauth", "access": access, "refresh": refresh, "expires": expires, **more}


def test_a_key_of_pis_comes_in(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": "sk-1"}})
    assert got(environ, "openai", vault) == Credential("openai", "api_key", key="sk-1", source="pi")


def test_a_login_of_pis_comes_in_with_all_that_belongs_to_it(environ: dict[str, str], vault: Vault) -> None:
    entry = login(accountId="acc-1", enterpriseUrl="ghe.example", availableModelIds=["m"], idToken="jwt-like-value")
    path = pi_file(environ, "auth", {"openai-codex": entry})
    assert got(environ, "openai-codex", vault) == Credential(
        name="openai-codex",
        kind="oauth",
        access="access-1",
        refresh="refresh-1",
        expires=2_000,
        account="acc-1",
        source="pi",
        pi_file=str(path),
        extra={"enterpriseUrl": "ghe.example", "availableModelIds": ["m"]},
        fields={"idToken": "jwt-like-value"},
    )


@pytest.mark.parametrize(
    ("expires", "expected"), [(0, 1), (None, 1), ("soon", 1), (1.5e12, 1_500_000_000_000), (float("inf"), 1)]
)
def test_a_login_without_a_usable_time_counts_as_over_as_pi_would_refresh_it(
    environ: dict[str, str], vault: Vault, expires: Any, expected: int
) -> None:
    pi_file(environ, "auth", {"xai": login(expires=expires)})
    assert got(environ, "xai", vault).expires == expected


def test_a_login_that_cannot_be_refreshed_and_names_no_time_holds(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"openrouter": login(refresh="", expires=0)})
    assert got(environ, "openrouter", vault).expires == 0


@pytest.mark.parametrize("where", ["auth", "variable", "oauth-variable"])
def test_a_subscription_token_of_anthropics_is_a_login_wherever_it_was_kept(
    environ: dict[str, str], vault: Vault, where: str
) -> None:
    if where == "auth":
        pi_file(environ, "auth", {"anthropic": {"type": "api_key", "key": OAT}})
    else:
        environ["ANTHROPIC_API_KEY" if where == "variable" else "ANTHROPIC_OAUTH_TOKEN"] = OAT
    credential = got(environ, "anthropic", vault)
    assert (credential.kind, credential.access, credential.key, credential.refresh) == ("oauth", OAT, "", "")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("$NAME", "from-env"),
        ("${NAME}", "from-env"),
        ("x-${OWN}-y", "x-own-y"),
        ("$OWN", "own"),
        ("$$NAME", "$NAME"),
        ("$!x", "!x"),
        ("${1x}", "${1x}"),
        ("${a$NAME}", "${a$NAME}"),
        ("cost$", "cost$"),
        ("!printf 'a$b\\n\\n'", "a$b"),
        ('!printf %s "$KEY_OF_THIS_SHELL"', "shell"),
    ],
)
def test_templates_and_commands_are_resolved_as_pi_does(
    environ: dict[str, str], vault: Vault, key: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THIS_SHELL", "shell")
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": key, "env": {"OWN": "own"}}})
    assert got({**environ, "NAME": "from-env"}, "openai", vault).key == expected


@pytest.mark.parametrize("key", ["plain", "a$b", "$HOME", "!ls", "$!x", "$$", "${X}", "!$", "${a$b}"])
def test_a_literal_key_comes_out_of_pis_template_as_it_went_in(key: str) -> None:
    assert resolve_template(literal(key), {}, {}, "test") == key


@pytest.mark.parametrize(
    "command", ["!exit 3", "!true", "!no-such-command-xyz", "!echo key-1; exit 1", "!printf '\\377'"]
)
def test_a_command_that_fails_is_told_without_the_command_or_its_output(
    environ: dict[str, str], vault: Vault, command: str
) -> None:
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": command}})
    with pytest.raises(ImpyardError, match="key command failed") as refused:
        got(environ, "openai", vault)
    assert "key-1" not in refused.value.message
    assert command[1:] not in refused.value.message


def test_what_pi_keeps_in_an_entrys_environment_is_kept_and_secrets_of_it_become_fields(
    environ: dict[str, str], vault: Vault
) -> None:
    own = {"K": "key-1", "AWS_REGION": "eu", "SOME_SECRET": "other-1", "DATABASE_URL": "db://u:pw@h"}
    pi_file(environ, "auth", {"cloud": {"type": "api_key", "key": "${K}", "env": own}})
    credential = got(environ, "cloud", vault)
    assert credential.key == "key-1"
    assert credential.extra == {"env": {"AWS_REGION": "eu"}}
    assert credential.fields == {"SOME_SECRET": "other-1", "DATABASE_URL": "db://u:pw@h"}


def test_a_custom_provider_comes_in_with_its_secret_headers(environ: dict[str, str], vault: Vault) -> None:
    entry = {
        "baseUrl": "https://llm.example",
        "apiKey": "$K",
        "headers": {"X-Title": "plain", "X-Api-Token": "tok-1", "authorization": "Bearer $T"},
        "models": [{"id": "m", "headers": {"x-run": "!echo run-1", "x-host-token": "y"}}],
    }
    pi_file(environ, "models", {"providers": {"mine": entry, "other": {"baseUrl": "https://other.example"}}})
    assert [one.name for one in available(environ, vault.folder)] == ["mine"]
    credential = got({**environ, "K": "key-1", "T": "bearer-1"}, "mine", vault)
    assert credential.source == "models"
    assert credential.key == "key-1"
    assert credential.fields == {
        "x-api-token": "tok-1",
        "authorization": "Bearer bearer-1",
        "authorization.bare": "bearer-1",
        "x-run": "run-1",
        "x-host-token": "y",
    }


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("X-Title", "My editor", ""),
        ("user-agent", "tool/1.0 (linux)", ""),
        ("x-title", "$TITLE", "x-title"),
        ("x-title", "!title", "x-title"),
        ("x-pat", "plain", "x-pat"),
        ("x-team", "$TEAM", "x-team"),
        ("Authorization", "Bearer x", "authorization"),
        ("Key", "x", "header-key"),
        ("1-token", "x", "header-1-token"),
        ("x.secret", "x", "x-secret"),
        ("x-key", 3, ""),
    ],
)
def test_a_header_is_a_field_when_it_holds_a_secret(name: str, value: object, expected: str) -> None:
    assert header_field(name, value) == expected


def test_the_headers_of_models_json_come_with_a_key_from_elsewhere(environ: dict[str, str], vault: Vault) -> None:
    override = {"m": {"headers": {"x-pat": "pat-1"}}}
    pi_file(environ, "models", {"providers": {"openai": {"headers": {"x-team": "t-1"}, "modelOverrides": override}}})
    fields = {"x-team": "t-1", "x-pat": "pat-1"}
    environ["OPENAI_API_KEY"] = "from-variable"
    credential = got(environ, "openai", vault)
    assert (credential.key, credential.fields) == ("from-variable", fields)
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": "from-login"}})
    credential = got(environ, "openai", vault)
    assert (credential.key, credential.fields) == ("from-login", fields)


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("GH_TOKEN", "github"),
        ("GITHUB_TOKEN", "github"),
        ("GITLAB_TOKEN", "gitlab"),
        ("NPM_TOKEN", "npm"),
        ("NODE_AUTH_TOKEN", "npm"),
        ("COPILOT_GITHUB_TOKEN", "github-copilot"),
    ],
)
def test_variables_come_in(environ: dict[str, str], vault: Vault, variable: str, name: str) -> None:
    environ[variable] = "value-1"
    assert got(environ, name, vault) == Credential(name, "api_key", key="value-1", source=f"env:{variable}")


def test_the_order_of_sources_is_pis(environ: dict[str, str], vault: Vault) -> None:
    environ["OPENAI_API_KEY"] = "from-variable"
    assert got(environ, "openai", vault).key == "from-variable"
    pi_file(environ, "models", {"providers": {"openai": {"apiKey": "from-models"}}})
    assert got(environ, "openai", vault).key == "from-models"
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": "from-login"}})
    assert got(environ, "openai", vault).key == "from-login"


@pytest.mark.parametrize("value", ["a\nb", " key-1", "a\x07b", "schlüssel"])
def test_a_variable_that_no_header_carries_is_refused_without_its_value(
    environ: dict[str, str], vault: Vault, value: str
) -> None:
    environ["OPENAI_API_KEY"] = value
    with pytest.raises(ImpyardError, match="OPENAI_API_KEY") as refused:
        got(environ, "openai", vault)
    assert value not in refused.value.message


def test_the_demo_models_key_comes_from_its_account_alone(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"demo": {"type": "api_key", "key": "of-pi"}})
    assert available(environ, vault.folder) == []
    vault.folder.mkdir(mode=0o700)
    os.close(os.open(vault.folder / "demo-account", os.O_CREAT, 0o600))
    (vault.folder / "demo-account").write_text("demo-key-1\n")
    assert got(environ, "demo", vault) == Credential("demo", "api_key", key="demo-key-1", source="demo")


def test_looking_what_there_is_runs_no_command(environ: dict[str, str], vault: Vault, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": f"!touch {mark}; echo k"}})
    assert [one.name for one in available(environ, vault.folder)] == ["openai"]
    assert not mark.exists()
    got(environ, "openai", vault)
    assert mark.exists()


def test_no_value_shows_when_sources_are_printed(environ: dict[str, str], vault: Vault) -> None:
    environ["OPENAI_API_KEY"] = "sk-secret-1"
    pi_file(environ, "auth", {"xai": login(), "groq": {"type": "api_key", "key": "sk-secret-1"}})
    pi_file(environ, "models", {"providers": {"mine": {"apiKey": "sk-secret-1"}}})
    shown = repr(available(environ, vault.folder))
    assert "sk-secret-1" not in shown
    assert "refresh-1" not in shown


def test_the_first_use_imports_and_says_from_where(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": "sk-1"}})
    change = follow(vault, "openai", environ)
    assert change is not None
    assert "auth.json" in change.text
    assert "sk-1" not in change.text
    assert vault.read().credentials["openai"].key == "sk-1"
    assert follow(vault, "openai", environ) is None


def test_a_changed_source_is_imported_anew(environ: dict[str, str], vault: Vault) -> None:
    follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-1"})
    change = follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-2"})
    assert change is not None
    assert "changed in OPENAI_API_KEY" in change.text
    assert vault.read().credentials["openai"].key == "sk-2"


def test_a_credential_whose_source_is_gone_stays(environ: dict[str, str], vault: Vault) -> None:
    follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-1"})
    assert follow(vault, "openai", environ) is None
    assert vault.read().credentials["openai"].key == "sk-1"


def test_one_that_was_set_by_hand_is_never_overwritten(environ: dict[str, str], vault: Vault) -> None:
    vault.put(Credential("openai", "api_key", key="by-hand", source="set"))
    assert follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-1"}) is None
    assert vault.read().credentials["openai"].key == "by-hand"


def test_a_removed_one_does_not_come_back_by_itself(environ: dict[str, str], vault: Vault) -> None:
    environ["OPENAI_API_KEY"] = "sk-1"
    follow(vault, "openai", environ)
    vault.remove("openai")
    assert follow(vault, "openai", environ) is None
    assert vault.read().credentials == {}
    assert take(vault, got(environ, "openai", vault), by_name=True)
    assert vault.read().credentials["openai"].key == "sk-1"


def test_a_run_that_brings_nothing_new_does_not_wait_for_another(
    environ: dict[str, str], vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_LIMIT_S", 0.1)
    follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-1"})
    with vault._changing():
        assert follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-1"}) is None
        with pytest.raises(ImpyardError, match="the vault is in use"):  # the control
            follow(vault, "openai", {**environ, "OPENAI_API_KEY": "sk-2"})


def test_a_name_without_a_source_is_nothing_to_follow(environ: dict[str, str], vault: Vault) -> None:
    assert follow(vault, "openai", environ) is None
    assert not vault.folder.exists()


def test_a_source_that_fails_is_an_error_at_first_and_a_note_when_there_is_one(
    environ: dict[str, str], vault: Vault
) -> None:
    pi_file(environ, "auth", {"openai": {"type": "api_key", "key": "!exit 1"}})
    with pytest.raises(ImpyardError, match="key command failed"):
        follow(vault, "openai", environ)
    vault.put(Credential("openai", "api_key", key="sk-1", source="pi"))
    change = follow(vault, "openai", environ)
    assert change is not None
    assert not change.imported
    assert "key command failed" in change.text
    assert vault.read().credentials["openai"].key == "sk-1"


@pytest.mark.parametrize("content", ["{", "[]", "\udc80", "[" * 100_000])
@pytest.mark.parametrize("name", ["auth", "models"])
def test_a_broken_file_of_pis_is_named_and_tokens_of_tools_do_not_need_it(
    environ: dict[str, str], vault: Vault, name: str, content: str
) -> None:
    path = pi_file(environ, name, {})
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ImpyardError, match=f"{name}.json"):
        follow(vault, "openai", environ)
    assert follow(vault, "github", {**environ, "GH_TOKEN": "gh-1"}) is not None


def test_what_pi_refreshed_comes_in_and_what_only_the_vault_knows_stays(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"anthropic": login(expires=1_000)})
    follow(vault, "anthropic", environ)
    place = TokenEndpoint("https://token.example/t")
    vault.update(
        "anthropic", lambda c: c and _replace(c, token_endpoint=place, failure=Failure(1, "400"), provider="p")
    )
    assert follow(vault, "anthropic", environ) is None
    assert vault.read().credentials["anthropic"].failure == Failure(1, "400")

    pi_file(environ, "auth", {"anthropic": login("access-2", "refresh-2", 3_000)})
    assert follow(vault, "anthropic", environ) is not None
    now = vault.read().credentials["anthropic"]
    assert (now.access, now.refresh, now.expires) == ("access-2", "refresh-2", 3_000)
    assert (now.token_endpoint, now.provider, now.failure) == (place, "p", None)


def test_the_vaults_newer_login_is_not_replaced_by_pis_older_one(environ: dict[str, str], vault: Vault) -> None:
    pi_file(environ, "auth", {"anthropic": login(expires=1_000)})
    follow(vault, "anthropic", environ)
    vault.update("anthropic", lambda c: c and _replace(c, access="access-2", refresh="refresh-2", expires=9_000))
    assert follow(vault, "anthropic", environ) is None
    assert vault.read().credentials["anthropic"].refresh == "refresh-2"
    # One that can no longer be refreshed gives way to whatever pi has.
    vault.update("anthropic", lambda c: c and _replace(c, failure=Failure(1, "503")))
    assert follow(vault, "anthropic", environ) is None
    vault.update("anthropic", lambda c: c and _replace(c, failure=Failure(1, "400", final=True)))
    assert follow(vault, "anthropic", environ) is not None
    assert vault.read().credentials["anthropic"].refresh == "refresh-1"


def _replace(credential: Credential, **values: Any) -> Credential:
    import msgspec

    return msgspec.structs.replace(credential, **values)


# Sources that are not what they should be


def test_a_key_command_that_prints_without_an_end_is_ended_with_all_that_it_started(
    environ: dict[str, str], vault: Vault, tmp_path: Path
) -> None:
    pi_file(environ, "auth", {"anthropic": {"type": "api_key", "key": f"!sleep 60 & echo $! > {tmp_path}/pid; yes"}})
    with pytest.raises(ImpyardError, match="printed more than 64 KiB"):
        got(environ, "anthropic", vault)
    assert_gone(int((tmp_path / "pid").read_text()))


def test_a_key_command_that_hangs_is_ended_with_all_that_it_started(
    environ: dict[str, str], vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pifiles, "COMMAND_LIMIT_S", 0.5)
    command = f"!sleep 60 & echo $! > {tmp_path}/pid; exec >&-; wait"
    for key in (command, command.replace(" exec >&-;", "")):
        pi_file(environ, "auth", {"anthropic": {"type": "api_key", "key": key}})
        with pytest.raises(ImpyardError, match="took longer"):
            got(environ, "anthropic", vault)
        assert_gone(int((tmp_path / "pid").read_text()))


def assert_gone(process: int) -> None:
    stat = Path(f"/proc/{process}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(") ")[2].startswith("Z"), 5)


@pytest.mark.parametrize("key", ["garb\nage", "!echo two; echo lines", "!exit 7"])
def test_a_source_that_has_turned_to_nothing_usable_leaves_the_stored_one(
    environ: dict[str, str], vault: Vault, key: str
) -> None:
    pi_file(environ, "auth", {"anthropic": {"type": "api_key", "key": "a-good-key-of-old"}})
    assert follow(vault, "anthropic", environ)
    pi_file(environ, "auth", {"anthropic": {"type": "api_key", "key": key}})
    change = follow(vault, "anthropic", environ)
    assert change is not None and not change.imported and "the stored credential" in change.text
    assert vault.read().credentials["anthropic"].key == "a-good-key-of-old"


def test_a_pipe_in_place_of_a_file_of_pis_is_refused_and_not_waited_for(environ: dict[str, str], vault: Vault) -> None:
    file = Path(environ["HOME"]) / ".pi/agent/auth.json"
    os.mkfifo(file)
    with pytest.raises(ImpyardError, match="no regular file"):
        available(environ, vault.folder)


def test_the_demo_models_account_is_found_whatever_pis_files_are(environ: dict[str, str], vault: Vault) -> None:
    (Path(environ["HOME"]) / ".pi/agent/auth.json").write_text("{broken")
    account_key(vault.folder, lambda: None)
    change = follow(vault, "demo", environ)
    assert change is not None and change.imported
