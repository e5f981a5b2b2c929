"""The Docker engine, as thin calls. The only file that imports docker, and only when a call needs it.

Works with Docker Engine 20.10 (API 1.41) and newer, on this machine: the door is a unix socket and the project is
mounted by path, so an engine that cannot see both is refused. Errors of the engine come out as `ImpyardError`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from impyard.addon.errors import ImpyardError

if TYPE_CHECKING:
    import docker
    import requests

RUN_LABEL = "impyard.run"
# A call that the engine does not answer has failed; creating and starting a box takes seconds on a busy machine.
ANSWER_LIMIT_S = 60
# How long a box may take to be gone, an engine that restarts meanwhile included.
GONE_LIMIT_S = 15.0
START_HINT = "start Docker (`sudo systemctl start docker`), then see `impyard doctor`"
ENGINE_HINT = "look at what the engine says (`journalctl -u docker`), then see `impyard doctor`"


class EngineError(ImpyardError):
    """The engine cannot be reached, or did not do what was asked. `missing`: it does not know the thing asked about."""

    def __init__(self, message: str, *, hint: str | None = None, missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine says of itself. `cpus` and `memory` (bytes) are the most that a box may ask for."""

    version: str
    api: str
    cpus: int
    memory: int
    selinux: bool


@dataclass(frozen=True, slots=True)
class Container:
    """A box that the engine knows: its full id, name, state ("running", "created", "exited", ...) and labels."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]

    @property
    def run(self) -> str:
        return self.labels.get(RUN_LABEL, "")


@functools.cache
def client() -> docker.DockerClient:
    """A connected client, made once per process.

    Raises EngineError when DOCKER_HOST names another machine, when there is no engine, or when this user may not use
    it.
    """
    host = os.environ.get("DOCKER_HOST", "")
    if host and not host.startswith("unix://"):
        raise EngineError(
            f"DOCKER_HOST is `{host}`, but a box needs an engine on this machine",
            hint="unset DOCKER_HOST: the door is a unix socket, which a remote engine cannot reach",
        )
    import docker

    with engine_errors("connect to the Docker engine"):
        return docker.from_env(timeout=ANSWER_LIMIT_S)  # asks for the API version, so a dead engine shows here


@functools.cache
def describe() -> Engine:
    """Facts about the engine. Raises EngineError for an engine that cannot hold a box, with the reason."""
    api = client().api
    with engine_errors("ask the Docker engine about itself"):
        info = api.info()
    options = [str(option) for option in info.get("SecurityOptions") or []]
    if any("name=rootless" in option for option in options):
        raise EngineError(
            "this Docker engine is rootless: the numbers of its users are not those of this machine",
            hint="use a rootful engine on this machine (`docker context use default`, unset DOCKER_HOST)",
        )
    if any("name=userns" in option for option in options):
        raise EngineError(
            "this Docker engine remaps users (userns-remap): files from the box would belong to a stranger",
            hint="take `userns-remap` out of /etc/docker/daemon.json and restart Docker",
        )
    if info.get("OSType") != "linux" or "Docker Desktop" in str(info.get("OperatingSystem")):
        raise EngineError(
            f"this Docker engine runs in a virtual machine ({info.get('OperatingSystem')})",
            hint="impyard needs Linux with a local engine: the box reaches the judge through a unix socket",
        )
    return Engine(
        version=str(info.get("ServerVersion", "")),
        api=str(api.api_version),
        cpus=int(info.get("NCPU") or os.cpu_count() or 1),
        memory=int(info.get("MemTotal") or 0),
        selinux=any("name=selinux" in option for option in options),
    )


def create(name: str, spec: Mapping[str, Any]) -> str:
    """Create a container from the engine's own JSON form and return its id."""
    with engine_errors(f"create the box {name}"):
        api: Any = client().api  # the stubs leave this call untyped
        return str(api.create_container_from_config(dict(spec), name)["Id"])


