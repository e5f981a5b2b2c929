"""A gateway's vault: the sentinels of its run, what the runner hears of them, and who supplies the real values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon.injection import Injector
from impyard.addon.policy import Policy
from impyard.addon.rules import DEFAULT_PORTS, Entry
from impyard.addon.secretwatch import SecretWatch
from impyard.addon.vault.refresh import Refresher
from impyard.addon.vault.sentinels import Sentinels, mint
from impyard.addon.vault.store import Vault


class Keys:
    """What one gateway knows of credentials.

    vault: None for a gateway that injects nothing. sentinels: of those that the policy binds and the vault holds now.
    watch: looks for them, and for all that the vault holds, in what the box sends.
    """

    def __init__(
        self, folder: Path | None, policy: Policy, tell: Callable[[dict[str, Any]], None] = lambda event: None
    ) -> None:
        """folder: the vault's. tell: hears why a credential cannot be used. Raises ImpyardError for a vault that cannot
        be read."""
        self.vault = Vault(folder) if folder is not None else None
        self.sentinels: Sentinels | None = None
        self.injector = Injector()
        self.watch = SecretWatch()
        self._bindings: list[dict[str, Any]] = []
        self._refresher: Refresher | None = None
        if self.vault is None:
            return
        held = self.vault.read().credentials
        wanted = {inject.credential for _, inject in policy.injects}
        self.sentinels = mint(held[name] for name in sorted(wanted & held.keys()))
        self._refresher = Refresher(self.vault)
        self.injector = Injector(self._refresher, self.sentinels, tell)
        vault = self.vault
        self.watch = SecretWatch(self.sentinels, lambda: vault.read().credentials)
        for entry, inject in policy.injects:
            self._bindings.append(
                {
                    "credential": inject.credential,
                    "host": _authority(entry),
                    "at": entry.at,
                    "env": inject.env,
                    "files": inject.files,
                    "missing": inject.credential not in held,
                }
            )

    def for_runner(self) -> dict[str, Any]:
        """What the `ready` event says: sentinels by name, and each entry that binds one. No value of the vault."""
        by_name = self.sentinels.by_name if self.sentinels is not None else {}
        return {"sentinels": msgspec.to_builtins(dict(by_name)), "bindings": self._bindings}

    async def finish(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Wait for a refresh that is going on, which `tell` hears of: the token that it spent would be lost."""
        if self._refresher is not None and self._refresher.is_busy:
            tell({"event": "renewing"})
            await asyncio.to_thread(self._refresher.finish)


def _authority(entry: Entry) -> str:
    """An entry's host, with its port where that is not the usual one."""
    scheme, port = next(iter(sorted(entry.ports.items(), reverse=True)))  # https first
    if port == DEFAULT_PORTS[scheme]:
        return entry.host
    return f"[{entry.host}]:{port}" if ":" in entry.host else f"{entry.host}:{port}"
