"""What is refused of an engine before a box is made: one whose users, sockets or files are not this machine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from impyard.runner import engine
from impyard.runner.engine import EngineError

GOOD: dict[str, Any] = {"ServerVersion": "20.10.0", "NCPU": 2, "MemTotal": 4, "OSType": "linux", "OperatingSystem": "D"}


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the engine says of itself. The engine is not under test; what is made of its words is."""
    info = dict(GOOD)

    class Api:
        api_version = "1.41"

        def info(self) -> dict[str, Any]:
            return info

    class Client:
        api = Api()

    monkeypatch.setattr(engine, "client", Client)
    engine.describe.cache_clear()
    yield info
    engine.describe.cache_clear()


@pytest.mark.attack("F50", "F51", control=True)
def test_an_ordinary_engine_is_taken(says: dict[str, Any]) -> None:
    found = engine.describe()
    assert (found.version, found.cpus, found.selinux) == ("20.10.0", 2, False)


@pytest.mark.attack("F50")
@pytest.mark.parametrize(
    ("change", "words", "hint"),
    [
        ({"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}, "rootless", "rootful"),
        ({"SecurityOptions": ["name=userns"]}, "remaps users", "userns-remap"),
        ({"OperatingSystem": "Docker Desktop"}, "virtual machine", "Linux"),
        ({"OSType": "windows"}, "virtual machine", "Linux"),
    ],
    ids=["rootless", "remapped", "desktop", "other system"],
)
def test_numbers_of_users_that_are_not_ours_are_refused(
    says: dict[str, Any], change: dict[str, Any], words: str, hint: str
) -> None:
    says.update(change)
    with pytest.raises(EngineError, match=words) as refused:
        engine.describe()
    assert refused.value.hint is not None and hint in refused.value.hint


@pytest.mark.attack("F51")
def test_selinux_is_noticed(says: dict[str, Any]) -> None:
    says["SecurityOptions"] = ["name=selinux"]
    assert engine.describe().selinux


@pytest.mark.attack("F49")
def test_an_engine_on_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine.client.cache_clear()
    monkeypatch.setenv("DOCKER_HOST", "tcp://198.51.100.1:2375")
    with pytest.raises(EngineError, match="this machine"):
        engine.client()
