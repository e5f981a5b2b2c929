"""`impyard doctor` tells what is there and what is not, on real folders and a real (or absent) engine."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault, default_dir
from impyard.certs import authority
from impyard.runner import cli, engine
from impyard.runner.doctor_credentials import credential_checks

Checks = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty home and data folder, no keys, and no engine unless a test asks for one."""
    from impyard.runner.keys.sources import KEY_VARIABLES, TOOL_VARIABLES

    for name in (name for names in (KEY_VARIABLES | TOOL_VARIABLES).values() for name in names):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("PI_CODING_AGENT_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    for cache in (engine.client, engine.describe):
        cache.cache_clear()
    yield
    for cache in (engine.client, engine.describe):
        cache.cache_clear()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "policies").mkdir(parents=True)
    (root / "policies" / "gateway.yaml").write_text(
        "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /.*}\n"
    )
    return root


@pytest.fixture
def examine(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, Checks]]:
    def call() -> tuple[int, Checks]:
        status = cli.main(["doctor", "--json", "--project", str(project)])
        document = json.loads(capsys.readouterr().out)
        assert document["ok"] == (status == 0)
        return status, {check["name"]: check for check in document["checks"]}

    return call


Examine = Callable[[], tuple[int, Checks]]


def test_a_dead_engine_fails_with_the_command_that_starts_it(examine: Examine) -> None:
    status, checks = examine()
    assert status == 1
    assert checks["docker"]["status"] == "fail"
    assert "systemctl start docker" in checks["docker"]["mend"]
    assert checks["python"]["status"] == checks["mitmproxy"]["status"] == checks["policy"]["status"] == "ok"


