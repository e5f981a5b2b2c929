"""Lints about ALLOW rules that are wider than they look."""

from __future__ import annotations

import re

from impyard.addon.rules import Rule
from impyard.runner.policy.lint import Finding, Subject
from impyard.runner.policy.lint_ask import WRITES, attempt, finding, is_about
from impyard.runner.policy.lint_shadow import denies_between
from impyard.runner.policy.places import Placed
from impyard.runner.policy.regexask import beginning, is_everything
from impyard.runner.policy.regexlang import Unknown

# Hosts on which a request of this kind stores what is sent: (host, method, path, what). A rule that has the path's last
# word written out is taken to mean it.
_UPLOADS = (
    *(
        (host, "POST", prefix + path, what)
        for host, prefix in (
            ("api.anthropic.com", "/v1"),
            ("api.openai.com", "/v1"),
            ("api.mistral.ai", "/v1"),
            ("api.x.ai", "/v1"),
            ("api.groq.com", "/openai/v1"),
            ("api.together.xyz", "/v1"),
        )
        for path, what in (("/files", "a file"), ("/batches", "a batch"))
    ),
    ("api.openai.com", "POST", "/v1/uploads", "an upload"),
    ("api.anthropic.com", "POST", "/v1/messages/batches", "a batch"),
    ("chatgpt.com", "POST", "/backend-api/files", "a file"),
    ("generativelanguage.googleapis.com", "POST", "/upload/v1beta/files", "a file"),
    ("api.github.com", "POST", "/gists", "a gist"),
    ("api.github.com", "PUT", "/repos/owner/repo/contents/file", "a file"),
    ("api.github.com", "POST", "/repos/owner/repo/issues", "an issue"),
    ("uploads.github.com", "POST", "/repos/owner/repo/releases/1/assets", "a file"),
    ("github.com", "POST", "/owner/repo/git-receive-pack", "commits"),
    ("gitlab.com", "POST", "/owner/repo.git/git-receive-pack", "commits"),
    ("gitlab.com", "POST", "/api/v4/snippets", "a snippet"),
    ("huggingface.co", "POST", "/api/models/owner/repo/commit/main", "commits"),
    ("huggingface.co", "POST", "/owner/repo/git-receive-pack", "commits"),
    ("pastebin.com", "POST", "/api/api_post.php", "a paste"),
    ("s3.amazonaws.com", "PUT", "/owner/file", "a file"),
    ("storage.googleapis.com", "PUT", "/owner/file", "a file"),
)
_ODD_PATH = "/~zq/-9x.~"  # what matches all paths matches this one
_WILD = re.compile(r"[*+\[]|\.[{?]?")


def findings(subject: Subject) -> list[Finding]:
    everything = {id(rule) for entry in subject.entries for rule in entry.entry.matching(_ODD_PATH) if _is_all(rule)}
    found = []
    for placed in subject.rules:
        rule = placed.rule
        assert rule is not None
        if not rule.allow:
            continue
        is_all = id(rule) in everything
        wide = _uploads(subject, placed, rule) or (_wide(subject, placed, rule) if is_all else None)
        if wide:
            found.append(wide)
        if is_all and (beside := _beside(subject, placed, rule)):
            found.append(beside)
    return found


def _is_all(rule: Rule) -> bool:
    try:
        return is_everything(rule.path)
    except Unknown:
        return False


def _uploads(subject: Subject, placed: Placed, rule: Rule) -> Finding | None:
    if not _WILD.search(rule.path):
        return None
    for host, method, path, what in _UPLOADS:
        entry = placed.entry
        fits = entry.host in (host, "*") or (entry.host.startswith("*.") and host.endswith(entry.host[1:]))
        if not fits or not is_about(rule, method) or _names(rule.path, path.rpartition("/")[2]):
            continue
        path = _with_owner(path, rule.path)
        tried = attempt(subject, entry, method, path, host=host)
        if tried.by(rule) and tried.decision.allowed:
            return finding(
                placed,
                "takes-uploads",
                f"also allows {tried.text}, which stores {what}",
                "name the paths that are meant, or deny this one below",
                example=tried.text,
            )
    return None


def _names(expression: str, word: str) -> bool:
    """Whether the word stands in the expression, not as part of another."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", expression) is not None


def _with_owner(path: str, expression: str) -> str:
    """The path with the owner and the repository that the expression begins with, if it names them."""
    named = beginning(expression).split("/")[:-1]
    parts = path.split("/")
    return "/".join(
        named[number] if part in ("owner", "repo") and number < len(named) else part
        for number, part in enumerate(parts)
    )


def _wide(subject: Subject, placed: Placed, rule: Rule) -> Finding | None:
    for method in WRITES:
        tried = attempt(subject, placed.entry, method, "/anything") if is_about(rule, method) else None
        if tried is None or not tried.by(rule):
            continue
        inject = placed.entry.inject
        if inject is not None:
            message = f'allows all that the credential "{inject.credential}" may do, as {tried.text}'
            return finding(
                placed, "wide-inject", message, "name the methods and paths that are meant", example=tried.text
            )
        return finding(
            placed,
            "wide-allow",
            f"allows every path, also {tried.text}",
            "name the methods and paths that are meant",
            example=tried.text,
        )
    return None


def _beside(subject: Subject, placed: Placed, rule: Rule) -> Finding | None:
    narrower = [
        other
        for other in subject.rules_of(placed.entry)
        if other.rule is not None
        and other is not placed
        and _is_narrower(other.rule, rule)
        and not denies_between(subject, placed, other)
    ]
    if not narrower:
        return None
    method = min(rule.methods or {"GET"})
    tried = attempt(subject, placed.entry, "GET" if is_about(rule, "GET") else method, "/anything-else")
    if not tried.by(rule):
        return None
    numbers = ", ".join(str(other.lines[0]) for other in narrower[:5]) + (", …" if len(narrower) > 5 else "")
    lines = f"{'lines' if len(narrower) > 1 else 'line'} {numbers}"
    message = f"makes the narrower ALLOW of {lines} pointless: also allows {tried.text}"
    return finding(placed, "wide-beside-narrow", message, f"leave it out, or {lines}", example=tried.text)


def _is_narrower(other: Rule, rule: Rule) -> bool:
    """Whether it is an ALLOW that says nothing which the wide one does not say."""
    if (
        not other.allow
        or other.max_body is not None
        or other.name is not None
        or (other.websocket and not rule.websocket)
        or rule.query
    ):
        return False
    if rule.methods is not None and not (other.methods and other.methods <= rule.methods):
        return False
    return not _is_all(other)
