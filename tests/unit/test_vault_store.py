"""The vault's file: who may see it, that it is whole whatever happens, and what is said when it is not."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring as keyring_package
import msgspec
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null
from keyrings.alt.file import PlaintextKeyring

from impyard.addon.errors import ImpyardError
from impyard.addon.vault import osring, privatefolder, store
from impyard.addon.vault.credential import Credential, Failure, TokenEndpoint
from impyard.addon.vault.store import Vault

SECRET = "sk-test-4f1c9a7e22d0"
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def key(name: str = "openai", value: str = SECRET, **more: Any) -> Credential:
    return Credential(name, "api_key", key=value, **more)


LOGIN = Credential(
    name="openai-codex",
    kind="oauth",
    access="access-4f1c9a7e22d0",
    refresh="refresh-4f1c9a7e22d0",
    expires=4_102_444_800_000,
    account="acc-1",
    fields={"idToken": "id-token-4f1c9a7e"},
    provider="openai-codex",
    source="pi",
    pi_file="/home/ada/.pi/agent/auth.json",
    token_endpoint=TokenEndpoint("https://auth.example/token", "form", "client", "/ca.pem"),
    extra={"enterpriseUrl": None, "availableModelIds": ["a"], "env": {"REGION": "eu"}},
    failure=Failure(5, "400 invalid_grant"),
)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "data" / "vault")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of an ordinary user, who is this process meanwhile: root may read and write all."""
    folder = Path(tempfile.mkdtemp(prefix="impyard-test-"))
    was_root = os.geteuid() == 0
    try:
        if was_root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
    finally:
        if was_root:
            os.seteuid(0)
        shutil.rmtree(folder)


def refused(vault: Vault, match: str, *, write: bool = False) -> str:
    """What is said of a vault that must not be used; no secret is in it."""
    with pytest.raises(ImpyardError, match=match) as caught:
        vault.put(key(value="sk-other-000000")) if write else vault.read()
    text = f"{caught.value.message}\n{caught.value.hint}"
    assert SECRET not in text
    assert caught.value.__cause__ is None
    return text


def child(code: str, *args: str, **more: Any) -> subprocess.Popen[str]:
    head = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "from impyard.addon.errors import ImpyardError\nfrom impyard.addon.vault.credential import Credential\n"
        "from impyard.addon.vault.store import Vault\nvault = Vault(Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", head + code, *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


# What it keeps.


def test_all_of_a_credential_is_read_by_another_vault_as_it_was_put(vault: Vault) -> None:
    vault.put(key())
    vault.put(LOGIN)
    assert Vault(vault.folder).read().credentials == {"openai": key(), "openai-codex": LOGIN}


def test_an_update_gets_the_newest_and_may_leave_it_as_it_is(vault: Vault) -> None:
    assert vault.update("openai", lambda current: current) is None
    assert vault.update("openai", lambda current: current or key()) == key()
    Vault(vault.folder).put(key(value="sk-newer-00000"))
    assert vault.update("openai", lambda _: None) == key(value="sk-newer-00000")
    assert vault.read().credentials["openai"].key == "sk-newer-00000"


def test_an_update_that_changes_nothing_writes_nothing(vault: Vault) -> None:
    vault.put(key())
    before = (vault.folder / "vault.json").stat()
    vault.update("openai", lambda current: current)
    assert (vault.folder / "vault.json").stat().st_ino == before.st_ino


def test_a_removed_credential_comes_back_only_when_someone_says_so(vault: Vault) -> None:
    vault.put(key())
    assert vault.remove("openai") is True
    assert vault.remove("openai") is False
    assert vault.read().removed == {"openai"}
    assert vault.update("openai", lambda _: key()) is None
    assert vault.read().credentials == {}
    assert vault.update("openai", lambda _: key(), revive=True) == key()
    assert vault.read().removed == frozenset()
    vault.remove("openai")
    vault.put(key())
    assert vault.read().credentials == {"openai": key()}


