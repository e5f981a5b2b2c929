"""What the entries of a policy file inject: `inject` and `sentinels`.

A policy is committed, shown and read by the box, so it names credentials and never holds one: what looks like a key is
a fault, and no message repeats a value. Nothing here knows a vault: whether a credential is there shows in use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from impyard.addon import policyhomes, redact
from impyard.addon.policyhomes import Homes
from impyard.addon.readings import OVERRIDES
from impyard.addon.rules import Inject, Route, Upstream
from impyard.addon.vault.credential import NAME
from impyard.addon.vault.templates import HOST, READY, Ready, Template, Variant, ready_for
from impyard.addon.yamlnodes import Node, Nodes, Scalar, nearest

BINDING_KEYS = ("inject", "sentinels")
INJECT_KEYS = ("credential", "template", "headers", "env", "files", "over_http")

MAX_HEADERS = 8
# Of HTTP, and not longer than what a decision's line has room for.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
# What frames the request, says where it goes, or is the gateway's own: it was judged, and stays as it was judged.
_NOT_SET = frozenset(
    {"host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "via", "forwarded"}
    | {"accept-encoding", "http2-settings", "alt-used", "origin", "range"}
    | {name.replace("_", "-") for name in OVERRIDES}
)
_NOT_BEGUN = ("content-", "proxy-", "sec-", "x-forwarded-", "x-impyard-")

_RUN = re.compile(r"[A-Za-z0-9]{20,}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAMES = 'a credential\'s name: lower-case letters, digits, ".", "_" and "-", at most 64'
_NO_SECRETS = "a policy holds no secrets; store it with `impyard vault set NAME`, and"


@dataclass(frozen=True, slots=True)
class Leg:
    """Where what is injected goes. host: canonical, "*..." with a wildcard, None after a fault. ports: by scheme."""

    host: str | None
    ports: Mapping[str, int]
    route: Route | None

    @property
    def plain(self) -> str | None:
        """What makes the leg to the origin a plain connection, for people; None when all of it is encrypted."""
        if isinstance(self.route, Upstream):
            return f'upstream "{self.route}"' if self.route.scheme == "http" else None
        return "scheme http" if "http" in self.ports else None


@dataclass(slots=True)
class _Read:
    """What a mapping says, as far as it could be read."""

    credential: str | None = None
    variants: tuple[Variant, ...] = ()
    env: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    over_http: bool = False
    also: tuple[str, ...] = ()
    sets_env: Node | None = field(default=None)


def read_inject(nodes: Nodes, node: Node, leg: Leg, homes: Homes) -> Inject | None:
    """What an entry with this `inject` puts on its requests, None after a fault, which goes to `nodes`.

    homes: what the policy's other entries put into the box.
    """
    known = len(nodes.faults)
    short = isinstance(node, Scalar)
    found = _by_name(nodes, node, leg) if short else _by_mapping(nodes, node, leg)
    if leg.host is not None and leg.host.startswith("*"):
        nodes.fault(node, f'inject needs one host, and "{leg.host}" is many: write an entry for each that gets it')
    if leg.plain and not found.over_http:
        way = f"{{credential: {found.credential}, over_http: true}}" if short and found.credential else ""
        advice = f"write inject: {way}" if way else "write over_http: true in it"
        nodes.fault(node, f"inject would go over plain http ({leg.plain}); if that network is trusted, {advice}")
    if found.credential is None or len(nodes.faults) > known:
        return None
    homes.take(nodes, node, found.credential, found.env, found.files)
    return Inject(found.credential, found.variants, nodes.at(node), found.over_http, found.env, found.files, found.also)


def read_sentinels(nodes: Nodes, node: Node) -> bool:
    """Whether an entry with this `sentinels` lets the box send sentinels to its host."""
    raw = node.value if isinstance(node, Scalar) else ""
    if raw != "pass":
        nodes.fault(node, "sentinels: write pass, or leave it out: then the box cannot send them to this host")
    return bool(raw == "pass")


def _by_name(nodes: Nodes, node: Node, leg: Leg) -> _Read:
    name = _name(nodes, node, "inject")
    if name is None:
        return _Read()
    ready = ready_for(name, leg.host or "")
    if ready is None:
        nodes.fault(
            node,
            f'inject "{name}": no ready template has that name{_meant(name)}; for one of your own write '
            f'{{credential: {name}, headers: {{authorization: "Bearer {{key}}"}}}}',
        )
        return _Read(name)
    return _Read(name, ready.variants, ready.env, ready.files, also=ready.also)


def _by_mapping(nodes: Nodes, node: Node, leg: Leg) -> _Read:
    known = len(nodes.faults)
    values = nodes.mapping(node, "inject", INJECT_KEYS)
    if "credential" not in values and len(nodes.faults) == known:
        nodes.fault(node, "inject needs credential")
    found = _Read(_name(nodes, values["credential"], "credential") if "credential" in values else None)
    ready = _template(nodes, node, values, found.credential, leg, known)
    if "headers" in values:
        found.variants = _headers(nodes, values["headers"])
    elif ready is not None:
        found.variants, found.env, found.files = ready.variants, ready.env, ready.files
        found.also = ready.also
    if "env" in values:
        found.env = policyhomes.read_env(nodes, values["env"])
    if "files" in values:
        found.files = policyhomes.read_files(nodes, values["files"], read_template)
    if "over_http" in values:
        found.over_http = bool(nodes.boolean(values["over_http"], "over_http"))
    return found


def _template(
    nodes: Nodes, node: Node, values: Mapping[str, Node], credential: str | None, leg: Leg, known: int
) -> Ready | None:
    """The ready template that a mapping names, or that has the credential's name."""
    if "headers" in values:
        if "template" in values:
            nodes.fault(values["template"], "template and headers exclude each other: write one of them")
        return None
    if "template" in values:
        name = _name(nodes, values["template"], "template")
        ready = ready_for(name, leg.host or "") if name else None
        if name and ready is None:
            nodes.fault(values["template"], f'template "{name}": no ready template has that name{_meant(name)}')
        return ready
    ready = ready_for(credential, leg.host or "") if credential else None
    if ready is None and credential and len(nodes.faults) == known:
        nodes.fault(node, f'inject needs headers: no ready template is called "{credential}"{_meant(credential)}')
    return ready


