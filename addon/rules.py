"""Rules and the entries that hold them: values made by the loader, matched by the judge."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import re2

from impyard.addon.paths import Paths
from impyard.addon.vault.templates import Variant

DEFAULT_PORTS: Mapping[str, int] = {"https": 443, "http": 80}

_LITERAL = re.compile(r"[^\\.^$|?*+()\[\]{}]*")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the gateway connects instead of the judged host.

    scheme: "http" or "https". host: canonical. port: 1 to 65535. ca: a PEM file to verify it with, None for the usual.
    """

    scheme: str
    host: str
    port: int
    ca: Path | None = None

    def __str__(self) -> str:
        return _url(self.scheme, self.host, self.port)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy through which the gateway reaches the judged host, instead of looking its name up.

    scheme: how the proxy itself is spoken to, "http" or "https". host: canonical; "" is for whichever the gateway's own
    environment names. port: 1 to 65535. ca: a PEM file to verify the judged host with, None for the usual.
    """

    scheme: str = ""
    host: str = ""
    port: int = 0
    ca: Path | None = None

    def __str__(self) -> str:
        return f"via {_url(self.scheme, self.host, self.port)}" if self.host else "via the environment's proxy"


# Where an entry leads other than to the addresses of the judged host.
Route = Upstream | Proxy


@dataclass(frozen=True, slots=True)
class Inject:
    """The credential that the gateway puts on the requests of an entry.

    credential: its name in the vault. variants: the ways to present it, at least one. at: "file:line".
    over_http: that it may also go over a plain connection. env: variables, and files: (path in HOME, template with
    lines), in which tools of the box find its sentinel. also: headers of which the box may send none either.
    """

    credential: str
    variants: tuple[Variant, ...]
    at: str = field(compare=False)
    over_http: bool = False
    env: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    also: tuple[str, ...] = ()
    owned: frozenset[str] = field(init=False)  # lower-case names of all of these headers: the gateway's alone

    def __post_init__(self) -> None:
        owned = frozenset(name for variant in self.variants for name, _ in variant.headers)
        object.__setattr__(self, "owned", owned.union(self.also))

    def variant(self, kind: str, present: Collection[str]) -> Variant | None:
        """The way to present a credential of this kind, None when there is none.

        present: lower-case names of the request's headers. The first variant that fits the kind and of which the
        request has all headers, else the first that fits the kind.
        """
        fitting = [variant for variant in self.variants if variant.kind in (None, kind)]
        for variant in fitting:
            if all(name in present for name, _ in variant.headers):
                return variant
        return fitting[0] if fitting else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One ALLOW or DENY of an entry.

    methods: exact tokens; None means any. path: the RE2 expression as written. at: "file:line".
    websocket: on an ALLOW, that it covers WebSocket handshakes too; on a DENY, that it covers only them.
    max_body: bytes that a request's body may have, None for no limit.
    query: (key, compiled RE2 expression) pairs that must hold too.
    """

    allow: bool
    methods: frozenset[str] | None
    path: str
    at: str
    name: str | None = None
    websocket: bool = False
    max_body: int | None = None
    query: tuple[tuple[str, re2._Regexp], ...] = ()

    @property
    def label(self) -> str:
        """What people know the rule by: its name, else what it says, as "ALLOW GET /repos/.*"."""
        if self.name is not None:
            return self.name
        methods = "*" if self.methods is None else ",".join(sorted(self.methods))
        return f"{'ALLOW' if self.allow else 'DENY'} {methods} {self.path}"


class Entry:
    """One host with its rules.

    host: "*", "*.suffix" or a canonical host. ports: scheme -> the one port that it covers. rules: in file order.
    paths: the expressions of the rules, in their order, compiled. order: the entry's place among all of the policy.
    at: "file:line". inject: what is put on its requests. sentinels_pass: that the box may send sentinels to the host.
    """

    __slots__ = (
        "_literals",
        "_paths",
        "at",
        "host",
        "inject",
        "order",
        "ports",
        "rules",
        "sentinels_pass",
        "upstream",
    )

    def __init__(
        self,
        host: str,
        ports: Mapping[str, int],
        rules: Sequence[Rule],
        paths: Paths,
        *,
        order: int,
        at: str,
        upstream: Route | None = None,
        inject: Inject | None = None,
        sentinels_pass: bool = False,
    ) -> None:
        self.host, self.ports, self.rules = host, ports, tuple(rules)
        self.order, self.at, self.upstream = order, at, upstream
        self.inject, self.sentinels_pass = inject, sentinels_pass
        self._paths = paths
        self._literals: list[tuple[str, int]] | None = None

    def covers(self, scheme: str, port: int) -> bool:
        """Whether the entry is about connections of this scheme to this port."""
        return self.ports.get(scheme) == port

    def matching(self, path: str) -> list[Rule]:
        """The rules whose expression matches the whole path, last first. Raises MatchFailed."""
        rules = self.rules
        return [rules[n] for n in self._paths.matching(path)]

    def resembling(self, path: str) -> list[Rule]:
        """A few rules that begin like the path, the most alike first. For messages only."""
        if self._literals is None:
            self._literals = sorted((_literal(rule.path), n) for n, rule in enumerate(self.rules))
        at = bisect_left(self._literals, (path,))
        near = self._literals[max(0, at - 4) : at + 4]
        near.sort(key=lambda item: -_common(item[0], path))
        return [self.rules[n] for _, n in near]


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _literal(expression: str) -> str:
    found = _LITERAL.match(expression)
    return found[0] if found else ""


def _common(a: str, b: str) -> int:
    size = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        size += 1
    return size
