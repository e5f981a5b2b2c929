"""Where registries are found: in the configuration of the tools themselves; and what never gets out of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.policy import (
    registries_apt,
    registries_cargo,
    registries_go,
    registries_look,
    registries_npm,
    registries_pip,
)
from impyard.runner.policy.registries import Found, Machine, expression, place_of
from tests.support.service import Given, Service
from tests.support.shop import needs

PASSWORD = "hunter2secretword"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with a home, a project and /etc of its own, on which no tool is installed."""
    for name in ("home", "project", "etc", "bin"):
        (tmp_path / name).mkdir()
    env = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    return Machine(env, tmp_path / "project", tmp_path / "etc")


def tool(machine: Machine, name: str, script: str) -> None:
    """A program of that name, which prints something."""
    path = Path(machine.env["PATH"]) / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def urls(found: Found, name: str) -> list[str]:
    return [place.url for place in found.places.get(name, ())]


# -- npm -------------------------------------------------------------------------------------------------------------


def test_npm_says_itself_what_its_registries_are(machine: Machine) -> None:
    said = {"registry": "https://registry.example.org/npm/", "@acme:registry": "http://npm.example.com:8081/x/", "a": 1}
    tool(machine, "npm", f"/bin/cat <<'E'\n{json.dumps(said)}\nE")
    found = Found()
    registries_npm.read(machine, found)
    assert urls(found, "npm") == ["https://registry.example.org/npm/", "http://npm.example.com:8081/x/"]


def test_without_npm_its_files_are_read_and_no_password_comes_out(machine: Machine) -> None:
    put(machine.home / ".npmrc", "registry=https://old.example.org/\n@acme:registry=https://npm.example.com/\n")
    put(machine.root / ".npmrc", f"; mine\nregistry = https://me:{PASSWORD}@registry.example.org/\n//x/:_authToken=t\n")
    found = Found()
    registries_npm.read(machine, found)
    assert urls(found, "npm") == ["https://registry.example.org/", "https://npm.example.com/"]
    assert PASSWORD not in repr(found) and "me:" not in repr(found)
    assert any("a user or a password" in note for note in found.notes)


def test_without_any_registry_it_says_how_to_name_one(machine: Machine) -> None:
    for read, name in (
        (registries_npm.read, "npm"),
        (registries_pip.read, "pip"),
        (registries_cargo.read, "cargo"),
        (registries_go.read, "go"),
        (registries_apt.read, "apt"),
    ):
        with pytest.raises(ImpyardError) as caught:
            read(machine, Found())
        assert f"preset add {name} --host " in str(caught.value.hint)


# -- pip -------------------------------------------------------------------------------------------------------------


def test_pip_says_itself_what_its_indexes_are(machine: Machine) -> None:
    lines = [
        "global.index-url='https://registry.example.org/api/pypi/simple/'",
        "install.extra-index-url='https://more.example.org/simple\\nfile:///opt/simple'",
        "global.cert='/etc/x'",
    ]
    tool(machine, "pip", "/bin/cat <<'E'\n" + "\n".join(lines) + "\nE")
    found = Found()
    registries_pip.read(machine, found)
    registries_pip.files_of(machine, found, {})
    assert urls(found, "pip") == ["https://registry.example.org/api/pypi/simple/", "https://more.example.org/simple/"]
    assert urls(found, "pip-files") == ["https://registry.example.org/api/pypi/", "https://more.example.org/packages/"]
    assert any("in a folder of this machine" in note for note in found.notes)
    assert any("--look" in note for note in found.notes)


def test_the_environment_wins_over_pips_files(machine: Machine) -> None:
    put(machine.home / ".config" / "pip" / "pip.conf", "[global]\nindex_url = https://old.example.org/simple\n")
    found = Found()
    registries_pip.read(machine, found)
    assert urls(found, "pip") == ["https://old.example.org/simple/"]
    named = {**machine.env, "PIP_INDEX_URL": f"https://u:{PASSWORD}@registry.example.org/simple"}
    found = Found()
    registries_pip.read(Machine(named, machine.root, machine.etc), found)
    assert urls(found, "pip") == ["https://registry.example.org/simple/"]
    assert PASSWORD not in repr(found)


