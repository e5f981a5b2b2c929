"""`impyard policy check`, `explain` and `test`: what they print, their exit status, and what is no policy."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from impyard.addon.policy import MAX_BYTES
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.cli import main
from impyard.runner.policy.excerpt import excerpt
from impyard.runner.policy.lint import CODES
from tests.unit.test_policylint import POLICIES

POLICY = """\
networkPolicies:
  - host: api.github.com
    upstream: "https://192.0.2.1"
    inject: github
    policies:
      - {action: ALLOW, method: GET, path: /repos/.*, max_body: 1k}
      - {action: DENY, method: "*", path: "(?i)/repos/ada/secret(/.*)?", name: not this one}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


# --- check --------------------------------------------------------------------------------------------------------


def test_a_fine_policy_is_said_to_be_fine(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "--strict"]) == 0
    assert capsys.readouterr().out == "policies/gateway.yaml: 1 entry, 2 rules, nothing to complain about\n"


def test_faults_are_shown_at_their_places_all_at_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.yaml").write_text("\ufeffnetworkPolicies:\r\n  - hots: a.test\r\n    policies: 5\r\n")
    assert main(["policy", "check", "b.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == (
        'b.yaml:2:5: unknown key "hots" in an entry; did you mean "host"?\n      - hots: a.test\n        ^\n'
        "b.yaml:3:15: policies must be a list, not a number (5)\n        policies: 5\n                  ^\n"
    )
    assert err.startswith("error: 2 faults: ")
    assert main(["policy", "check", "--json", "b.yaml"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(fault["line"], fault["column"]) for fault in report["errors"]] == [(2, 5), (3, 15)]


def test_a_lint_is_no_error_but_with_strict(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policies/gateway.yaml").write_text(POLICY.replace("/repos/.*", "/repos/foo.*"))
    assert main(["policy", "check"]) == 0
    out = capsys.readouterr().out
    assert "gateway.yaml:6:44: no-boundary: also allows GET https://api.github.com/repos/foobar\n" in out
    assert "instead: write /repos/foo(/.*)?\n" in out
    assert main(["policy", "check", "--strict", "--json"]) == 1
    assert [lint["code"] for lint in json.loads(capsys.readouterr().out)["lints"]] == ["no-boundary", "deny-nothing"]


def test_several_files_are_one_policy(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "policies/gateway.yaml", str(POLICIES / "default.yaml")]) == 0
    assert "6 entries, 7 rules" in capsys.readouterr().out


def test_the_lints_there_are_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "--codes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CODES)


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # for root too


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 20)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def holding(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (folder, "is a folder"),
        (pipe, "is a pipe"),
        (device, "is a device"),
        (unix_socket, "is a socket"),
        (unreadable, "cannot be read: input/output error"),
        (large, f"is larger than {MAX_BYTES >> 20} MiB (100)"),
        (dangling, "is not there"),
        (holding(""), "is empty"),
        (holding("networkPolicies:\n\t- host: a.test\n"), ":2:1: is not YAML: indent with spaces, not with tabs"),
        (holding("a\0b"), "a control character (U+0000) is not allowed"),
    ],
)
@pytest.mark.timeout(20)
def test_what_is_no_policy_gets_a_word_and_a_way_on(
    project: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], said: str
) -> None:
    make(Path("x.yaml"))
    for args in (["check", "x.yaml"], ["explain", "GET", "a.test", "--policy", "x.yaml"], ["test", "x.yaml"]):
        assert main(["policy", *args]) == 1
        out, err = capsys.readouterr()
        assert said.removeprefix(":2:1: ") in out + err or args[0] == "test"
        assert "internal error" not in err
        assert "hint: " in err or args[0] == "explain"


