"""What is said to help with a denial: that `impyard policy allow` does what it is offered for, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from impyard.runner.cli import main
from impyard.runner.denials import Denials
from impyard.runner.next_commands import next_commands
from impyard.runner.receipt import Receipt
from impyard.runner.run_plan import Options
from tests.support.askedlog import RUN, AskedProject

POLICY = """\
networkPolicies:
  - host: api.example.org
    policies:
      - {action: ALLOW, method: GET, path: "/repos/.*"}
      - {action: DENY, method: "*", path: "/repos/secret"}
"""
EXPLAIN, ALLOW, CHECK = "impyard policy explain ", "impyard policy allow ", "impyard policy check"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AskedProject:
    monkeypatch.delenv("IMPYARD_COMMAND", raising=False)
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return AskedProject(tmp_path, POLICY)


def offered(id: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `next`."""
    assert main(["decisions", "show", id]) == 0
    lines = capsys.readouterr().out.partition("\nnext")[2].splitlines()
    return [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("method", "url", "reason", "is_offered"),
    [
        ("POST", "https://api.example.org/repos/a", None, True),
        ("GET", "https://new.example.org/", None, True),
        ("GET", "https://api.example.org/repos/secret", None, True),  # by --over-deny
        ("GET", "https://intra.test/", None, False),
        ("GET", "https://127.0.0.1/", None, False),
        ("GET", "https://new.example.org/a//../b", None, False),
        ("GET", "https://new.example.org/", "private-address", False),
        ("GET", "https://new.example.org/", "malformed", False),
        ("GET", "https://new.example.org/", "policy-broken", False),
        ("GET", "https://new.example.org/", "secret-in-request", False),
    ],
)
def test_what_show_offers_does_what_it_says(
    project: AskedProject,
    capsys: pytest.CaptureFixture[str],
    method: str,
    url: str,
    reason: str | None,
    is_offered: bool,
) -> None:
    id = project.ask(method, url, reason=reason)
    said = offered(id, capsys)
    [*commands] = [line for line in said if line.startswith(ALLOW)]
    assert bool(commands) is is_offered
    words = commands[0].split()[1:] if commands else ["policy", "allow", id]
    before = project.policy.read_bytes()
    assert main([*words, "--yes"]) == (0 if is_offered else 1)
    assert (project.policy.read_bytes() != before) is is_offered
    if is_offered:
        capsys.readouterr()
        assert offered(id, capsys)[0] == "the policy of now allows it"


def test_show_offers_what_mends_the_rest(project: AskedProject, capsys: pytest.CaptureFixture[str]) -> None:
    id = project.ask("GET", "https://new.example.org/", reason="policy-broken")
    assert offered(id, capsys) == [CHECK]
    id = project.ask("GET", "https://new.example.org/")
    project.policy.write_text("networkPolicies: 7\n")
    assert offered(id, capsys) == [CHECK]


def end(*events: tuple[str, str, str], learn: bool = False) -> dict[str, str]:
    """What a run proposes that was denied this: reason, host, credential."""
    denials = Denials()
    for reason, host, credential in events:
        asked = {"method": "GET", "scheme": "https", "host": host, "port": 443, "path": "/", "reason": reason}
        denials.count({**asked, **({"credential": credential} if credential else {})})
    receipt = Receipt(
        run=RUN,
        project="p",
        workspace="p",
        model=None,
        started="2026-01-01T00:00:00Z",
        impyard="x",
        runner_pid=1,
        runner_start="1",
        runner_space="1",
        ceiling_s=60,
        decisions={"denied_hosts": dict(denials.hosts)},
    )
    return dict(next_commands(receipt, Options(b"", learn=learn), Path(), denials))


def test_the_end_of_a_run_proposes_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPYARD_COMMAND", raising=False)
    suggest = {"suggest": f"impyard policy suggest --run {RUN}"}
    assert end(("unlisted-host", "a.example", "")) == suggest
    assert end(("unlisted-host", "a.test", ""), ("private-address", "a.example", "")) == {}
    assert end(("policy-broken", "a.example", "")) == {"check": CHECK}
    assert end(("credential-unavailable", "a.example", "github")) == {"store": "impyard vault set github"}
    assert end(("credential-unavailable", "a.example", "demo")) == {"store": "impyard vault import demo"}
    both = end(("credential-unavailable", "a.example", "github"), ("no-rule", "b.example", ""))
    assert both == {"store": "impyard vault set github", **suggest}
    assert end(("no-rule", "b.example", ""), learn=True) == {}
