"""Lines of the decision log: what one says, and which are wanted. How they are shown is decisions_view's business."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Sequence

import msgspec

from impyard.runner.decisions import logread
from impyard.runner.ownhosts import DEMO_HOST, DEMO_RULE, probe_host
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


class Entry(msgspec.Struct, frozen=True, gc=False):
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
    policy: str = ""
    times: int = 1

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
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.place}{self.path}{query}"

    @property
    def place(self) -> str:
        """The host, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}.get(self.scheme) else f"{host}:{self.port}"

    @property
    def is_own_check(self) -> bool:
        """Whether impyard itself asked this, before the agent started. An agent that asks for the same names comes
        later, and a gateway without a box makes no such checks."""
        if not 0 < self.seq <= OWN_CHECKS:
            return False
        asked = self.reason == "canary" or self.host == probe_host(self.run)
        return asked and RUN_ID.fullmatch(self.run) is not None

    @property
    def is_demo(self) -> bool:
        """Whether this is a call of impyard's own demo model that was let through: a script that answers on the
        machine itself, so that nothing can leave by it."""
        return self.host == DEMO_HOST and self.rule == DEMO_RULE and self.verdict == "allow"


def parse(text: bytes) -> Entry | None:
    """The decision that a log line holds, or None when the line is damaged."""
    return parsed(text, _DECODER, Entry)


def parsed[T: Entry](text: bytes, decoder: msgspec.json.Decoder[T], kind: type[T]) -> T | None:
    """The decision that a log line holds, as the decoder's kind, or None when the line is damaged."""
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _with_half_characters(text, kind) if _HALF in text else None


def _with_half_characters[T: Entry](text: bytes, kind: type[T]) -> T | None:
    """The decision of a line with a lone surrogate in it, as the judge writes it for a byte of no UTF-8: json takes
    it, msgspec does not. A box must not be able to hide a request so."""
    try:
        return msgspec.convert(json.loads(text), kind)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None


