"""A gateway with a vault, and an origin over TLS that remembers what came."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from tests.support.gateway import LiveGateway, Reply
from tests.support.origin import Origin, Pki, Seen

# Letters of these occur nowhere else in the tests.
KEY = "sk-ant-api03-Q9realKEYvalueZXCVBNMqwertyuiop0123456789"
ACCESS = "sk-ant-oat01-R8realACCESSvaluePLOKMIJNuhbygvtfc9876543210"
REFRESH = "sk-ant-ort01-T7realREFRESHvalueWERTYasdfgh1029384756"
ACCOUNT = "5a5a5a5a-1111-4222-8333-444444444444"

A_KEY = Credential(name="key", kind="api_key", key=KEY, source="set")
A_LOGIN = Credential(
    name="login", kind="oauth", access=ACCESS, refresh=REFRESH, account=ACCOUNT, provider="anthropic", source="set"
)


def entry(host: str, inject: str = "", *, more: str = "", upstream: str = "{tls}") -> str:
    """An entry of a policy that allows GET of all below /pub and WebSockets at /pub/ws, as text for `KeyBed`."""
    lines = [f"  - host: {host}", f"    upstream: {upstream}"]
    lines += [f"    inject: {inject}"] if inject else []
    lines += [f"    {line}" for line in more.splitlines()]
    lines += ["    upstream_ca: {ca}"] if upstream == "{tls}" else []
    allowed = "{action: ALLOW, method: [GET, POST], path: /pub/.*}"
    sockets = "{action: ALLOW, method: GET, path: /pub/ws, websocket: true}"
    return "\n".join([*lines, "    policies:", f"      - {allowed}", f"      - {sockets}", ""])


class KeyBed:
    """A gateway whose policy is `entries` (see `entry`), and its origins.

    origin: over TLS, for each of `hosts`. plain: without. vault: what the gateway reads; it may be changed at any time.
    """

    def __init__(
        self,
        root: Path,
        pki: Pki,
        entries: Iterable[str],
        hosts: Iterable[str],
        credentials: Iterable[Credential] = (A_KEY, A_LOGIN),
        **gateway: Any,
    ) -> None:
        self.root = root
        self._pki = pki
        self.origin = Origin(pki.context(*hosts))
        self.plain = Origin()
        self.policy = self._policy(entries)
        self.gateway = LiveGateway(root, self.policy, credentials=credentials, **gateway)
        assert self.gateway.first.get("event") == "ready", (self.gateway.first, self.words())
        assert self.gateway.vault is not None
        self.vault: Vault = self.gateway.vault

    def _policy(self, entries: Iterable[str]) -> str:
        text = "".join(entries).replace("{tls}", f"https://127.0.0.1:{self.origin.port}")
        text = text.replace("{plain}", f"http://127.0.0.1:{self.plain.port}").replace("{ca}", str(self._pki.ca_path))
        return "networkPolicies:\n" + text

    def change_policy(self, entries: Iterable[str]) -> None:
        """Write another policy."""
        self.gateway.policy_path.write_text(self._policy(entries))

    def clear(self) -> None:
        """Forget what came, and have the policy and the vault as they began."""
        self.origin.clear()
        self.plain.clear()
        if self.gateway.policy_path.read_text() != self.policy:
            self.gateway.policy_path.write_text(self.policy)
        for credential in (A_KEY, A_LOGIN):
            if self.vault.read().credentials.get(credential.name) != credential:
                self.vault.put(credential)
        self.gateway.forget()

    def get(self, host: str, path: str = "/pub/x", headers: str = "", method: str = "GET", body: bytes = b"") -> Reply:
        return self.gateway.get(f"https://{host}{path}", method, headers, body)

    def seen(self) -> Seen:
        """The one request that came to an origin."""
        found = self.origin.seen + self.plain.seen
        assert len(found) == 1, [seen.head for seen in found]
        return found[0]

    def untouched(self) -> bool:
        """Whether no origin saw a request."""
        return not self.origin.seen and not self.plain.seen

    def decision(self) -> dict[str, Any]:
        """The only line of the log."""
        (found,) = self.gateway.decisions()
        return found

    def words(self) -> str:
        """What the gateway printed."""
        return self.gateway.stderr_path.read_text()

    def holds_none_of(self, *values: str) -> bool:
        """Whether no value is in what the gateway wrote, printed and told its runner."""
        files = [path.read_text() for path in self.gateway.runs.rglob("*") if path.is_file()]
        texts = [*files, self.words(), str(self.gateway.first), str(self.gateway.events)]
        return not any(value in text for text in texts for value in values)

    def close(self) -> None:
        self.gateway.stop()
        self.origin.close()
        self.plain.close()


@contextlib.contextmanager
def key_bed(root: Path, pki: Pki, *entries: str, hosts: Iterable[str], **more: Any) -> Iterator[KeyBed]:
    bed = KeyBed(root, pki, entries, hosts, **more)
    try:
        yield bed
    finally:
        bed.close()
