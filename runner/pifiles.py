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
from impyard.runner.text import shortened, visible

COMMAND_LIMIT_S = 10  # pi's own limit for a `!command`
_MEND = "mend the file, or use --model demo"


def agent_folder(environ: Mapping[str, str]) -> Path:
    """Where pi has its settings, logins and custom providers."""
    return Path(environ.get("PI_CODING_AGENT_DIR") or Path(environ.get("HOME") or "/") / ".pi" / "agent")


def resolve_template(text: str, own: Mapping[str, str], environ: Mapping[str, str], where: str) -> str:
    """What pi would make of a key: `$NAME` and `${NAME}` from `own`, then the environment; `$$` and `$!` are escapes; a
    leading `!` runs the rest in a shell and takes what it prints. Raises ImpyardError when that yields nothing."""
    if text.startswith("!"):
        return _command_output(text[1:], where)

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return match["escape"]
        name = match["braced"] or match["plain"]
        found = own.get(name) or environ.get(name)
        if not found:
            raise ImpyardError(
                f"{where}: the variable {name} is not set", hint=f"export {name}, or store the key itself"
            )
        return found

    return re.sub(r"\$(?:(?P<escape>[$!])|\{(?P<braced>\w+)\}|(?P<plain>[A-Za-z_]\w*))", value, text)


def literal(key: str) -> str:
    """A key in the form that pi takes literally, whatever signs it has."""
    escaped = key.replace("$", "$$")
    return f"${escaped}" if escaped.startswith("!") else escaped


def _command_output(command: str, where: str) -> str:
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
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
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise _no_key(where, visible(shortened(said, 200)))
    return done.stdout.strip()


def _no_key(where: str, reason: str) -> ImpyardError:
    return ImpyardError(f"{where}: the key command failed: {reason}", hint="try it in a shell")


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
