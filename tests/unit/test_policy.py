"""Loading a policy: all of it or nothing, with every fault and its place."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon import policyfile
from impyard.addon.errors import PolicyError
from impyard.addon.judge import judge
from impyard.addon.policy import Policy, load_policy, read_policy
from impyard.addon.policyfile import ENTRY_KEYS, METHODS, POLICY_KEYS, RULE_KEYS
from impyard.addon.policyinject import INJECT_KEYS
from impyard.addon.request import Request
from impyard.addon.rules import Proxy, Route, Upstream
from impyard.addon.vault.credential import NAME
from impyard.addon.vault.templates import READY

TESTS = Path(__file__).parents[1]
POLICIES = TESTS.parent / "policies"
BROKEN = sorted((TESTS / "cases" / "broken").glob("*.yaml"))
RULE = "policies: [{action: ALLOW, method: GET, path: /}]"


def read(text: str, *, folder: Path = Path("/p")) -> Policy:
    return read_policy([(folder / "gateway.yaml", text.encode())], root=folder)


def faults_of(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read(text)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_broken_file_is_refused_with_every_fault_and_its_place(path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy([path], root=path.parent)
    assert str(caught.value) + "\n" == path.with_suffix(".txt").read_text()
    assert caught.value.hint


def test_the_hint_says_what_to_do(tmp_path: Path) -> None:
    own, other = tmp_path / "policies" / "gateway.yaml", tmp_path / "other.yaml"
    own.parent.mkdir()
    for path, anew in ((own, True), (other, False)):
        for text, where in (("a: 1\nb: 1\n", "these lines"), ("networkPolicies: 1\n", "that line"), ("", "the file")):
            path.write_text(text)
            with pytest.raises(PolicyError) as caught:
                load_policy([path], root=tmp_path)
            assert caught.value.hint is not None
            assert f"edit {where}" in caught.value.hint
            is_advised = "`impyard init --force` writes the shipped one anew" in caught.value.hint
            assert is_advised == (anew and not text), "a line that can be edited need not cost the whole file"


def test_every_broken_file_has_its_messages() -> None:
    assert len(BROKEN) > 20
    assert {path.stem for path in BROKEN} == {path.stem for path in BROKEN[0].parent.glob("*.txt")}


# --- files --------------------------------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_files_one_after_the_other(tmp_path: Path) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text(f"networkPolicies: [{{host: a.test, {RULE}}}]\n")
    b.write_text(f"networkPolicies: [{{host: b.test, {RULE}}}]\n")
    policy = load_policy([a, b])
    assert policy.hash == "sha256:" + hashlib.sha256(a.read_bytes() + b.read_bytes()).hexdigest()
    assert [entry.host for entry in policy.entries] == ["a.test", "b.test"]
    assert policy.hash != load_policy([b, a]).hash


def test_rules_of_a_later_file_win(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("networkPolicies: [{host: a.test, policies: [{action: DENY, method: GET, path: /}]}]")
    second.write_text(f"networkPolicies: [{{host: '*', {RULE}}}]")
    request = Request("GET", "https", "a.test", 443, "/", host_header="a.test")
    assert judge(request, load_policy([first, second])).allowed
    assert not judge(request, load_policy([second, first])).allowed


def test_faults_of_all_files_are_reported(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "sub" / "bad.yaml"
    bad.parent.mkdir()
    good.write_text("networkPolicies: []")
    bad.write_text("nothing: here")
    with pytest.raises(PolicyError) as caught:
        load_policy([good, bad, bad], root=tmp_path)
    assert [str(fault).split(": ")[0] for fault in caught.value.faults] == ["sub/bad.yaml:1:1"] * 2


def test_missing_files_and_folders_are_faults(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy([tmp_path / "none.yaml", tmp_path], root=tmp_path)
    assert [str(fault) for fault in caught.value.faults] == [
        "none.yaml: cannot be read: no such file or directory",
        ".: cannot be read: is a directory",
    ]


@pytest.mark.timeout(10)
def test_what_is_no_regular_file_is_a_fault_and_holds_nothing_up(tmp_path: Path) -> None:
    pipe = tmp_path / "gateway.yaml"
    os.mkfifo(pipe)
    with pytest.raises(PolicyError) as caught:
        load_policy([pipe], root=tmp_path)
    assert str(caught.value) == "gateway.yaml: cannot be read: it is not a regular file"


def test_no_file_at_all_is_a_fault() -> None:
    with pytest.raises(PolicyError):
        load_policy([])


def test_files_outside_the_root_are_named_in_full(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("")
    with pytest.raises(PolicyError) as caught:
        load_policy([outside], root=tmp_path / "project")
    assert str(caught.value).startswith(f"{outside}: is empty")


def test_a_file_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policyfile, "MAX_BYTES", 1 << 20)
    assert faults_of("#" * ((1 << 20) + 1)) == ["gateway.yaml: is larger than 1 MiB"]
    assert read("networkPolicies: [] #".ljust(1 << 20, "#")).entries == ()


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault() -> None:
    assert len(read(f"\ufeffnetworkPolicies:\r\n  - host: a.test\r\n    {RULE}\r\n").entries) == 1


# --- YAML ---------------------------------------------------------------------------------------------------------


def test_an_anchor_may_be_used_again() -> None:
    policy = read(
        """\