def test_a_change_by_another_process_is_seen_and_an_unchanged_file_is_not_read_again(vault: Vault) -> None:
    other = Vault(vault.folder)
    vault.put(key())
    for number in range(20):
        other.put(key(value=f"sk-value-{number:08}"))
        assert vault.read().credentials["openai"].key == f"sk-value-{number:08}"
    old = time.time() - 10
    os.utime(vault.folder / "vault.json", (old, old))
    time.sleep(0.15)
    first = vault.read()
    assert vault.read() is first


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "../x", ".x", "-x", "a b", "x" * 65, "a\n"])
def test_a_name_of_another_form_is_refused(vault: Vault, name: str) -> None:
    with pytest.raises(ImpyardError, match="no name for a credential"):
        vault.put(key(name))
    assert not (vault.folder / "vault.json").exists()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a\nb", "more than one line"),
        ("a\rb", "more than one line"),
        ("a\tb", "control"),
        ("a\x7fb", "control"),
        ("a\x00b", "control"),
        ("schlüssel", "ASCII"),
        ("a\u2028b", "ASCII"),
        (" a", "space"),
        ("a ", "space"),
        ("x" * 65537, "64 KiB"),
    ],
)
def test_a_value_that_no_header_carries_is_refused_with_the_reason_and_without_it(
    vault: Vault, value: str, why: str
) -> None:
    for bad in (key(value=value), key(fields={"f": value}), msgspec.structs.replace(LOGIN, refresh=value)):
        with pytest.raises(ImpyardError, match=why) as caught:
            vault.put(bad)
        assert value.strip() not in caught.value.message.split(": ", 1)[1] or len(value.strip()) == 1


def test_a_credential_without_any_value_is_refused(vault: Vault) -> None:
    with pytest.raises(ImpyardError, match="no value"):
        vault.put(key(value=""))


def test_a_vault_that_would_be_too_large_is_refused_and_stays_as_it_was(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.put(key())
    monkeypatch.setattr(store, "MAX_FILE_BYTES", 2000)
    with pytest.raises(ImpyardError, match="larger"):
        vault.put(key("other", "x" * 3000))
    assert Vault(vault.folder).read().credentials == {"openai": key()}


# Who may see it.


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_folder_and_files_are_their_owners_alone_whatever_the_umask(vault: Vault, mask: int) -> None:
    before = os.umask(mask)
    try:
        vault.put(key())
        with vault.refreshing("openai", 1):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(vault.folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in vault.folder.iterdir()}
    assert files == dict.fromkeys(("vault.json", "lock", "openai.refresh"), 0o600)


def test_a_vault_that_is_not_there_is_empty_and_stays_away(vault: Vault) -> None:
    assert vault.read().credentials == {}
    assert not vault.folder.exists()


@pytest.mark.parametrize("name", ["", "vault.json"])
@pytest.mark.parametrize("bit", [0o040, 0o004, 0o020, 0o002, 0o010])
def test_what_is_open_to_others_is_refused_with_the_command_that_mends_it(vault: Vault, name: str, bit: int) -> None:
    vault.put(key())
    path = vault.folder / name
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | bit)
    text = refused(Vault(vault.folder), "open to other users")
    if name == "":
        refused(vault, "open to other users", write=True)
    subprocess.run(["sh", "-c", text.split("hint")[-1].split("\n")[-1].split("  (")[0]], check=True)
    assert Vault(vault.folder).read().credentials == {"openai": key()}


def test_a_cached_vault_that_becomes_open_to_others_is_refused(vault: Vault) -> None:
    vault.put(key())
    time.sleep(0.15)
    vault.read()
    (vault.folder / "vault.json").chmod(0o644)
    refused(vault, "open to other users")


@pytest.mark.parametrize("name", ["", "vault.json", "lock"])
def test_a_link_in_place_of_folder_or_file_is_refused(vault: Vault, name: str, tmp_path: Path) -> None:
    vault.put(key())
    elsewhere = tmp_path / "elsewhere"
    (vault.folder / name).rename(elsewhere)
    (vault.folder / name).symlink_to(elsewhere)
    if name != "lock":
        refused(Vault(vault.folder), "is a link")
    refused(vault, "is a link", write=True)
    assert "sk-other" not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_dangling_link_makes_nothing_where_it_leads(vault: Vault, tmp_path: Path) -> None:
    vault.folder.parent.mkdir()
    vault.folder.symlink_to(tmp_path / "elsewhere")
    refused(vault, "is a link", write=True)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["vault.json", "lock"])
