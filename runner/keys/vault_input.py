"""Values for the vault as a person gives them: typed without an echo, or piped in; never as an argument.

What comes back is fit for a header. No message holds any of what was given.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import click

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential, TokenEndpoint
from impyard.addon.vault.store import MAX_VALUE_CHARACTERS, fault_of_value
from impyard.runner.typed import command_line

# What a terminal hands over of one line at most; the rest is lost without a word (N_TTY_BUF_SIZE, termios(3)).
TERMINAL_LINE = 4095
PASTE_S = 0.1  # so soon after its first line the rest of a paste is there
_LOGIN_KEYS = ("access", "refresh", "expires", "token_url", "client_id", "encoding", "ca")
_AS_PI_HAS_THEM = ("type", "accountId")  # an entry of pi's auth.json may be given as it is
_SECONDS_UNTIL = 100_000_000_000  # in milliseconds the year 1973: an `expires` below it is one in seconds
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1")


def read_value(what: str, name: str) -> str:
    """One value, from the terminal or else from standard input. Raises ImpyardError when it cannot be used."""
    text = _typed(what, name) if _is_terminal() else _piped()
    if fault := fault_of_value(text):
        raise ImpyardError(
            f"{what} cannot be used: {fault}",
            hint="type or paste just the value, in one line"
            if _is_terminal()
            else f"give just the value, in one line: {command_line('vault', 'set', name)} < FILE",
        )
    return text


def read_login(name: str) -> Credential:
    """A login as one JSON object, from the terminal or else from standard input."""
    text = _typed(f"the login for {name}, as one line of JSON", name) if _is_terminal() else _piped()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _no_login("it is no JSON object")
    if set(found) - {*_LOGIN_KEYS, *_AS_PI_HAS_THEM}:  # a name could be a value in the wrong place
        raise _no_login("it has other keys than those")
    access, refresh = _value(found, "access"), _value(found, "refresh")
    if not access and not refresh:
        raise _no_login("it has neither `access` nor `refresh`")
    return Credential(
        name=name,
        kind="oauth",
        access=access,
        refresh=refresh,
        expires=_expires(found),
        account=_value(found, "accountId"),
        source="set",
        token_endpoint=_endpoint(found),
    )


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _typed(what: str, name: str) -> str:
    prompt = f"{what[:1].upper()}{what[1:]} (not shown)"
    text, more = _hidden_line(f"{prompt}: ")
    if more:
        raise ImpyardError(
            "what was pasted has more than one line; nothing is stored", hint="paste just the value, in one line"
        )
    if len(text.encode()) >= TERMINAL_LINE:
        raise ImpyardError(
            f"it may be cut off: a terminal takes {TERMINAL_LINE} characters of a line at most",
            hint=f"put it into a file that only you can read, then: {command_line('vault', 'set', name)} < FILE",
        )
    return text


def _hidden_line(prompt: str) -> tuple[str, bool]:
    """A line from the terminal, without an echo, and whether more came with it. getpass would drop the rest unseen."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    data = b""
    try:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, quiet)
        click.echo(prompt, nl=False, err=True)
        while not data.endswith(b"\n") and len(data) <= TERMINAL_LINE:
            piece = os.read(descriptor, TERMINAL_LINE + 1)
            if not piece:  # Ctrl-D
                break
            data += piece
        more = bool(select.select([descriptor], [], [], PASTE_S)[0]) if data else False
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
        click.echo(err=True)
    if not data:
        raise click.Abort
    return data.decode("utf-8", "replace").removesuffix("\n"), more


def _piped() -> str:
    """Standard input as text, without one line end at its end."""
    limit = 4 * MAX_VALUE_CHARACTERS
    try:
        data = sys.stdin.buffer.read(limit + 1) if sys.stdin is not None else b""
    except OSError as exc:
        raise ImpyardError(
            f"cannot read standard input: {exc.strerror}", hint="pipe the value in, or type it when you are asked"
        ) from None
    if len(data) > limit:
        raise ImpyardError(
            f"standard input has more than {limit >> 10} KiB, which is no credential", hint="pipe the value alone in"
        )
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeError:
        raise ImpyardError("standard input is no text in UTF-8", hint="give the value as text, in one line") from None
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def _value(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key, "")
    if value in ("", None):
        return ""
    if not isinstance(value, str):
        raise _no_login(f"its `{key}` is no text")
    if fault := fault_of_value(value):
        raise _no_login(f"its `{key}` cannot be used: {fault}")
    return value


def _expires(found: Mapping[str, Any]) -> int:
    value = found.get("expires") or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e17:
        raise _no_login("its `expires` is no number of milliseconds since 1970 (0: never)")
    if 0 < value < _SECONDS_UNTIL:
        raise _no_login("its `expires` is in seconds; it counts milliseconds since 1970")
    return int(value)


def _endpoint(found: Mapping[str, Any]) -> TokenEndpoint | None:
    url, ca = _value(found, "token_url"), _value(found, "ca")
    if not url:
        if found.get("encoding") or found.get("client_id") or ca:
            raise _no_login("`client_id`, `encoding` and `ca` belong to a `token_url`")
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.username or parts.password or parts.fragment:
        raise _no_login("its `token_url` is no address like https://auth.example.com/token")
    if parts.scheme != "https" and not (parts.scheme == "http" and _LOOPBACK.fullmatch(host)):
        raise _no_login("its `token_url` must be https (http on this machine alone)")
    encoding = found.get("encoding") or "json"
    if encoding not in ("json", "form"):
        raise _no_login("its `encoding` is neither `json` nor `form`")
    form: Literal["json", "form"] = "form" if encoding == "form" else "json"
    if ca and not Path(ca).is_file():
        raise _no_login("its `ca` names no file")
    return TokenEndpoint(url, form, _value(found, "client_id"), str(Path(ca).absolute()) if ca else "")


def _no_login(why: str) -> ImpyardError:
    keys = ", ".join(f"`{key}`" for key in _LOGIN_KEYS)
    return ImpyardError(
        f"the login cannot be used: {why}", hint=f'give one object like {{"access": "…", "refresh": "…"}}; keys: {keys}'
    )