networkPolicies:
  - host: a.test
    policies: &reading
      - {action: ALLOW, method: GET, path: /}
  - {host: b.test, policies: *reading}
"""
    )
    assert [entry.rules[0].at for entry in policy.entries] == ["gateway.yaml:4", "gateway.yaml:4"]


def test_aliases_do_not_multiply_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policyfile, "MAX_RULES", 500)
    rules = "&r [" + "{action: ALLOW, method: GET, path: /}," * 100 + "]"
    text = f"networkPolicies:\n  - {{host: a.test, policies: {rules}}}\n" + "  - {host: a.test, policies: *r}\n" * 1000
    faults = faults_of(text)
    assert faults == ["gateway.yaml:2:30: more than 500 rules", "gateway.yaml:8:5: more than 500 rules"]


def test_an_alias_to_itself_is_a_fault() -> None:
    assert faults_of("networkPolicies: &a [*a]")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "a: [", "!!seq ["])
def test_deep_nesting_is_a_fault(opening: str) -> None:
    assert faults_of(opening * 50_000)


def test_many_faults_are_counted_rather_than_listed() -> None:
    faults = faults_of("networkPolicies:\n" + "  - 7\n" * 200)
    assert len(faults) == 51
    assert faults[-1] == "gateway.yaml: 150 more faults"


@given(st.text(max_size=80) | st.binary(max_size=80))
def test_no_text_raises_anything_but_a_policy_error(content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    try:
        read_policy([(Path("/p/gateway.yaml"), data)])
    except PolicyError as exc:
        assert exc.faults


SCALARS = st.sampled_from(
    ["ALLOW", "GET", "/.*", "*", "a.test", "10m", "yes", "", "\0", "http://127.0.0.1:1", "(", "\\1", "..", "[::1]"]
)
SCALARS |= st.sampled_from(["npm", "pass", "{key}", "{b64:{key}}", "x-key", ".npmrc"]) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.none() | st.booleans() | st.integers() | st.floats() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)
PAIRS = SCALARS | st.dictionaries(SCALARS, SCALARS, max_size=2)
ENTRIES = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(ENTRY_KEYS, VALUES)
    | {"inject": st.fixed_dictionaries({}, optional=dict.fromkeys(INJECT_KEYS, PAIRS)) | SCALARS}
    | {"policies": st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(RULE_KEYS, VALUES)), max_size=3)},
)


@given(st.lists(ENTRIES, max_size=3))
def test_no_structure_raises_anything_but_a_policy_error(entries: list[dict[str, object]]) -> None:
    data = yaml.safe_dump({"networkPolicies": entries}, allow_unicode=True).encode("utf-8", "surrogatepass")
    try:
        policy = read_policy([(Path("/p/gateway.yaml"), data)])
    except PolicyError:
        return
    assert len(policy.entries) == len(entries)


def test_the_collector_runs_again_after_loading() -> None:
    assert gc.isenabled()
    read("networkPolicies: []")
    faults_of("networkPolicies: [7]")
    assert gc.isenabled()


# --- values -------------------------------------------------------------------------------------------------------


def test_upstreams_are_read() -> None:
    def upstream(value: str) -> Route | None:
        return read(f"networkPolicies: [{{host: a.test, upstream: '{value}', {RULE}}}]").entries[0].upstream

    assert upstream("http://127.0.0.1:11434") == Upstream("http", "127.0.0.1", 11434)
    assert upstream("https://Local.Test") == Upstream("https", "local.test", 443)
    assert upstream("https://[::1]:8443/") == Upstream("https", "::1", 8443)
    assert str(upstream("https://[::1]:8443/")) == "https://[::1]:8443"


def test_upstream_proxies_are_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM")

    def proxy(value: str, more: str = "") -> Route | None:
        text = f"networkPolicies: [{{host: a.test, upstream_proxy: '{value}', {more}{RULE}}}]"
        return read(text, folder=tmp_path).entries[0].upstream

    assert proxy("http://Proxy.Example.org:3128") == Proxy("http", "proxy.example.org", 3128)
    assert proxy("https://[::1]:8443/") == Proxy("https", "::1", 8443)
    assert str(proxy("https://[::1]:8443/")) == "via https://[::1]:8443"
    assert proxy("environment") == Proxy()
    assert proxy("environment", "upstream_ca: ca.pem, ") == Proxy(ca=tmp_path / "ca.pem")
    secret = f"networkPolicies: [{{host: a.test, upstream_proxy: 'http://ada:not-shown@b.test:80', {RULE}}}]"
    assert "not-shown" not in str(faults_of(secret))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "127.0.0.1",
        "ftp://a.test",
        "http://",
        "http://a.test:0",
        "http://a.test:x",
        "http://a.test?x",
        "http://127.1",
    ],
)
def test_odd_upstreams_are_faults(value: str) -> None:
    assert "upstream" in faults_of(f"networkPolicies: [{{host: a.test, upstream: '{value}', {RULE}}}]")[0]


def test_a_certificate_file_is_found_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    text = f"networkPolicies: [{{host: a.test, upstream: 'https://127.0.0.1', upstream_ca: ca.pem, {RULE}}}]"
    upstream = read(text, folder=tmp_path).entries[0].upstream
    assert upstream is not None
    assert upstream.ca == tmp_path / "ca.pem"
    assert "no use" in faults_of(text.replace("https://", "http://").replace("ca.pem", str(tmp_path / "ca.pem")))[0]


@pytest.mark.parametrize(("value", "size"), [("0", 0), ("10", 10), ("1k", 1024), ("2M", 2 << 20), ("3g", 3 << 30)])
def test_body_limits_are_read(value: str, size: int) -> None:
    text = (
        f"networkPolicies: [{{host: a.test, policies: [{{action: ALLOW, method: PUT, path: /, max_body: {value}}}]}}]"
    )
    assert read(text).entries[0].rules[0].max_body == size


@pytest.mark.parametrize("value", ["-1", "1.5", "1 k", "0x10", "010", "1_0", "true", "10mb", "[1]", "1:00", '""'])
def test_odd_body_limits_are_faults(value: str) -> None:
    text = (
        f"networkPolicies: [{{host: a.test, policies: [{{action: ALLOW, method: PUT, path: /, max_body: {value}}}]}}]"
    )
    assert "max_body" in faults_of(text)[0]


def test_rules_have_labels() -> None:
    rules = (
        read(
            """\
