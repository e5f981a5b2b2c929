"""Expectations beside a policy: `policies/*_test.yaml`, read strictly, and what the judge says to each.

    policy: default.yaml        # optional, or a list; else the project's own
    expect:
      - GET https://api.github.com/repos/ada/engine: allow
      - PUT https://api.github.com/repos/ada/engine: deny no-rule
        description: no writing

A list alone, without `policy`, does too. No click.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.errors import Fault, ImpyardError, PolicyError
from impyard.addon.judge import Decision
from impyard.addon.policy import Policy
from impyard.addon.policyfile import METHODS
from impyard.addon.reasons import REASONS
from impyard.addon.yamlnodes import Mapping, Node, Nodes, Scalar, Sequence_, is_empty, nearest, short
from impyard.runner.policy.asked import Asked, asked, sent
from impyard.runner.policy.explain import Explanation, explain

ENDING = "_test.yaml"
KEYS = ("by", "description", "websocket", "body_bytes")
_TOP = ("policy", "expect")
# Reasons that the gateway gives for what a URL cannot show.
_NEVER = frozenset({"secret-in-request", "credential-unavailable", "too-large", "too-slow", "busy", "log-unwritable",
                    "private-address", "loop", "upstream", "not-http"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expectation:
    """One of a file. reason: that of a denial, "" for any. by: the deciding rule's name or label, "" for any."""

    file: str
    line: int
    asked: Asked
    allow: bool
    reason: str = ""
    by: str = ""
    description: str = ""

    @property
    def wanted(self) -> str:
        verdict = "allow" if self.allow else f"deny {self.reason}".rstrip()
        return f'{verdict} by "{self.by}"' if self.by else verdict


@dataclass(frozen=True, slots=True)
class Expectations:
    """A file: the policy that it names, as files, and its expectations."""

    path: Path
    policies: tuple[Path, ...]
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the judge said to an expectation."""

    expectation: Expectation
    explanation: Explanation

    @property
    def decision(self) -> Decision:
        return self.explanation.decision

    @property
    def is_met(self) -> bool:
        wanted, decision = self.expectation, self.decision
        if decision.allowed != wanted.allow or (wanted.reason and decision.reason != wanted.reason):
            return False
        return not wanted.by or decision.rule == wanted.by

    @property
    def got(self) -> str:
        """The judge's verdict and what it rests on, in one line."""
        decision = self.decision
        verdict = "allow" if decision.allowed else f"deny {decision.reason}"
        if decision.rule is not None:
            return f'{verdict} by "{decision.rule}", {decision.at}'
        if decision.nearest is not None:
            return f"{verdict}, nearest {decision.nearest.at} ({decision.nearest.failed})"
        return verdict


def judged(expectations: Sequence[Expectation], policy: Policy) -> list[Outcome]:
    """What the judge says to each."""
    return [Outcome(each, explain(sent(each.asked), policy)) for each in expectations]


def read_expectations(path: Path, data: bytes, file: str) -> Expectations:
    """What a file expects, at least one thing. file: its name for messages. Raises PolicyError with every fault."""
    nodes = Nodes(file)
    root = nodes.parse(data)
    items: list[Node] = []
    policies: tuple[Path, ...] = ()
    if root is None or is_empty(root):
        if not nodes.faults:
            nodes.faults.append(Fault(file, 0, 0, "is empty; write expectations, as in - GET https://host/path: allow"))
    elif isinstance(root, Sequence_):
        items = nodes.sequence(root, "the file")
    else:
        top = nodes.mapping(root, "the file", _TOP)
        items = nodes.sequence(top["expect"], "expect") if "expect" in top else []
        policies = _policies(nodes, top["policy"], path.parent) if "policy" in top else ()
    found = [each for node in items if (each := _expectation(nodes, node, file))]
    if not items and not nodes.faults and root is not None:
        nodes.fault(root, "expects nothing; write a list of expectations, as in - GET https://host/path: allow")
    if nodes.faults:
        raise PolicyError(tuple(nodes.faults), hint="`impyard policy test --help` shows the form of these files")
    return Expectations(path, policies, tuple(found))


def _policies(nodes: Nodes, node: Node, folder: Path) -> tuple[Path, ...]:
    found = []
    for item in node.value if isinstance(node, Sequence_) else [node]:
        name = nodes.text(item, "policy")
        if name is not None:
            found.append(folder / name)
    if not found and not nodes.faults:
        nodes.fault(node, "policy names no file")
    return tuple(found)


def _expectation(nodes: Nodes, node: Node, file: str) -> Expectation | None:
    known = len(nodes.faults)
    if not isinstance(node, Mapping):
        nodes.fault(node, 'an expectation is "METHOD URL: allow" or "METHOD URL: deny"')
        return None
    values = nodes.mapping(node, "an expectation", None)
    requests = [key for key in values if " " in key.strip()]
    for key_node, _ in node.value:
        if isinstance(key_node, Scalar) and key_node.value not in (*KEYS, *requests):
            meant = nearest(key_node.value, KEYS)
            nodes.fault(key_node, f'unknown key "{short(key_node.value)}"{f"; did you mean {meant}?" if meant else ""}')
    if len(nodes.faults) == known and len(requests) != 1:
        nodes.fault(node, f"an expectation is about one METHOD URL, not {len(requests) or 'none'}")
    if len(requests) != 1:
        return None
    key_node, value = next(pair for pair in node.value if pair[0].value == requests[0])
    verdict = _verdict(nodes, value)
    description = nodes.text(values["description"], "description") if "description" in values else ""
    by = nodes.text(values["by"], "by") if "by" in values else ""
    websocket = nodes.boolean(values["websocket"], "websocket") if "websocket" in values else False
    body = nodes.integer(values["body_bytes"], "body_bytes") if "body_bytes" in values else 0
    if "by" in values and by == "":
        nodes.fault(values["by"], "by is empty; write the rule's name, or leave it out")
    method, _, url = requests[0].strip().partition(" ")
    # One in lower case may be meant: that it is denied is worth a test.
    if method.upper() not in METHODS and (meant := nearest(method, METHODS)):
        nodes.fault(key_node, f'unknown method "{short(method)}"; did you mean {meant}?')
    if "#" in url:
        nodes.fault(key_node, "no client sends what follows a #; leave it out, or write %23")
    try:
        request = asked(method, url.strip(), body_bytes=body or 0, websocket=bool(websocket))
    except ImpyardError as exc:
        nodes.fault(key_node, exc.message)
        return None
    if len(nodes.faults) > known or verdict is None:
        return None
    return Expectation(file, node.start_mark.line + 1, request, *verdict, by or "", description or "")


def _verdict(nodes: Nodes, node: Node) -> tuple[bool, str] | None:
    raw = nodes.text(node, "the verdict")
    word, _, reason = (raw or "").strip().partition(" ")
    reason = reason.strip()
    if raw is None:
        return None
    if word not in ("allow", "deny") or (word == "allow" and reason):
        meant = nearest(word, ("allow", "deny"))
        advice = f"; did you mean {meant}?" if meant not in (None, word) else ""
        nodes.fault(node, f'verdict "{short(raw)}": write allow, deny or deny REASON{advice}')
    elif reason and (reason not in REASONS or reason in _NEVER):
        reasons = tuple(sorted(set(REASONS) - _NEVER))
        meant = nearest(reason, reasons)
        advice = f"did you mean {meant}?" if meant else f"reasons are {', '.join(reasons)}"
        nodes.fault(node, f'no policy denies for "{short(reason)}"; {advice}')
    else:
        return word == "allow", reason
    return None
