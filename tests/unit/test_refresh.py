"""Logins renewed against a real token endpoint over TLS: in one process, in several, and with pi's file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from impyard.addon.answers import _RETRIED
from impyard.addon.errors import ImpyardError
from impyard.addon.vault import refresh as module
from impyard.addon.vault.credential import Credential, TokenEndpoint
from impyard.addon.vault.refresh import HOLD_OFF_MS, Refresher, Unavailable
from impyard.addon.vault.store import Vault
from impyard.certs.throwaway import Pki
from tests.support.tokenendpoint import TokenEndpoint as Server
from tests.support.tokenendpoint import hangs, says, writes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def server(pki: Pki) -> Iterator[Server]:
    server = Server(pki.context("localhost"))
    yield server
    server.close()


class Bed:
    """A vault with the expired login `work`, and refreshers of it on a clock that a test moves."""

    def __init__(self, folder: Path, server: Server, pki: Pki) -> None:
        self.folder, self.server = folder, server
        self.later_s = 0.0
        self.notes: list[str] = []
        self.auth = folder / "pi" / "auth.json"
        self.vault = Vault(folder / "vault")
        self.expired_ms = int(time.time() * 1000) - 5000
        self.put(token_endpoint=TokenEndpoint(server.url, "form", "our-client", str(pki.ca_path)))

    def put(self, **changes: Any) -> None:
        blank = Credential("work", "oauth", access="access-0", refresh="refresh-0", expires=self.expired_ms)
        stored = self.vault.read().credentials.get("work", blank)
        self.vault.put(msgspec.structs.replace(stored, **changes))

    def share(self, **entry: Any) -> None:
        """Share the login with pi, whose entry has the same tokens but for `entry`."""
        self.auth.parent.mkdir(exist_ok=True)
        tokens = {"type": "oauth", "access": "access-0", "refresh": "refresh-0", "expires": self.expired_ms}
        self.auth.write_text(
            json.dumps({"other": {"type": "api_key", "key": "k"}, "work": {**tokens, "own": 1, **entry}})
        )
        self.put(pi_file=str(self.auth))

    @property
    def pis(self) -> dict[str, Any]:
        return dict(json.loads(self.auth.read_bytes())["work"])

    @property
    def stored(self) -> Credential:
        return Vault(self.folder / "vault").read().credentials["work"]

    def refresher(self, limit_s: float = 5) -> Refresher:
        def now() -> float:
            return time.time() + self.later_s

        return Refresher(self.vault, now=now, note=self.notes.append, limit_s=limit_s, pi_limit_s=0.3)

    def usable(self, refresher: Refresher | None = None) -> Credential:
        return asyncio.run((refresher or self.refresher()).usable("work"))

    def refused(self, refresher: Refresher | None = None) -> Unavailable:
        with pytest.raises(Unavailable) as caught:
            self.usable(refresher)
        assert caught.value.hint is not None
        assert not any(sign.isdigit() for sign in caught.value.hint) and not _RETRIED.search(caught.value.hint)
        return caught.value


@pytest.fixture
def bed(tmp_path: Path, server: Server, pki: Pki) -> Bed:
    return Bed(tmp_path, server, pki)


def asked_with(server: Server) -> list[str]:
    return [asking.fields["refresh_token"] for asking in server.asked]


def test_a_login_that_is_good_for_more_than_a_minute_is_used_as_it_is(bed: Bed) -> None:
    now = int(time.time() * 1000)
    bed.put(expires=now + 70_000)
    found = bed.refresher().at_once("work")
    assert found is not None and found.access == "access-0"
    bed.put(expires=now + 59_000)
    assert bed.refresher().at_once("work") is None
    assert bed.usable().access == "access-1"


def test_each_refresh_token_is_spent_once_and_followed_by_its_successor(bed: Bed, server: Server) -> None:
    refresher = bed.refresher()
    assert bed.usable(refresher).access == "access-1"
    assert refresher.at_once("work") is not None
    bed.later_s = 3600
    assert refresher.at_once("work") is None
    assert bed.usable(refresher).access == "access-2"
    assert asked_with(server) == ["refresh-0", "refresh-1"]
    assert (bed.stored.refresh, bed.stored.failure) == ("refresh-2", None)


def test_what_the_answer_does_not_name_stays(bed: Bed, server: Server) -> None:
    bed.put(account="acct", fields={"more": "field-value-0"}, extra={"note": 1}, source="set")
    server.answer = says({"access_token": "access-9", "expires_in": 3600})
    before = bed.stored
    got = bed.usable()
    assert got == msgspec.structs.replace(before, access="access-9", expires=got.expires)
    assert bed.stored == got


def test_requests_that_wait_share_one_attempt_and_the_loop_goes_on(bed: Bed, server: Server) -> None:
    server.wait_s = 0.5
    refresher = bed.refresher()

    async def main() -> tuple[list[Credential], float]:
        gap, last = 0.0, time.monotonic()
        waiting = [asyncio.ensure_future(refresher.usable("work")) for _ in range(20)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()  # its client has gone
        while not all(one.done() for one in waiting):
            await asyncio.sleep(0.005)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
        return [one.result() for one in waiting[1:]], gap

    found, gap = asyncio.run(main())
    assert {one.access for one in found} == {"access-1"}
    assert len(server.asked) == 1
    assert gap < server.wait_s


def test_failures_are_shared_by_those_who_wait(bed: Bed, server: Server) -> None:
    server.good.clear()
    refresher = bed.refresher()

    async def main() -> list[Any]:
        return await asyncio.gather(*(refresher.usable("work") for _ in range(5)), return_exceptions=True)

    failures = asyncio.run(main())
    assert len({id(one) for one in failures}) == 5
    assert {str(one) for one in failures} == {
        "credential work has expired and could not be renewed (the token endpoint answered 400 invalid_grant)"
    }
    assert len(server.asked) == 1


def test_who_waited_for_anothers_failure_does_not_try_at_once(bed: Bed, server: Server) -> None:
    """Two refreshers are two gateways: they share nothing but the vault."""

    def answer(client: Any, asking: Any) -> None:
        time.sleep(0.2)
        says(b"", status=500)(client, asking)

    server.answer = answer
    refreshers = [bed.refresher(), bed.refresher()]

    async def main() -> list[Any]:
        return await asyncio.gather(*(one.usable("work") for one in refreshers), return_exceptions=True)

    assert all(isinstance(one, Unavailable) for one in asyncio.run(main()))
    assert len(server.asked) == 1


def test_a_login_that_was_refused_for_good_is_not_tried_until_it_changes(bed: Bed, server: Server) -> None:
    server.good = {"refresh-of-a-new-login"}
    assert "log" in (bed.refused().hint or "")
    bed.later_s = 10 * 365 * 86400
    with pytest.raises(Unavailable, match="400 invalid_grant"):
        bed.refresher().at_once("work")
    assert bed.refused()
    assert len(server.asked) == 1
    bed.put(refresh="refresh-of-a-new-login", failure=None)
    assert bed.usable().access == "access-1"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (says({"error": "temporarily_unavailable"}, status=503), "answered 503 temporarily_unavailable"),
        (says(b"", status=302, headers={"location": "https://localhost/"}), "answered 302"),
        (says(b"<html>Sign in</html>"), "answer is not JSON"),
        (says(b""), "answer is not JSON"),
        (says(b"x" * 70_000), "larger than 64 KiB"),
        (says({"access_token": "a\r\nx-evil: 1", "expires_in": 60000}), "not fit for a header"),
        (says({"access_token": "access-9", "expires_in": -5}), "usable time"),
        (says({"access_token": "access-9"}), "usable time"),
        (writes(b"SSH-2.0\r\n\r\n"), "not HTTP"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refresh_that_failed_is_not_tried_again_for_a_while(bed: Bed, server: Server, answer: Any, what: str) -> None:
    server.answer = answer
    assert what in bed.refused().message
    assert bed.stored.failure is not None and what in bed.stored.failure.what
    assert (bed.stored.access, bed.stored.refresh) == ("access-0", "refresh-0")
    server.answer = server.rotate
    assert what in bed.refused().message  # another process knows of it too
    assert len(server.asked) == 1
    bed.later_s = HOLD_OFF_MS / 1000
    assert bed.usable().access == "access-1"
    assert bed.stored.failure is None


def test_a_clock_that_was_set_back_does_not_prolong_the_wait(bed: Bed, server: Server) -> None:
    server.answer = says(b"", status=500)
    bed.later_s = 86400
    bed.refused()
    bed.later_s, server.answer = 0, server.rotate
    assert bed.usable().access == "access-1"


def test_a_refresh_token_that_came_with_a_useless_answer_is_kept(bed: Bed, server: Server) -> None:
    bed.share()
    server.answer = says({"access_token": "access ä", "refresh_token": "refresh-next", "expires_in": 3600})
    bed.refused()
    assert (bed.stored.access, bed.stored.refresh) == ("access-0", "refresh-next")
    assert (bed.pis["access"], bed.pis["refresh"]) == ("access-0", "refresh-next")


def test_an_endpoint_that_does_not_answer_in_time_is_a_failure(bed: Bed, server: Server) -> None:
    server.wait_s = 5
    assert "within 0.3 seconds" in bed.refused(bed.refresher(limit_s=0.3)).message


@pytest.mark.parametrize(
    ("credential", "what"),
    [
        (Credential("work", "oauth", access="a", expires=1), "no refresh token"),
        (Credential("work", "oauth", access="a", refresh="r", expires=1), "does not know how"),
    ],
)
def test_what_cannot_be_renewed_is_unavailable(bed: Bed, credential: Credential, what: str) -> None:
    bed.vault.put(credential)
    assert what in bed.refused().message


def test_what_is_missing_or_removed_is_unavailable(bed: Bed) -> None:
    with pytest.raises(Unavailable, match="no credential nobody"):
        bed.refresher().at_once("nobody")
    bed.vault.remove("work")
    assert "no credential work" in bed.refused().message


def test_a_vault_that_cannot_be_read_is_unavailable(bed: Bed) -> None:
    (bed.folder / "vault" / "vault.json").write_text("{")
    assert "damaged" in bed.refused().message


def test_another_login_that_was_put_meanwhile_is_kept(bed: Bed, server: Server) -> None:
    def answer(client: Any, asking: Any) -> None:
        bed.put(access="access-of-another", refresh="refresh-of-another", expires=bed.expired_ms + 10**8)
        server.rotate(client, asking)

    server.answer = answer
    assert bed.usable().access == "access-of-another"
    assert bed.stored.refresh == "refresh-of-another"


def test_a_credential_that_was_removed_meanwhile_stays_removed(bed: Bed, server: Server) -> None:
    bed.share()

    def answer(client: Any, asking: Any) -> None:
        bed.vault.remove("work")
        server.rotate(client, asking)

    server.answer = answer
    assert "no credential" in bed.refused().message
    assert "work" not in bed.vault.read().credentials
    assert bed.pis["refresh"] == "refresh-1"  # pi goes on with the login


def test_new_tokens_are_used_only_when_they_are_stored(
    bed: Bed, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresher, whole = bed.refresher(), Vault._save

    def full(self: Vault, document: Any) -> None:
        raise ImpyardError("cannot write the vault: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "_save", full)
        assert "No space left" in bed.refused(refresher).message
        assert "No space left" in bed.refused(refresher).message
    assert Vault._save is whole
    assert bed.stored.access == "access-0"
    assert bed.usable(refresher).access == "access-1"  # what was got is not lost, and not asked for again
    assert bed.stored.refresh == "refresh-1"
    assert asked_with(server) == ["refresh-0"]


def test_no_value_gets_into_what_is_said_or_stored_of_a_failure(
    bed: Bed, server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    values = ["secret-access-value", "secret-refresh-value", "secret-new-access", "secret-new-refresh"]
    answers = [
        says({"error": values[1], "error_description": f"{values[0]} {values[1]}"}, status=400),
        says({"access_token": f"{values[2]} ", "refresh_token": values[3], "expires_in": 1}),
        says({"access_token": values[2], "refresh_token": values[3] + "\n", "expires_in": 3600}),
        writes(f"HTTP/1.1 200 {values[1]}\r\n{values[1]}: {values[2]}\r\n\r\n".encode()),
        writes(f"{values[1]}\r\n\r\n".encode()),
    ]
    said = []
    for answer in answers:
        server.answer = answer
        bed.put(access=values[0], refresh=values[1], failure=None)
        bed.share(access=values[0], refresh=values[1])
        refusal = bed.refused()
        said += [str(refusal), repr(refusal), str(refusal.hint), str(refusal.__cause__), repr(refusal.__context__)]
        said += [repr(bed.stored), repr(bed.stored.failure)]
    said += [caplog.text, *capfd.readouterr(), *bed.notes]
    assert len(server.asked) == len(answers)
    assert not [value for value in values if value in "\n".join(said)]
    allowed = {bed.folder / "vault" / "vault.json", bed.auth}
    for path in bed.folder.rglob("*"):
        if path.is_file() and path not in allowed:
            assert not any(value.encode() in path.read_bytes() for value in values), path


def test_an_error_of_the_code_itself_shows_its_kind_alone(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("refresh-0")

    monkeypatch.setattr(module, "read_answer", broken)
    assert bed.refused().message == "renewing credential work failed: RuntimeError"


# Several processes

CHILD = """
import asyncio, contextlib, sys
from pathlib import Path
from impyard.addon.vault.refresh import Refresher
from impyard.addon.vault.store import Vault
if "unlocked" in sys.argv:
    Vault.refreshing = lambda self, name, limit_s: contextlib.nullcontext()
