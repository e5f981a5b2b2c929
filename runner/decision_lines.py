"""Lines of the decision log: what one says, and which are wanted. How they are shown is decisions_view's business."""

from __future__ import annotations

import msgspec

from impyard.runner import logread
from impyard.runner.project import RUN_ID
from impyard.runner.spotted import secret_text

# The canary and the probes are a run's first lines: its agent starts after them.
OWN_CHECKS = 3


class Nearest(msgspec.Struct, frozen=True):
    """The rule that came closest to a request that no rule decided, and the field that failed."""

    at: str
    failed: str


class Secret(msgspec.Struct, frozen=True):
    """What the tripwire found: whose, "sentinel" or "value", and where in the request."""

    credential: str
    kind: str
    where: str


class Entry(msgspec.Struct, frozen=True):
    """The fields of a decision line that are shown. Unknown fields are left alone, missing ones are damage."""

    ts: str
    id: str
    run: str
    verdict: str
    reason: str
    method: str
    scheme: str
    host: str
    port: int
    path: str
    seq: int = 0
    query: str = ""
    rule: str | None = None
    at: str | None = None
    nearest: Nearest | None = None
    redirected_by: str | None = None
    credential: str | None = None
    injected: tuple[str, ...] = ()
    secret: Secret | None = None
    follows: str | None = None

    @property
    def more(self) -> str:
        """What else is known: the credential that was put on, the secret that was found, the decision that this one
        came after, the one whose answer sent the client here; else nothing."""
        parts = []
        if self.injected:
            parts.append(f"with {self.credential}")
        elif self.credential:
            parts.append("no credential" if self.rule == self.credential else f"no credential {self.credential}")
        if self.secret is not None:
            parts.append(secret_text(msgspec.structs.asdict(self.secret)))
        if self.follows:
            parts.append(f"ends {self.follows}")
        if self.redirected_by:
            parts.append(f"redirected by {self.redirected_by}")
        return ", ".join(parts)

    @property
    def url(self) -> str:
        """The request's URL; a port that is the scheme's own is left out. Query values come redacted from the log."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == {"https": 443, "http": 80}.get(self.scheme) else f":{self.port}"
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{host}{port}{self.path}{query}"

    @property
    def is_own_check(self) -> bool:
        """Whether impyard itself asked this, before the agent started. An agent that asks for the same names comes
        later, and a gateway without a box makes no such checks."""
        asked = self.reason == "canary" or self.host == f"{self.run}.probe.impyard.invalid"
        return asked and 0 < self.seq <= OWN_CHECKS and RUN_ID.fullmatch(self.run) is not None


def parse(text: bytes) -> Entry | None:
    """The decision that a log line holds, or None when the line is damaged."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


_DECODER = msgspec.json.Decoder(Entry)


class Selection:
    """Which lines are wanted; counts what it left out as damaged (`damaged`) and as impyard's own check (`own`)."""

    def __init__(self, run: str | None, denied: bool, *, own_checks: bool = True) -> None:
        self.run = run
        self.denied = denied
        self.own_checks = own_checks
        self.damaged = 0
        self.own = 0
        self.first_damage: logread.Line | None = None
        # A line without these bytes cannot be wanted, which spares a million-line log the parsing.
        self.needles = [
            needle.encode("utf-8", "surrogateescape") for needle in (run, "deny" if denied else None) if needle
        ]

    def __call__(self, line: logread.Line) -> bool:
        if any(needle not in line.text for needle in self.needles):
            return False
        entry = parse(line.text)
        if entry is None:
            self.damaged += 1
            if self.first_damage is None or line.offset < self.first_damage.offset:
                self.first_damage = line
            return False
        if (self.run is not None and not entry.run.startswith(self.run)) or (self.denied and entry.verdict != "deny"):
            return False
        if entry.is_own_check and not self.own_checks:
            self.own += 1
            return False
        return True
