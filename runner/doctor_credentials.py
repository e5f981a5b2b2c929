"""For `impyard doctor`: what the vault holds, what it could import, and which of pi's files with keys others may read.

No value is shown, no command run, no keyring asked. A vault that cannot be used raises, as no run starts with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.doctor import Check
from impyard.runner.keys import sources as keysources
from impyard.runner.keys.pifiles import agent_folder
from impyard.runner.keys.vault_words import expiry, failure
from impyard.runner.typed import as_typed

_MEND_PI = "mend that file, or move it away and use /login in `pi`"
_WAYS = "start `pi` and use /login, or set a key such as ANTHROPIC_API_KEY, or `impyard vault set NAME`"


def credential_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """The checks of the user's credentials. Raises ImpyardError for a vault that is damaged or open to others."""
    contents = Vault(default_dir()).overview()
    now_ms = time.time() * 1000
    held, broken = [], []
    for name, one in sorted(contents.credentials.items()):
        about = "; ".join(filter(None, (expiry(one, now_ms), as_typed(failure(one, now_ms)))))
        held.append(f"{name} ({about})" if about else name)
        is_over = one.kind == "oauth" and 0 < one.expires < now_ms
        if one.failure or (is_over and not one.refresh and name not in contents.in_keyring):
            broken.append(name)
    if held:
        mend = f"log in again with `pi`, or `impyard vault set {broken[0]}`" if broken else ""
        yield Check("vault", "warn" if broken else "ok", ", ".join(held), mend)
    found, faults = keysources.look(environ, default_dir())
    for fault in faults:
        yield Check("credentials", "warn", fault.message, _MEND_PI)
    for name in ("auth.json", "models.json"):
        path = agent_folder(environ) / name
        if path.is_file() and path.stat().st_mode & 0o077 and any(one.where == str(path) for one in found.values()):
            yield Check("credentials", "warn", f"{path} is open to other users", f"chmod 600 {path}")
    new = [
        f"{name} ({'expired, ' if 0 < one.expires < now_ms else ''}{one.where})"
        for name, one in found.items()
        if name not in contents.credentials and name != keysources.DEMO
    ]
    if new:
        yield Check("credentials", "ok", f"to import: {', '.join(new)}; a run does that for its model")
    elif not held and not faults:
        yield Check("credentials", "warn", "no credentials found; `--model demo` works without", _WAYS)
