"""Whatever a policy says, and however it is written: a rule that is put in decides what it is for, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from impyard.addon.judge import judge
from impyard.addon.policy import Policy, read_policy
from impyard.addon.request import Request
from impyard.runner.policy.asked import asked, sent
from impyard.runner.policy.edit import NewRule
from impyard.runner.policy.pathrules import exact
from impyard.runner.policy.put import Where, deciding, put
from impyard.runner.policy.replay import Recorded
from impyard.runner.policy.suggest import Collector, suggestion
from impyard.runner.policy.text import Style, flow_text
from tests.support.fuzz import examples

HOSTS = ["a.example", "b.example", "x.a.example"]
WHOM = [*HOSTS, "*.example", "*.a.example", "*"]
PATHS = ["/", "/a", "/a/b", "/a.b", "/secret/x", "/secret/1", "/a%2fb", "/a/1", "/a/22", "/a/333", "/b/1/x", "/b/2/x"]
EXPRESSIONS = ["/.*", "/a", "/a(/.*)?", "/secret(/.*)?", r"/a\.b", "/[^/]*", "(?i)/A"]
METHODS = ["GET", "POST", "DELETE"]

rules = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["ALLOW", "ALLOW", "DENY"]),
        "method": st.one_of(st.sampled_from([*METHODS, "*"]), st.just(["GET", "POST"])),
        "path": st.sampled_from(EXPRESSIONS),
    },
    optional={
        "query": st.just({"k": "v.*"}),
        "name": st.just("a: name"),
        "max_body": st.just("1k"),
        "websocket": st.just("true"),
    },
).map(lambda rule: {key: rule[key] for key in rule if key != "max_body" or rule["action"] == "ALLOW"})
entries = st.fixed_dictionaries(
    {"host": st.sampled_from(WHOM), "policies": st.lists(rules, min_size=1, max_size=4)},
    optional={"port": st.sampled_from(["443", "8443"]), "scheme": st.sampled_from(["https", "http"])},
)
policies = st.lists(entries, max_size=4)
_PARTS = (
    st.sampled_from(METHODS),
    st.sampled_from(["https", "https", "http"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", "", ":8443"]),
    st.sampled_from(PATHS),
    st.sampled_from(["", "?k=v1"]),
)


def request_of(
    method: str, scheme: str, host: str, port: str, path: str, query: str, websocket: bool = False, size: int = 0
) -> Request:
    return sent(asked(method, f"{scheme}://{host}{port}{path}{query}", websocket=websocket, body_bytes=size))


requests = st.builds(request_of, *_PARTS)
of_any_kind = st.builds(request_of, *_PARTS, st.sampled_from([False, False, True]), st.sampled_from([0, 9000]))


def written(policy: list[dict[str, Any]], seed: int) -> bytes:
    """The policy as somebody might have written it."""
    dice = random.Random(seed)
    style = Style(quoted=dice.random() < 0.2)
    lines: list[str] = []
    comments = iter(range(1000))

    def comment(indent: int) -> None:
        if dice.random() < 0.4:
            lines.append(" " * indent + f"# comment {next(comments)}: [x, {{y")
        if dice.random() < 0.2:
            lines.append("")

    def tail() -> str:
        return f"  # behind {next(comments)}" if dice.random() < 0.3 else ""

    if not policy or dice.random() < 0.1:
        inner = ", ".join(flow_text(entry, style) for entry in policy)
        lines.append(f"networkPolicies: [{inner}]" + tail())
    else:
        comment(0)
        lines.append("networkPolicies:" + tail())
        out, deep = dice.choice([0, 2, 4]), dice.choice([0, 2])
        for entry in policy:
            comment(out)
            if dice.random() < 0.2:
                lines.append(" " * out + f"- {flow_text(entry, style)}" + tail())
                continue
            keys = [key for key in entry if key != "policies"]
            dice.shuffle(keys)
            keys.insert(dice.randint(1, len(keys)), "policies")
            dash = "- "
            for key in keys:
                margin, dash = " " * out + dash, "  "
                if key != "policies":
                    lines.append(f"{margin}{key}: {flow_text(entry[key], style, key)}" + tail())
                elif dice.random() < 0.3:
                    separator = dice.choice([", ", ",\n" + " " * (out + 6)])
                    texts = [flow_text(rule, style) for rule in entry[key]]
                    last = dice.choice(["", ","])
                    first = "\n" + " " * (out + 6) if "\n" in separator else ""
                    lines.append(f"{margin}policies: [{first}{separator.join(texts)}{last}]" + tail())
                else:
                    lines.append(f"{margin}policies:" + tail())
                    for rule in entry[key]:
                        at = out + 2 + deep
                        comment(at)
                        if dice.random() < 0.3:
                            lines.append(" " * at + f"- {flow_text(rule, style)}" + tail())
                            continue
                        start = "- "
                        for name, value in rule.items():
                            lines.append(" " * at + f"{start}{name}: {flow_text(value, style, name)}" + tail())
                            start = "  "
    comment(0)
    text = "\n".join(lines) + dice.choice(["\n", "\n", "", "\n\n"])
    text = text.replace("\n", dice.choice(["\n", "\n", "\r\n"]))
    return dice.choice([b"", b"", b"\xef\xbb\xbf"]) + text.encode()


def is_kept(old: bytes, new: bytes) -> bool:
    """Whether the old text is all there, in its order: characters were only added, but for the brackets of nothing."""
    left = iter(new)
    return all(char in left for char in old.replace(b"networkPolicies: []", b"networkPolicies:"))


def recorded_of(request: Request, id: str) -> Recorded:
    fields = {name: getattr(request, name) for name in ("method", "scheme", "host", "port", "path", "query")}
    return Recorded(ts="", id=id, run="r", verdict="deny", reason="no-rule", headers={}, body_bytes=0, **fields)


def verdicts(asked: list[Request], policy: Policy) -> list[bool]:
    return [judge(each, policy).allowed for each in asked]


def overridden(asked: list[Request], before: Policy, after: Policy) -> list[str]:
    """The rules that denied some of these requests before, which are allowed after."""
    found = []
    for each in asked:
        decision, met = deciding(each, before)
        by = met.rule.label if met is not None and not met.rule.allow else decision.rule
        if not decision.allowed and by is not None and judge(each, after).allowed:
            found.append(by)
    return found


@examples(60)
@given(policies, st.integers(0, 10**6), requests, st.lists(of_any_kind, min_size=1, max_size=12), st.booleans())
def test_a_rule_decides_its_request_and_no_other(
    policy: list[dict[str, Any]], seed: int, wanted: Request, others: list[Request], flips_deny: bool
) -> None:
    old = written(policy, seed)
    contents = ((Path("policy.yaml"), old),)
    before = read_policy(contents)
    decision, met = deciding(wanted, before)
    if not decision.allowed:
        assume(decision.reason in ("no-rule", "unlisted-host") or (flips_deny and decision.reason == "rule"))
    rule = NewRule((wanted.method,), exact(wanted.path), allow=not decision.allowed, comment=("new: x",))
    done = put(contents, None, Where(wanted.host, wanted.scheme, wanted.port), [rule], over=met)
    new = done.contents[0][1]
    if met is None or len(exact(wanted.path)) == len(wanted.path):  # of several readings, each may meet its own DENY
        assert judge(wanted, done.policy).allowed is not decision.allowed

    def same(request: Request) -> bool:
        """Whether the rule is about this request too, by one of its readings."""
        place = (request.host, request.method) == (wanted.host, wanted.method)
        return place and bool(
            {request.path, request.path.replace("%2f", "/")} & {wanted.path, wanted.path.replace("%2f", "/")}
        )

    rest = [each for each in others if not same(each)]
    assert verdicts(rest, done.policy) == verdicts(rest, before)
    if not decision.allowed and met is None:
        assert not overridden(others, before, done.policy) and not done.wins
    elif not decision.allowed and met is not None and met.rule.query == ():
        for by in overridden(others, before, done.policy):
            assert by in {rule.label for rule in done.wins} or by == met.rule.label
    assert is_kept(old, new)
    for line in old.splitlines():
        if b"#" in line and not line.strip().startswith(b"#"):
            assert line[line.index(b"#") :] in new
        elif line.strip().startswith(b"#"):
            assert line in new.splitlines()


@examples(40)
@given(policies, st.integers(0, 10**6), st.lists(requests, min_size=1, max_size=16))
def test_what_is_suggested_allows_all_that_it_is_for_and_no_more_than_new_requests(
    policy: list[dict[str, Any]], seed: int, wanted: list[Request]
) -> None:
    contents = ((Path("policy.yaml"), written(policy, seed)),)
    before = read_policy(contents)
    found = Collector(before)
    for number, request in enumerate(wanted):
        if not judge(request, before).allowed:
            found.add_denied(recorded_of(request, f"r.{number}"))
    made = suggestion(contents, None, found)
    after = read_policy(made.contents)
    assert not [apart for apart in made.apart if apart.reason == "otherwise"]
    hosts = {where.host for where in (rule.where for rule in made.rules)}
    for request in wanted:
        decision, now = judge(request, before), judge(request, after)
        if decision.allowed:
            assert now.allowed
        elif decision.reason in ("no-rule", "unlisted-host") and deciding(request, before)[1] is None:
            assert now.allowed and request.host in hosts
        else:
            assert not now.allowed


def test_the_check_of_kept_text_sees_what_goes() -> None:
    assert is_kept(b"a # b\nc", b"a # b\nx\nc") and not is_kept(b"a # b\nc", b"a # \nc")
