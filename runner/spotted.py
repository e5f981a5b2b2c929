"""What the gateway's tripwire found in requests, in words and counted. It names credentials, never their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from impyard.runner.text import counted, unstarred, visible

MAX_KINDS = 100  # told apart in a receipt; what a box makes up could be endless
WHAT = {"sentinel": "the stand-in of", "value": "the real value of"}


@dataclass(slots=True)
class Spotted:
    """Requests that held a secret where it does not belong: how many, and of which kinds."""

    requests: int = 0
    _kinds: Counter[tuple[tuple[str, str], ...]] = field(default_factory=Counter)

    def see(self, event: Mapping[str, Any]) -> None:
        """Take note of one of the gateway's denials."""
        secret = event.get("secret")
        if not isinstance(secret, dict):
            return
        self.requests += 1
        said = {name: str(secret.get(name) or "?") for name in ("credential", "kind", "where")}
        said |= {name: str(event.get(name) or "") for name in ("method", "host", "path")}
        kind = tuple(said.items())
        if kind in self._kinds or len(self._kinds) < MAX_KINDS:
            self._kinds[kind] += 1

    def records(self) -> list[dict[str, Any]]:
        """For the receipt, the most frequent first, each with `credential`, `kind`, `where`, `method`, `host`, `path`
        and `count`."""
        return [{**dict(kind), "count": count} for kind, count in self._kinds.most_common()]


def secret_text(secret: Mapping[str, Any]) -> str:
    """What was found: `the stand-in of github in the header x-foo`."""
    what = WHAT.get(str(secret.get("kind")), "a secret of")
    return f"{what} {visible(str(secret.get('credential')))} in the {visible(unstarred(str(secret.get('where'))))}"


def record_text(record: Mapping[str, Any]) -> str:
    """One of a receipt's `secrets`: `1 request held the stand-in of github: POST example.com/x (header x-foo)`."""
    many = counted(record.get("count", 0), "request")
    what = WHAT.get(str(record.get("kind")), "a secret of")
    asked = unstarred(f"{record.get('method')} {record.get('host')}{record.get('path')}")
    return visible(f"{many} held {what} {record.get('credential')}: {asked} ({unstarred(str(record.get('where')))})")


def advice(records: Sequence[Mapping[str, Any]]) -> str:
    """What to do where a model's call was denied for what the agent had printed; nothing where no call could be one."""
    told = [
        str(record.get("host"))
        for record in records
        if record.get("kind") == "sentinel" and record.get("where") in ("body", "message")
    ]
    if not told:
        return ""
    return visible(
        f"if {told[0]} is the model, it was told what the agent had printed: `sentinels: pass` in its entry of the "
        "policy lets stand-ins through, never real values"
    )