def parse_all(text: bytes) -> list[Entry] | None:
    """The decisions of whole lines, in a third of the time that each by itself takes; None when one is damaged."""
    try:
        return _DECODER.decode_lines(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


_HALF = b"\\ud"  # what the escape of a lone surrogate begins with
_DECODER = msgspec.json.Decoder(Entry)


class Selection:
    """Which lines are wanted; counts what it left out as damaged (`damaged`) and as impyard's own: its checks (`own`)
    and what its demo model was asked (`demo`).

    Several hosts, methods, reasons or rules: one of each is enough. hosts: names, `*` in them stands for anything.
    since, until: as the log writes times; the first is within, the second is not. rules: a rule's name, its place
    (`gateway.yaml:8`) or its file. failed: the ids of requests that were allowed and came to nothing, if only those.
    proofs: the runs of `impyard prove`, whose requests are impyard's own too; they are left out where no run is named.
    """

    def __init__(
        self,
        run: str | None = None,
        denied: bool = False,
        *,
        own_checks: bool = True,
        hosts: Sequence[str] = (),
        methods: Sequence[str] = (),
        verdict: str | None = None,
        reasons: Sequence[str] = (),
        rules: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        failed: Collection[str] | None = None,
        proofs: Collection[str] = (),
    ) -> None:
        self.run = run
        self.verdict = "deny" if denied else "allow" if failed is not None else verdict
        self.own_checks = own_checks
        self.since, self.until = since, until
        self.failed = failed
        self.proofs = proofs
        self._proofs = () if own_checks or run is not None else proofs
        self.only_failed = failed is not None
        self.damaged = 0
        self.own = 0
        self.demo = 0
        self.first_damage: logread.Line | None = None
        # The judge writes hosts in small letters. With a port, or in brackets, a host is also what the table shows.
        self.hosts = [host.lower() for host in hosts]
        self.methods = [method.upper() for method in methods]
        self._hosts = _any_of(self.hosts, re.DOTALL)
        self._places = any(":" in host or "[" in host for host in hosts)
        self._methods = frozenset(self.methods)
        self._reasons = frozenset(reasons)
        self._rules = _any_of(rules)
        self._shows_demo = own_checks or any("demo" in host.lower() for host in hosts)
        self._chooses = self.narrows or run is not None or self.verdict is not None or failed is not None
        # A line without these bytes cannot be wanted, which spares a million-line log the parsing.
        certain = [
            run,
            self.verdict,
            *reasons[: len(reasons) == 1],
            *(host.lower() for host in hosts[: len(hosts) == 1]),
        ]
        self.needles = [needle for text in certain if text and (needle := _literal(text))]

    @property
    def denied(self) -> bool:
        return self.verdict == "deny"

    @property
    def narrows(self) -> bool:
        """Whether anything is left out but impyard's own and other runs."""
        return bool(
            self.verdict or self._hosts or self._methods or self._reasons or self._rules or self.since or self.until
        )

    def __call__(self, line: logread.Line) -> bool:
        return self.entry(line) is not None

    def entry(self, line: logread.Line) -> Entry | None:
        """What a wanted line holds; None for one that is left out."""
        for needle in self.needles:
            if needle not in line.text:
                return None
        entry = parse(line.text)
        if entry is None:
            self.saw_damage(line)
            return None
        return entry if self.wants(entry) else None

    def saw_damage(self, line: logread.Line) -> None:
        """Count a line that is no decision; the first of them in the file is kept."""
        self.damaged += 1
        if self.first_damage is None or line.offset < self.first_damage.offset:
            self.first_damage = line

    def uncounted(self) -> Selection:
        """The same choice, which has left out nothing yet."""
        other = copy.copy(self)
        other.damaged = other.own = other.demo = 0
        other.first_damage = None
        return other

    def add_counts(self, other: Selection) -> None:
        """Take over what the same choice left out in a later part of the log."""
        self.damaged += other.damaged
        self.own += other.own
        self.demo += other.demo
        self.first_damage = self.first_damage or other.first_damage

    def wants(self, entry: Entry) -> bool:
        """Whether a decision is among those that are meant; one of impyard's own is counted."""
        if self._chooses and not self._chosen(entry):
            return False
        if not self.own_checks and entry.seq <= OWN_CHECKS and entry.is_own_check:
            self.own += 1
            return False
        if self._proofs and entry.run in self._proofs:
            self.own += 1
            return False
        if not self._shows_demo and entry.host == DEMO_HOST and entry.is_demo:
            self.demo += 1
            return False
        return True

    def _chosen(self, entry: Entry) -> bool:
        return not (
            (self.run is not None and not entry.run.startswith(self.run))
            or (self.verdict is not None and entry.verdict != self.verdict)
            or (self.since is not None and entry.ts < self.since)
            or (self.until is not None and entry.ts >= self.until)
            or (self.failed is not None and entry.id not in self.failed)
            or (self._methods and entry.method.upper() not in self._methods)
            or (self._reasons and entry.reason not in self._reasons)
            or (self._hosts and not self._is_host(entry))
            or (self._rules and not _is_rule(self._rules, entry))
        )

    def _is_host(self, entry: Entry) -> bool:
        """Whether one of the hosts is meant, be it with its port or as an address in brackets."""
        assert self._hosts is not None
        names = [entry.host]
        if self._places:
            host = f"[{entry.host}]" if ":" in entry.host else entry.host
            names += [host, f"{host}:{entry.port}"]
        return any(self._hosts.fullmatch(name) for name in names)


def _any_of(globs: Sequence[str], flags: int = re.IGNORECASE | re.DOTALL) -> re.Pattern[str] | None:
    """What matches one of these texts, with `*` for anything."""
    if not globs:
        return None
    return re.compile("|".join(re.escape(glob).replace(r"\*", ".*") for glob in globs), flags)


def _literal(text: str) -> bytes:
    """The longest part of the text that JSON writes as it is, however it escapes."""
    return max(re.split(r"[^0-9A-Za-z.-]+", text), key=len).encode()


def _is_rule(rules: re.Pattern[str], entry: Entry) -> bool:
    """Whether one of the names or places is the deciding rule's; a place may leave out folders or the line."""
    places = [entry.rule or ""]
    if entry.at:
        file, _, _ = entry.at.rpartition(":")
        places += [entry.at, file, entry.at.rsplit("/", 1)[-1], file.rsplit("/", 1)[-1]]
    return any(rules.fullmatch(place) for place in places if place)
