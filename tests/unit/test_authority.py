"""The authority is minted once, kept private, refused when damaged; extra roots add to the others."""

from __future__ import annotations

import multiprocessing
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.certs.authority import (
    CERT_FILE,
    KEY_FILE,
    box_bundle,
    default_dir,
    ensure_authority,
    inspect,
    upstream_roots,
)


def _fingerprint(directory: str) -> str:
    return ensure_authority(Path(directory)).fingerprint


def test_it_is_minted_once_and_stays(tmp_path: Path) -> None:
    first = ensure_authority(tmp_path / "ca")
    assert ensure_authority(tmp_path / "ca") == first
    assert inspect(tmp_path / "ca") == first


def test_runs_started_together_mint_one(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert len(set(pool.map(_fingerprint, [str(tmp_path / "ca")] * 8))) == 1


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "hoem"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("IMPYARD_DATA_DIR", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(ImpyardError, match="hoem' does not exist"):
        ensure_authority(default_dir())
    assert not home.exists()
    home.mkdir()
    assert ensure_authority(default_dir()).cert_path.is_relative_to(home)


def test_the_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path / "ca")
    assert stat.S_IMODE(authority.key_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(authority.dir.stat().st_mode) == 0o700
    assert b"PRIVATE" not in authority.cert_pem
    assert b"PRIVATE" not in box_bundle(authority.cert_pem)


def damage_key(directory: Path) -> None:
    (directory / KEY_FILE).write_bytes(b"no key")


def remove_key(directory: Path) -> None:
    (directory / KEY_FILE).unlink()


def open_key(directory: Path) -> None:
    (directory / KEY_FILE).chmod(0o640)


def swap_key(directory: Path) -> None:
    other = ensure_authority(directory.parent / "other")
    (directory / KEY_FILE).write_bytes(other.key_path.read_bytes())


def damage_cert(directory: Path) -> None:
    (directory / CERT_FILE).write_bytes(b"no certificate")


@pytest.mark.parametrize("harm", [damage_key, remove_key, open_key, swap_key, damage_cert])
def test_a_damaged_one_is_refused_and_not_replaced(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    directory = ensure_authority(tmp_path / "ca").dir
    harm(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ImpyardError) as caught:
        ensure_authority(directory)
    assert caught.value.hint
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_an_extra_authority_adds_to_the_roots(tmp_path: Path) -> None:
    extra = ensure_authority(tmp_path / "ca").cert_path
    plain, more = upstream_roots(), upstream_roots(extra)
    assert plain.count(b"BEGIN") > 50
    assert more.count(b"BEGIN") == plain.count(b"BEGIN") + 1


def test_a_file_without_certificates_is_no_authority(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    with pytest.raises(ImpyardError, match="holds no PEM certificate"):
        upstream_roots(tmp_path / "x.pem")