def _headers(nodes: Nodes, node: Node) -> tuple[Variant, ...]:
    known = len(nodes.faults)
    found: dict[str, Template] = {}
    spelt: set[str] = set()
    for name, value in nodes.mapping(node, "headers", None).items():
        what = f'header "{name}"' if _TOKEN.fullmatch(name) else "header"
        template = read_template(nodes, value, what, secret=redact.is_secret(name))
        if what == "header":
            nodes.fault(value, "header: its name is none of HTTP, or longer than 64 characters")
        elif (dashed := name.lower().replace("_", "-")) in _NOT_SET or dashed.startswith(_NOT_BEGUN):
            nodes.fault(value, f"{what} must not be set: it says how or where the request goes, which was judged")
        elif dashed in spelt:
            nodes.fault(value, f"{what} is given twice: neither case nor - and _ make a difference")
        else:
            spelt.add(dashed)
            if template is not None:
                found[name.lower()] = template
    if len(nodes.faults) > known:
        return ()
    if len(found) > MAX_HEADERS:
        nodes.fault(node, f"headers: more than {MAX_HEADERS}")
    fields = frozenset[str]().union(*[template.fields for template in found.values()])
    if not fields:
        nodes.fault(node, 'headers name no field of the credential: write one as in authorization: "Bearer {key}"')
    elif fields >= {"key", "access"}:
        nodes.fault(node, "headers name {key} and {access}: a key has the one, a login the other, none has both")
    return (Variant(None, tuple(found.items())),)


def read_template(nodes: Nodes, node: Node, what: str, *, secret: bool, lines: bool = False) -> Template | None:
    """The template in a scalar, None after a fault; none repeats any of its text.

    secret: it must name a field of the credential. lines: it is for a file.
    """
    if not isinstance(node, Scalar) or not node.tag.endswith(":str"):
        nodes.fault(node, f"{what} must be text in quotes")
        return None
    try:
        template = Template.parse(node.value, lines=lines)
    except ValueError as exc:
        nodes.fault(node, f"{what}: {exc}")
        return None
    fields = template.fields - {HOST}
    if any(map(looks_secret, template.literals)):
        nodes.fault(node, f"{what} seems to hold a key: {_NO_SECRETS} write {{key}} in its place")
    elif not fields and secret:
        nodes.fault(node, f"{what} names no field: {_NO_SECRETS} write {{key}} in its place")
    elif HOST in template.fields and not lines:
        nodes.fault(node, f"{what}: {{host}} is for files; a header names fields of the credential")
    else:
        return template
    return None


def looks_secret(text: str) -> bool:
    """Whether `text` holds what looks like a real key: a known kind, or a long mix of letters and digits."""
    if not redact.is_clean((text,)) or _UUID.search(text):
        return True
    return any(min(sum(map(str.isdigit, run)), sum(map(str.isalpha, run))) > 3 for run in _RUN.findall(text))


def _name(nodes: Nodes, node: Node, what: str) -> str | None:
    """A credential's or a template's name. What is none may be the secret itself, so it is not repeated."""
    raw = node.value if isinstance(node, Scalar) and node.tag.endswith(":str") else ""
    if looks_secret(raw):
        nodes.fault(node, f"{what} seems to hold a key: {_NO_SECRETS} write NAME here")
    elif not NAME.fullmatch(raw):
        nodes.fault(node, f"{what} must be {_NAMES}")
    else:
        return str(raw)
    return None


def _meant(name: str) -> str:
    close = nearest(name, tuple(READY))
    return f' (did you mean "{close}"?)' if close else ""
