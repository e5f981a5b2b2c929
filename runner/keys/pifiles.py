"""pi's own files on the host, as pi reads them: where they are, and what its templates for keys mean.

Templates are resolved here, on the host, as pi would. The facts are from pi's docs/providers.md and docs/settings.md.
No message has a key in it, nor the command that prints one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.keys.plainvalues import looks_harmless

COMMAND_LIMIT_S = 10  # pi's own limit for a `!command`
MAX_KEY_BYTES = 64 << 10  # no longer value fits into a header
_MAX_FILE_BYTES = 16 << 20
# Names of fields, variables and headers under which people keep secrets.
SECRET_NAME = re.compile(r"auth|token|secret|key|passw|credential|cookie|session|jwt", re.I)
# What the fields of a credential cannot be called, as they mean something else.
RESERVED_FIELDS = frozenset({"key", "access", "refresh", "expires", "account_id", "host"})
# Of those that people write into models.json, what says which client or format it is.
_PLAIN_HEADERS = frozenset(
    {"accept", "anthropic-beta", "anthropic-version", "content-type", "http-referer", "openai-beta", "referer"}
    | {"user-agent", "x-app", "x-title"}
)
_PLAIN_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/;,=*+()-]{0,99}")
# As pi reads it: braces with no variable's name in them stand for themselves.
_TEMPLATE = re.compile(
    r"\$(?:(?P<escape>[$!])|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}|\{[^}]*\}|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))"
)
_MEND = "mend the file, or use --model demo"


def agent_folder(environ: Mapping[str, str]) -> Path:
    """Where pi has its settings, logins and custom providers."""
    return Path(environ.get("PI_CODING_AGENT_DIR") or Path(environ.get("HOME") or "/") / ".pi" / "agent")


def custom_providers(environ: Mapping[str, str]) -> dict[str, Any]:
    """The `providers` of pi's models.json."""
    found = read_object(agent_folder(environ) / "models.json").get("providers")
    return found if isinstance(found, dict) else {}


def header_field(name: str, value: object) -> str:
    """The field of the credential that a header in models.json becomes; "" for a header that holds no secret.

    Any header may hold one, under any name, but for those that say what client or format it is, in plain words.
    """
    if not isinstance(value, str):
        return ""
    if name.lower() in _PLAIN_HEADERS and _PLAIN_HEADER.fullmatch(value) and looks_harmless(value):
        return ""
    field = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:56]
    return field if field[:1].isalpha() and field not in RESERVED_FIELDS else f"header-{field}"


def template_variables(text: str) -> set[str]:
    """The variables that a key of pi's is made of."""
    if text.startswith("!"):
        return set()
    return {name for match in _TEMPLATE.finditer(text) if (name := match["braced"] or match["plain"])}


def resolve_template(text: str, own: Mapping[str, str], environ: Mapping[str, str], where: str) -> str:
    """What pi would make of a key: `$NAME` and `${NAME}` from `own`, then the environment; `$$` and `$!` are escapes; a
    leading `!` runs the rest in a shell and takes what it prints. Raises ImpyardError when that yields nothing."""
    if text.startswith("!"):
        return _command_output(text[1:], where)

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        if not name:
            return match["escape"] or match[0]
        found = own.get(name) or environ.get(name)
        if not found:
            raise ImpyardError(
                f"{where}: the variable {name} is not set", hint=f"export {name}, or store the key itself"
            )
        return found

    return _TEMPLATE.sub(value, text)


def literal(key: str) -> str:
    """A key in the form that pi takes literally, whatever signs it has."""
    escaped = key.replace("$", "$$")
    return f"${escaped}" if escaped.startswith("!") else escaped


def _command_output(command: str, where: str) -> str:
    """What a shell command prints. It is over after COMMAND_LIMIT_S, with all that it started."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as exc:
        raise _no_key(where, exc.strerror or type(exc).__name__) from None
    with process:
        try:
            printed, status = _printed(process)
        except subprocess.TimeoutExpired:
            raise _no_key(where, f"it took longer than {COMMAND_LIMIT_S} s") from None
        finally:
            if process.returncode is None:  # not reaped yet, so the group is still its own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if len(printed) > MAX_KEY_BYTES:
        raise _no_key(where, f"it printed more than {MAX_KEY_BYTES >> 10} KiB")
    if status:
        raise _no_key(where, f"it ended with status {status}")  # not with its words: a `!` may begin a key
    try:
        text = printed.decode().strip()
    except UnicodeDecodeError:
        raise _no_key(where, "it printed what is no text") from None
    if not text:
        raise _no_key(where, "it printed nothing")
    return text


def _printed(process: subprocess.Popen[bytes]) -> tuple[bytes, int | None]:
    """What a process prints, until it has ended and its output too, and its status; no status where it prints too much.

    Raises TimeoutExpired.
    """
    deadline = time.monotonic() + COMMAND_LIMIT_S
    assert process.stdout is not None
    printed, output = b"", process.stdout.fileno()
    while len(printed) <= MAX_KEY_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([output], [], [], left)[0]:
            raise subprocess.TimeoutExpired(process.args, COMMAND_LIMIT_S)
        piece = os.read(output, MAX_KEY_BYTES)
        if not piece:
            return printed, process.wait(max(0.0, deadline - time.monotonic()))
        printed += piece
    return printed, None


def _no_key(where: str, reason: str) -> ImpyardError:
    return ImpyardError(f"{where}: the key command failed: {reason}", hint="try it in a shell, without its `!`")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in one of pi's files, empty when there is no such file."""
    try:
        data = json.loads(_read(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise ImpyardError(f"cannot read pi's {file}: {exc.strerror}", hint=_MEND) from None
    except json.JSONDecodeError as exc:  # its words quote nothing; from None, as the error itself holds the whole file
        raise ImpyardError(f"cannot read pi's {file}: {exc}", hint=_MEND) from None
    except (ValueError, RecursionError):
        raise ImpyardError(f"cannot read pi's {file}: it is no JSON", hint=_MEND) from None
    if not isinstance(data, dict):
        raise ImpyardError(f"pi's {file} is no JSON object", hint=_MEND)
    return data


def _read(file: Path) -> bytes:
    """The content of a regular file; a pipe in its place would be waited for without an end."""
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = opened.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_FILE_BYTES >> 20} MiB")
    return content