def test_pips_own_default_is_read_from_pip(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "site" / "pip" / "_internal" / "models" / "index.py"
    put(source, 'PyPI = PackageIndex("https://index.example.org/", file_storage_domain="files.example.org")\n')
    at = tmp_path / "site" / "pip"
    tool(machine, "pip", f'[ "$1" = --version ] && echo "pip 23.2 from {at} (python 3.12)"; exit 0')
    found = Found()
    registries_pip.read(machine, found)
    registries_pip.files_of(machine, found, {})
    assert urls(found, "pip") == ["https://index.example.org/simple/"]
    assert urls(found, "pip-files") == ["https://files.example.org/packages/"]


@pytest.mark.parametrize(
    ("index", "files"),
    [("simple", "packages/"), ("api/pypi/simple", "api/pypi/"), ("team-simple", "packages/"), ("a/b", "packages/")],
)
def test_files_beside_an_index_lie_below_what_its_last_part_stands_in(index: str, files: str) -> None:
    assert registries_pip.beside(place_of(f"https://registry.example.org/{index}/")).prefix == files


def test_a_page_of_an_index_says_where_its_files_lie() -> None:
    index = place_of("https://registry.example.org/api/pypi/simple")
    page = "<a href=\"../../packages/ab/x-1.whl#sha256=0\">x</a> <a href='https://files.example.org/packages/x.whl'>"
    found = registries_pip.files_named(index, page, f"{index.url}pip/")
    assert [place.url for place in found] == [
        "https://registry.example.org/api/pypi/",
        "https://files.example.org/packages/",
    ]


# -- cargo -----------------------------------------------------------------------------------------------------------


def test_cargos_replaced_source_and_registries_are_read(machine: Machine) -> None:
    put(
        machine.root / ".cargo" / "config.toml",
        '[source.crates-io]\nreplace-with = "mirror"\n[registries.own]\nindex = "sparse+https://own.example.org/index/"\n',
    )
    put(
        machine.home / ".cargo" / "config.toml",
        '[source.mirror]\nregistry = "sparse+https://registry.example.org/m/"\n',
    )
    cache = machine.home / ".cargo" / "registry" / "index"
    put(cache / "registry.example.org-0a" / "config.json", '{"dl": "https://registry.example.org/m/dl"}')
    found = Found()
    registries_cargo.read(machine, found)
    assert urls(found, "cargo") == ["https://registry.example.org/m/", "https://own.example.org/index/"]
    with pytest.raises(ImpyardError, match=r"own\.example\.org/index/ lie is not known") as caught:
        registries_cargo.files_of(machine, found, {})
    assert "--look" in str(caught.value.hint)
    registries_cargo.files_of(machine, found, {place_of("https://own.example.org/index/"): '{"dl": "https://f.test/"}'})
    assert "https://registry.example.org/m/dl/" in urls(found, "cargo-files")


def test_cargo_names_its_own_index_by_what_it_cannot_reach(machine: Machine) -> None:
    said = "error: failed to download from `https://index.example.org/config.json`"
    tool(machine, "cargo", f"[ \"$1 $CARGO_NET_RETRY\" = 'fetch 0' ] && echo '{said}' >&2; exit 101")
    found = Found()
    registries_cargo.read(machine, found)
    assert urls(found, "cargo") == ["https://index.example.org/"]


def test_an_index_in_git_is_no_place_for_the_preset(machine: Machine) -> None:
    for name in ("index.git", "crates-index"):
        text = f'[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "https://git.example.org/{name}"\n'
        put(machine.root / ".cargo" / "config.toml", text)
        with pytest.raises(ImpyardError, match="a git repository"):
            registries_cargo.read(machine, Found())


def test_of_two_indexes_on_one_host_the_crates_of_both_are_known(machine: Machine) -> None:
    cache = machine.home / ".cargo" / "registry" / "index"
    put(cache / "reg.example.org-aaa" / "config.json", '{"dl": "https://files.example.org/team/{crate}/{version}"}')
    put(cache / "reg.example.org-bbb" / "config.json", '{"dl": "https://files.example.org/mirror/{crate}/{version}"}')
    both = [place_of(f"https://reg.example.org/{name}/") for name in ("mirror", "team")]
    for places, notes in ((both, 0), (both[:1], 1)):
        found = Found({"cargo": places})
        registries_cargo.files_of(machine, found, {})
        assert urls(found, "cargo-files") == ["https://files.example.org/team/", "https://files.example.org/mirror/"]
        assert len(found.notes) == notes


# -- go, apt ---------------------------------------------------------------------------------------------------------


def test_gos_proxies_and_checksums_are_read(machine: Machine) -> None:
    put(machine.home / ".config" / "go" / "env", "GOPROXY=https://old.example.org\n")
    named = {**machine.env, "GOPROXY": "https://registry.example.org/go,https://b.example.org|direct"}
    found = Found()
    registries_go.read(
        Machine({**named, "GOSUMDB": "sums.example.org+0a+key https://s.example.org"}, machine.root), found
    )
    assert urls(found, "go") == ["https://registry.example.org/go/", "https://b.example.org/"]
    assert urls(found, "go-sums") == ["https://s.example.org/"]
    found = Found()
    registries_go.read(machine, found)
    assert urls(found, "go") == ["https://old.example.org/"]
    assert any("GOSUMDB is not known" in note for note in found.notes)


def test_apts_sources_are_read_in_both_forms(machine: Machine) -> None:
    apt = machine.etc / "apt"
    put(
        apt / "sources.list",
        "# deb http://no.example.org x y\n"
        f"deb [arch=amd64 signed-by=/a] http://u:{PASSWORD}@registry.example.org/debian stable main\n"
        "deb-src http://registry.example.org/debian stable main\n"
        "deb https://flat.example.org/r ./\ndeb cdrom:[x]/ stable main\n",
    )
    put(
        apt / "sources.list.d" / "a.sources",
        "Types: deb\nURIs: http://registry.example.org/debian-security\n https://b.example.org\nSuites: stable\n"
        "Components: main\n# c\n\nEnabled: no\nTypes: deb\nURIs: http://off.example.org/\nSuites: stable\n",
    )
    found = Found()
    registries_apt.read(machine, found)
    assert urls(found, "apt") == [
        "http://registry.example.org/debian/",
        "https://flat.example.org/r/",
        "http://registry.example.org/debian-security/",
        "https://b.example.org/",
    ]
    assert [dict(place.words)["within"] for place in found.places["apt"]][1] == ".+"
    assert PASSWORD not in repr(found)
    assert any("cdrom" in note for note in found.notes)


# -- the tools themselves, where they are here -----------------------------------------------------------------------


def real(tmp_path: Path, **env: str) -> Machine:
    """This machine's tools, with a home of their own."""
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "RUSTUP_HOME", "PYENV_ROOT") if name in os.environ}
    rustup = os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup"))
    paths = f"{kept['PATH']}:{os.path.expanduser('~/.cargo/bin')}"
    return Machine(
        {**kept, "PATH": paths, "RUSTUP_HOME": rustup, "HOME": str(tmp_path / "home"), **env}, tmp_path / "project"
    )


