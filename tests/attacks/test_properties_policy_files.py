"""The loader of policies: whatever is in the file, it loads as written or is refused; no rule is lost."""

from __future__ import annotations

import ipaddress
import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from impyard.addon import policyfile
from impyard.addon.errors import PolicyError
from impyard.addon.policy import Policy, read_policy
from impyard.addon.rules import Entry, Rule
from tests.support.fuzz import examples

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("/project/policies/gateway.yaml")
SMALL = """\
networkPolicies:
  - host: "*.a.test"
    port: 8443
    scheme: [https, http]
    upstream: "http://127.0.0.1:11434"
    policies:
      - action: ALLOW
        method: [GET, HEAD]
        path: /repos/.*
        name: read
        query: {service: git-.*, q: "[0-9]+"}
      - {action: DENY, method: "*", path: "/repos/[^/]+/secret(/.*)?", websocket: true}
      - {action: ALLOW, method: POST, path: /v1, max_body: 10m}
"""
WHOLE = [SMALL, (ROOT / "policies" / "default.yaml").read_text()]
WHOLE += [yaml.safe_load(path.read_text())["policy"] for path in sorted((ROOT / "tests" / "cases").glob("*.yaml"))]


def load(data: bytes) -> Policy | PolicyError:
    """What the loader says; every complaint is for people, and names the file."""
    try:
        return read_policy([(FILE, data)], root=Path("/project"))
    except PolicyError as exc:
        assert exc.faults
        assert exc.hint
        for fault in exc.faults:
            assert fault.file == "policies/gateway.yaml"
            assert (fault.line > 0) == (fault.column > 0)
            assert fault.line <= len(data) + 2
            assert fault.message.strip() and "\n" not in fault.message and "Traceback" not in fault.message
            assert len(fault.message) < 1000
            assert fault.message.isprintable(), fault.message
        return exc


class _Plain(yaml.SafeLoader):
    """YAML without meaning: every scalar is its text, and what a key repeats is seen."""


def _scalar(loader: Any, node: Any) -> Any:
    return str(loader.construct_scalar(node))


def _pairs(loader: Any, node: Any) -> Any:
    made = loader.construct_object
    pairs = [(made(key, deep=True), made(value, deep=True)) for key, value in node.value]
    assert len({key for key, _ in pairs}) == len(pairs), "a key is given twice"
    return dict(pairs)


for tag in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "binary"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{tag}", _scalar)
_Plain.add_constructor("tag:yaml.org,2002:map", _pairs)


def assert_whole(policy: Policy, data: bytes) -> None:
    """The policy has every entry and rule of the file, in their order, with every value: compared with plain YAML."""
    content = yaml.load(data.decode("utf-8-sig"), Loader=_Plain)
    assert set(content) == {"networkPolicies"}
    assert len(policy.entries) == len(content["networkPolicies"])
    for entry, written in zip(policy.entries, content["networkPolicies"], strict=True):
        known = {"host", "policies", "port", "scheme", "upstream", "upstream_ca", "inject", "sentinels"}
        assert set(written) <= known
        assert_host(entry.host, written["host"])
        assert_connections(entry, written)
        assert_inject(entry, written)
        assert len(entry.rules) == len(written["policies"])
        for rule, lines in zip(entry.rules, written["policies"], strict=True):
            assert_rule(rule, lines)


def assert_host(host: str, written: str) -> None:
    plain = written.lower().removesuffix(".")
    if ":" in plain:
        assert ipaddress.ip_address(host) == ipaddress.ip_address(plain.strip("[]"))
    else:
        assert host.removeprefix("*.") == plain.removeprefix("*.").encode("idna").decode()
        assert host.startswith("*") == plain.startswith("*")


def assert_connections(entry: Entry, written: dict[str, Any]) -> None:
    port = int(written.get("port", 0))
    schemes = written.get("scheme", "http" if port == 80 else "https")
    schemes = [schemes] if isinstance(schemes, str) else schemes
    assert entry.ports == {scheme: port or {"https": 443, "http": 80}[scheme] for scheme in schemes}
    assert (entry.upstream is None) == ("upstream" not in written)
    if entry.upstream is not None:
        assert str(entry.upstream).startswith(written["upstream"].rstrip("/"))