refresher = Refresher(Vault(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
wait_s = 0.1 if "impatient" in sys.argv else None
try:
    print(asyncio.run(asyncio.wait_for(refresher.usable("work"), wait_s)).access)
except Exception as exc:
    print(exc)
"""


def child(bed: Bed, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(bed.folder / "vault"), *more]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def race(bed: Bed, count: int, *more: str) -> list[str]:
    """What each of some processes says that want the login at the same time."""
    processes = [child(bed, *more) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=30)[0].strip() for process in processes]


def test_several_processes_renew_once(bed: Bed, server: Server) -> None:
    server.wait_s = 0.3
    assert race(bed, 2) == ["access-1"] * 2
    assert asked_with(server) == ["refresh-0"]


def test_without_the_lock_they_would_spend_it_twice(bed: Bed, server: Server) -> None:
    """The control."""
    server.wait_s = 0.5
    race(bed, 2, "unlocked")
    assert asked_with(server) == ["refresh-0"] * 2
    assert server.spent == ["refresh-0"]


def test_a_process_that_is_killed_in_the_middle_leaves_nothing_that_hinders(bed: Bed, server: Server) -> None:
    bed.share()
    server.answer = hangs
    process = child(bed)
    assert process.stdout is not None and process.stdin is not None and process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    deadline = time.monotonic() + 10
    while not server.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    server.answer = server.rotate
    lock = bed.auth.with_name("auth.json.lock")
    assert lock.is_dir()
    assert "is held" in bed.refused().message  # pi cannot know yet that nobody holds it
    old = time.time() - 31
    os.utime(lock, (old, old))
    bed.later_s = 31
    assert bed.usable().access == "access-1"
    assert not lock.exists()
    assert bed.pis["refresh"] == "refresh-1"


def test_a_process_that_ends_meanwhile_stores_what_it_gets_first(bed: Bed, server: Server) -> None:
    server.wait_s = 0.3
    process = child(bed, "impatient")
    assert process.stdout is not None and process.stdout.readline()
    said = process.communicate("\n", timeout=30)[0].strip()
    assert said == ""  # of a TimeoutError, as nobody waited for the answer
    assert (bed.stored.access, bed.stored.refresh) == ("access-1", "refresh-1")


# With pi


def test_pi_gets_the_new_tokens_too(bed: Bed) -> None:
    bed.share()
    got = bed.usable()
    assert bed.pis == {"type": "oauth", "access": "access-1", "refresh": "refresh-1", "expires": got.expires, "own": 1}
    assert json.loads(bed.auth.read_bytes())["other"] == {"type": "api_key", "key": "k"}
    assert bed.notes == []


def test_pis_newer_token_is_taken_without_a_question(bed: Bed, server: Server) -> None:
    bed.share(access="access-of-pi", refresh="refresh-of-pi", expires=bed.expired_ms + 3_600_000)
    content = bed.auth.read_bytes()
    assert bed.usable().access == "access-of-pi"
    assert bed.stored.refresh == "refresh-of-pi"
    assert server.asked == []
    assert bed.auth.read_bytes() == content


def test_pis_newer_token_that_has_expired_too_is_renewed_with_its_own(bed: Bed, server: Server) -> None:
    bed.share(access="access-of-pi", refresh="refresh-of-pi", expires=bed.expired_ms + 1)
    server.good = {"refresh-of-pi"}
    assert bed.usable().access == "access-1"
    assert asked_with(server) == ["refresh-of-pi"]
    assert bed.pis["refresh"] == bed.stored.refresh == "refresh-1"


def test_pis_older_token_is_replaced_by_ours(bed: Bed, server: Server) -> None:
    """Its file could not be written at an earlier time."""
    bed.share(access="access-older", refresh="refresh-older", expires=bed.expired_ms - 1000)
    bed.usable()
    assert asked_with(server) == ["refresh-0"]
    assert bed.pis["refresh"] == "refresh-1"


def test_a_new_login_with_pi_ends_a_refusal_at_once(bed: Bed, server: Server) -> None:
    bed.share()
    server.good.clear()
    bed.refused()
    bed.refused()
    assert len(server.asked) == 1
    bed.share(access="access-of-pi", refresh="refresh-of-pi", expires=bed.expired_ms + 3_600_000)
    os.utime(bed.auth, (time.time() + 1, time.time() + 1))
    assert bed.usable().access == "access-of-pi"
    assert len(server.asked) == 1


def test_another_change_of_pis_file_does_not(bed: Bed, server: Server) -> None:
    bed.share()
    server.good.clear()
    bed.refused()
    later = time.time() + 1
    os.utime(bed.auth, (later, later))
    bed.later_s = 2
    for _ in range(2):
        assert "invalid_grant" in bed.refused().message
    with pytest.raises(Unavailable):
        bed.refresher().at_once("work")
    assert len(server.asked) == 1


def test_a_login_that_pi_holds_is_waited_for_and_then_let_be(bed: Bed, server: Server) -> None:
    bed.share()
    lock = bed.auth.with_name("auth.json.lock")
    lock.mkdir()
    refusal = bed.refused()
    assert "in use" in refusal.message
    assert server.asked == []
    lock.rmdir()
    bed.later_s = 31
    assert bed.usable().access == "access-1"


@pytest.mark.parametrize("what", ["gone", "broken", "logged out", "unwritable"])
def test_without_pis_file_the_vault_goes_on_alone_and_says_so(
    bed: Bed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.share()
    if what == "gone":
        bed.auth.unlink()
    elif what == "broken":
        bed.auth.write_text("{")
    elif what == "logged out":
        bed.auth.write_text("{}")
    else:
        monkeypatch.setattr("impyard.addon.vault.pilogin._replace", unwritable)
    before = bed.auth.read_bytes() if bed.auth.exists() else None
    assert bed.usable().access == "access-1"
    assert (bed.auth.read_bytes() if bed.auth.exists() else None) == before
    assert len(bed.notes) == 1 and "pi" in bed.notes[0] and "without" in bed.notes[0]
    with contextlib.suppress(FileNotFoundError):
        assert not bed.auth.with_name("auth.json.lock").exists()


def unwritable(*_: Any) -> None:
    raise OSError(30, "Read-only file system")
