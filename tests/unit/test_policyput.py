"""Where a new rule goes: it wins where it should, and a DENY that a person wrote keeps its effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from impyard.addon.judge import judge
from impyard.addon.policy import read_policy
from impyard.runner.policy.asked import asked, sent
from impyard.runner.policy.edit import NewRule
from impyard.runner.policy.put import Contents, Put, Where, deciding, put

HOST = Where("api.example.org")
WIDE = NewRule(("GET",), "/.*")


def one(text: str) -> Contents:
    return ((Path("policy.yaml"), text.encode()),)


def allowed(done: Put, path: str, method: str = "GET", host: str = HOST.host) -> bool:
    return judge(sent(asked(method, f"https://{host}{path}")), done.policy).allowed


RULES = """\
networkPolicies:
  - host: api.example.org
    policies:
      - {action: ALLOW, method: GET, path: /a}
      - {action: DENY, method: "*", path: /secret(/.*)?}
      - {action: ALLOW, method: GET, path: /b}
"""


def test_a_new_allow_goes_above_the_deny_rules_of_its_entry() -> None:
    done = put(one(RULES), None, HOST, [WIDE])
    assert not done.is_new and allowed(done, "/x") and not allowed(done, "/secret/x")
    assert [rule.path for rule in done.policy.entries[0].rules] == ["/a", "/.*", "/secret(/.*)?", "/b"]


def test_a_new_entry_goes_above_the_deny_of_a_wildcard() -> None:
    rule = '{action: DENY, method: "*", path: /secret}'
    text = f'networkPolicies:\n  - host: "*.example.org"\n    policies:\n      - {rule}\n'
    done = put(one(text), None, HOST, [WIDE])
    assert done.is_new and allowed(done, "/x") and not allowed(done, "/secret")
    text = text.replace("DENY", "ALLOW").replace('"*", path', "POST, path")
    done = put(one(text), None, HOST, [WIDE])
    assert [entry.host for entry in done.policy.entries] == ["*.example.org", "api.example.org"]


@pytest.mark.parametrize(
    ("guard", "asks", "is_new"),
    [
        ('{action: DENY, method: "*", path: /.*, query: {force: ".*"}}', ("POST", "/b?force=1", False, 0), True),
        ("{action: DENY, method: POST, path: /b, websocket: true}", ("POST", "/b", True, 0), True),
        ("{action: ALLOW, method: POST, path: /b, query: {k: v}, max_body: 1k}", ("POST", "/b?k=v", False, 5000), True),
        ('{action: DENY, method: GET, path: /.*, query: {force: ".*"}}', ("GET", "/c?force=1", False, 0), False),
        ('{action: DENY, method: "*", path: /c/.*}', ("POST", "/c/b", False, 0), False),
    ],
)
@pytest.mark.parametrize("host", ["*", "*.example.org", "api.example.org"])
def test_a_condition_that_a_person_wrote_above_the_hosts_entry_keeps_its_effect(
    guard: str, asks: tuple[str, str, bool, int], is_new: bool, host: str
) -> None:
    text = f'networkPolicies:\n  - host: "{host}"\n    policies:\n      - {guard}\n' + RULES.partition("\n")[2]
    if host == HOST.host:
        text = text.replace(f'"{host}"\n', f'"{host}"\n    scheme: [http, https]\n')
    done = put(one(text), None, HOST, [NewRule(("POST",), "/b", websocket=asks[2])])
    method, path, websocket, size = asks
    request = sent(asked(method, f"https://{HOST.host}{path}", websocket=websocket, body_bytes=size))
    assert allowed(done, "/b", "POST") and not judge(request, done.policy).allowed
    assert done.is_new is is_new and done.wins == ()


def test_an_exception_passes_no_other_deny_where_it_need_not_and_names_it_where_it_must() -> None:
    flat = '{action: DENY, method: "*", path: /b}'
    force = '{action: DENY, method: "*", path: /.*, query: {force: ".*"}}'
    wild = '  - host: "*"\n    policies:\n'
    top = f"networkPolicies:\n{wild}      - {flat}\n"
    rest = RULES.partition("\n")[2]
    request = sent(asked("GET", "https://api.example.org/b"))

    def over(text: str) -> Put:
        _, met = deciding(request, read_policy(one(text)))
        assert met is not None and not met.rule.allow
        return put(one(text), None, HOST, [NewRule(("GET",), "/b")], over=met)

    rest = rest.replace("GET, path: /b", "GET, path: /c")
    done = over(f"{top}{wild}      - {force}\n{rest}")
    assert allowed(done, "/b") and not allowed(done, "/b?force=1") and done.is_new and not done.wins
    done = over(f"{top}      - {force}\n{rest}")
    assert allowed(done, "/b?force=1") and [rule.path for rule in done.wins] == ["/.*"]
    done = over(top + rest)  # the control
    assert allowed(done, "/b") and not done.is_new and not done.wins


def test_over_a_deny_the_exception_goes_right_below_it() -> None:
    request = sent(asked("GET", "https://api.example.org/secret"))
    decision, met = deciding(request, read_policy(one(RULES)))
    assert decision.reason == "rule" and met is not None and met.number == 1
    done = put(one(RULES), None, HOST, [NewRule(("GET",), "/secret")], over=met)
    assert [rule.path for rule in done.policy.entries[0].rules] == ["/a", "/secret(/.*)?", "/secret", "/b"]
    assert allowed(done, "/secret") and not allowed(done, "/secret/x") and not allowed(done, "/secret", "POST")


def test_over_the_deny_of_a_wildcard_below_a_new_entry_follows_it() -> None:
    text = (
        RULES
        + """\
  - {host: "*", policies: [{action: DENY, method: "*", path: /.*}]}
  - {host: b.example.org, policies: [{action: ALLOW, method: GET, path: /}]}