def assert_inject(entry: Entry, written: dict[str, Any]) -> None:
    assert entry.sentinels_pass == (written.get("sentinels") == "pass")
    assert (entry.inject is None) == ("inject" not in written)
    if entry.inject is not None:
        form = written["inject"]
        form = {"credential": form} if isinstance(form, str) else form
        assert entry.inject.credential == form["credential"]
        assert entry.inject.over_http == (form.get("over_http") == "true")
        assert "*" not in entry.host


def assert_rule(rule: Rule, written: dict[str, Any]) -> None:
    assert set(written) <= {"action", "method", "path", "name", "websocket", "max_body", "query"}
    methods = written["method"] if isinstance(written["method"], list) else [written["method"]]
    assert ("ALLOW" if rule.allow else "DENY") == written["action"]
    assert rule.methods == (None if "*" in methods else frozenset(methods))
    assert (rule.path, rule.name) == (written["path"], written.get("name"))
    assert rule.websocket == (written.get("websocket") == "true")
    size = re.fullmatch("([0-9]+)([kmg]?)", written.get("max_body", "").lower())
    assert rule.max_body == (int(size[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[size[2]] if size else None)
    assert {key: str(_pattern(value)) for key, value in rule.query} == written.get("query", {})


def _pattern(expression: Any) -> str:
    pattern = expression.pattern
    return pattern.decode() if isinstance(pattern, bytes) else str(pattern)


def check(data: bytes) -> None:
    policy = load(data)
    if isinstance(policy, Policy):
        assert_whole(policy, data)


@pytest.mark.attack("113")
@examples(300)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@example(b"\xff\xfen\x00e\x00")
@example(b"\x00")
@example(b"\xef\xbb\xbf")
def test_any_bytes_are_refused_with_their_place(data: bytes) -> None:
    check(data)


# What YAML has that nobody expects, put anywhere.
PIECES = [
    "- ", "  ", "\n", "\n  - ", ": ", "{", "}", "[", "]", ", ", "&a ", "*a", "<<: *a", "!!str ",
    "!!python/object:os.system ", "!x ", "? ", "| ", "|\n", ">-\n", "'", '"', "#", "%YAML 1.1\n", "---\n",
    "...\n", "~", "null", "yes", "on", "off", "true", "TRUE", "0x1f", "0o17", "1_000", "1e3", ".inf", "9" * 40,
    "-1", "2001-01-01", "190:20:30", "=", "\t", "\r", "\r\n", "\x85", "\u2028", "\ufeff", "\x00", "\\",
    "networkPolicies", "host", "policies", "action", "ALLOW", "DENY", "method", "GET", "path", "/.*", "(?i)",
    "(a+)+$", "(?=x)", "x{1001}", "max_body: 1", "websocket: true", "query: {a: b}", "port: 80", "scheme: http",
    "name: x", "*", "a.test",
]  # fmt: skip


@pytest.mark.attack("113")
@examples(250)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_yaml_loads_as_written_or_is_refused(text: str) -> None:
    check(text.encode("utf-8", "replace"))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A whole policy with some lines or pieces of it put in, left out, repeated, or exchanged."""
    text = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(["insert", "insert", "cut", "line twice", "line moved", "replace"]))
        lines = text.split("\n")
        line = draw(st.integers(0, len(lines) - 1))
        if kind == "insert":
            text = text[:at] + draw(st.sampled_from(PIECES)) + text[at:]
        elif kind == "cut":
            text = text[:at] + text[at + draw(st.integers(1, 30)) :]
        elif kind == "line twice":
            text = "\n".join([*lines[: line + 1], *lines[line:]])
        elif kind == "line moved":
            moved = lines.pop(line)
            lines.insert(draw(st.integers(0, len(lines))), moved)
            text = "\n".join(lines)
        else:
            word = draw(st.sampled_from(["ALLOW", "GET", "path", "host", "action", "/", '"', "  ", "policies", "443"]))
            text = text.replace(word, draw(st.sampled_from(PIECES)), draw(st.integers(1, 3)))
    ends = draw(st.sampled_from(["\n"] * 6 + ["\r\n", "\r"]))
    encoding = draw(st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    return text.replace("\n", ends).encode(encoding, "replace")


@pytest.mark.attack("113", "112")
@examples(200)
@given(mutated())
@example(b"!!python/object:os.system " + SMALL.encode())  # a tag on a key
@example(SMALL.replace("host:", "!x host:").encode())
def test_a_changed_policy_loads_as_written_or_is_refused(data: bytes) -> None:
    check(data)


def test_the_whole_ones_load_as_written() -> None:
    for text in WHOLE:
        assert isinstance(load(text.encode()), Policy)
        check(text.encode())
        check(text.replace("\n", "\r\n").encode())


RULE = "{action: ALLOW, method: GET, path: /x}"
HEAD = "networkPolicies:\n"
NINE = "abcdefghi"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n"
BOMB += "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in itertools.pairwise(NINE))
ALIASES = (
    f"{HEAD}  - &e\n    host: a.test\n    policies:\n      - &r {RULE}\n" + "      - *r\n" * 100 + "  - *e\n" * 300
)


def one(host: str = "a.test", rest: str = "", **keys: str) -> str:
    """A policy of one entry, with keys of its rule replaced or added."""
    rule = {"action": "ALLOW", "method": "GET", "path": "/x"} | keys
    flow = ", ".join(f"{key}: {value}" for key, value in rule.items())
    return f"{HEAD}  - host: {host}\n{rest}    policies: [{{{flow}}}]\n"


COSTLY = {
    "billion laughs": BOMB + "networkPolicies: *i\n",
    "aliases of entries": ALIASES,
    "deep lists": "networkPolicies: " + "[" * 20_000 + "]" * 20_000,
    "deep mappings": "networkPolicies: " + "{a: " * 20_000 + "}" * 20_000,
    "deep blocks": "\n".join(" " * n + "-" for n in range(1500)),
    "a long scalar": one(host="a" * (1 << 20)),
    "a long expression": one(path="/" + "a" * (1 << 20)),
    "a costly expression": one(path='"/((a{1,30}){1,30})*"'),
    "many faults": HEAD + "  - hots: a\n" * 20_000,
    "a huge number": one(rest=f"    port: {'9' * 1_000_000}\n"),
    "a huge size": one(max_body="9" * 1_000_000),
    "many keys": HEAD + "  - {" + ", ".join(f"k{n}: 1" for n in range(20_000)) + "}\n",
    "a key that contains itself": "&a networkPolicies: &b [*b]\n",
    "a list as a key": "? [" + "a," * 50_000 + "]\n: 1\n",
}


def _memory(field: str) -> int:
    """In KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


@pytest.mark.attack("118", "113")
@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_policy_is_refused_or_loaded_in_bounded_time_and_memory(name: str) -> None:
    """Bounds for a busy machine."""
    data = COSTLY[name].encode()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of before
    before, began = _memory("VmRSS"), time.process_time()
    policy = load(data)
    assert time.process_time() - began < 15
    assert _memory("VmHWM") - before < 400 << 10
    if isinstance(policy, Policy):
        assert len(policy.entries) == (301 if name == "aliases of entries" else 1)


@pytest.mark.attack("113", control=True)
def test_control_a_loader_that_skips_what_it_does_not_know_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = policyfile._Reader.rule

    def lax(self: Any, node: Any) -> Rule | None:
        known = len(self.nodes.faults)
        rule = real(self, node)
        del self.nodes.faults[known:]
        return rule

    monkeypatch.setattr(policyfile._Reader, "rule", lax)
    with pytest.raises(AssertionError):
        check(SMALL.replace("websocket", "web").encode())
