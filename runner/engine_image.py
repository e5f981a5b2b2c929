"""Images, as thin calls to the Docker engine: look up, pull, import, build."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.engine import EngineError, client, engine_errors

CONNECT_S = 10


def image_id(ref: str) -> str | None:
    """The id ("sha256:…") of a local image, or None when the engine has none of that name."""
    try:
        with engine_errors(f"look up the image {ref}"):
            api: Any = client().api  # the stubs leave this call untyped
            return str(api.inspect_image(ref)["Id"])
    except EngineError as exc:
        if exc.missing or "invalid reference format" in exc.message:  # a name that none can have
            return None
        raise


def pull_image(ref: str, *, stall_s: float) -> None:
    """Pull an image. Raises EngineError when the registry refuses, or says nothing for `stall_s` seconds.

    docker-py's own call waits without a limit, and the engine for minutes where packets to the registry vanish.
    """
    name, tag = split_tag(ref)
    with engine_errors(f"pull {ref}"):
        api = client().api
        url = f"{api.base_url}/v{api.api_version}/images/create"
        answer = api.post(url, params={"fromImage": name, "tag": tag}, stream=True, timeout=(CONNECT_S, stall_s))
        with answer:
            if answer.status_code != 200:
                raise EngineError(f"cannot pull {ref}: {_message(answer.text)}")
            for event in _events(answer.iter_lines()):
                if "error" in event:
                    raise EngineError(f"cannot pull {ref}: {event['error']}")


def import_image(tar: Path, ref: str, changes: Sequence[str] = ()) -> str:
    """Make an image out of a root file system and return its id. `changes` are Dockerfile instructions."""
    name, tag = split_tag(ref)
    with engine_errors(f"import {tar.name} as {ref}"):
        # The stubs know neither a list of changes nor this call's answer.
        api: Any = client().api
        answer = str(api.import_image(src=str(tar), repository=name, tag=tag, changes=list(changes)))
    for event in _events(answer.splitlines()):
        if "error" in event:
            raise EngineError(f"cannot import {ref}: {event['error']}")
    return _must_exist(ref)


def build_image(
    context: bytes,
    ref: str,
    buildargs: Mapping[str, str],
    on_line: Callable[[str], None],
    *,
    fetching: str | None = None,
    fresh: bool = False,
) -> str:
    """Build the Dockerfile of a context (a tar archive) and return the image's id.

    Steps up to the stage `fetching` use the host's network: proxies on loopback and resolvers that only the host can
    ask are common. All others have none. `on_line` gets the engine's own output line by line. Raises EngineError with
    the last lines of a failed step.
    """
    if fetching is not None:
        _build(context, ref, buildargs, on_line, target=fetching, fresh=fresh)
        fresh = False  # what has just been fetched is in the engine's cache
    _build(context, ref, buildargs, on_line, target=None, fresh=fresh)
    return _must_exist(ref)


def _build(
    context: bytes,
    ref: str,
    buildargs: Mapping[str, str],
    on_line: Callable[[str], None],
    *,
    target: str | None,
    fresh: bool,
) -> None:
    """With the host's network up to the stage `target`, which gets no name; with None all of it, without a network."""
    tail: list[str] = []
    with engine_errors(f"build {ref}"):
        events: Iterator[Mapping[str, Any]] = client().api.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=ref if target is None else None,
            target=target,
            buildargs=dict(buildargs),
            network_mode="none" if target is None else "host",
            rm=True,
            forcerm=True,
            nocache=fresh,
            decode=True,
            timeout=None,  # a step may be silent for minutes
        )
        for event in events:
            if "error" in event:
                raise ImpyardError(
                    f"cannot build {ref}: {str(event['error']).strip()}" + "".join(f"\n  {line}" for line in tail[-8:]),
                    hint="the lines above are those of the failed step; most often it cannot reach its packages",
                )
            for line in str(event.get("stream", "")).splitlines():
                if line := _ESCAPES.sub("", line).strip():
                    tail = [*tail[-20:], line]
                    on_line(line)


def pack(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """A tar archive of name -> (bytes, mode), the same for the same input: the engine's cache compares it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (data, mode) in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def split_tag(ref: str) -> tuple[str, str]:
    """Name and tag of an image reference; a port in the name is no tag."""
    name, colon, tag = ref.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (ref, "latest")


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _must_exist(ref: str) -> str:
    found = image_id(ref)
    if found is None:
        raise EngineError(f"the engine made no image {ref}, without saying why")
    return found


def _events(lines: Any) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if line.strip():
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()