"""
    )
    _, met = deciding(sent(asked("GET", "https://api.example.org/a")), read_policy(one(text)))
    done = put(one(text), None, HOST, [NewRule(("GET",), "/a")], over=met)
    assert [entry.host for entry in done.policy.entries] == ["api.example.org", "*", "api.example.org", "b.example.org"]
    assert allowed(done, "/a") and not allowed(done, "/b")


def test_a_new_deny_goes_below_what_it_takes_back() -> None:
    _, met = deciding(sent(asked("GET", "https://api.example.org/a")), read_policy(one(RULES)))
    done = put(one(RULES), None, HOST, [NewRule(("GET",), "/a", allow=False)], over=met)
    assert not allowed(done, "/a") and allowed(done, "/b")


def test_ports_and_schemes_have_entries_of_their_own() -> None:
    text = RULES.replace("    policies:", "    scheme: [http, https]\n    policies:")
    done = put(one(text), None, HOST, [NewRule(("GET",), "/x")])
    assert done.is_new and allowed(done, "/x")
    assert not judge(sent(asked("GET", "http://api.example.org/x")), done.policy).allowed
    done = put(one(RULES), None, Where(HOST.host, "https", 80), [WIDE])
    assert judge(sent(asked("GET", "https://api.example.org:80/x")), done.policy).allowed and not allowed(done, "/x")


def test_an_entry_with_a_credential_gets_the_rule_and_a_remark() -> None:
    text = RULES.replace("    policies:", "    inject: github\n    policies:")
    done = put(one(text), None, HOST, [WIDE])
    assert not done.is_new and "acts with its rights" in done.remarks[0]


def test_rules_that_entries_share_stay_shared() -> None:
    text = """\
networkPolicies:
  - host: api.example.org
    policies: &all
      - {action: ALLOW, method: GET, path: /a}
  - host: b.example.org
    policies: *all
"""
    for host in ("api.example.org", "b.example.org"):
        done = put(one(text), None, Where(host), [NewRule(("GET",), "/x")])
        assert done.is_new and allowed(done, "/x", host=host) and allowed(done, "/a", host=host)
        other = "b.example.org" if host == "api.example.org" else "api.example.org"
        assert not allowed(done, "/x", host=other)


def test_of_several_files_the_one_with_the_entry_changes_else_the_last() -> None:
    first, second = RULES, RULES.replace("api.example.org", "b.example.org")
    contents = ((Path("1.yaml"), first.encode()), (Path("2.yaml"), second.encode()))
    assert put(contents, None, HOST, [WIDE]).file == 0
    done = put(contents, None, Where("c.example.org"), [WIDE])
    assert done.file == 1 and done.contents[0] == contents[0]