networkPolicies:
  - host: a.test
    policies:
      - {action: ALLOW, method: [POST, GET], path: /a}
      - {action: DENY, method: "*", path: /b}
      - {action: DENY, method: "*", path: /b, name: no b}
"""
        )
        .entries[0]
        .rules
    )
    assert [rule.label for rule in rules] == ["ALLOW GET,POST /a", "DENY * /b", "no b"]


# --- size ---------------------------------------------------------------------------------------------------------


def big(rules: int) -> str:
    lines = [
        f"      - action: ALLOW\n        method: GET\n        path: /repos/owner{n}/[^/]+/issues(/.*)?\n"
        for n in range(rules)
    ]
    return "networkPolicies:\n  - host: a.test\n    policies:\n" + "".join(lines)


def test_ten_thousand_rules_load_and_decide() -> None:
    policy = read(big(10_000))
    request = Request("GET", "https", "a.test", 443, "/repos/owner9999/x/issues/1", host_header="a.test")
    assert judge(request, policy).at == "gateway.yaml:30001"


def test_large_expressions_load_or_are_refused() -> None:
    rules = "".join(f"      - {{action: ALLOW, method: GET, path: '/{n}/\\pL+/[^/]{{1,64}}'}}\n" for n in range(300))
    policy = read("networkPolicies:\n  - host: a.test\n    policies:\n" + rules)
    assert judge(Request("GET", "https", "a.test", 443, "/299/x/y", host_header="a.test"), policy).allowed
    huge = "".join(f"      - {{action: ALLOW, method: GET, path: '/{n}/\\pL{{1,800}}'}}\n" for n in range(25))
    faults = faults_of("networkPolicies:\n  - host: a.test\n    policies:\n" + huge)
    words = 'gateway.yaml:2:5: the rules of "a.test" are too large to be matched together, above all those in lines'
    assert faults == [f"{words} 4 and 5 and 6: a repetition such as {{1,800}} is written out so often; + or * is not"]


def test_of_rules_that_are_too_large_the_large_ones_are_named() -> None:
    rules = [f"      - {{action: ALLOW, method: GET, path: /{n}/x}}\n" for n in range(600)]
    heavy = [f"      - {{action: ALLOW, method: GET, path: '/0/\\pL{{1,1000}}{n}'}}\n" for n in range(20)]
    faults = faults_of("networkPolicies:\n  - host: a.test\n    policies:\n" + "".join(rules + heavy))
    assert len(faults) == 1 and "above all those in lines 604 and 605 and 606: a repetition such as" in faults[0]
    many = [f"      - {{action: ALLOW, method: GET, path: '/0/\\pL{{1,20}}{n}'}}\n" for n in range(100)]
    [fault] = faults_of("networkPolicies:\n  - host: a.test\n    policies:\n" + "".join(many))
    assert fault.endswith("matched together; write several entries for the host, with some of the rules each")


def test_very_many_hosts_load_and_decide() -> None:
    text = "networkPolicies:\n" + "".join(f"  - {{host: h{n}.test, {RULE}}}\n" for n in range(2000))
    policy = read(text)
    assert judge(Request("GET", "https", "h1999.test", 443, "/", host_header="h1999.test"), policy).allowed
    assert not judge(Request("GET", "https", "h2000.test", 443, "/", host_header="h2000.test"), policy).allowed


# --- what ships ---------------------------------------------------------------------------------------------------


def test_the_schema_has_the_keys_of_the_loader() -> None:
    schema = json.loads((POLICIES / "gateway.schema.json").read_text())
    entry, rule = schema["definitions"]["entry"], schema["definitions"]["rule"]
    assert list(schema["properties"]) == list(POLICY_KEYS)
    assert list(entry["properties"]) == list(ENTRY_KEYS)
    assert list(rule["properties"]) == list(RULE_KEYS)
    inject = schema["definitions"]["inject"]
    assert list(inject["properties"]) == list(INJECT_KEYS)
    assert not any(part["additionalProperties"] for part in (schema, entry, rule, inject))
    assert schema["definitions"]["ready"]["enum"] == list(READY)
    assert schema["definitions"]["name"]["pattern"] == f"^{NAME.pattern}$"
    assert (entry["required"], rule["required"]) == (["host", "policies"], ["action", "method", "path"])
    misspelt = schema["definitions"]["method"]["not"]["enum"]
    assert misspelt == ["CONNECT", *(method.lower() for method in METHODS)]
    assert re.fullmatch(rule["properties"]["max_body"]["anyOf"][1]["pattern"], "10m")


def shipped() -> Policy:
    return load_policy([POLICIES / "gateway.yaml"], root=POLICIES.parent)


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", "api.anthropic.com/v1/messages"),
        ("POST", "api.openai.com/v1/responses"),
        ("POST", "chatgpt.com/backend-api/codex/responses"),
        ("POST", "generativelanguage.googleapis.com/v1beta/models/gemini-x:streamGenerateContent"),
        ("POST", "openrouter.ai/api/v1/chat/completions"),
    ],
)
def test_the_shipped_policy_allows_model_calls(method: str, url: str) -> None:
    host, slash, path = url.partition("/")
    assert judge(Request(method, "https", host, 443, slash + path, host_header=host), shipped()).allowed


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", "api.anthropic.com/v1/files"),
        ("GET", "api.anthropic.com/v1/messages"),
        ("POST", "api.anthropic.com/v1/messages/batches"),
        ("POST", "api.openai.com/v1/files"),
        ("POST", "api.openai.com/v1/responses/x"),
        ("GET", "chatgpt.com/backend-api/conversations"),
        ("POST", "generativelanguage.googleapis.com/upload/v1beta/files"),
        ("POST", "storage.googleapis.com/v1beta/models/x:generateContent"),
        ("POST", "openrouter.ai/api/v1/keys"),
        ("GET", "example.com/"),
        ("POST", "www.openrouter.ai/api/v1/chat/completions"),
    ],
)
def test_the_shipped_policy_allows_nothing_else(method: str, url: str) -> None:
    host, slash, path = url.partition("/")
    assert not judge(Request(method, "https", host, 443, slash + path, host_header=host), shipped()).allowed


def test_the_examples_in_the_shipped_policy_load_when_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^  # (?=- host| )", "  ", (POLICIES / "gateway.yaml").read_text())
    (tmp_path / "files-ca.pem").write_text("PEM")
    policy = read(text, folder=tmp_path)
    assert len(policy.entries) > len(shipped().entries) + 8
    package = Request("GET", "https", "npm.example.org", 443, "/left-pad", host_header="npm.example.org")
    assert judge(package, policy).allowed
    secret = Request("GET", "https", "api.github.com", 443, "/Repos/o/SECRET-repo", host_header="api.github.com")
    assert judge(secret, policy).reason == "rule"


def test_a_message_about_a_policy_obeys_no_terminal() -> None:
    """What the file holds is shown with escapes: a mark that turns the reading direction, half of a BOM."""
    with pytest.raises(PolicyError) as caught:
        read_policy([(Path("gateway.yaml"), "networkPolicies: \u202eabc\ufeff".encode())])
    assert "\\u202eabc\\ufeff" in str(caught.value.faults[0].message)
