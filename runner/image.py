"""The image of the box: named after what it is made of, built when missing, always used by its id.

Knows which base to take and what goes into the build; how to talk to the engine is engine_image's business.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.certs.authority import system_bundle
from impyard.runner.engine import EngineError
from impyard.runner.engine_image import build_image, image_id, import_image, pack, pull_image

REPOSITORY = "impyard-box"
BASE_REPOSITORY = "impyard-base"
DEFAULT_BASE = "node:24-bookworm-slim"
BASE_VARIABLE = "IMPYARD_BASE_IMAGE"
# A registry that answers says something within a second or two; one that vanished must not hold up a first run.
PULL_STALL_S = 15.0
# Docker's predefined build arguments: usable in every step, kept out of the image's history.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")

OnLine = Callable[[str], None]


def box_dir() -> Path:
    """The folder that the image is built from, also in an installed wheel."""
    return Path(str(files("impyard"))) / "box"


def image_ref(directory: Path, base: str = DEFAULT_BASE) -> str:
    """The image's name: `impyard-box:<12 hex>` over every file that goes into it, and the base when it is not ours."""
    digest = hashlib.sha256(base.encode())
    for name, (data, _mode) in sorted(_sources(directory).items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode())
        digest.update(data)
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def current_image() -> str | None:
    """The id of the image that a run would use, or None when it has yet to be built."""
    return image_id(image_ref(box_dir(), _base()))


def ensure_image(on_line: OnLine, *, fresh: bool = False) -> str:
    """The image's id ("sha256:…"), built first when it is missing; `fresh` builds all of it anew.

    `on_line` gets a line for each step that takes time. The base is `IMPYARD_BASE_IMAGE`, else node:24-bookworm-slim;
    where that cannot be pulled, one made of this machine's own packages. Raises ImpyardError when nothing works.
    """
    directory, base = box_dir(), _base()
    ref = image_ref(directory, base)
    if not fresh and (found := image_id(ref)):
        return found
    with _one_at_a_time(on_line):
        if not fresh and (found := image_id(ref)):
            return found
        base = _ensure_base(directory, base, on_line, fresh=fresh)
        on_line(f"building the image {ref} on {base}")
        context = pack({**_sources(directory), **_host_ca()})
        arguments = {"BASE": base, **_network_arguments()}
        return build_image(context, ref, arguments, _steps(on_line), fetching="fetched", fresh=fresh)


def _base() -> str:
    return os.environ.get(BASE_VARIABLE) or DEFAULT_BASE


def _sources(directory: Path) -> dict[str, tuple[bytes, int]]:
    """The files that the Dockerfile uses, and itself, name -> (bytes, mode)."""
    found = {}
    try:
        code = [*directory.glob("*.py"), *directory.glob("attacks/*.py")]
        for path in [*code, *(directory / name for name in ("Dockerfile", ".dockerignore"))]:
            found[str(path.relative_to(directory))] = (path.read_bytes(), 0o644)
        for name in ("package.json", "package-lock.json"):
            found[name] = ((directory / name).read_bytes(), 0o644)
    except OSError as exc:
        raise ImpyardError(f"the files of the image cannot be read: {exc}", hint="reinstall impyard") from exc
    return found


def _host_ca() -> dict[str, tuple[bytes, int]]:
    """The CAs that this machine trusts, for steps behind something that intercepts TLS. They stay out of the image."""
    paths = [system_bundle(), Path(os.environ.get("NODE_EXTRA_CA_CERTS") or "/dev/null")]
    pems = dict.fromkeys(path.read_bytes() for path in paths if path and path.is_file())
    return {"host-ca.pem": (b"\n".join(pems), 0o644)}


def _network_arguments() -> dict[str, str]:
    arguments = {name: value for name in PROXY_VARIABLES if (value := os.environ.get(name))}
    if registry := _npm_registry():
        arguments["NPM_REGISTRY"] = registry
    return arguments


def _npm_registry() -> str:
    """The registry of the user's npm settings, without a password; "" for npm's default or when there is no npm."""
    try:
        result = subprocess.run(
            ["npm", "config", "get", "registry"],
            capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=True, cwd=Path.home(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        found = os.environ.get("npm_config_registry", "")  # noqa: SIM112 - npm reads the lower case
    else:
        found = result.stdout.strip()
    return re.sub(r"//[^/@]*@", "//", found) if found.startswith(("https://", "http://")) else ""


def _ensure_base(directory: Path, base: str, on_line: OnLine, *, fresh: bool) -> str:
    """A base that the engine has: the one asked for, or the one that box/base-image makes."""
    made = f"{BASE_REPOSITORY}:{_made_tag(directory)}"
    if not fresh:
        if image_id(base):
            return base
        if base == DEFAULT_BASE and image_id(made):
            return made
    on_line(f"pulling {base}")
    try:
        pull_image(base, stall_s=PULL_STALL_S)
    except EngineError as exc:
        if base != DEFAULT_BASE:
            raise ImpyardError(exc.message, hint=f"check {BASE_VARIABLE}, or unset it") from exc
        on_line(f"no image registry answers; making the base from this machine's own packages ({made})")
        _make_base(directory, made, on_line, pull_error=exc.message)
        return made
    return base


def _made_tag(directory: Path) -> str:
    release = Path("/etc/os-release")
    text = (directory / "base-image").read_bytes() + (release.read_bytes() if release.is_file() else b"")
    return hashlib.sha256(text).hexdigest()[:12]


def _make_base(directory: Path, ref: str, on_line: OnLine, *, pull_error: str) -> None:
    with tempfile.TemporaryDirectory(prefix="impyard-base-") as folder:
        tar = Path(folder) / "base.tar"
        tail: list[str] = []
        # Run through bash: a wheel does not keep the file's mode.
        command = ["bash", str(directory / "base-image"), str(tar)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                line = line.strip()
                tail = [*tail[-20:], line]
                if line.startswith("base-image: "):
                    on_line(line.removeprefix("base-image: "))
        if process.returncode != 0:
            raise ImpyardError(
                f"no image to build the box on: {pull_error}; and box/base-image failed:"
                + "".join(f"\n  {line}" for line in tail[-8:]),
                hint=f"let Docker reach a registry, or set {BASE_VARIABLE} to a Debian image with Node 24 that it has",
            )
        on_line("importing the base image")
        import_image(
            tar, ref, ['CMD ["bash"]', "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        )


def _steps(on_line: OnLine) -> OnLine:
    """Pass on the lines of a build that tell a person where it is."""

    def passed(line: str) -> None:
        if line.startswith("Step "):
            on_line(line if len(line) <= 100 else line[:99] + "…")

    return passed


@contextmanager
def _one_at_a_time(on_line: OnLine) -> Iterator[None]:
    """Runs that start together build once: the others wait, and find the image."""
    path = Path(tempfile.gettempdir()) / f"impyard-image-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_line("another impyard builds the image; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