def start(container: str) -> None:
    """Start a created container."""
    with engine_errors(f"start the box {container[:12]}"):
        client().api.start(container)


def attach(container: str, *, stdin: bool = False) -> Output:
    """Attach to a created container, before it starts, so that no output is lost; `stdin`: to `send` to it as well. The
    caller closes the result."""
    with engine_errors(f"attach to the box {container[:12]}"):
        params = {"stdout": 1, "stderr": 1, "stream": 1, "logs": 0, **({"stdin": 1} if stdin else {})}
        _response, raw = _endless(f"{container}/attach", params, {"Connection": "Upgrade", "Upgrade": "tcp"})
    return Output(raw)


def _endless(path: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """Ask the engine for something of a container that comes in its own time: the response, and its socket, which has
    no time limit any more. The response's head has one; docker-py's own calls of this kind have none at all."""
    api: Any = client().api  # the stubs leave these calls untyped
    url = f"{api.base_url}/v{api.api_version}/containers/{path}"
    response = api.post(url, params=params, headers=headers, stream=True, timeout=ANSWER_LIMIT_S)
    api._raise_for_status(response)
    raw = api._get_raw_response_socket(response)
    getattr(raw, "_sock", raw).settimeout(None)
    return response, raw


class Output:
    """Standard output and error of a container, told apart.

    docker-py gives up on a container that is silent for its read time limit; this reads the socket itself, without one.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._socket: socket.socket = getattr(raw, "_sock", raw)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1 for stdout or 2 for stderr, bytes) until the container ends or `close` is called.

        Format: docs.docker.com, API 1.41, ContainerAttach, "Stream format": a byte for the stream, three zeros, the
        length in four bytes, then the data.
        """
        opened = cast(io.BufferedReader, self._socket.makefile("rb", buffering=1 << 16))
        with contextlib.suppress(OSError, ValueError), opened as file:  # closed from elsewhere, or the engine is gone
            while len(header := file.read(8)) == 8:
                stream, length = struct.unpack(">BxxxL", header)
                while length:
                    data = file.read1(min(length, 1 << 16))
                    if not data:
                        return
                    length -= len(data)
                    yield stream, data

    def send(self, data: bytes) -> int:
        """Write to the container's standard input what it takes at once; how much that was. Raises BlockingIOError when
        it takes nothing now, and another OSError once it is gone."""
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End `chunks` in whatever thread it runs."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # docker-py keeps the response there whose socket this is. Closed after its socket, it would complain at exit.
        with contextlib.suppress(OSError):
            getattr(self._raw, "_response", self._raw).close()
        with contextlib.suppress(OSError):
            self._raw.close()


def wait_removed(container: str) -> Waiter:
    """Register for the end of a created container. The engine has the request when this returns, so that even a
    container that ends and is removed at once is not missed."""
    with engine_errors(f"wait for the box {container[:12]}"):
        response, _raw = _endless(f"{container}/wait", {"condition": "removed"})
    return Waiter(response)


class Waiter:
    """The end of one container. `result` blocks; call it in a thread. Without it, `close` the waiter."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response

    def result(self) -> int | None:
        """The exit code, once the container is gone; None when the engine went away before it could say."""
        try:
            answer = self._response.json()
        except (OSError, ValueError):  # requests' errors are OSErrors
            return None
        return int(answer["StatusCode"]) if isinstance(answer, dict) and "StatusCode" in answer else None

    def close(self) -> None:
        """Give up the connection. Not while another thread waits for the `result`: that ends with the container."""
        self._response.close()


def terminate(container: str) -> None:
    """Ask a container to end (SIGTERM); one that is gone or not running is no error."""
    with contextlib.suppress(EngineError), engine_errors(f"end the box {container[:12]}"):
        client().api.kill(container, "SIGTERM")


def kill(container: str) -> None:
    """Kill a container if it runs; one that is gone or not running is no error."""
    with contextlib.suppress(EngineError), engine_errors(f"kill the box {container[:12]}"):
        client().api.kill(container)


def remove(container: str) -> None:
    """Kill and remove a container, by id or name. One that is gone, or on its way, is no error."""
    try:
        with engine_errors(f"remove the box {container[:48]}"):
            client().api.remove_container(container, force=True, v=True)
    except EngineError as exc:
        if not exc.missing and "already in progress" not in exc.message:
            raise


def is_gone(container: str) -> bool:
    """Whether the engine does not know this container any more."""
    try:
        with engine_errors(f"look at the box {container[:48]}"):
            client().api.inspect_container(container)
    except EngineError as exc:
        if exc.missing:
            return True
        raise
    return False


def make_gone(container: str) -> None:
    """Remove a container, by id or name, and wait until the engine does not know it any more.

    An engine that does not do it, or that is away, is asked again: it may be restarting. Raises EngineError when the
    container is not certainly gone after GONE_LIMIT_S.
    """
    deadline = time.monotonic() + GONE_LIMIT_S
    while True:
        trouble = None
        try:
            remove(container)
        except EngineError as exc:
            trouble = exc
        try:
            if is_gone(container):
                return
        except EngineError as exc:
            trouble = trouble or exc
        if time.monotonic() > deadline:
            name = container[:12] if len(container) == 64 else container
            raise trouble or EngineError(f"the box {name} is still there", hint=f"docker rm --force {name}")
        time.sleep(0.1)


def ran_out_of_memory(container: str, *, since: int, until: int) -> bool:
    """Whether the kernel killed a process of this container for memory between two times (Unix seconds)."""
    filters = json.dumps({"container": [container], "event": ["oom"]})
    params: dict[str, str | int] = {"since": since, "until": until, "filters": filters}
    api = client().api
    with (
        contextlib.suppress(EngineError),
        engine_errors("read the engine's events"),
        api.get(f"{api.base_url}/v{api.api_version}/events", params=params, stream=True, timeout=30) as response,
    ):
        response.raise_for_status()
        return any(response.iter_lines())
    return False


def boxes(run: str | None = None) -> Sequence[Container]:
    """The boxes of this engine, in any state, of one run or of all."""
    label = f"{RUN_LABEL}={run}" if run else RUN_LABEL
    with engine_errors("list the boxes"):
        found = client().api.containers(all=True, filters={"label": label})
    return [
        Container(
            id=str(item["Id"]),
            name=str((item.get("Names") or ["/"])[0]).lstrip("/"),
            state=str(item.get("State", "")),
            labels=dict(item.get("Labels") or {}),
        )
        for item in found
    ]


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn the errors of docker-py and of its HTTP client into an EngineError that says what was being done."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as exc:
        missing = exc.response is not None and exc.response.status_code == 404
        reason = exc.explanation or str(exc)
        raise EngineError(
            f"cannot {doing}: {reason}", hint=None if missing else _hint(str(reason)), missing=missing
        ) from exc
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        reason = _root_cause(exc)
        raise EngineError(f"cannot {doing}: {reason}", hint=_hint(reason)) from exc


def _root_cause(exc: BaseException) -> str:
    """The operating system's own words out of the nest of exceptions that requests and urllib3 build."""
    import docker.errors
    import requests

    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, requests.Timeout):
            return f"no answer within {ANSWER_LIMIT_S} s"
        if isinstance(seen, http.client.RemoteDisconnected):
            return "the engine ended the connection without an answer"
        if isinstance(seen, docker.errors.APIError):
            return seen.explanation or str(seen)
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        seen = seen.__cause__ or seen.__context__
    return str(exc)


def _hint(reason: str) -> str:
    lowered = reason.lower()
    if "permission denied" in lowered:
        return "add yourself to the docker group (`sudo usermod -aG docker $USER`), then log in again"
    if "no such file" in lowered or "connection refused" in lowered:
        return START_HINT
    return ENGINE_HINT