def test_what_is_no_ordinary_file_is_refused_at_once(vault: Vault, name: str) -> None:
    vault.put(key())
    (vault.folder / name).unlink()
    os.mkfifo(vault.folder / name, 0o600)
    refused(Vault(vault.folder), "no ordinary file", write=True)
    (vault.folder / name).unlink()
    (vault.folder / name).mkdir(mode=0o700)
    refused(Vault(vault.folder), "no ordinary file|directory", write=True)


def test_a_folder_that_cannot_be_written_is_an_error_and_can_still_be_read(place: Path) -> None:
    vault = Vault(place / "vault")
    vault.put(key())
    vault.folder.chmod(0o500)
    refused(vault, "cannot write the vault", write=True)
    assert vault.read().credentials == {"openai": key()}
    vault.folder.chmod(0o700)
    vault.put(key("other"))
    place.chmod(0o500)
    refused(Vault(place / "new" / "vault"), "cannot write the vault", write=True)


def test_a_file_that_cannot_be_read_is_an_error(place: Path) -> None:
    vault = Vault(place / "vault")
    vault.put(key())
    (vault.folder / "vault.json").chmod(0o000)
    refused(vault, "cannot read the vault")
    vault.folder.chmod(0o000)
    refused(Vault(vault.folder), "cannot read the vault")
    vault.folder.chmod(0o700)


@needs_root
def test_the_folder_of_another_user_is_refused(place: Path) -> None:
    os.seteuid(0)
    (place / "vault").mkdir(mode=0o700)
    (place / "vault" / "vault.json").touch(0o600)
    (place / "vault").chmod(0o755)
    os.seteuid(65534)
    refused(Vault(place / "vault"), "belongs to another user")


