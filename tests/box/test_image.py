"""The image and the engine's calls about images, against the real engine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import image
from impyard.runner.engine import EngineError, client
from impyard.runner.engine_image import build_image, image_id, import_image, pack, pull_image

pytestmark = pytest.mark.box


@pytest.fixture(scope="module")
def built() -> str:
    return image.ensure_image(lambda _line: None)


@pytest.fixture
def scratch() -> Iterator[Callable[[str], str]]:
    """Names of images that are removed afterwards."""
    made: list[str] = []

    def name(tag: str) -> str:
        made.append(f"impyard-test:{tag}")
        return made[-1]

    yield name
    for ref in made:
        if image_id(ref):
            client().api.remove_image(ref, force=True)


def inside(built: str, command: str) -> list[str]:
    """What a shell command prints in the image, as an ordinary user without a network."""
    output = client().containers.run(
        built, ["-c", f"{command}; true"], entrypoint="/bin/bash", remove=True, network_mode="none", user="1000:1000"
    )
    return output.decode().splitlines()


def test_an_image_that_exists_is_not_built_again(built: str) -> None:
    lines: list[str] = []
    began = time.process_time()
    assert image.ensure_image(lines.append) == built == image.current_image()
    assert lines == [] and time.process_time() - began < 1


def test_it_holds_the_tools_and_the_pinned_agent(built: str) -> None:
    tools = "bash curl git jq less node npm npx patch pi ps python3 rg unzip xz"
    assert inside(built, f"for tool in {tools}; do command -v $tool >/dev/null || echo missing $tool; done") == []
    assert inside(built, "pi --version; node --version | cut -d. -f1") == ["1.6.0", "v24"]


def test_nothing_in_it_can_be_changed_by_the_user_or_gives_rights(built: str) -> None:
    places = "find / -xdev -not -path '/proc/*' -not -path '/sys/*'"
    assert inside(built, f"{places} -perm /6000 -type f 2>/dev/null") == []
    writable = inside(built, f"{places} \\( -type f -o -type d \\) -writable 2>/dev/null")
    assert set(writable) <= {"/tmp", "/var/tmp", "/run/lock", "/dev/shm", "/dev/mqueue"}


def test_nothing_of_the_build_stays_in_it(built: str) -> None:
    assert inside(built, "ls -d /opt/pi/host-ca.pem /tmp/* /var/lib/apt/lists/*_* /usr/local/include 2>/dev/null") == []
    api: Any = client().api  # the stubs leave these calls untyped
    history = str(api.history(built)) + str(api.inspect_image(built))
    for word in ("NPM_REGISTRY=http", "PROXY=http", "proxy=http"):
        assert word not in history


def test_an_edit_of_the_relay_builds_only_the_last_layers(built: str, scratch: Callable[[str], str]) -> None:
    files = image._sources(image.box_dir())
    files["relay.py"] = (files["relay.py"][0] + b"# edited\n", 0o644)
    base = image._ensure_base(image.box_dir(), image.DEFAULT_BASE, lambda _line: None, fresh=False)
    began = time.monotonic()
    edited = build_image(
        pack({**files, **image._host_ca()}),
        scratch("edited"),
        {"BASE": base, **image._network_arguments()},
        lambda _line: None,
        fetching="fetched",
    )
    assert edited != built and time.monotonic() - began < 60
    api: Any = client().api
    layers = [api.inspect_image(each)["RootFS"]["Layers"] for each in (built, edited)]
    assert layers[0][:-2] == layers[1][:-2]


def test_only_what_is_fetched_has_the_hosts_network(built: str, scratch: Callable[[str], str]) -> None:
    """The first step is the control. Made anew, the second build takes what the first one has just made."""
    stages = ["FROM {} AS fetched", "RUN cat /proc/net/dev /proc/sys/kernel/random/uuid > /first"]
    stages += ["FROM fetched", "RUN cat /proc/net/dev > /second"]
    context, found = pack({"Dockerfile": ("\n".join(stages).format(built).encode(), 0o644)}), []
    for _ in range(2):
        made = build_image(context, scratch("networks"), {}, lambda _line: None, fetching="fetched", fresh=True)
        found.append((inside(made, "cat /first"), inside(made, "cat /second")))
    for first, second in found:
        assert len(first) > 4 and len(second) == 3 and second[2].split()[0] == "lo:"
    assert found[0][0][-1] != found[1][0][-1]


def test_pi_runs_only_in_a_step_without_a_network() -> None:
    fetched, *later = (image.box_dir() / "Dockerfile").read_text().split("FROM fetched")
    assert "--ignore-scripts" in fetched and "bin/pi" not in fetched.partition("\nENV ")[0]
    assert len(later) == 2 and "node /opt/pi/node_modules/.bin/pi" in later[0]


def test_a_failed_step_shows_its_last_lines(built: str, scratch: Callable[[str], str]) -> None:
    context = pack({"Dockerfile": (f"FROM {built}\nRUN echo the reason; exit 3\n".encode(), 0o644)})
    with pytest.raises(ImpyardError) as caught:
        build_image(context, scratch("failed"), {}, lambda _line: None)
    assert "the reason" in caught.value.message and "returned a non-zero code: 3" in caught.value.message
    assert image_id("impyard-test:failed") is None


def test_a_root_file_system_becomes_an_image(tmp_path: Path, scratch: Callable[[str], str]) -> None:
    (tmp_path / "base.tar").write_bytes(pack({"hello": (b"hi", 0o644)}))
    found = import_image(tmp_path / "base.tar", scratch("imported"), ["ENV A=b", 'CMD ["/hello"]'])
    api: Any = client().api
    config = api.inspect_image(found)["Config"]
    assert config["Env"] == ["A=b"] and config["Cmd"] == ["/hello"]


def test_a_registry_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(EngineError, match="cannot pull"):
            pull_image(f"127.0.0.1:{silent.getsockname()[1]}/nothing:1", stall_s=1.5)
        assert time.monotonic() - began < 10


def test_a_registry_that_refuses_is_given_up_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match="cannot pull"):
        pull_image(f"127.0.0.1:{port}/nothing:1", stall_s=15)


def test_a_base_that_was_asked_for_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(image.BASE_VARIABLE, "127.0.0.1:1/none:1")
    with pytest.raises(ImpyardError, match="cannot pull") as caught:
        image.ensure_image(lambda _line: None)
    assert caught.value.hint == "check IMPYARD_BASE_IMAGE, or unset it"


def test_runs_that_start_together_build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    building = threading.Event()
    finish = threading.Event()
    have: list[str] = []
    builds: list[str] = []

    def build(_context: bytes, ref: str, *_arguments: object, fetching: str, fresh: bool) -> str:
        building.set()
        assert finish.wait(10)
        builds.append(ref)
        have.append("sha256:made")
        return have[0]

    monkeypatch.setattr(image, "image_id", lambda ref: have[0] if have else None)
    monkeypatch.setattr(image, "build_image", build)
    monkeypatch.setattr(image, "_ensure_base", lambda *_arguments, fresh: "base")
    results: list[str] = []
    lines: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(image.ensure_image(lines.append))) for _ in range(3)]
    threads[0].start()
    assert building.wait(10)
    for thread in threads[1:]:
        thread.start()
    while lines.count("another impyard builds the image; waiting for it") < 2:
        time.sleep(0.01)
    finish.set()
    for thread in threads:
        thread.join(10)
    assert results == ["sha256:made"] * 3 and len(builds) == 1
