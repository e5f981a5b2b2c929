"""pi's own files on the host, as pi reads them: where they are, and what its templates for keys mean.

Templates are resolved here, on the host, as pi would. The facts are from pi's docs/providers.md and docs/settings.md.
No message has a key in it, nor the command that prints one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError

COMMAND_LIMIT_S = 10  # pi's own limit for a `!command`
# Names of fields, variables and headers under which people keep secrets.
SECRET_NAME = re.compile(r"auth|token|secret|key|passw|credential|cookie|session|jwt", re.I)
# What the fields of a credential cannot be called, as they mean something else.
RESERVED_FIELDS = frozenset({"key", "access", "refresh", "expires", "account_id", "host"})
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

    A value with a template or a command is one, and so is any under a name that says it.
    """
    if not isinstance(value, str) or not (value.startswith("!") or "$" in value or SECRET_NAME.search(name)):
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
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_LIMIT_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise _no_key(where, f"it took longer than {COMMAND_LIMIT_S} s") from None
    except OSError as exc:
        raise _no_key(where, exc.strerror or type(exc).__name__) from None
    except UnicodeError:
        raise _no_key(where, "it printed what is no text") from None
    if done.returncode:
        raise _no_key(where, f"it ended with status {done.returncode}")  # not with its words: a `!` may begin a key
    if not done.stdout.strip():
        raise _no_key(where, "it printed nothing")
    return done.stdout.strip()


def _no_key(where: str, reason: str) -> ImpyardError:
    return ImpyardError(f"{where}: the key command failed: {reason}", hint="try it in a shell, without its `!`")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in one of pi's files, empty when there is no such file."""
    try:
        data = json.loads(file.read_bytes())
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