def test_a_terminal_obeys_nothing_that_a_policy_says(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.yaml").write_text('networkPolicies:\n  - host: "\\e[31m"\n    x\u202ey: 1\n    policies: []\n')
    main(["policy", "check", "x.yaml"])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err


@pytest.mark.parametrize(
    ("line", "column", "columns"),
    [("    path: x", 11, None), ("x" * 300, 150, 80), ("\t\tpath: y", 3, 40), ("日本語: x", 6, 80), ("a" * 50, 51, 40)],
)
def test_a_caret_stands_below_its_place(line: str, column: int, columns: int | None) -> None:
    shown, caret = excerpt(line, column, columns)
    assert caret.strip() == "^"
    assert max(len(shown), len(caret)) <= (columns or 104)
    if column <= len(line) and line.isascii():
        assert shown[caret.index("^")] == line[column - 1]


# --- explain ------------------------------------------------------------------------------------------------------


def explained(*args: str) -> int:
    return main(["policy", "explain", *args])


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost", "[fd00::1]", "metadata.google.internal"])
def test_what_the_gateway_denies_without_asking_anybody_is_no_allow(
    project: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    text = f'networkPolicies:\n  - host: "{host.strip("[]")}"\n    UP\n    policies:\n'
    text += "      - {action: ALLOW, method: GET, path: /x}\n"
    Path("policies/gateway.yaml").write_text(text.replace("UP", "scheme: https"))
    assert explained("GET", f"https://{host}/x") == 1
    out = capsys.readouterr().out
    assert "denied    private-address: " in out and "write `upstream` into" in out and "public addresses" not in out
    Path("policies/gateway.yaml").write_text(text.replace("UP", 'upstream: "https://192.0.2.1"'))
    assert explained("GET", f"https://{host}/x") == 0


def keep(name: str) -> None:
    Vault(default_dir()).put(Credential(name=name, kind="api_key", key="a-made-up-key-1", source="set"), keyring=False)


def test_without_its_credential_a_request_is_denied_as_the_gateway_denies_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = "GET", "https://api.github.com/repos/ada/engine"
    assert explained(*request) == 1
    out = capsys.readouterr().out
    assert "denied    credential-unavailable: " in out and "goes to" not in out
    assert 'hint      the credential "github" is not in the vault: `impyard vault set github` stores it\n' in out
    assert explained(*request, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["reason"], told["credential"]) == ("deny", "credential-unavailable", "github")
    assert told["at"] == "policies/gateway.yaml:6"
    assert explained("GET", "https://api.github.com/repos/ada/secret") == 1
    assert "denied    rule: " in capsys.readouterr().out
    keep("github")
    assert explained(*request) == 0
    (project / "data" / "vault" / "vault.json").write_text("{")
    assert explained(*request) == 1
    assert "the vault cannot be read" in capsys.readouterr().out


def test_a_credential_that_the_policy_has_no_headers_for_is_a_denial(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "policies" / "gateway.yaml"
    file.write_text(POLICY.replace("inject: github", "inject: {credential: github, template: openai-codex}"))
    keep("github")
    assert explained("GET", "https://api.github.com/repos/ada/engine") == 1
    assert "credential-unavailable" in capsys.readouterr().out


def test_where_no_terminal_limits_the_width_a_long_rule_is_told_from_its_verdict(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/repos/" + "a" * 80
    (project / "policies" / "gateway.yaml").write_text(POLICY.replace("/repos/.*", path))
    explained("GET", "https://api.github.com/x")
    assert f"{path}  no: path\n" in capsys.readouterr().out


def test_a_method_that_nobody_knows_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained("GTE", "https://api.github.com/repos/x") == 1
    assert 'careful   method "GTE" is none that HTTP knows; did you mean GET?\n' in capsys.readouterr().out
    for known in ("GET", "PROPFIND"):
        explained(known, "https://api.github.com/repos/x")
        assert "none that HTTP knows" not in capsys.readouterr().out
    for word in ("allow", "deny"):
        main(["policy", word, "FOO", "https://api.github.com/foo", "--yes"])
        assert 'careful: method "FOO" is none that HTTP knows' in capsys.readouterr().err
    assert main(["policy", "allow", "PUT", "https://api.github.com/foo", "--yes"]) == 0
    assert "none that HTTP knows" not in capsys.readouterr().err


def test_an_allowed_request_is_explained(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep("github")
    assert explained("GET", "api.github.com/repos/ada/engine") == 0
    assert capsys.readouterr().out == (
        "GET https://api.github.com/repos/ada/engine\n"
        "allowed   rule: a rule of the policy decided\n"
        'rule      "ALLOW GET /repos/.*", policies/gateway.yaml:6\n'
        "goes to   https://192.0.2.1:443, in place of the host\n"
        'with      the credential "github" (authorization)\n'
        "body      at most 1.0 KB\n"
        "\n"
        "rules about api.github.com; the last that matches wins\n"
        "  policies/gateway.yaml:6  ALLOW GET /repos/.*                                wins\n"
        '  policies/gateway.yaml:7  DENY * (?i)/repos/ada/secret(/.*)? "not this one"  no: path\n'
    )


def test_a_denial_names_the_nearest_rule_in_the_words_of_a_refusal(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained("POST", "https://api.github.com/repos/x") == 1
    out = capsys.readouterr().out
    assert "denied    no-rule: " in out
    assert "nearest   policies/gateway.yaml:6 (method)\n" in out
    assert out.count("no: method") == 1


def test_each_reading_of_a_path_is_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained("GET", "https://api.github.com/repos/x/%2e%2e/ada/secret") == 1
    out = capsys.readouterr().out
    assert "denied    ambiguous-path: " in out
    assert "  allow   GET /repos/x/%2e%2e/ada/secret  policies/gateway.yaml:6\n" in out
    assert "  deny    GET /repos/ada/secret           policies/gateway.yaml:7; this decides\n" in out


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["GET", "https://example.org/"], "unlisted-host"),
        (["GET", "http://api.github.com/repos/x"], "no-rule"),
        (["GET", "https://api.github.com/repos/x", "--websocket"], "websocket"),
        (["GET", "wss://api.github.com/repos/x"], "websocket"),
        (["GET", "https://api.github.com/repos/x", "--body-bytes", "1025"], "body-limit"),
        (["GET", "https://api.github.com/repos/x%zz"], "ambiguous-path"),
        (["GET", "https://api.github.com/repos/ada/Secret"], "rule"),
        (["CONNECT", "api.github.com"], "not-http"),
        (["GET", "https://x.canary.impyard.invalid/"], "canary"),
    ],
)
def test_the_reason_is_the_judges(
    project: Path, capsys: pytest.CaptureFixture[str], args: list[str], reason: str
) -> None:
    assert explained(*args, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["reason"]) == ("deny", reason)
    assert explained(*args) == 1
    assert f"denied    {reason}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "url", ["ftp://a.test/", "https://ada@a.test/", "https:///x", "https://a..b/", "https://127.1/"]
)
def test_what_is_no_url_is_wrong_usage(project: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert explained("GET", url) == 2
    assert "error: " in capsys.readouterr().err


def test_a_broken_policy_denies_and_says_where(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policies/gateway.yaml").write_text("networkPolicies: 1\n")
    assert explained("GET", "https://a.test/") == 1
    out = capsys.readouterr().out
    assert "policy-broken" in out
    assert "policies/gateway.yaml:1:18" in out


def test_of_many_rules_those_are_shown_that_matter(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "".join(f"      - {{action: ALLOW, method: GET, path: /{n}}}\n" for n in range(100))
    Path("policies/gateway.yaml").write_text(POLICY + more)
    keep("github")
    assert explained("GET", "https://api.github.com/57") == 0
    out = capsys.readouterr().out
    assert "ALLOW GET /57" in out
    assert out.count("\n") < 12
    assert explained("GET", "https://api.github.com/57", "--all") == 0
    assert "ALLOW GET /99" in capsys.readouterr().out


# --- test ---------------------------------------------------------------------------------------------------------


def expect(text: str, name: str = "gateway_test.yaml") -> None:
    Path("policies", name).write_text(text)


def expected(*args: str) -> int:
    return main(["policy", "test", *args])


def test_what_is_expected_is_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expect(
        "- GET https://api.github.com/repos/x : allow\n"
        "- GET https://api.github.com/repos/ada/secret: deny\n  by: not this one\n  description: never\n"
        "- POST api.github.com/repos/x: deny no-rule\n"
        "- GET https://api.github.com/repos/x: deny websocket\n  websocket: true\n"
        "- GET https://api.github.com/repos/x: deny body-limit\n  body_bytes: 2000\n"
    )
    assert expected() == 0
    assert capsys.readouterr().out == "5 as expected (policies/gateway_test.yaml)\n"


def test_a_failure_is_one_line_with_its_place_and_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expect(
        "- GET https://api.github.com/repos/x: deny\n"
        "- POST https://api.github.com/repos/x: allow\n  description: writes\n"
        "- GET https://api.github.com/repos/x: allow\n  by: other\n"
        "- POST https://api.github.com/repos/x: deny rule\n"
        "- GET https://api.github.com/repos/y: allow\n"
    )
    assert expected() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "policies/gateway_test.yaml:2: POST https://api.github.com/repos/x: expected allow, "
        "got deny no-rule, nearest policies/gateway.yaml:6 (method) (writes)"
    )
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines[:4]] == ["1", "2", "4", "6"]
    assert lines[4] == "4 of 5 failed, 1 as expected (policies/gateway_test.yaml)"
    assert expected("--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["expectations"], report["failed"]) == (5, 4)
    assert [each["ok"] for each in report["results"]] == [False] * 4 + [True]


def test_a_file_may_name_its_policy_and_a_person_another(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policies/none.yaml").write_text("networkPolicies: []\n")
    expect("policy: none.yaml\nexpect:\n  - GET https://api.github.com/repos/x: deny unlisted-host\n")
    assert expected() == 0
    assert expected("--policy", "policies/gateway.yaml") == 1
    expect("policy: [none.yaml, gateway.yaml]\nexpect:\n  - GET https://api.github.com/repos/x: allow\n")
    assert expected() == 0


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "expect: []", "policy: gateway.yaml", "{}", "7"])
def test_nothing_expected_is_an_error(project: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    expect(text)
    assert expected() == 1
    out, err = capsys.readouterr()
    assert "as expected" not in out
    assert err.startswith("error: policies/gateway_test.yaml")


def test_no_file_at_all_is_an_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected() == 1
    assert "there are no expectations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("GET https://a.test/: alow", ':1:24: verdict "alow": write allow, deny or deny REASON; did you mean allow?'),
        ("GET https://a.test/: deny no-rul", 'no policy denies for "no-rul"; did you mean no-rule?'),
        ("GET https://a.test/: deny busy", 'no policy denies for "busy"'),
        ("GET https://a.test/: allow rule", "write allow, deny or deny REASON"),
        ("POTS https://a.test/: deny", 'unknown method "POTS"; did you mean POST?'),
        ("{GET https://a.test/: allow, by: ''}", "by is empty"),
        ("GET https://a.test/a#/../b: allow", "no client sends what follows a #"),
        ("GET https://a..test/: allow", ":1:3: the host of the URL"),
        ("{GET https://a.test/: allow, dscription: x}", 'unknown key "dscription"; did you mean description?'),
        ("{GET https://a.test/: allow, GET https://b.test/: allow}", "one METHOD URL, not 2"),
        ("{by: x}", "one METHOD URL, not none"),
        ("allow", 'an expectation is "METHOD URL: allow"'),
        ("{GET https://a.test/: allow, body_bytes: many}", "body_bytes must be a whole number"),
    ],
)
def test_a_slip_in_an_expectation_is_a_fault(
    project: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    expect(f"- {line}\n- GET https://api.github.com/repos/x: allow\n")
    assert expected() == 1
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_the_hooks_for_pre_commit_work(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = {hook["id"]: hook for hook in yaml.safe_load((POLICIES.parent / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"impyard-policy", "impyard-policy-test"}
    expect("- GET https://api.github.com/repos/foobar: allow\n")
    for text, statuses in ((POLICY, [0, 0]), (POLICY.replace("/repos/.*", "/repos/foo.*"), [1, 0]), ("", [1, 1])):
        Path("policies/gateway.yaml").write_text(text)
        assert [main(hook["entry"].split()[1:]) for hook in hooks.values()] == statuses
        assert all(not hook["pass_filenames"] for hook in hooks.values())
        assert all(re.search(hook["files"], "policies/gateway.yaml") for hook in hooks.values())


def test_the_shipped_policies_are_as_their_files_expect(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(str(path) for path in POLICIES.glob("*_test.yaml"))  # those of presets: tests/unit/test_presets.py
    assert files
    assert main(["policy", "test", "--project", str(POLICIES.parent), *files]) == 0
    assert "as expected" in capsys.readouterr().out


def test_expectations_are_never_a_policy(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expect("- GET https://api.github.com/repos/x: allow\n")
    assert main(["policy", "check", "policies/gateway_test.yaml"]) == 1
    assert "`impyard policy test` is for files that end in _test.yaml" in capsys.readouterr().err
    assert main(["policy", "check"]) == 0
    assert "1 entry, 2 rules" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("word", "said"), [("https://a.test/x", "as in GET https://a.test/x"), ("debf.9", "`impyard decisions show ID`")]
)
def test_one_word_too_few_is_answered_with_what_is_missing(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "explain", word]) == 2
    assert said in capsys.readouterr().err
