"""The policy in force follows its files, and is an error for as long as they are bad."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from impyard.addon import policybeside, policysource
from impyard.addon.errors import PolicyError
from impyard.addon.policy import Policy
from impyard.addon.policysource import PolicySource

GOOD = "networkPolicies: [{host: a.test, policies: [{action: ALLOW, method: GET, path: /}]}]\n"
OTHER = GOOD.replace("a.test", "b.test")


def hosts(source: PolicySource) -> list[str]:
    policy = source.current()
    assert isinstance(policy, Policy), policy
    return [entry.host for entry in policy.entries]


def error(source: PolicySource) -> str:
    found = source.current()
    assert isinstance(found, PolicyError)
    return str(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD)
    return path


def test_the_same_policy_is_given_while_nothing_changes(file: Path) -> None:
    source = PolicySource([file], file.parent)
    first = source.current()
    assert source.current() is first
    time.sleep(0.15)
    assert source.current() is first
    assert isinstance(first, Policy)
    assert source.hash == first.hash


def test_a_settled_file_is_not_opened_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(file, (an_hour_ago, an_hour_ago))
    source = PolicySource([file])
    hosts(source)

    def refuse(*args: object, **kwargs: object) -> int:
        raise AssertionError("opened")

    monkeypatch.setattr(os, "open", refuse)
    hosts(source)


def test_a_change_takes_effect_with_the_next_call(file: Path) -> None:
    source = PolicySource([file])
    assert hosts(source) == ["a.test"]
    file.write_text(OTHER)
    assert hosts(source) == ["b.test"]


def test_a_change_of_the_same_size_in_the_same_tick_is_seen(file: Path) -> None:
    source = PolicySource([file])
    for _ in range(50):
        for text, host in ((OTHER, "b.test"), (GOOD, "a.test")):
            with file.open("r+") as handle:
                handle.write(text)
            assert hosts(source) == [host]


def test_a_change_that_keeps_time_and_size_is_seen(file: Path) -> None:
    before = file.stat()
    source = PolicySource([file])
    hosts(source)
    time.sleep(0.15)
    source.current()
    file.write_text(OTHER)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hosts(source) == ["b.test"]


def test_a_file_that_is_replaced_is_read(file: Path) -> None:
    source = PolicySource([file])
    hosts(source)
    new = file.with_name("new")
    new.write_text(OTHER)
    new.rename(file)
    assert hosts(source) == ["b.test"]


def test_a_broken_policy_is_an_error_until_it_is_mended(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.write_text("networkPolicies: [")
    assert "gateway.yaml:2" in error(source)
    assert source.hash == ""
    assert source.current() is source.current()
    file.write_text(GOOD)
    assert hosts(source) == ["a.test"]
    assert source.hash.startswith("sha256:")


def test_a_missing_policy_is_an_error_until_it_is_back(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.unlink()
    assert error(source) == "gateway.yaml: cannot be read: no such file or directory"
    file.write_text(GOOD)
    assert hosts(source) == ["a.test"]


def test_a_folder_in_its_place_is_an_error_until_it_is_gone(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.unlink()
    file.mkdir()
    assert "cannot be read" in error(source)
    file.rmdir()
    file.write_text(GOOD)
    assert hosts(source) == ["a.test"]


@pytest.mark.timeout(10)
def test_a_pipe_in_its_place_is_an_error_and_holds_nothing_up(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in error(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_policy_is_an_error_until_it_is_readable(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.chmod(0)
    assert "permission denied" in error(source)
    file.chmod(0o600)
    assert hosts(source) == ["a.test"]


def test_one_bad_file_of_two_is_an_error(file: Path) -> None:
    second = file.with_name("second.yaml")
    second.write_text(OTHER)
    source = PolicySource([file, second], file.parent)
    assert hosts(source) == ["a.test", "b.test"]
    second.write_text("")
    assert "second.yaml" in error(source)
    second.unlink()
    assert "second.yaml" in error(source)


def test_a_source_without_files_is_an_error() -> None:
    assert error(PolicySource([]))


def test_a_file_written_in_pieces_is_never_read_by_halves(tmp_path: Path) -> None:
    """The first piece alone would be a policy that allows more than the whole."""
    file = tmp_path / "gateway.yaml"
    first = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: '*', path: /.*}\n"
    rest = "      - {action: DENY, method: '*', path: /secret}\n"
    source = PolicySource([file])
    written = threading.Event()

    def write() -> None:
        for _ in range(30):
            with file.open("w", buffering=1) as handle:
                handle.write(first)
                handle.flush()
                time.sleep(0.001)
                handle.write(rest)
            time.sleep(0.01)
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not written.is_set():
        policy = source.current()
        if isinstance(policy, Policy):
            seen.add(len(policy.entries[0].rules))
    thread.join()
    assert seen == {2}


def test_a_file_that_is_open_for_writing_is_an_error_until_it_is_closed(file: Path) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    with file.open("r+") as handle:
        handle.write(OTHER)
        handle.flush()
        assert error(source) == "gateway.yaml: is being written"
    assert hosts(source) == ["b.test"]


def test_without_leases_a_file_that_never_rests_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = time.sleep

    def restless(seconds: float) -> None:
        settle(seconds)
        with file.open("a") as handle:
            handle.write("#\n")

    def unknown(fd: int) -> bool:
        return False

    source = PolicySource([file], file.parent)
    monkeypatch.setattr(policysource, "_without_writers", unknown)
    monkeypatch.setattr(time, "sleep", restless)
    assert error(source) == "gateway.yaml: is being written"
    monkeypatch.setattr(time, "sleep", settle)
    assert hosts(source) == ["a.test"]


def test_a_writer_waits_for_the_reader_and_does_not_end_it(file: Path) -> None:
    with file.open("rb") as reading:
        if not policysource._without_writers(reading.fileno()):
            pytest.skip("no leases on this file system")
        writer = threading.Thread(target=file.write_text, args=(OTHER,))
        writer.start()
        time.sleep(0.05)
        assert reading.read().decode() == GOOD
    writer.join(5)
    assert file.read_text() == OTHER


def test_a_loader_that_fails_leaves_no_older_policy_in_force(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.write_text(OTHER)

    def fail(*args: object, **kwargs: object) -> Policy:
        raise MemoryError

    monkeypatch.setattr(policybeside, "read_policy", fail)
    assert error(source) == "policy: could not be loaded"
    assert error(source) == "policy: could not be loaded"


@pytest.mark.parametrize(
    "costly",
    [
        "  - host: c.test\n    policies:\n      - action: ALLOW\n        method: GET\n        path: /\n        query:\n"
        + "".join(f"          k{n}: '\\pL{{1,100}}x{n}'\n" for n in range(20)),
        "  - host: c0.test\n    policies: &rules\n"
        + "".join(f"      - {{action: ALLOW, method: GET, path: /{n}}}\n" for n in range(200))
        + "".join(f"  - {{host: c{n}.test, policies: *rules}}\n" for n in range(1, 300)),
    ],
    ids=["expressions", "aliases"],
)
def test_a_small_file_that_is_much_work_is_loaded_beside_the_loop(file: Path, costly: str) -> None:
    source = PolicySource([file], file.parent)
    before = source.current()
    text = "networkPolicies:\n  - {host: b.test, policies: [{action: DENY, method: '*', path: /}]}\n" + costly
    assert len(text) < policysource.AT_ONCE_BYTES
    file.write_text(text)
    began = time.thread_time()
    assert source.current() is before
    assert time.thread_time() - began < 0.2  # of half a second of work and more
    assert source.current() is before
    end = time.monotonic() + 60
    while not isinstance(found := source.current(), Policy) or found is before:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert found.entries[0].host == "b.test"


def test_what_is_costly_does_not_bring_back_what_was_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PolicySource([file], file.parent)
    hosts(source)
    file.unlink()
    missing = error(source)
    monkeypatch.setattr(policybeside, "AT_ONCE_S", -1.0)
    file.write_text(OTHER)
    seen = {str(found) for _ in range(3) if isinstance(found := source.current(), PolicyError)}
    assert seen <= {missing}
    end = time.monotonic() + 60
    while not isinstance(found := source.current(), Policy):
        assert str(found) == missing
        assert time.monotonic() < end
    assert hosts(source) == ["b.test"]
