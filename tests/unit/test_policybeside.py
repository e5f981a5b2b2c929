"""A big policy is compiled beside the loop; the one before it stays in force until then, and no longer than that."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impyard.addon import policybeside, policysource
from impyard.addon.errors import PolicyError
from impyard.addon.policy import Policy, read_policy
from impyard.addon.policysource import AT_ONCE_BYTES, PolicySource

WAIT_S = 30.0


def big(host: str, rules: int = 600) -> str:
    lines = [f"      - {{action: ALLOW, method: GET, path: '/v1/item{n}(/.*)?'}}" for n in range(rules)]
    return "\n".join(["networkPolicies:", f"  - host: {host}", "    policies:", *lines]) + "\n"


def host(source: PolicySource) -> str:
    """The one host of the policy in force, or what keeps it from being used."""
    policy = source.current()
    return policy.entries[0].host if isinstance(policy, Policy) else str(policy)


def wait_for(source: PolicySource, wanted: str) -> set[str]:
    """Look until `wanted` is in force; all that was before."""
    seen = set()
    end = time.monotonic() + WAIT_S
    while (found := host(source)) != wanted:
        seen.add(found)
        assert time.monotonic() < end, seen
        time.sleep(0.001)
    return seen


def replace(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    new.rename(file)


class Loader:
    """Stands before the loader and lets loads through one by one."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fail: Callable[[], object] = lambda: None

    def __call__(self, *args: Any, **kwargs: Any) -> Policy:
        self.began.release()
        assert self.go.acquire(timeout=WAIT_S)
        self.fail()
        return read_policy(*args, **kwargs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(big("a.test"))
    assert path.stat().st_size > AT_ONCE_BYTES
    return path


@pytest.fixture
def source(file: Path) -> PolicySource:
    source = PolicySource([file], file.parent)
    assert host(source) == "a.test"  # the first is waited for: before it nothing can be allowed
    return source


@pytest.fixture
def loader(source: PolicySource, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    held = Loader()
    monkeypatch.setattr(policybeside, "read_policy", held)
    yield held
    held.go.release(100)


def test_the_older_policy_stays_in_force_until_the_new_one_is_ready(
    source: PolicySource, file: Path, loader: Loader
) -> None:
    replace(file, big("b.test"))
    assert host(source) == "a.test"
    assert loader.began.acquire(timeout=WAIT_S)
    assert host(source) == "a.test"
    assert source.hash == read_policy([(file, big("a.test").encode())]).hash
    loader.go.release()
    assert wait_for(source, "b.test") <= {"a.test"}
    assert source.hash == read_policy([(file, big("b.test").encode())]).hash
    assert source.current() is source.current()


def test_a_small_policy_is_in_force_at_once_and_stays_so(source: PolicySource, file: Path, loader: Loader) -> None:
    replace(file, big("b.test"))
    assert host(source) == "a.test"
    assert loader.began.acquire(timeout=WAIT_S)
    loader.go.release(2)
    replace(file, big("c.test", rules=1))
    assert host(source) == "c.test"
    for _ in range(200):  # what was being loaded is not wanted any more
        assert host(source) == "c.test"
        time.sleep(0.001)


def test_what_comes_while_one_is_loading_is_loaded_next_and_the_newest_alone(
    source: PolicySource, file: Path, loader: Loader
) -> None:
    for name in ("b.test", "c.test", "d.test"):
        replace(file, big(name))
        assert host(source) == "a.test"
        if name == "b.test":
            assert loader.began.acquire(timeout=WAIT_S)
    loader.go.release()
    assert wait_for(source, "b.test") <= {"a.test"}
    assert loader.began.acquire(timeout=WAIT_S)
    loader.go.release()
    assert wait_for(source, "d.test") <= {"b.test"}
    assert not loader.began.acquire(blocking=False)


def test_a_broken_policy_denies_as_soon_as_that_is_known(source: PolicySource, file: Path) -> None:
    replace(file, big("b.test") + "  - {host: c.test}\n")
    broken = "gateway.yaml:604:5: an entry needs policies"
    assert wait_for(source, broken) <= {"a.test"}
    assert source.hash == ""
    replace(file, big("b.test"))
    assert wait_for(source, "b.test") <= {broken}


def test_a_missing_file_denies_at_once_and_what_was_loading_does_not_come_back(
    source: PolicySource, file: Path, loader: Loader
) -> None:
    replace(file, big("b.test"))
    assert host(source) == "a.test"
    assert loader.began.acquire(timeout=WAIT_S)
    file.unlink()
    missing = host(source)
    assert "no such file" in missing
    loader.go.release()
    for _ in range(100):
        assert host(source) == missing
        time.sleep(0.001)
    replace(file, big("c.test"))
    loader.go.release()
    assert wait_for(source, "c.test") <= {missing}


@pytest.mark.parametrize("failure", [MemoryError, RecursionError, SystemExit, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_load_that_fails_denies(
    source: PolicySource, file: Path, loader: Loader, failure: type[BaseException]
) -> None:
    def fail() -> None:
        raise failure

    loader.fail = fail
    replace(file, big("b.test"))
    assert host(source) == "a.test"
    loader.go.release()
    failed = "policy: could not be loaded"
    assert wait_for(source, failed) <= {"a.test"}
    assert host(source) == failed
    loader.fail = lambda: None
    loader.go.release()
    replace(file, big("c.test"))
    assert wait_for(source, "c.test") <= {failed}


def test_without_a_thread_everything_is_denied(
    source: PolicySource, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    replace(file, big("b.test"))
    assert host(source) == "policy: could not be loaded"


def test_a_load_that_takes_too_long_denies_until_it_is_through(
    source: PolicySource, file: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policybeside, "LIMIT_S", 0.2)
    began = time.monotonic()
    replace(file, big("b.test"))
    late = "policy: takes too long to load; nothing is allowed until it is in force"
    assert wait_for(source, late) == {"a.test"}
    assert time.monotonic() - began > 0.2
    loader.go.release()
    assert wait_for(source, "b.test") <= {late}


def test_what_waits_behind_another_load_is_late_too(
    source: PolicySource, file: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(file, big("b.test"))
    assert host(source) == "a.test"
    assert loader.began.acquire(timeout=WAIT_S)
    file.unlink()
    assert "no such file" in host(source)
    monkeypatch.setattr(policybeside, "LIMIT_S", 0.2)
    replace(file, big("c.test"))
    missing = host(source)
    late = "policy: takes too long to load; nothing is allowed until it is in force"
    assert wait_for(source, late) == {missing}
    loader.go.release(2)
    assert wait_for(source, "c.test") <= {late}


def test_who_has_not_looked_for_long_waits_for_the_new_policy(
    source: PolicySource, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may be as old as the last look: nobody knows for how long the older policy was in force too long."""
    replace(file, big("b.test"))
    assert host(source) == "a.test"  # control: looked just now
    wait_for(source, "b.test")
    monkeypatch.setattr(policysource, "UNWATCHED_S", 0.05)
    replace(file, big("c.test"))
    time.sleep(0.1)
    assert host(source) == "c.test"


def test_other_threads_have_their_turns_meanwhile(source: PolicySource, file: Path) -> None:
    before = sys.getswitchinterval()
    replace(file, big("b.test", rules=10_000))
    pauses, last = [], time.perf_counter()
    while host(source) != "b.test":
        now = time.perf_counter()
        pauses.append(now - last)
        last = now
        time.sleep(0.001)
    assert len(pauses) > 20
    assert max(pauses) < 0.2  # some 10 ms, and the rest of the machine
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("text", [big("a.test"), big("a.test") + "  - {host: b.test}\n", "networkPolicies: [", "a: 1"])
def test_a_policy_is_read_alike_with_and_without_rests(file: Path, text: str) -> None:
    rests: list[int] = []
    found = []
    for rest in (None, lambda: rests.append(1)):
        try:
            policy = read_policy([(file, text.encode())], rest=rest)
            found.append(repr((policy.hash, [(entry.host, entry.at, entry.rules) for entry in policy.entries])))
        except PolicyError as exc:
            found.append(repr(exc.faults))
    assert found[0] == found[1]
    assert len(rests) >= text.count("\n")


def test_the_same_content_is_not_loaded_again(source: PolicySource, file: Path, loader: Loader) -> None:
    policy = source.current()
    replace(file, big("a.test"))
    assert source.current() is policy
    assert not loader.began.acquire(timeout=0.1)


def test_an_error_is_never_replaced_by_the_policy_before_it(source: PolicySource, file: Path) -> None:
    older = source.current()
    file.unlink()
    assert isinstance(source.current(), PolicyError)
    replace(file, big("b.test"))
    end = time.monotonic() + WAIT_S
    while isinstance(found := source.current(), PolicyError):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert found is not older and host(source) == "b.test"
