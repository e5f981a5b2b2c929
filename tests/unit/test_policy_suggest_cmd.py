"""`impyard policy suggest`, `allow` and `deny`: a log that the real judge filled, a policy that a person wrote."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.judge import judge
from impyard.addon.policy import load_policy, read_policy
from impyard.runner import proofs
from impyard.runner.cli import main
from impyard.runner.policy import write as policywrite
from impyard.runner.policy.asked import asked, sent
from impyard.runner.policy.change import flips
from impyard.runner.policy.recorded import of_asked
from tests.support.answering import answered
from tests.support.askedlog import RUN, AskedProject

POLICY = """\
# What a person wrote.
networkPolicies:
  - host: api.example.org   # ours
    policies:
      - action: ALLOW
        method: GET
        path: /repos/.*

      # never this one
      - action: DENY
        method: "*"
        path: /repos/secret(/.*)?
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AskedProject:
    monkeypatch.delenv("IMPYARD_COMMAND", raising=False)
    monkeypatch.chdir(tmp_path)
    return AskedProject(tmp_path, POLICY)


@pytest.fixture
def told(project: AskedProject, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a policy command in the project; (status, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["policy", *words, "--project", str(project.root)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def allowed(project: AskedProject, method: str, url: str) -> bool:
    return judge(sent(asked(method, url)), load_policy([project.policy])).allowed


def document(told: Any, *words: str) -> dict[str, Any]:
    status, out, _ = told("suggest", "--json", *words)
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def rules(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(rule["host"], rule["methods"], rule["path"], rule["count"]) for rule in found["rules"]]


# -- suggest ----------------------------------------------------------------------------------------------------------


def test_what_was_denied_becomes_the_smallest_rules(project: AskedProject, told: Any) -> None:
    for number in (1, 2, 3, 3):
        project.ask("GET", f"https://t.example.org/i/{number}")
    project.ask("HEAD", "https://t.example.org/i/1")
    first = project.ask("GET", "https://api.example.org/users/me?x=1")
    project.ask("GET", "https://api.example.org/repos/a")
    project.ask("GET", "http://plain.example.org:8080/a.b")
    before = project.policy.read_bytes()
    status, out, err = told("suggest")
    assert status == 0 and project.policy.read_bytes() == before
    assert not [line for line in out.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert (
        f"+      # asked once: {first}\n+      - action: ALLOW\n+        method: GET\n+        path: /users/me\n" in out
    )
    assert "+  - host: plain.example.org\n+    scheme: http\n+    port: 8080\n" in out
    assert out.index("/users/me") < out.index("# never this one")
    assert "3 rules for 7 denied requests" in err and "impyard policy suggest --apply --project" in err
    found = document(told)
    assert ("t.example.org", ["GET", "HEAD"], "/i/[0-9]+", 5) in rules(found)
    assert found["rules"][0]["pattern"] == [{"kind": "number", "values": 3}]
    status, _, err = told("suggest", "--apply", "--yes")
    assert status == 0 and "changed policies/gateway.yaml" in err
    assert allowed(project, "GET", "https://t.example.org/i/99") and not allowed(
        project, "GET", "https://t.example.org/"
    )
    assert not allowed(project, "GET", "https://api.example.org/repos/secret")
    assert document(told)["allowed_now"] == 7 and not document(told)["rules"]


def test_a_run_and_a_time_narrow_it(project: AskedProject, told: Any) -> None:
    project.ask("GET", "https://a.example.org/1")
    project.ask("GET", "https://a.example.org/2", run="20261129-130000-cd34")
    (project.root / "runs" / "20261129-130000-cd34").mkdir()
    assert rules(document(told, "--run", RUN)) == [("a.example.org", ["GET"], "/1", 1)]
    assert rules(document(told, "--run", "last")) == [("a.example.org", ["GET"], "/2", 1)]
    assert rules(document(told, "--since", "2100-01-01")) == []
    assert rules(document(told, "--run", "20261129-120")) == [("a.example.org", ["GET"], "/1", 1)]
    shutil.rmtree(project.root / "runs" / RUN)  # as `runs prune` does; the log stays
    assert rules(document(told, "--run", RUN)) == [("a.example.org", ["GET"], "/1", 1)]
    assert told("suggest", "--run", "20251129")[0] == 1
    assert document(told)["rules"][0]["runs"] == [RUN, "20261129-130000-cd34"]


def test_git_may_fetch_without_a_push(project: AskedProject, told: Any) -> None:
    project.ask("GET", "https://git.example.org/o/r/info/refs?service=git-upload-pack")
    project.ask("POST", "https://git.example.org/o/r/git-upload-pack")
    assert told("suggest", "--apply", "--yes")[0] == 0
    assert allowed(project, "GET", "https://git.example.org/o/r/info/refs?service=git-upload-pack")
    assert not allowed(project, "GET", "https://git.example.org/o/r/info/refs?service=git-receive-pack")
    assert not allowed(project, "POST", "https://git.example.org/o/r/git-receive-pack")


def test_a_websocket_gets_a_rule_for_one(project: AskedProject, told: Any) -> None:
    project.ask("GET", "https://chat.example.org/ws", websocket=True)
    project.ask("GET", "https://api.example.org/repos/ws", websocket=True)
    assert [rule["websocket"] for rule in document(told)["rules"]] == [True, True]


@pytest.mark.parametrize(
    ("method", "url", "warned"),
    [
        ("GET", "https://files.example.org/x", False),
        ("POST", "https://docs.example.org/x", True),
        ("PUT", "https://registry.example.org/pkg", True),
        ("POST", "https://x.example.org/v1/files", True),
        ("DELETE", "https://x.example.org/y", True),
        ("GET", "https://git.example.org/o/r/info/refs?service=git-receive-pack", True),
    ],
)
def test_what_can_carry_data_out_is_never_without_a_warning(
    project: AskedProject, told: Any, method: str, url: str, warned: bool
) -> None:
    project.ask(method, url)
    _, out, err = told("suggest")
    assert ("# careful: " in out) is warned is ("careful: " in err)


@pytest.mark.parametrize(
    ("reason", "url"),
    [
        ("secret-in-request", "https://a.example.org/x"),
        ("private-address", "https://a.example.org/x"),
        ("host-mismatch", "https://a.example.org/x"),
        ("policy-broken", "https://a.example.org/x"),
        ("canary", "https://a.example.org/x"),
        ("busy", "https://a.example.org/x"),
        ("a-new-reason", "https://a.example.org/x"),
    ],
)
def test_what_no_rule_mends_is_listed_apart(project: AskedProject, told: Any, reason: str, url: str) -> None:
    project.ask("GET", url, reason=reason)
    found = document(told)
    assert not found["rules"] and not found["files"] and [each["reason"] for each in found["apart"]] == [reason]
    status, out, err = told("suggest")
    assert (status, out) == (0, "") and f"  {reason}: " in err
    project.ask("GET", url)  # the control: the same request, denied for want of a rule
    assert len(document(told)["rules"]) == 1


@pytest.mark.parametrize(
    ("apart", "method", "url", "more"),
    [
        ("rule", "GET", "https://api.example.org/repos/secret/x", {}),
        ("cut", "GET", "https://a.example.org/" + "x" * 5000, {}),
        ("cut", "GET", "https://a.example.org/token=abcdef", {}),
        ("ambiguous-path", "GET", "https://a.example.org/a/%2e%2e/b", {}),
        ("method", "*", "https://a.example.org/x", {}),
        ("private-address", "GET", "https://192.168.1.1/x", {}),
        ("malformed", "GET", "https://a.example.org/x", {"scheme": "ftp"}),
        ("private-name", "GET", "https://db.internal/x", {}),
        ("otherwise", "GET", "https://a.example.org/x", {"headers": (("X-HTTP-Method-Override", "PUT"),)}),
    ],
)
def test_no_rule_is_made_of_what_is_not_known_or_not_plain(
    project: AskedProject, told: Any, apart: str, method: str, url: str, more: dict[str, Any]
) -> None:
    project.ask(method, url, **more)
    found = document(told)
    assert not found["rules"] and [each["reason"] for each in found["apart"]] == [apart]


def test_redacted_values_never_come_into_a_rule(project: AskedProject, told: Any) -> None:
    project.ask("GET", "https://a.example.org/x?token=abcdef&q=ghijkl")
    _, out, _ = told("suggest")
    assert "path: /x\n" in out and not [word for word in ("redacted", "abcdef", "ghijkl", "query") if word in out]


def test_what_prove_asked_is_not_suggested(
    project: AskedProject, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path))
    project.ask("GET", "https://a.example.org/x")
    assert len(document(told)["rules"]) == 1
    proofs.note(RUN)
    assert told("suggest")[2] == "nothing was denied\n"


def test_own_checks_and_an_empty_or_damaged_log_are_no_trouble(project: AskedProject, told: Any) -> None:
    assert told("suggest")[2] == "nothing was denied\n"
    project.ask("GET", "https://api.example.org/repos/a")
    assert told("suggest")[2] == "nothing was denied\n"
    project.log.write_bytes(b'\x00garbage\n{"verdict":"deny"}\n' + project.log.read_bytes() + b'{"verdict":"deny", "id')
    status, out, err = told("suggest")
    assert (status, out) == (0, "") and "2 damaged lines" in err


def test_raw_bytes_in_a_path_hide_no_request_and_it_is_said_what_to_do(project: AskedProject, told: Any) -> None:
    """The judge denies them; no rule, in whatever form, allows what is no UTF-8."""
    paths = [raw.decode("utf-8", "surrogateescape") for raw in (b"/caf\xc3\xa9", b"/caf\xe9")]
    ids = [project.ask("GET", "https://b.example.org/", path=path) for path in paths]
    lines = project.log.read_bytes().splitlines()[-2:]
    assert [b"malformed" in line for line in lines] == [True, True] and b"\\udce9" in lines[1]
    hints = "`impyard policy allow GET https://b.example.org/caf%C3%A9`", "nor are they UTF-8"
    for id, hint in zip(ids, hints, strict=True):
        status, _, err = told("allow", id, "--yes")
        words = " ".join(err.split())
        assert (status, hint in words) == (1, True), err
        assert "bytes of its path are not percent-encoded, which no rule can allow" in words
    assert project.policy.read_text() == POLICY
    assert told("allow", "GET", "https://b.example.org/caf%C3%A9", "--yes")[0] == 0, "the way that was named"
    assert allowed(project, "GET", "https://b.example.org/caf%C3%A9")
    assert told("allow", "GET", "https://b.example.org/caf%E9", "--yes")[0] == 1
    [apart] = [each for each in document(told)["apart"] if each["reason"] == "malformed"]
    assert apart["count"] == 2
    assert "unchanged: 2 decisions (0 allow, 2 deny)" in told("replay")[1]


def test_text_of_a_request_cannot_pose_as_yaml_or_reach_a_terminal(
    project: AskedProject, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.ask("GET", "https://a.example.org/%e2%80%ae'x:,[]{}&*!|%22")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, _ = told("suggest")
    assert "\u202e" not in out
    monkeypatch.undo()
    assert told("suggest", "--apply", "--yes")[0] == 0
    assert allowed(project, "GET", "https://a.example.org/%e2%80%ae'x:,[]{}&*!|%22")
    assert not allowed(project, "GET", "https://a.example.org/")


# -- allow and deny ---------------------------------------------------------------------------------------------------


def test_one_decision_is_allowed_by_its_id(project: AskedProject, told: Any) -> None:
    first = project.ask("GET", "https://b.example.org/x")
    status, out, err = told("allow", first, "--yes")
    assert status == 0 and "+  - host: b.example.org" in out and "changed" in err
    assert allowed(project, "GET", "https://b.example.org/x") and not allowed(project, "GET", "https://b.example.org/y")
    assert project.policy.read_text().startswith(POLICY)
    status, out, err = told("allow", first, "--yes")
    assert (status, out) == (0, "") and "allowed already" in err


def test_a_request_is_allowed_by_its_url(project: AskedProject, told: Any) -> None:
    assert told("allow", "POST", "https://api.example.org/x", "--yes")[0] == 0
    assert allowed(project, "POST", "https://api.example.org/x") and not allowed(
        project, "GET", "https://api.example.org/x"
    )
    assert not allowed(project, "GET", "https://api.example.org/repos/secret")


def test_a_deny_of_a_person_is_not_overridden_silently(project: AskedProject, told: Any) -> None:
    first = project.ask("GET", "https://api.example.org/repos/secret/x")
    status, _, err = told("allow", first, "--yes")
    assert status == 1 and "policies/gateway.yaml:10 denies" in err and "--over-deny" in err
    assert project.policy.read_text() == POLICY
    assert told("allow", first, "--over-deny", "--yes")[0] == 0
    assert allowed(project, "GET", "https://api.example.org/repos/secret/x")
    assert not allowed(project, "GET", "https://api.example.org/repos/secret")


FORCE = """\
networkPolicies:
  - host: "*"
    policies:
      - {action: DENY, method: "*", path: /.*, query: {force: ".*"}, name: no-force}
  - host: api.example.org
    policies:
      - {action: ALLOW, method: GET, path: /a}
"""


@pytest.mark.parametrize(
    "words", [("suggest", "--apply", "--yes"), ("allow", "POST", "https://api.example.org/b", "--yes")]
)
def test_a_deny_of_a_query_outlives_a_rule_for_the_same_path(
    project: AskedProject, told: Any, words: tuple[str, ...]
) -> None:
    project.policy.write_text(FORCE)
    project.ask("POST", "https://api.example.org/b?force=1")
    project.ask("POST", "https://api.example.org/b")
    project.ask("POST", "https://api.example.org/b?page=2")
    assert told(*words)[0] == 0
    assert allowed(project, "POST", "https://api.example.org/b")
    assert not allowed(project, "POST", "https://api.example.org/b?force=1")


def test_a_deny_of_a_query_that_would_fall_is_named_and_not_overridden_unasked(
    project: AskedProject, told: Any
) -> None:
    project.policy.write_text(
        FORCE.replace("path: /.*, query", 'path: /b}\n      - {action: DENY, method: "*", path: /.*, query')
    )
    before = project.policy.read_text()
    first = project.ask("POST", "https://api.example.org/b")
    status, _, err = told("allow", first, "--over-deny", "--yes")
    assert status == 1 and 'over "no-force" (policies/gateway.yaml:5)' in err and project.policy.read_text() == before
    project.policy.write_text(FORCE)
    first = project.ask("POST", "https://api.example.org/b?force=1&x=3")
    project.ask("POST", "https://api.example.org/b?force=2")
    assert told("allow", first, "--over-deny", "--yes")[0] == 0  # with the DENY's own condition
    assert allowed(project, "POST", "https://api.example.org/b?force=1")
    for more in ("force=2", "force=1&force=2", "force=11"):
        assert not allowed(project, "POST", f"https://api.example.org/b?{more}")


def test_a_recorded_request_that_a_deny_of_its_query_denied_is_no_part_of_what_was_asked_for(
    project: AskedProject, told: Any
) -> None:
    project.policy.write_text(FORCE)
    other = project.ask("POST", "https://api.example.org/b?force=2")
    wide = FORCE + "      - {action: ALLOW, method: POST, path: /b}\n"
    wanted = of_asked(asked("POST", "https://api.example.org/b"))
    before, after = (read_policy([(project.policy, text.encode())]) for text in (FORCE, wide))
    (flip,) = flips(project.log, [wanted.host], before, after, [wanted])
    assert (flip.what, flip.id, flip.opened) == ("POST https://api.example.org/b?force=2", other, True)


def test_what_was_allowed_is_denied_by_its_id(project: AskedProject, told: Any) -> None:
    first = project.ask("GET", "https://api.example.org/repos/a")
    status, _, err = told("deny", first, "--yes")
    assert status == 0 and "still allows" in err  # what `policy check` has to say about it
    assert "no effect" not in err
    assert not allowed(project, "GET", "https://api.example.org/repos/a")
    assert allowed(project, "GET", "https://api.example.org/repos/b")
    assert "denied already" in told("deny", first, "--yes")[2]


@pytest.mark.parametrize(
    ("method", "path"), [("*", "/repos/secret"), ("get", "/repos/secret"), ("GET", "/repos//secret")]
)
def test_no_exception_is_made_for_more_than_was_asked(project: AskedProject, told: Any, method: str, path: str) -> None:
    first = project.ask(method, f"https://api.example.org{path}")
    status, _, err = told("allow", first, "--over-deny", "--yes")
    assert status == 1 and "no rule is written for" in err and project.policy.read_text() == POLICY


def test_no_deny_is_made_of_a_method_that_means_any(project: AskedProject, told: Any) -> None:
    project.policy.write_text(POLICY.replace("method: GET", 'method: "*"'))
    assert told("deny", project.ask("*", "https://api.example.org/repos/a"), "--yes")[0] == 1
    assert told("deny", project.ask("PUT", "https://api.example.org/repos/a"), "--yes")[0] == 0  # the control
    assert allowed(project, "GET", "https://api.example.org/repos/a")


def test_what_would_change_beside_it_is_named_and_never_written_unasked(project: AskedProject, told: Any) -> None:
    for number in (1, 2, 3):
        project.ask("GET", f"https://t.example.org/i/{number}")
    other = project.ask("GET", "https://t.example.org/i/4", run="20261129-130000-cd34")
    status, _, err = told("suggest", "--run", RUN, "--apply", "--yes")
    assert status == 1 and f"GET https://t.example.org/i/4 ({other})" in err and "nothing was written" in err
    assert project.policy.read_text() == POLICY


def test_somebody_elses_edit_while_the_question_stands_is_kept(
    project: AskedProject, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = POLICY + "# theirs\n"

    def person(*_: object, **__: object) -> bool:
        project.policy.write_text(theirs)
        return True

    monkeypatch.setattr(policywrite, "sure", person)
    status, _, err = told("allow", "GET", "https://b.example.org/x")
    assert status == 1 and "was changed meanwhile" in err
    assert project.policy.read_text() == theirs


def test_of_several_files_none_may_change_while_the_question_stands(
    project: AskedProject, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.policy.with_name("z.yaml")
    other.write_text("networkPolicies: []\n")
    files = ("--policy", str(project.policy), "--policy", str(other))

    def person(*_: object, **__: object) -> bool:
        other.write_text("broken")
        return True

    monkeypatch.setattr(policywrite, "sure", person)
    status, _, err = told("allow", "GET", "https://api.example.org/x", *files)
    assert status == 1 and "z.yaml was changed meanwhile" in err and project.policy.read_text() == POLICY


def test_the_way_back_says_what_has_no_effect_any_more(project: AskedProject, told: Any) -> None:
    first = project.ask("GET", "https://api.example.org/x")
    assert told("allow", first, "--yes")[0] == 0
    text = project.policy.read_text()
    project.policy.write_text(text.replace("path: /x\n", "path: /x\n        max_body: 1k\n"))  # no longer ours
    lines = project.policy.read_text().split("\n")
    path = next(n for n, text in enumerate(lines, 1) if text.endswith("path: /x"))
    line = max(n for n, text in enumerate(lines[:path], 1) if text.lstrip().startswith("- "))  # of the whole rule
    status, _, err = told("deny", first, "--yes")
    assert status == 0 and "has no effect any more; you may leave it out" in err and "put it below" not in err
    assert f"policies/gateway.yaml:{line} " in err


def test_two_at_once_are_both_written(project: AskedProject) -> None:
    from impyard.runner.policy.allow_cmd import _allowing, _change

    def one(name: str) -> None:
        def make(*given: Any) -> Any:
            return _allowing(*given, over_deny=False, yes=True)

        _change(("GET", f"https://{name}.example.org/x"), project.root, (), make, yes=True)

    threads = [threading.Thread(target=one, args=(name,)) for name in ("b", "c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(allowed(project, "GET", f"https://{name}.example.org/x") for name in ("b", "c", "d"))


def test_nothing_is_written_where_nobody_can_be_asked(project: AskedProject, told: Any) -> None:
    status, out, err = told("allow", "GET", "https://b.example.org/x")
    assert status == 1 and "+  - host: b.example.org" in out and "--yes" in err
    assert project.policy.read_text() == POLICY


@pytest.mark.parametrize("kind", ["broken", "folder", "pipe", "missing", "read-only", "large"])
@pytest.mark.parametrize(
    "words", [("allow", "GET", "https://b.example.org/x", "--yes"), ("suggest",)], ids=lambda words: words[0]
)
def test_a_policy_that_cannot_be_used_is_an_error(
    project: AskedProject, told: Any, kind: str, words: tuple[str, ...]
) -> None:
    project.ask("GET", "https://b.example.org/x")
    project.policy.unlink()
    if kind == "broken":
        project.policy.write_text(POLICY.replace("ALLOW", "ALOW"))
    elif kind == "folder":
        project.policy.mkdir()
    elif kind == "pipe":
        os.mkfifo(project.policy)
    elif kind == "large":
        project.policy.write_bytes(b"#" * 9_000_000)
    elif kind == "read-only":
        project.policy.write_text(POLICY)
        project.policy.chmod(0o444)
    status, _, err = told(*words)
    assert (status, err.count("error: ")) == ((0, 0) if (kind, words[0]) == ("read-only", "suggest") else (1, 1))
    assert "hint: " in err or status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("allow", "nothing"),
        ("allow", "20991231-000000-0000.1"),
        ("allow", "GET", "https://"),
        ("allow", "GET", "ftp://x/"),
    ],
)
def test_what_means_nothing_is_said(project: AskedProject, told: Any, words: tuple[str, ...]) -> None:
    project.ask("GET", "https://b.example.org/x")
    status, _, err = told(*words)
    assert status == 1 and err.startswith("error: ") and "hint: " in err


def test_a_policy_behind_a_link_with_crlf_and_a_mark_stays_so(project: AskedProject, told: Any) -> None:
    real = project.root / "real.yaml"
    real.write_bytes(b"\xef\xbb\xbf" + POLICY.replace("\n", "\r\n").encode())
    project.policy.unlink()
    project.policy.symlink_to(real)
    assert told("allow", "GET", "https://b.example.org/x", "--yes")[0] == 0
    data = real.read_bytes()
    assert (
        project.policy.is_symlink()
        and data.startswith(b"\xef\xbb\xbf# What")
        and b"\n" not in data.replace(b"\r\n", b"")
    )
    assert allowed(project, "GET", "https://b.example.org/x")


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", "https://api.example.org/x/y"),
        ("GET", "https://new.example.org/q"),
        ("GET", "https://git.example.org/a/b.git/info/refs?service=git-upload-pack"),
        ("GET", "https://api.example.org/@a%2fb"),
    ],
)
@pytest.mark.parametrize("blank", ["\n", ""])
def test_deny_takes_back_what_allow_wrote(project: AskedProject, told: Any, method: str, url: str, blank: str) -> None:
    more = f"{blank}  - host: other.example.org\n    policies:\n      - {{action: ALLOW, method: GET, path: /}}\n"
    project.policy.write_text(POLICY + more)
    before = project.policy.read_bytes()
    first = project.ask(method, url)
    assert told("allow", first, "--yes")[0] == 0 and project.policy.read_bytes() != before
    assert allowed(project, method, url)
    status, _, err = told("deny", first, "--yes")
    assert status == 0 and "allowed just this, and is taken out" in err
    assert project.policy.read_bytes() == before and not allowed(project, method, url)
    assert told("check")[1].count("never-decides") == 0


def test_deny_leaves_what_a_person_wrote_and_writes_what_still_is_needed(project: AskedProject, told: Any) -> None:
    rule = "      - action: ALLOW\n        method: GET\n        path: /v1/x\n"
    for theirs in (
        "      # for the docs\n" + rule,
        rule.replace("/v1/x\n", "/v1/x  # see above\n"),
        rule + "        name: mine\n",
        rule.replace("GET", "[GET, HEAD]"),
    ):
        text = POLICY.replace("\n      # never", f"{theirs}\n      # never")
        project.policy.write_text(text)
        assert allowed(project, "GET", "https://api.example.org/v1/x")
        assert told("deny", "GET", "https://api.example.org/v1/x", "--yes")[0] == 0
        after = project.policy.read_text()
        assert theirs in after and after.count("DENY") == 2
        assert not allowed(project, "GET", "https://api.example.org/v1/x")
    narrow = rule.replace("/v1/x", "/repos/x")
    project.policy.write_text(POLICY.replace("\n      # never", f"{narrow}\n      # never"))
    assert told("deny", "GET", "https://api.example.org/repos/x", "--yes")[0] == 0
    assert project.policy.read_text().count("/repos/x") == 1 and project.policy.read_text().count("DENY") == 2
    assert not allowed(project, "GET", "https://api.example.org/repos/x")


def test_no_advice_is_to_allow_what_a_deny_covers(project: AskedProject, told: Any) -> None:
    covered = "      - {action: ALLOW, method: GET, path: /repos/secret}\n      # never"
    project.policy.write_text(POLICY.replace("      # never", covered))
    _, out, _ = told("check")
    assert "never-decides" in out and "instead: leave it out\n" in out and "put it below" not in out


@pytest.mark.parametrize(
    ("typed", "status"),
    [(b"n\n", 1), (b"\x03", 130), (b"\x04", 130), (b"y\n", 0)],
    ids=["no", "ctrl-c", "ctrl-d", "control: yes"],
)
def test_what_became_of_an_answer_is_said(project: AskedProject, typed: bytes, status: int) -> None:
    words = ["policy", "allow", "GET", "https://new.example.org/q", "--project", str(project.root)]
    before = project.policy.read_bytes()
    ended, shown = answered(words, b"change policies/gateway.yaml? [y/N]: ", typed)
    assert ended == status and (project.policy.read_bytes() == before) == bool(status)
    assert shown[-1].startswith("nothing was changed" if status else "changed policies/gateway.yaml")
