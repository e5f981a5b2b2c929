"""The vault's file: who may see it, that it is whole whatever happens, and what is said when it is not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault

SECRET = "sk-test-4f1c9a7e22d0"


def key(name: str = "openai", value: str = SECRET, **more: Any) -> Credential:
    return Credential(name, "api_key", key=value, **more)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "data" / "vault")


def test_what_is_put_is_read_by_another_process_s_vault(vault: Vault) -> None:
    vault.put(key())
    assert Vault(vault.folder).read().credentials == {"openai": key()}


def test_folder_and_files_are_their_owners_alone_whatever_the_umask(vault: Vault) -> None:
    vault.put(key())
    assert stat.S_IMODE(vault.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in vault.folder.iterdir()} == {0o600}


def test_a_vault_that_is_not_there_is_empty_and_stays_away(vault: Vault) -> None:
    assert vault.read().credentials == {}
    assert not vault.folder.exists()


def test_a_damaged_file_is_said_to_be_so_without_its_content(vault: Vault) -> None:
    vault.put(key())
    file = vault.folder / "vault.json"
    file.write_text(file.read_text().replace("api_key", SECRET))
    with pytest.raises(ImpyardError, match="damaged") as refused:
        vault.read()
    assert SECRET not in f"{refused.value} {refused.value.hint}"
