"""`impyard policy preset`: what is listed and shown, and how a preset gets into a policy without overruling anybody."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.judge import judge
from impyard.addon.policy import load_policy, read_policy
from impyard.runner import cli
from impyard.runner.policy import preset_add, presets
from impyard.runner.policy.asked import asked, sent
from impyard.runner.policy.lint import lints
from tests.attacks.test_properties_policy import entries as some_entries
from tests.attacks.test_properties_policy import written
from tests.support.fuzz import examples

ROOT = Path(__file__).resolve().parents[2]
MINE = """\
# Mine: keep this line.
networkPolicies:
  # no forks
  - host: github.com   # two blanks
    policies:
      - {action: DENY, method: "*", path: (?i)/octo/.*, name: not-octo}
  - host: api.example.org
    policies:
      - action: ALLOW
        method: GET
        path: /v1/.*
# the end
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path.resolve() / "project"
    (root / "policies").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (root / "policies" / "gateway.yaml").write_text(MINE)
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("GOPROXY", "GOSUMDB", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    return root


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(["policy", "preset", *words])
    return status, *capsys.readouterr()


def text(project: Path) -> str:
    return (project / "policies" / "gateway.yaml").read_text()


def allowed(project: Path, *requests: str) -> list[bool]:
    policy = load_policy([project / "policies" / "gateway.yaml"], root=project)
    return [judge(sent(asked(*request.split(" ", 1))), policy).allowed for request in requests]


CLONE = "POST https://github.com/{}/git-upload-pack"


def test_each_preset_is_listed_with_a_line_and_its_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(presets.NAMES)
    assert "api.github.com, raw.githubusercontent.com" in lines[1]


@pytest.mark.parametrize("name", presets.NAMES)
def test_what_is_shown_is_a_policy(
    name: str, project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--host", "https://registry.example.org/a/"] if presets.preset(name).placeholders else []
    words += ["--files", "https://registry.example.org/files/"] if name in ("pip", "cargo") else []
    status, out, _ = call(capsys, "show", name, *words)
    assert status == 0
    (tmp_path / "shown.yaml").write_text(out)
    assert load_policy([tmp_path / "shown.yaml"]).entries
    assert not re.search(r"\{(prefix|repo|file|within)\}|\"\{", out)


def test_a_deny_that_a_person_wrote_goes_on_to_win(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "add", "github-clone", "--yes")
    assert status == 0 and err.endswith("changed policies/gateway.yaml; it counts from the next request on\n")
    assert "policies/gateway.yaml:4 is about github.com too" in err
    assert "stays denied by policies/gateway.yaml:" in err and "not-octo: GET https://github.com/octo/hello" in err
    assert out.count("+  - host: github.com") == 1
    assert allowed(project, CLONE.format("octo/hello"), CLONE.format("ada/engine")) == [False, True]


def test_what_was_allowed_already_is_told_and_another_preset_is_not(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = MINE.replace("DENY", "ALLOW").replace("(?i)/octo/.*", "/octo/hello.git/.*")
    (project / "policies" / "gateway.yaml").write_text(wide)
    _, _, err = call(capsys, "add", "github-clone", "github", "--yes")
    (told,) = [line for line in err.splitlines() if "was allowed before" in line]
    assert "by policies/gateway.yaml:6 not-octo" in told and "git-receive-pack" in told


@pytest.mark.parametrize("host", ['"*"', '"*.com"', "github.com"])
def test_it_wins_also_by_a_pattern_over_the_host(project: Path, capsys: pytest.CaptureFixture[str], host: str) -> None:
    (project / "policies" / "gateway.yaml").write_text(MINE.replace("github.com ", host))
    call(capsys, "add", "github-clone", "--yes")
    assert allowed(project, CLONE.format("octo/hello"), CLONE.format("ada/engine")) == [False, True]


def test_all_that_stood_there_stays_byte_for_byte(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "add", "github-clone", "anthropic", "--yes")
    new = text(project).splitlines()
    kept = iter(new)
    assert all(line in kept for line in MINE.splitlines())  # in their order
    added = [line for line in new if line.strip() and line not in MINE.splitlines()]
    assert any("Preset github-clone" in line for line in added)
    assert any("would name git-receive-pack here" in line for line in added)  # the preset's reasons come along


def test_adding_it_twice_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "add", "github", "anthropic", "--yes")
    before = text(project)
    status, out, _ = call(capsys, "add", "github", "anthropic")
    assert (status, text(project)) == (0, before)
    assert "github: all of it is in the policy already" in out and "the policy stays as it is" in out


def test_what_the_shipped_policy_has_is_not_added(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "policies" / "gateway.yaml").write_bytes((ROOT / "policies" / "default.yaml").read_bytes())
    status, out, _ = call(capsys, "add", "anthropic", "openai", "openai-codex", "google", "openrouter")
    assert status == 0 and "nothing to add" in out


def test_a_missing_inject_is_told_and_not_doubled(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "add", "github-clone", "--yes")
    before = text(project)
    status, _, err = call(capsys, "add", "github-clone", "--inject", "--yes")
    assert (status, text(project)) == (0, before)
    assert "has this entry without the credential; write `inject: github` there" in err


def test_without_a_yes_nothing_changes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "add", "openai")
    assert (status, text(project)) == (1, MINE)
    assert "+  - host: api.openai.com" in out and "--yes" in err


def test_a_registry_comes_from_the_configuration_without_its_password(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (project / ".npmrc").write_text("registry=https://me:hunter2secret@registry.example.org/npm/\n")
    status, out, err = call(capsys, "add", "npm", "--yes")
    assert status == 0
    assert "hunter2secret" not in out + err + text(project)
    assert allowed(
        project,
        "GET https://registry.example.org/npm/@a%2fb",
        "GET https://registry.example.org/@a%2fb",
        "PUT https://registry.example.org/npm/x",
    ) == [True, False, False]
    status, _, err = call(capsys, "add", "go")
    assert status == 1 and "impyard policy preset add go --host" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nmp"], "did you mean npm?"),
        (["github", "npm", "--host", "https://registry.example.org"], "go with one preset"),
        (["npm", "--repo", "a/b"], "--repo goes with github-clone"),
        (["openai", "--inject"], "which has its credential anyway"),
        (["pip", "--inject"], "which knows no credential"),
        (["github", "--host", "https://registry.example.org"], "has its hosts itself"),
        (["npm", "--files", "https://registry.example.org"], "has no files elsewhere"),
        (["apt", "--host", "https://registry.example.org/%2e%2e/"], "can be read in several ways"),
        (
            ["npm", "--inject", "--host", "http://registry.example.org"],
            "over plain http, where a credential would be read by others",
        ),
        (["github", "--policy", "a.yaml", "--policy", "b.yaml"], "there is no policy at"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_changes(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    status, _, err = call(capsys, "add", *words, "--yes")
    assert status in (1, 2) and told in err.replace("\n  ", " ")
    assert text(project) == MINE


def test_a_registry_that_is_not_public_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = call(capsys, "add", "npm", "--host", "https://10.0.0.1/x", "--yes")
    assert "10.0.0.1 is not public" in err and "`upstream`" in err
    assert "not public" not in call(capsys, "show", "npm", "--host", "https://registry.example.org/x")[2]


def test_a_broken_policy_is_not_touched(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = MINE.replace("DENY", "DNEY")
    (project / "policies" / "gateway.yaml").write_text(broken)
    status, _, err = call(capsys, "add", "openai", "--yes")
    assert status == 1 and 'action "DNEY"' in err
    assert text(project) == broken


hosts = st.sampled_from(["github.com", "api.github.com", "*.com", "*", "a.test", "*.github.com"])
entries = some_entries.map(dict).flatmap(lambda entry: hosts.map(lambda host: {**entry, "host": host}))
# What a preset allows, and next to it.
questions = st.sampled_from(
    [("github-clone", "GET", "github.com", "/octo/hello/info/refs"), ("github", "GET", "api.github.com", "/a"),
     ("github-clone", "POST", "github.com", "/octo/hello/git-upload-pack"), ("github", "GET", "api.github.com", "/a/b"),
     ("github", "PUT", "api.github.com", "/a/b"), ("github-clone", "GET", "api.github.com", "/a")]
)  # fmt: skip
odd = st.sampled_from(["", "", "", "/../x", "%2fx", ";a=1", "//"])


@examples(60)
@given(st.lists(entries, min_size=1, max_size=4), questions, odd)
def test_whatever_the_policy_decides_it_goes_on_to_decide(
    policy: list[dict[str, Any]], question: tuple[str, str, str, str], more: str
) -> None:
    name, method, host, path = question
    file, root = Path("/project/policies/gateway.yaml"), Path("/project")
    before = written(policy)[0].encode()
    done = preset_add.add(before, file, root, presets.entries_text(presets.preset(name), {}), name)
    old, new = (read_policy([(file, data)], root=root) for data in (before, done.data))
    assert len(new.entries) == len(old.entries) + len(done.added)
    request = replace(sent(asked(method, f"https://{host}/")), path=path + more, query="service=git-upload-pack")
    was, now = judge(request, old), judge(request, new)
    if was.reason in ("rule", "body-limit"):
        assert (was.allowed, was.rule, was.reason) == (now.allowed, now.rule, now.reason)


def test_a_narrow_entry_beside_a_wide_one_that_does_its_work_is_told_before_the_question(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    _, _, err = call(capsys, "add", "github-clone", "--yes")
    assert "has no effect" not in err
    before = text(project)
    status, _, err = call(capsys, "add", "github-clone", "--repo", "octo/hello")
    assert status == 1 and text(project) == before  # there is no terminal to ask on
    assert err.count("has no effect: line") == 2 and "take that out if only the narrower is meant" in err
    call(capsys, "add", "github-clone", "--repo", "octo/hello", "--yes")
    found = lints([(project / "policies" / "gateway.yaml", text(project).encode())], root=project)
    assert [lint.code for lint in found] == ["never-decides"] * 2


def test_a_repository_is_named_in_any_case(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    call(capsys, "add", "github-clone", "--repo", "octo/hello", "--repo", "ada/engine", "--yes")
    names = [CLONE.format(name) for name in ("Octo/HELLO", "ADA/engine.git", "ada/hello", "octo/hello/x")]
    assert allowed(project, *names) == [True, True, False, False]
