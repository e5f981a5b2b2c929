"""The shipped presets: each allows and denies what its own test says, by the judge; and what is written of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.policy import load_policy
from impyard.runner.policy import preset_places, presets, registries_apt, registries_cargo
from impyard.runner.policy.expect import judged, read_expectations
from impyard.runner.policy.registries import Place, place_of

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("anthropic", "openai", "openai-codex", "google", "openrouter")


def apt(url: str) -> Place:
    return registries_apt.within(place_of(url))


# At the root of a host, below a path, over plain http and on another port: places as people have them.
PLAIN: dict[str, list[Place]] = {
    "gitlab": [place_of("gitlab.com")],
    "npm": [place_of("registry.example.org")],
    "pip": [place_of("https://registry.example.org/simple/")],
    "pip-files": [place_of("https://files.example.org/packages/")],
    "cargo": [place_of("https://index.example.org")],
    "cargo-files": [registries_cargo.from_dl("https://files.example.org/crates")],
    "go": [place_of("https://registry.example.org")],
    "go-sums": [place_of("sums.example.org")],
    "apt": [apt("http://registry.example.org/debian")],
}
MIRRORS: dict[str, list[Place]] = {
    "gitlab": [place_of("https://git.example.org:8444/git")],
    "npm": [place_of("https://registry.example.org/artifactory/api/npm/npm/"), place_of("http://10.0.0.7:8081/x.y")],
    "pip": [place_of("http://registry.example.org:8081/repository/pypi/simple")],
    "pip-files": [place_of("http://registry.example.org:8081/repository/pypi/")],
    "cargo": [place_of("sparse+https://registry.example.org/api/cargo/main/index/")],
    "cargo-files": [registries_cargo.from_dl("https://registry.example.org/dl/{crate}/{version}/download")],
    "go": [place_of("https://registry.example.org/goproxy")],
    "go-sums": [place_of("https://registry.example.org/sums")],
    "apt": [apt("https://registry.example.org/mirror/debian/"), apt("http://registry.example.org/security")],
}


@pytest.mark.parametrize("places", [PLAIN, MIRRORS], ids=["plain", "mirrors"])
@pytest.mark.parametrize("name", presets.NAMES)
def test_it_allows_and_denies_what_its_test_says(name: str, places: dict[str, list[Place]]) -> None:
    wanted = presets.preset(name)
    policy = presets.as_policy(wanted, presets.entries_text(wanted, places))
    expected = presets.expectations(wanted, places)
    assert [(o.expectation.line, o.got) for o in judged(expected, policy) if not o.is_met] == []
    assert {each.allow for each in expected} == {True, False}


def test_https_on_the_port_of_http_stays_https() -> None:
    wanted = presets.preset("npm")
    policy = presets.as_policy(wanted, presets.entries_text(wanted, {"npm": [place_of("https://reg.example.org:80/")]}))
    assert [entry.ports for entry in policy.entries] == [{"https": 80}]


@pytest.mark.parametrize("host", ["[2606:4700::1]:8444", "[2606:4700::1]", "192.0.2.1"])
def test_an_address_is_tried_without_a_dot_behind_it(host: str) -> None:
    wanted, places = presets.preset("npm"), {"npm": [place_of(f"https://{host}/x/")]}
    policy = presets.as_policy(wanted, presets.entries_text(wanted, places))
    expected = presets.expectations(wanted, places)
    assert expected and all(outcome.is_met for outcome in judged(expected, policy))


@pytest.mark.parametrize("name", presets.NAMES)
def test_its_test_tries_each_trick_of_spelling(name: str) -> None:
    text = (presets.FOLDER / f"{name}_test.yaml").read_text()
    denied = [line for line in text.splitlines() if line.endswith(": deny")]
    allowed = [line for line in text.splitlines() if line.endswith(": allow")]
    assert any(re.search("%2f|%2e", line, re.I) for line in denied)
    assert any("/../" in line or "%2e%2e" in line or "..%2f" in line for line in denied)
    assert any(":8443" in line for line in denied)
    assert any(re.search(r"[a-z}]\.}?/|\.\}", line.partition("//")[2]) for line in allowed)
    assert any(line.startswith("- get ") or re.search("[A-Z]", line.partition("://")[2]) for line in denied)


@pytest.mark.parametrize("name", presets.NAMES)
def test_it_has_a_date_a_word_on_what_was_verified_and_a_reason_for_each_entry(name: str) -> None:
    wanted = presets.preset(name)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", wanted.date)
    assert "\n# Verified: " in wanted.head and "\n# Not in it: " in wanted.head
    assert all("#" in item for item in presets.entries_text(wanted, PLAIN))


@pytest.mark.parametrize("name", presets.NAMES)
def test_it_opens_no_wide_host_and_names_no_registry(name: str) -> None:
    wanted = presets.preset(name)
    assert not {"*", "*.googleapis.com", "*.amazonaws.com", "*.github.com"} & set(wanted.hosts)
    if set(preset_places.HINTS) >= {name}:
        assert wanted.hosts == ()


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_entry_of_the_shipped_policy(name: str) -> None:
    shipped = load_policy([ROOT / "policies" / "default.yaml"])
    wanted = presets.preset(name)
    (entry,) = presets.as_policy(wanted, presets.entries_text(wanted, {})).entries
    (same,) = [each for each in shipped.entries if each.host == entry.host]
    assert [(r.methods, r.path, r.websocket) for r in entry.rules] == [
        (r.methods, r.path, r.websocket) for r in same.rules
    ]
    assert entry.inject and same.inject and entry.inject.variants == same.inject.variants


def test_every_file_of_the_folder_is_a_preset_or_its_test() -> None:
    names = {path.name for path in presets.FOLDER.iterdir()}
    assert names == {f"{name}{end}.yaml" for name in presets.NAMES for end in ("", "_test")}


def test_named_repositories_are_all_that_it_allows_in_any_case_and_without_a_pattern() -> None:
    wanted = presets.preset("github-clone")
    texts = presets.entries_text(wanted, {}, repos=("Octo/he.llo", "octo/two"))
    policy = presets.as_policy(wanted, texts)
    said = {}
    for repo in ("octo/HE.LLO", "octo/two.git", "octo/hexllo", "octo/two/x", "evil/octo/two"):
        lines = f"- POST https://github.com/{repo}/git-upload-pack: allow\n".encode()
        (outcome,) = judged(read_expectations(Path("x"), lines, "x").expectations, policy)
        said[repo] = outcome.decision.allowed
    assert said == {
        "octo/HE.LLO": True,
        "octo/two.git": True,
        "octo/hexllo": False,
        "octo/two/x": False,
        "evil/octo/two": False,
    }


@pytest.mark.parametrize("repo", ["octo", "octo/a/b", "octo/..", "o|x/a", "octo/a\nb", "/a", "octo/(.*)"])
def test_what_is_no_repository_is_refused(repo: str) -> None:
    with pytest.raises(ImpyardError, match="is no repository"):
        presets.entries_text(presets.preset("github-clone"), {}, repos=(repo,))


def test_a_credential_goes_in_only_when_asked_for_and_to_one_registry_only() -> None:
    wanted = presets.preset("npm")
    (entry,) = presets.as_policy(wanted, presets.entries_text(wanted, PLAIN)).entries
    assert entry.inject is None
    (entry,) = presets.as_policy(wanted, presets.entries_text(wanted, PLAIN, inject=True)).entries
    assert entry.inject is not None and entry.inject.credential == "npm"
    with pytest.raises(ImpyardError, match="several registries"):
        presets.entries_text(wanted, MIRRORS, inject=True)


def test_a_name_that_is_none_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(ImpyardError, match="did you mean github-clone"):
        presets.preset("github-clon")
