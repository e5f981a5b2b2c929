"""Which image a box is made from: its name follows what is in it, and its build gets what the host knows."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import image
from impyard.runner.engine_image import pack, split_tag


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return Path(shutil.copytree(image.box_dir(), tmp_path / "box", ignore=shutil.ignore_patterns("__pycache__")))


def test_the_name_is_the_same_for_the_same_files(box: Path) -> None:
    assert image.image_ref(box) == image.image_ref(image.box_dir())
    name, tag = image.image_ref(box).split(":")
    assert name == "impyard-box" and len(tag) == 12 and set(tag) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "changed", ["relay.py", "names.py", "attacks/run.py", "Dockerfile", "package.json", "package-lock.json"]
)
def test_the_name_changes_with_every_file_that_goes_in(box: Path, changed: str) -> None:
    before = image.image_ref(box)
    with (box / changed).open("a") as file:
        file.write("\n")
    assert image.image_ref(box) != before


def test_the_name_changes_with_the_base_and_with_a_new_file(box: Path) -> None:
    names = {image.image_ref(box), image.image_ref(box, "debian:13")}
    (box / "more.py").write_text("")
    assert len({*names, image.image_ref(box)}) == 3


def test_what_is_not_in_the_image_does_not_change_its_name(box: Path) -> None:
    before = image.image_ref(box)
    (box / "__pycache__").mkdir()
    (box / "__pycache__/x.pyc").write_text("x")
    (box / "base-image").write_text("another way to make the base")
    assert image.image_ref(box) == before


def test_missing_files_are_an_error_for_people(box: Path) -> None:
    (box / "package-lock.json").unlink()
    with pytest.raises(ImpyardError, match="files of the image cannot be read"):
        image.image_ref(box)


def test_the_build_gets_the_cas_that_the_host_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system.pem").write_text("system")
    (tmp_path / "extra.pem").write_text("extra")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(tmp_path / "extra.pem"))
    assert image._host_ca() == {"host-ca.pem": (b"system\nextra", 0o644)}
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(tmp_path / "system.pem"))
    assert image._host_ca() == {"host-ca.pem": (b"system", 0o644)}


def npm(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("answer", "argument"),
    [
        ("https://registry.example/npm/", "https://registry.example/npm/"),
        ("https://someone:password@registry.example/", "https://registry.example/"),
        ("undefined", None),
    ],
)
def test_the_build_gets_the_users_registry_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, argument: str | None
) -> None:
    npm(tmp_path, answer, monkeypatch)
    for name in image.PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:8080")
    assert image._network_arguments() == {
        "HTTPS_PROXY": "http://127.0.0.1:8080",
        **({"NPM_REGISTRY": argument} if argument else {}),
    }


def test_a_lock_names_no_registry() -> None:
    assert "resolved" not in (image.box_dir() / "package-lock.json").read_text()


def test_a_context_is_the_same_for_the_same_files_in_any_order() -> None:
    files = {"b": (b"two", 0o644), "a": (b"one", 0o755)}
    packed = pack(files)
    assert packed == pack(dict(reversed(files.items())))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert [(member.name, member.mode, member.mtime) for member in archive] == [("a", 0o755, 0), ("b", 0o644, 0)]


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("node:24-bookworm-slim", ("node", "24-bookworm-slim")),
        ("registry.example:5000/a/b", ("registry.example:5000/a/b", "latest")),
        ("registry.example:5000/a/b:1", ("registry.example:5000/a/b", "1")),
        ("debian", ("debian", "latest")),
    ],
)
def test_a_port_is_no_tag(ref: str, parts: tuple[str, str]) -> None:
    assert split_tag(ref) == parts
