"""Where a new rule goes: it wins where it should, and a DENY that a person wrote keeps its effect."""

from __future__ import annotations

from pathlib import Path

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
