"""One policy file as entries. Reads what `policies/gateway.schema.json` describes, and nothing else.

The whole form is walked even after a fault, so that all of them are reported; what is returned beside faults is not
to be used.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import re2

from impyard.addon.errors import Fault
from impyard.addon.paths import BadExpressions, Paths, heaviest, path_options
from impyard.addon.policyhomes import Homes
from impyard.addon.policyinject import BINDING_KEYS, Leg, read_inject, read_sentinels
from impyard.addon.policyroutes import ROUTE_KEYS, read_route
from impyard.addon.request import METHOD, canonical_host, is_address, split_authority
from impyard.addon.rules import DEFAULT_PORTS, Entry, Rule
from impyard.addon.yamlnodes import Node, Nodes, Scalar, Sequence_, is_empty, nearest, short

MAX_BYTES = 8 << 20  # 10,000 rules are about 1 MB and load in a third of a second; this is some 80,000
MAX_RULES = 100_000  # aliases repeat what they name: counted after repetition
MAX_FAULTS = 50

POLICY_KEYS = ("networkPolicies",)
ENTRY_KEYS = ("host", "policies", "port", "scheme", *ROUTE_KEYS, *BINDING_KEYS)
RULE_KEYS = ("action", "method", "path", "name", "websocket", "max_body", "query")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
_SIZE = re.compile(r"(0|[1-9][0-9]{0,14})([kmg]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_BACKREFERENCE = re.compile(r"\\[1-9]|\(\?P=")


def read_entries(
    data: bytes,
    *,
    file: str,
    folder: Path,
    first: int = 0,
    homes: Homes | None = None,
    rest: Callable[[], None] | None = None,
) -> tuple[list[Entry], list[Fault]]:
    """The entries in `data` and every fault found in it; the entries may be used only if there is no fault.

    file: the name for messages. folder: what a relative `upstream_ca` starts from. first: the order of the first entry.
    homes: what entries of earlier files put into the box. rest: called between pieces of work that take other threads'
    turns.
    """
    if len(data) > MAX_BYTES:
        return [], [Fault(file, 0, 0, f"is larger than {MAX_BYTES >> 20} MiB")]
    reader = _Reader(Nodes(file, rest), folder, Homes() if homes is None else homes)
    collecting = gc.isenabled()
    gc.disable()  # a big file makes some 100,000 objects that all stay: the collector would take a third of the time
    try:
        entries = reader.policy(data, first)
    finally:
        if collecting:
            gc.enable()
    faults = sorted(reader.nodes.faults, key=lambda fault: (fault.line, fault.column))
    if len(faults) > MAX_FAULTS:
        faults[MAX_FAULTS:] = [Fault(file, 0, 0, f"{len(faults) - MAX_FAULTS} more faults")]
    return entries, faults


class _Reader:
    def __init__(self, nodes: Nodes, folder: Path, homes: Homes) -> None:
        self.nodes = nodes
        self.folder = folder
        self.homes = homes
        self.rules_seen = 0
        self.expressions: list[tuple[str, Node]] = []  # of the entry that is being read
        self.method_sets: dict[frozenset[str], frozenset[str]] = {}  # each is kept once
        self.compiled: dict[tuple[str, ...], Paths] = {}  # entries with the same expressions share them

    def policy(self, data: bytes, first: int) -> list[Entry]:
        root = self.nodes.parse(data)
        try:
            return self.document(root, first)
        finally:
            self.expressions = []
            if root is not None:
                self.nodes.let_go(root)

    def document(self, root: Node | None, first: int) -> list[Entry]:
        nodes = self.nodes
        if root is None or is_empty(root):
            if not nodes.faults:
                nodes.faults.append(
                    Fault(nodes.file, 0, 0, 'is empty; an empty policy is written "networkPolicies: []"')
                )
            return []
        top = nodes.mapping(root, "the policy", POLICY_KEYS)
        if "networkPolicies" not in top:
            if not nodes.faults:
                nodes.fault(root, "networkPolicies is missing")
            return []
        entries: list[Entry] = []
        for node in nodes.sequence(top["networkPolicies"], "networkPolicies"):
            if self.rules_seen > MAX_RULES:
                nodes.fault(node, f"more than {MAX_RULES} rules")
                break
            if entry := self.entry(node, first + len(entries)):
                entries.append(entry)
        return entries

    def entry(self, node: Node, order: int) -> Entry | None:
        nodes = self.nodes
        known = len(nodes.faults)
        values = nodes.mapping(node, "an entry", ENTRY_KEYS)
        self.expressions = []
        self.require(node, values, "an entry", ("host", "policies"), known)
        host = self.host(values["host"]) if "host" in values else None
        ports = self.ports(values.get("scheme"), values.get("port"))
        upstream = read_route(nodes, self.folder, *(values.get(key) for key in ROUTE_KEYS))
        leg = Leg(host, ports, upstream)
        inject = read_inject(nodes, values["inject"], leg, self.homes) if "inject" in values else None
        passing = read_sentinels(nodes, values["sentinels"]) if "sentinels" in values else False
        rules = self.rules(values["policies"]) if "policies" in values else []
        paths = self.paths()
        if host is None or len(nodes.faults) > known:
            return None
        if paths is None:
            nodes.fault(node, f'the rules of "{host}" are too large to be matched together{self.too_large()}')
            return None
        return Entry(
            host,
            ports,
            rules,
            paths,
            order=order,
            at=nodes.at(node),
            upstream=upstream,
            inject=inject,
            sentinels_pass=passing,
        )

    def paths(self) -> Paths | None:
        """The expressions of the entry, compiled; None after a fault, and when they are too large together."""
        expressions = tuple(raw for raw, _ in self.expressions)
        if (paths := self.compiled.get(expressions)) is None:
            try:
                paths = self.compiled[expressions] = Paths(expressions, self.nodes.rest)
            except BadExpressions as exc:
                for place in exc.places:
                    self.expression(self.expressions[place][1], "path", expressions[place])
            except re2.error:
                return None
        return paths

    def too_large(self) -> str:
        """Which of the entry's expressions are, and what to do."""
        found = heaviest([raw for raw, _ in self.expressions], self.nodes.rest)
        if not found:
            return "; write several entries for the host, with some of the rules each"
        lines = " and ".join(str(self.expressions[n][1].start_mark.line + 1) for n in found)
        least = "those in lines" if len(found) > 1 else "that in line"
        return f", above all {least} {lines}: a repetition such as {{1,800}} is written out so often; + or * is not"

    def rules(self, node: Node) -> list[Rule]:
        rules = []
        items = self.nodes.sequence(node, "policies")
        if isinstance(node, Sequence_) and not items:
            self.nodes.fault(node, "policies is empty; leave the entry out to deny the host")
        self.rules_seen += len(items)
        if self.rules_seen <= MAX_RULES:
            for item in items:
                if rule := self.rule(item):
                    rules.append(rule)
                if self.nodes.rest is not None:
                    self.nodes.rest()
        else:
            self.nodes.fault(node, f"more than {MAX_RULES} rules")
        return rules

    def rule(self, node: Node) -> Rule | None:
        nodes = self.nodes
        known = len(nodes.faults)
        values = nodes.mapping(node, "a rule", RULE_KEYS)
        self.require(node, values, "a rule", ("action", "method", "path"), known)
        allow = self.action(values["action"]) if "action" in values else None
        methods = self.methods(values["method"]) if "method" in values else None
        path = self.path(values["path"]) if "path" in values else None
        name = self.name(values["name"]) if "name" in values else None
        websocket = nodes.boolean(values["websocket"], "websocket") if "websocket" in values else False
        max_body = self.max_body(values["max_body"], allow) if "max_body" in values else None
        query = self.query(values["query"]) if "query" in values else ()
        if len(nodes.faults) > known or allow is None or path is None:
            return None
        return Rule(allow, methods, path, nodes.at(node), name, bool(websocket), max_body, query)

    def require(self, node: Node, values: dict[str, Node], what: str, keys: tuple[str, ...], known: int) -> None:
        if len(self.nodes.faults) > known:
            return  # a misspelt key is reported as that, not also as a missing one
        missing = [key for key in keys if key not in values]
        if missing:
            self.nodes.fault(node, f"{what} needs {' and '.join(missing)}")

    def host(self, node: Node) -> str | None:
        raw = self.nodes.text(node, "host")
        if raw is None or raw == "*":
            return raw
        suffix = raw.removeprefix("*.")
        try:
            host = canonical_host(suffix)
        except ValueError as exc:
            self.nodes.fault(node, _host_advice(raw) or f"host: {exc}")
            return None
        if suffix == raw:
            return host
        if is_address(host):
            self.nodes.fault(node, f'host "{short(raw)}": an address has no names below it')
            return None
        return f"*.{host}"

    def ports(self, scheme: Node | None, port: Node | None) -> dict[str, int]:
        """scheme -> port. Without a scheme it is https, or http when the port is 80."""
        number = self.nodes.integer(port, "port") if port is not None else None
        if port is not None and number is not None and not 1 <= number <= 65535:
            self.nodes.fault(port, "port must be between 1 and 65535")
        schemes = ["http" if number == 80 else "https"]
        if scheme is not None:
            items = self.nodes.sequence(scheme, "scheme") if isinstance(scheme, Sequence_) else [scheme]
            schemes = []
            for item in items:
                text = self.nodes.text(item, "scheme")
                if text in DEFAULT_PORTS:
                    schemes.append(str(text))
                elif text is not None:
                    self.nodes.fault(item, f'scheme "{short(text)}": it is https or http')
            if not items:
                self.nodes.fault(scheme, "scheme is empty")
        return {name: number if number is not None else DEFAULT_PORTS[name] for name in schemes}

    def action(self, node: Node) -> bool | None:
        raw = node.value if isinstance(node, Scalar) else ""
        if raw in ("ALLOW", "DENY"):
            return bool(raw == "ALLOW")
        meant = nearest(raw, ("ALLOW", "DENY"))
        self.nodes.fault(node, f'action "{short(raw)}": write {meant or "ALLOW or DENY"}')
        return None

    def methods(self, node: Node) -> frozenset[str] | None:
        """The methods of a rule; None for any (and after a fault)."""
        items = self.nodes.sequence(node, "method") if isinstance(node, Sequence_) else [node]
        if not items:
            self.nodes.fault(node, 'method is empty; write "*" for any')
        found = set()
        for item in items:
            raw = self.nodes.text(item, "method")
            if raw is None:
                continue
            if not METHOD.fullmatch(raw):
                listed = raw.replace(",", " ").split()
                advice = f": write [{', '.join(listed)}]" if len(listed) > 1 else " is not an HTTP method"
                self.nodes.fault(item, f'method "{short(raw)}"{advice}')
            elif raw == "CONNECT":
                self.nodes.fault(item, "method CONNECT is never forwarded: what it carries is judged instead")
            elif raw not in METHODS and raw.upper() in METHODS:
                self.nodes.fault(item, f'method "{raw}": methods are compared exactly, write {raw.upper()}')
            else:
                found.add(raw)
        methods = frozenset(found)
        return None if "*" in found else self.method_sets.setdefault(methods, methods)

    def path(self, node: Node) -> str | None:
        raw = self.nodes.text(node, "path")
        if raw is None:
            return None
        if raw and not (raw[0].isascii() and raw[0].isalnum()):
            self.expressions.append((raw, node))
        elif self.expression(node, "path", raw):
            self.nodes.fault(node, f'path "{short(raw)}": it must match the whole path, which begins with "/"')
        return raw

    def expression(self, node: Node, what: str, raw: str) -> re2._Regexp | None:
        try:
            return re2.compile(raw, path_options())
        except re2.error as exc:
            reason = str(exc.args[0].decode() if isinstance(exc.args[0], bytes) else exc.args[0])
            if _LOOKAROUND.search(raw):
                reason = "lookahead and lookbehind do not exist in RE2; add a DENY rule after the ALLOW instead"
            elif _BACKREFERENCE.search(raw):
                reason = "backreferences do not exist in RE2"
            elif "repetition" in reason and "*" in raw:
                reason += '; it is a regular expression, write ".*" for any text'
            self.nodes.fault(node, f'{what} "{short(raw)}": {reason}')
            return None

    def name(self, node: Node) -> str | None:
        raw = self.nodes.text(node, "name")
        if raw is not None and not (raw.strip() and raw.isprintable() and len(raw) <= 100):
            self.nodes.fault(node, "name must be one line of 1 to 100 characters")
        return raw

    def max_body(self, node: Node, allow: bool | None) -> int | None:
        if allow is False:
            self.nodes.fault(node, "max_body is of no use in a DENY rule")
        found = _SIZE.fullmatch(node.value) if isinstance(node, Scalar) else None
        if found and node.tag.endswith((":int", ":str")):
            return int(found[1]) * _UNITS[found[2].lower()]
        self.nodes.fault(node, 'max_body must be a number of bytes, or one with k, m or g as in "10m"')
        return None

    def query(self, node: Node) -> tuple[tuple[str, re2._Regexp], ...]:
        values = self.nodes.mapping(node, "query", None)
        if not values and not self.nodes.faults:
            self.nodes.fault(node, "query is empty")
        found = []
        for key, item in values.items():
            raw = self.nodes.text(item, f'query "{short(key)}"')
            if raw is not None and (expression := self.expression(item, f'query "{short(key)}"', raw)):
                found.append((key, expression))
            if self.nodes.rest is not None:
                self.nodes.rest()
        return tuple(found)


def _host_advice(raw: str) -> str | None:
    """What to write instead, for the usual mistakes in a host."""
    if "://" in raw or "/" in raw:
        return f'host "{short(raw)}": write the host alone, without scheme and path'
    try:
        port = split_authority(raw)[1]
    except ValueError:
        port = None
    if port is not None:
        return f'host "{short(raw)}": write the host alone, and "port: {port}" beside it'
    if "*" in raw or raw.startswith("."):
        return f'host "{short(raw)}": a wildcard is "*" alone or "*.suffix"'
    return None