@needs_root
def test_under_sudo_the_files_stay_the_users(place: Path) -> None:
    os.seteuid(0)
    vault = Vault(place / "share" / "impyard" / "vault")
    vault.put(key())
    with vault.refreshing("openai", 1):
        pass
    assert {path.stat().st_uid for path in (place / "share").rglob("*")} == {65534}
    os.seteuid(65534)
    assert Vault(vault.folder).read().credentials == {"openai": key()}


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "hoem"))
    monkeypatch.delenv("IMPYARD_DATA_DIR", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    refused(Vault(store.default_dir()), "home folder", write=True)
    assert list(tmp_path.iterdir()) == []


# That it is whole.


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"' + SECRET.encode(),
    b'{"version": "' + SECRET.encode() + b'"}',
    b'{"version": 1, "credentials": [1]}',
    b'{"version": 1, "credentials": {"a": {"name": "a", "kind": "' + SECRET.encode() + b'", "key": "x"}}}',
    b'{"version": 1, "credentials": {"a": {"name": "b", "kind": "api_key", "key": "' + SECRET.encode() + b'"}}}',
    b'{"version": 1, "credentials": {"a": {"name": "a", "kind": "api_key", "key": "a\\r\\nb: '
    + SECRET.encode()
    + b'"}}}',
    b'{"version": 1, "credentials": {"a": {"name": "a", "kind": "api_key"}}}',
    b'{"version": 1, "credentials": {}, "removed": "' + SECRET.encode() + b'"}',
    b"\xff\xfe" + SECRET.encode("utf-16-le"),
    b"[" * 200_000,
    b'{"version": 1, "removed": ' + b"[" * 200_000,
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_said_to_be_so_without_its_content_and_is_not_overwritten(
    vault: Vault, content: bytes
) -> None:
    vault.put(key())
    file = vault.folder / "vault.json"
    file.write_bytes(content)
    assert "impyard vault import" in refused(vault, "is damaged")
    refused(vault, "is damaged", write=True)
    assert file.read_bytes() == content


def test_a_file_of_a_later_impyard_is_refused(vault: Vault) -> None:
    vault.put(key())
    file = vault.folder / "vault.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 2, "kinds": {"openai": []}'))
    refused(vault, "has version 2")
    refused(vault, "has version 2", write=True)


def test_a_file_that_is_too_large_is_refused_without_reading_it_all(vault: Vault) -> None:
    vault.put(key())
    os.truncate(vault.folder / "vault.json", 1 << 33)
    refused(vault, "larger than 4 MiB")


def test_a_full_disk_in_the_middle_leaves_what_was_there(vault: Vault) -> None:
    vault.put(key())
    code = "vault.put(Credential('other', 'api_key', key='y' * 30000))"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = child(
        f"try:\n    {code}\nexcept ImpyardError as exc:\n    print(exc.message)", str(vault.folder), preexec_fn=limit
    )
    out, err = done.communicate(timeout=30)
    assert "cannot write the vault" in out, err
    assert sorted(path.name for path in vault.folder.iterdir()) == ["lock", "vault.json"]
    assert vault.read().credentials == {"openai": key()}


def test_a_process_killed_before_the_new_file_is_in_place_leaves_what_was_there(vault: Vault) -> None:
    vault.put(key())
    code = "os.rename = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
    done = child(f"{code}vault.put(Credential('other', 'api_key', key='{SECRET}'))", str(vault.folder))
    done.communicate(timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert (vault.folder / "vault.json.new").exists()
    assert vault.read().credentials == {"openai": key()}
    vault.put(key("third"))  # and nothing is locked, nothing left
    assert sorted(path.name for path in vault.folder.iterdir()) == ["lock", "vault.json"]


def test_processes_and_threads_that_change_it_at_once_lose_nothing(vault: Vault) -> None:
    code = (
        "import threading\n"
        "def work(part):\n"
        "    for n in range(4):\n"
        "        vault.put(Credential(f'n{sys.argv[2]}-{part}-{n}', 'api_key', key='x'))\n"
        "        vault.update('sum', lambda c: Credential('sum', 'api_key', key=str(int(c.key) + 1)))\n"
        "threads = [threading.Thread(target=work, args=(part,)) for part in range(2)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
    )
    vault.put(key("sum", "0"))
    children = [child(code, str(vault.folder), str(number)) for number in range(3)]
    for one in children:
        assert one.communicate(timeout=60)[1] == ""
    found = Vault(vault.folder).read().credentials
    assert found["sum"].key == "24"
    assert len(found) == 25


def test_readers_never_see_a_half_written_file(vault: Vault) -> None:
    vault.put(key())
    stop = threading.Event()
    faults: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                assert "openai" in Vault(vault.folder).read().credentials
            except Exception as exc:  # noqa: BLE001
                faults.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        vault.put(key(value="x" * (number * 100 + 1)))
    stop.set()
    reader.join()
    assert faults == []


def test_a_vault_that_another_process_holds_is_waited_for_and_then_an_error(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.put(key())
    monkeypatch.setattr(store, "LOCK_LIMIT_S", 0.2)
    holder = child(
        "with vault._files.lock('lock', 1), vault.refreshing('openai', 1):\n"
        "    print('held', flush=True)\n    time.sleep(60)",
        str(vault.folder),
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    text = refused(vault, "the vault is in use", write=True)
    assert "fuser" in text
    with pytest.raises(ImpyardError, match="in use"), vault.refreshing("openai", 0.1):
        raise AssertionError
    with vault.refreshing("another", 0.1):  # each credential for itself
        pass
    holder.kill()
    holder.communicate()
    vault.put(key("other"))
    with vault.refreshing("openai", 1):
        pass


def test_one_refresh_at_a_time_among_threads_too(vault: Vault) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def refresh() -> None:
        nonlocal inside, most
        with vault.refreshing("openai", 10):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.02)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=refresh) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


# The system's keyring.


def test_with_a_keyring_the_file_holds_no_secret_and_callers_see_no_difference(
    vault: Vault, ring: PlaintextKeyring
) -> None:
    vault.put(LOGIN, keyring=True)
    vault.put(key(), keyring=True)
    text = (vault.folder / "vault.json").read_text()
    for value in (*LOGIN.secrets().values(), SECRET):
        assert value not in text
    assert Vault(vault.folder).read().credentials == {"openai": key(), "openai-codex": LOGIN}
    assert vault.read().in_keyring == {"openai", "openai-codex"}
    vault.update("openai-codex", lambda c: c and msgspec.structs.replace(c, refresh="refresh-new-000000"))
    assert "refresh-new" not in (vault.folder / "vault.json").read_text()
    assert Vault(vault.folder).read().credentials["openai-codex"].refresh == "refresh-new-000000"


def test_the_overview_asks_no_keyring_and_has_all_but_the_secrets(vault: Vault, ring: PlaintextKeyring) -> None:
    vault.put(LOGIN, keyring=True)
    keyring_package.set_keyring(fail.Keyring())
    [one] = vault.overview().credentials.values()
    assert (one.expires, one.source, one.failure) == (LOGIN.expires, LOGIN.source, LOGIN.failure)
    assert list(one.fields) == ["idToken"]
    assert one.secrets() == {}


def test_a_credential_moves_between_file_and_keyring(vault: Vault, ring: PlaintextKeyring) -> None:
    name = f"openai of {vault.folder}"
    vault.put(key(), keyring=True)
    assert SECRET in str(ring.get_password("impyard", name))
    vault.update("openai", lambda c: c, keyring=False)
    assert ring.get_password("impyard", name) is None
    assert SECRET in (vault.folder / "vault.json").read_text()
    vault.update("openai", lambda c: c, keyring=True)
    assert SECRET not in (vault.folder / "vault.json").read_text()
    assert vault.remove("openai")
    assert ring.get_password("impyard", name) is None


@pytest.mark.parametrize("broken", ["fail", "null", "emptied", "garbage"])
def test_a_keyring_that_cannot_be_asked_is_an_error(vault: Vault, ring: PlaintextKeyring, broken: str) -> None:
    vault.put(key(), keyring=True)
    if broken in ("fail", "null"):
        keyring_package.set_keyring(fail.Keyring() if broken == "fail" else null.Keyring())
        with pytest.raises(ImpyardError, match="keyring"):
            vault.put(key("other"), keyring=True)
        vault.put(key("plain"))  # what is in the file can still be changed
    elif broken == "emptied":
        ring.delete_password("impyard", f"openai of {vault.folder}")
    else:
        ring.set_password("impyard", f"openai of {vault.folder}", f'{{"key": 1, "x": "{SECRET}"}}')
    refused(vault, "keyring")
    assert vault.overview().credentials.keys() >= {"openai"}
    assert "other" not in vault.overview().credentials


def test_a_keyring_that_does_not_answer_is_an_error(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Slow(KeyringBackend):
        priority = 0.1

        def get_password(self, service: str, username: str) -> str | None:
            release.wait(20)
            return None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise AssertionError("nothing is stored here")

    before = keyring_package.get_keyring()
    slow: Any = Slow
    keyring_package.set_keyring(slow())
    monkeypatch.setattr(osring, "LIMIT_S", 0.2)
    try:
        with pytest.raises(ImpyardError, match="no answer"):
            osring.delete("x")
    finally:
        release.set()
        keyring_package.set_keyring(before)


def test_the_package_keyring_is_loaded_only_for_what_lies_there(vault: Vault) -> None:
    vault.put(key())
    out, err = child("vault.read(); print('keyring' in sys.modules)", str(vault.folder)).communicate(timeout=30)
    assert out == "False\n", err


def test_no_value_shows_when_a_vault_is_printed(vault: Vault) -> None:
    vault.put(key())
    assert SECRET not in repr(vault.read())
    assert SECRET not in repr(privatefolder.PrivateFolder(vault.folder, "x"))
