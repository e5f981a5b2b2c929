"""pi's auth.json: its lock, its logins, and tokens written back."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from impyard.addon.vault.credential import Credential, Failure
from impyard.addon.vault.pilogin import STALE_S, PiFile, PiLogin, PiUnusable

ENTRY = {"type": "oauth", "access": "pi-access", "refresh": "pi-refresh", "expires": 2000, "clientId": "c", "own": [1]}
OURS = Credential("xai", "oauth", access="our-access", refresh="our-refresh", expires=3000, extra={"clientId": "c"})


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    path = tmp_path / "auth.json"
    path.write_text(json.dumps({"xai": ENTRY, "openai": {"type": "api_key", "key": "sk-1"}, "new": {"later": "ü"}}))
    path.chmod(0o640)
    return path


def write(auth: Path, credential: Credential = OURS) -> dict[str, Any]:
    pi = PiFile(str(auth))
    with pi.locked(1):
        pi.write("xai", credential, pi.login("xai"))
    return dict(json.loads(auth.read_bytes()))


def test_only_the_tokens_of_the_one_login_change(auth: Path) -> None:
    before = json.loads(auth.read_bytes())
    tokens = {"access": "our-access", "refresh": "our-refresh", "expires": 3000}
    assert write(auth) == {**before, "xai": {**ENTRY, **tokens}}
    assert list(write(auth)["xai"]) == list(ENTRY)  # nor does the order
    assert auth.read_text().startswith('{\n  "xai": {\n    "type": "oauth",\n')
    assert "ü" in auth.read_text()


def test_account_and_scopes_go_with_the_tokens(auth: Path) -> None:
    credential = msgspec.structs.replace(OURS, account="acct", extra={"scopes": ["a"], "clientId": "other"})
    entry = write(auth, credential)["xai"]
    assert (entry["accountId"], entry["scopes"], entry["clientId"]) == ("acct", ["a"], "c")


def test_mode_and_links_stay_and_nothing_is_left_beside(auth: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "auth.json").symlink_to("../auth.json")
    (tmp_path / "auth.json.impyard").write_text("of a process that was killed")
    inode = auth.stat().st_ino
    assert write(home / "auth.json")["xai"]["access"] == "our-access"
    assert (home / "auth.json").is_symlink()
    assert stat.S_IMODE(auth.stat().st_mode) == 0o640
    assert auth.stat().st_ino != inode  # replaced whole
    assert sorted(os.listdir(tmp_path)) == ["auth.json", "home"]
    assert os.listdir(home) == ["auth.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_the_owner_stays(auth: Path) -> None:
    os.chown(auth, 1234, 2345)
    write(auth)
    assert (auth.stat().st_uid, auth.stat().st_gid) == (1234, 2345)


def test_a_file_with_other_names_is_written_in_place(auth: Path, tmp_path: Path) -> None:
    (tmp_path / "other").hardlink_to(auth)
    assert write(auth)["xai"]["access"] == "our-access"
    assert (tmp_path / "other").samefile(auth)


BROKEN = [
    b"",
    b"{",
    b"[]",
    b"\xff\xff",
    b"[" * 100_000,
    b'{"xai": {"type": "oauth"}}',
    b'{"xai": "x"}',
    b"{}",
    b"x" * (5 << 20),
]


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: repr(content[:12]))
def test_a_file_without_the_login_is_left_alone(auth: Path, content: bytes) -> None:
    auth.write_bytes(content)
    with pytest.raises(PiUnusable, match=r"no JSON object|no login of xai"):
        write(auth)
    assert auth.read_bytes() == content
    assert not auth.with_name("auth.json.lock").exists()


def test_a_number_beyond_json_is_not_made_worse(auth: Path) -> None:
    content = json.dumps({"xai": ENTRY, "n": 0}).replace('"n": 0', '"n": 1e999').encode()
    auth.write_bytes(content)
    with pytest.raises(PiUnusable, match="no JSON"):
        write(auth)
    assert auth.read_bytes() == content


def test_a_mark_at_the_beginning_and_half_characters_are_read(auth: Path) -> None:
    auth.write_bytes(b"\xef\xbb\xbf" + json.dumps({"xai": ENTRY, "half": "\ud800"}).encode())
    assert write(auth)["half"] == "\ud800"


def test_a_full_disk_leaves_the_file_whole(auth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = auth.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PiUnusable, match="No space left"):
        write(auth)
    assert auth.read_bytes() == content
    assert sorted(os.listdir(auth.parent)) == ["auth.json"]


def test_a_file_that_is_gone_or_in_no_folder_of_ours_cannot_be_locked(auth: Path) -> None:
    auth.unlink()
    with pytest.raises(PiUnusable, match="is gone"), PiFile(str(auth)).locked(1):
        pass
    with pytest.raises(PiUnusable, match="is gone"), PiFile(str(auth / "deeper")).locked(1):
        pass


def test_the_lock_is_pis_and_is_given_back(auth: Path) -> None:
    lock = auth.with_name("auth.json.lock")
    with PiFile(str(auth)).locked(1):
        assert lock.is_dir()
    assert not lock.exists()


def test_a_lock_that_pi_holds_is_waited_for(auth: Path) -> None:
    lock = auth.with_name("auth.json.lock")
    lock.mkdir()
    with pytest.raises(PiUnusable, match="is held") as caught, PiFile(str(auth)).locked(0.2):
        pass
    assert caught.value.busy
    assert lock.is_dir()
    threading.Timer(0.2, lock.rmdir).start()
    with PiFile(str(auth)).locked(5):
        assert lock.is_dir()


def test_an_abandoned_lock_is_taken_over(auth: Path) -> None:
    lock = auth.with_name("auth.json.lock")
    lock.mkdir()
    old = time.time() - STALE_S - 1
    os.utime(lock, (old, old))
    with PiFile(str(auth)).locked(0):
        assert lock.stat().st_mtime > old + 5
    assert not lock.exists()


def test_an_abandoned_lock_that_cannot_be_removed_does_not_keep_us_busy(auth: Path) -> None:
    lock = auth.with_name("auth.json.lock")
    lock.mkdir()
    (lock / "file").touch()
    os.utime(lock, (1, 1))
    started = time.process_time()
    with pytest.raises(PiUnusable, match="is held"), PiFile(str(auth)).locked(0.3):
        pass
    assert time.process_time() - started < 0.2


def test_a_lock_that_is_held_does_not_look_abandoned(auth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impyard.addon.vault.pilogin.TOUCH_S", 0.05)
    lock = auth.with_name("auth.json.lock")
    with PiFile(str(auth)).locked(1):
        times = set()
        for _ in range(10):
            times.add(lock.stat().st_mtime_ns)
            time.sleep(0.04)
    assert len(times) > 3


def test_what_took_our_lock_for_abandoned_is_not_disturbed(auth: Path) -> None:
    lock = auth.with_name("auth.json.lock")
    with PiFile(str(auth)).locked(1):
        lock.rmdir()
        lock.mkdir()
        os.utime(lock, (5, 5))
    assert lock.stat().st_mtime == 5


@pytest.mark.parametrize("lock_is_lost", [True, False])
def test_a_login_that_came_meanwhile_stays(auth: Path, lock_is_lost: bool) -> None:
    pi = PiFile(str(auth))
    newer = json.dumps({"xai": {**ENTRY, "access": "of-another-account", "refresh": "its-refresh"}})
    with pytest.raises(PiUnusable, match="another login of xai"), pi.locked(1):
        instead = pi.login("xai")
        if lock_is_lost:
            auth.with_name("auth.json.lock").rmdir()
        auth.write_text(newer)
        pi.write("xai", OURS, instead)
    assert auth.read_text() == newer
    assert write(auth)["xai"]["access"] == "our-access"


def test_a_lost_lock_is_taken_again_before_anything_is_written(auth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impyard.addon.vault.pilogin.RETAKE_S", 0.1)
    lock, pi = auth.with_name("auth.json.lock"), PiFile(str(auth))
    content = auth.read_bytes()
    with pytest.raises(PiUnusable, match="is held"), pi.locked(1):
        lock.rmdir()
        lock.mkdir()
        os.utime(lock, (time.time() - 3, time.time() - 3))
        pi.write("xai", OURS, pi.login("xai"))
    assert auth.read_bytes() == content
    lock.rmdir()
    with pi.locked(1):
        lock.rmdir()
        pi.write("xai", OURS, pi.login("xai"))
    assert json.loads(auth.read_bytes())["xai"]["access"] == "our-access"
    assert not lock.exists()


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "text",
        {"type": "api_key", "key": "k"},
        {**ENTRY, "access": "a\r\nb"},
        {**ENTRY, "access": None},
        {**ENTRY, "refresh": "a b"},
        {**ENTRY, "refresh": 5},
        {**ENTRY, "expires": "2000"},
        {**ENTRY, "expires": True},
        {**ENTRY, "expires": float("inf")},
    ],
)
def test_what_is_no_login_is_none(entry: object) -> None:
    assert PiLogin.of(entry) is None


def login(**more: Any) -> PiLogin:
    found = PiLogin.of({**ENTRY, **more})
    assert found is not None
    return found


def test_a_login_is_newer_when_it_ends_later_or_ours_was_refused_for_good() -> None:
    final = msgspec.structs.replace(OURS, failure=Failure(1, "refused", final=True))
    passing = msgspec.structs.replace(OURS, failure=Failure(1, "broke off"))
    assert login(expires=3001).is_newer(OURS)
    assert not login(expires=3000).is_newer(OURS)
    assert not login().is_newer(OURS)
    assert not login().is_newer(passing)
    assert login().is_newer(final)
    assert not login(refresh="our-refresh").is_newer(final)
    assert not login(access="our-access", expires=9999).is_newer(OURS)


def test_a_login_that_is_taken_leaves_secrets_of_pis_entry_out() -> None:
    taken = login(accountId="acct", token="more-secret", scopes=["a"]).taken_by(OURS)
    assert (taken.access, taken.refresh, taken.expires, taken.account) == ("pi-access", "pi-refresh", 2000, "acct")
    assert taken.extra == {"clientId": "c", "scopes": ["a"]}
    assert "pi-access" not in repr(login()) and "pi-refresh" not in repr(login())