def test_a_live_engine_is_described(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    status, checks = examine()
    if checks["docker"]["status"] == "fail":
        pytest.skip(checks["docker"]["found"])
    assert "API" in checks["docker"]["found"]
    assert checks["image"]["status"] in ("ok", "warn")
    assert status == 0


def test_people_get_a_line_for_each_check_and_the_mending_command(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "policies" / "gateway.yaml").unlink()
    assert cli.main(["doctor", "--project", str(project)]) == 1
    lines = capsys.readouterr().out.splitlines()
    index = next(index for index, line in enumerate(lines) if line.split()[:2] == ["fail", "policy"])
    assert lines[index + 1].strip() == "mend: impyard init"


def test_a_broken_policy_fails_with_file_line_and_column(project: Path, examine: Examine) -> None:
    (project / "policies" / "gateway.yaml").write_text("networkPolicies:\n  - hosts: a.test\n    policies: []\n")
    policy = examine()[1]["policy"]
    assert policy["status"] == "fail"
    assert "policies/gateway.yaml:2:" in policy["found"]
    assert policy["mend"].startswith("edit these lines: ") and "init --force" not in policy["mend"], "a typo"
    for content in (b"", b"# nothing\n", b"#" * ((8 << 20) + 1)):
        (project / "policies" / "gateway.yaml").write_bytes(content)
        assert "impyard init --force" in examine()[1]["policy"]["mend"]


def test_a_project_that_no_run_takes_fails(project: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine()[1]["project"]["status"] == "ok"
    monkeypatch.setenv("HOME", str(project))
    check = examine()[1]["project"]
    assert check["status"] == "fail"
    assert "home folder" in check["found"] and "--project" in check["mend"]


def test_an_authority_that_is_not_made_yet_is_fine(examine: Examine) -> None:
    assert examine()[1]["authority"]["status"] == "ok"


def test_a_key_that_others_can_read_fails_with_the_chmod(examine: Examine) -> None:
    made = authority.ensure_authority(authority.default_dir())
    assert examine()[1]["authority"]["status"] == "ok"
    made.key_path.chmod(0o644)
    check = examine()[1]["authority"]
    assert (check["status"], check["mend"]) == ("fail", f"chmod 600 {str(made.key_path)!r}")


def test_a_damaged_authority_fails(examine: Examine) -> None:
    made = authority.ensure_authority(authority.default_dir())
    made.cert_path.write_text("nonsense")
    assert examine()[1]["authority"]["status"] == "fail"


def test_an_authority_that_ends_soon_is_warned_of(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "VALIDITY", datetime.timedelta(days=10))
    authority.ensure_authority(authority.default_dir())
    check = examine()[1]["authority"]
    assert check["status"] == "warn"
    assert "rm -r" in check["mend"]


def test_credentials_are_named_and_never_shown(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert examine()[1]["credentials"]["status"] == "warn"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    agent = tmp_path / "home" / ".pi" / "agent"
    agent.mkdir(parents=True)
    marker = tmp_path / "command-ran"
    (agent / "auth.json").write_text(
        json.dumps(
            {
                "anthropic": {"type": "api_key", "key": f"!touch {marker}"},
                "openai-codex": {"type": "oauth", "access": "secret-access", "expires": 1},
            }
        )
    )
    (agent / "models.json").write_text(
        json.dumps({"providers": {"ollama": {"apiKey": "secret-local"}, "bare": {}, "odd": 1}})
    )
    (agent / "models.json").chmod(0o600)
    (agent / "auth.json").chmod(0o644)
    assert any("open to other users" in one.found for one in credential_checks(os.environ))
    (agent / "auth.json").chmod(0o600)
    check = examine()[1]["credentials"]
    assert check["status"] == "ok"
    auth, models = agent / "auth.json", agent / "models.json"
    assert check["found"].startswith(
        f"to import: anthropic ({auth}), openai-codex (expired, {auth}), ollama ({models}), openai (OPENAI_API_KEY);"
    )
    assert "secret" not in json.dumps(check)
    assert not marker.exists()


def test_the_vault_is_shown_with_what_has_ended_and_without_values(examine: Examine) -> None:
    vault = Vault(default_dir())
    vault.put(Credential("openai", "api_key", key="sk-very-secret"))
    assert examine()[1]["vault"]["found"] == "openai"
    vault.put(Credential("xai", "oauth", access="sk-very-secret", expires=5))
    check = examine()[1]["vault"]
    assert (check["status"], check["found"]) == ("warn", "openai, xai (expired)")
    assert "impyard vault set xai" in check["mend"]
    assert "secret" not in json.dumps(check)
    (vault.folder / "vault.json").chmod(0o644)
    status, checks = examine()
    assert status == 1
    assert "chmod 600" in checks["credentials"]["mend"]


@pytest.mark.parametrize("content", ["{half", "[]", "\xff"])
def test_a_damaged_auth_file_is_said(examine: Examine, tmp_path: Path, content: str) -> None:
    agent = tmp_path / "home" / ".pi" / "agent"
    agent.mkdir(parents=True)
    (agent / "auth.json").write_text(content, encoding="latin-1")
    check = examine()[1]["credentials"]
    assert check["status"] == "warn"
    assert "auth.json" in check["found"]


def test_a_check_that_breaks_is_a_failure_and_the_others_are_made(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_path: Path) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("shutil.disk_usage", broken)
    status, checks = examine()
    assert status == 1
    assert "unforeseen" in checks["disk"]["found"]
    assert checks["policy"]["status"] == "ok"


def test_a_project_that_does_not_exist_is_a_failure_and_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--project", "/nowhere/at/all"]) == 1
    captured = capsys.readouterr()
    assert "does not exist" in captured.out
    assert captured.err == ""


@pytest.mark.attack("F33")
@pytest.mark.parametrize(
    ("proxy", "entry", "status"),
    [
        ("", "", None),
        ("http://ada:s3cret@127.0.0.1:3128", "", "warn"),
        ("http://ada:s3cret@127.0.0.1:3128", "    upstream_proxy: environment\n", "ok"),
        ("http://ada:s3cret@127.0.0.1:3128", "    upstream_proxy: http://127.0.0.1:3128\n", "warn"),
        ("socks5://ada:s3cret@127.0.0.1:1080", "    upstream_proxy: environment\n", "fail"),
    ],
)
def test_what_becomes_of_a_proxy_of_this_shell_is_said(
    examine: Examine, project: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, entry: str, status: str | None
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    policy = project / "policies" / "gateway.yaml"
    policy.write_text(policy.read_text().replace("    policies:\n", f"{entry}    policies:\n"))
    checks = examine()[1]
    assert checks["policy"]["status"] == "ok"
    assert (checks["proxy"]["status"] if "proxy" in checks else None) == status
    assert "s3cret" not in json.dumps(checks)


def test_secrets_are_named_by_place_and_kind_and_never_shown(
    project: Path, examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "ghp_" + "Zq3vT7xW9kLmN2pR4sYb" * 2
    (project / "src.py").write_text(f"\ntoken = '{token}'\n")
    (project / "id_rsa").write_text(token)
    _, checks = examine()
    assert checks["secrets"]["found"] == "covered: id_rsa (private key)"
    assert "in files" not in checks
    cli.main(["doctor", "--secrets", "--json", "--project", str(project)])
    output = capsys.readouterr().out
    (found,) = [check for check in json.loads(output)["checks"] if check["name"] == "in files"]
    assert found["status"] == "warn" and found["mend"]
    assert found["found"].splitlines()[1:] == ["src.py:2  GitHub token"]
    assert token not in output
    (project / "src.py").unlink()
    cli.main(["doctor", "--secrets", "--project", str(project)])
    assert "no secret that the box would see" in capsys.readouterr().out