def test_the_real_npm_is_asked(tmp_path: Path) -> None:
    needs("npm")
    machine = real(tmp_path)
    put(machine.home / ".npmrc", "@acme:registry=https://npm.example.com/x/\n")
    put(machine.root / ".npmrc", "registry=https://registry.example.org/npm/\n")
    put(machine.root / "package.json", "{}")
    found = Found()
    registries_npm.read(machine, found)
    assert urls(found, "npm") == ["https://registry.example.org/npm/", "https://npm.example.com/x/"]
    assert "npm config" in found.notes[0]


def test_the_real_pip_is_asked(tmp_path: Path) -> None:
    needs("pip")
    put(tmp_path / "pip.conf", "[global]\nindex-url = https://registry.example.org/simple\n"
        "extra-index-url =\n  https://b.example.org/simple\n  https://c.example.org/simple\n")  # fmt: skip
    machine = real(tmp_path, PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    assert registries_pip.addresses(machine) == [
        f"https://{name}.example.org/simple" for name in ("registry", "b", "c")
    ]


def test_the_real_cargo_names_an_index_without_asking_the_network(tmp_path: Path) -> None:
    needs("cargo")
    (address,) = registries_cargo.addresses(real(tmp_path))
    assert place_of(address).scheme == "https"


# -- --look ----------------------------------------------------------------------------------------------------------


def test_a_look_asks_for_one_page_and_takes_no_password_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    other = Service(lambda asked: Given(b'<a href="/files/x.whl">'))
    index = Service(lambda asked: Given(b"", 302, {"Location": f"http://127.0.0.1:{other.port}/simple/pip/"}))
    try:
        address = f"http://me:{PASSWORD}@127.0.0.1:{index.port}/simple"
        text, url = registries_look.page(address, "pip/")
        assert text == '<a href="/files/x.whl">' and str(other.port) in url
        (asked,), (redirected,) = index.asked, other.asked
        assert asked.target == "/simple/pip/" and asked.headers["authorization"].startswith("Basic ")
        assert "authorization" not in redirected.headers
        found = registries_pip.files_named(place_of(address), text, url)
        assert [place.url for place in found] == [f"http://127.0.0.1:{other.port}/files/"]
    finally:
        index.close()
        other.close()
    with pytest.raises(ImpyardError) as caught:
        registries_look.page(address, "pip/")
    assert PASSWORD not in caught.value.message and "--files" in str(caught.value.hint)


# -- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        f"https://u:{PASSWORD}@registry.example.org/a b",
        f"ftp://u:{PASSWORD}@registry.example.org/",
        f"https://u:{PASSWORD}@reg istry/",
        f"https://u:{PASSWORD}@registry.example.org:port/",
        f"https://u:p/{PASSWORD}@registry.example.org/",
        f"https://u:{PASSWORD}#1@registry.example.org/",
        f"sparse+https://u:{PASSWORD}?34@registry.example.org/",
        f"https://u:1234#{PASSWORD}@registry.example.org/",
        f"https://u:1234?{PASSWORD}@registry.example.org:8443/",
        "https://registry.example.org/a/../b",
        "https://registry.example.org/a%2fb",
        "https://registry.example.org/a//b",
        f"https://registry.example.org/{'a1B2' * 8}/npm",
    ],
)
def test_what_is_no_plain_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(ImpyardError) as caught:
        place_of(address)
    told = f"{caught.value.message} {caught.value.hint}"
    assert PASSWORD not in told and "a1B2a1B2" not in told


def test_a_path_becomes_an_expression_for_just_that_path() -> None:
    assert expression("a.b+c/(x)/") == r"a\.b\+c/\(x\)/"
