"""Lints about hosts and methods."""

from __future__ import annotations

import difflib

from impyard.addon.policyfile import METHODS
from impyard.addon.publicaddresses import leads_inside
from impyard.addon.yamlnodes import Scalar, Sequence_, short
from impyard.runner.policy.lint import Finding, Lint, Subject
from impyard.runner.policy.lint_ask import attempt, examples, finding, method_for
from impyard.runner.policy.methods import is_known, meant_by, no_method
from impyard.runner.policy.places import Placed

# Names below these belong to whoever asks for one.
_SHARED_TEXT = """
amazonaws.com s3.amazonaws.com azurewebsites.net blob.core.windows.net cloudfront.net fly.dev github.io gitlab.io
googleusercontent.com herokuapp.com netlify.app ngrok.io ngrok-free.app ngrok.app onrender.com pages.dev r2.dev
railway.app repl.co run.app storage.googleapis.com surge.sh trycloudflare.com vercel.app web.app workers.dev
"""
_SHARED = frozenset(_SHARED_TEXT.split())


def findings(subject: Subject) -> list[Finding]:
    found = [each for entry in subject.entries for each in _any_host(subject, entry)]
    found += [each for entry in subject.entries for each in _private(subject, entry)]
    found += _spellings(subject)
    found += [each for entry in subject.entries for each in _fields(entry)]
    return found + [each for rule in subject.rules for each in _methods(subject, rule)]


def _any_host(subject: Subject, entry: Placed) -> list[Finding]:
    host = entry.entry.host
    if host != "*" and not (host.startswith("*.") and (host[2:] in _SHARED or "." not in host[2:])):
        return []
    for rule in subject.rules_of(entry.entry):
        assert rule.rule is not None
        for path in examples(rule.rule) if rule.rule.allow else ():
            tried = attempt(subject, entry.entry, method_for(rule.rule), path)
            if tried.by(rule.rule):
                message = f'host "{host}" includes hosts that anybody can have: allows {tried.text}'
                return [
                    finding(entry, "any-host", message, "list the hosts that are meant", example=tried.text, key="host")
                ]
    return []


def _private(subject: Subject, entry: Placed) -> list[Finding]:
    host = entry.entry.host
    if entry.entry.upstream is not None or not leads_inside(host):
        return []
    for rule in subject.rules_of(entry.entry):
        assert rule.rule is not None
        for path in examples(rule.rule)[:1] if rule.rule.allow else ():
            tried = attempt(subject, entry.entry, method_for(rule.rule), path)
            if tried.by(rule.rule):
                message = f'"{host}" is not public, and no upstream is named: allows {tried.text}, which gets nowhere'
                scheme, port = next(iter(entry.entry.ports.items()))
                where = f"[{host}]" if ":" in host else host
                instead = f'write upstream: "{scheme}://{where}:{port}" into the entry'
                return [finding(entry, "private-host", message, instead, example=tried.text, key="host")]
    return []


def _spellings(subject: Subject) -> list[Finding]:
    first: dict[str, tuple[str, Placed]] = {}
    found = []
    for entry in subject.entries:
        node = next(value for key, value in entry.node.value if key.value == "host")
        raw = node.value
        known, before = first.setdefault(entry.entry.host, (raw, entry))
        if known != raw and _plain(known) == _plain(raw):
            same = f'"{short(raw)}" is the same host as "{short(known)}" in {_where(entry, before)}'
            message = f"{same}: case and a trailing dot make no difference"
            found.append(finding(entry, "host-spelling", message, f"write {entry.entry.host} in both", key="host"))
    return found


# What a key, a login and a login's account are called in templates. A credential may have fields of its own beside.
_FIELDS = ("key", "access", "account_id")


def _fields(entry: Placed) -> list[Finding]:
    inject = entry.entry.inject
    names = (
        {name for variant in inject.variants for _, each in variant.headers for name in each.fields} if inject else ()
    )
    found = []
    for name in sorted(set(names) - set(_FIELDS)):
        if close := difflib.get_close_matches(name.lower(), _FIELDS, 1, 0.66):
            message = f"{{{name}}}: no credential has such a field by itself, and without it requests are denied"
            node = next(node for node in entry.texts("inject") if f"{{{name}}}" in node.value)
            place = entry.place_of(node)
            instead = f"did you mean {{{close[0]}}}?"
            found.append(Finding(entry, Lint(place.file, place.line, place.column, "unknown-field", message, instead)))
    return found


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")


def _where(here: Placed, there: Placed) -> str:
    line = f"line {there.lines[0]}"
    return line if there.source is here.source else f"{there.source.file}, {line}"


def _methods(subject: Subject, placed: Placed) -> list[Finding]:
    node = next(value for key, value in placed.node.value if key.value == "method")
    found = []
    for number, item in enumerate(node.value if isinstance(node, Sequence_) else [node]):
        name = item.value if isinstance(item, Scalar) else ""
        if name != "*" and not is_known(name):
            found.append(_unknown(subject, placed, name, meant_by(name), number if node is not item else None))
    return found


def _unknown(subject: Subject, placed: Placed, name: str, meant: str, item: int | None) -> Finding:
    rule = placed.rule
    assert rule is not None
    message, example = no_method(name), ""
    for path in examples(rule)[:1] if meant else ():
        tried = attempt(subject, placed.entry, meant, path)
        if not tried.by(rule):
            example = tried.text
            message += f": {tried.text} is {'allowed' if tried.decision.allowed else 'denied'}, whatever this rule says"
    instead = f"did you mean {meant}?" if meant else f"write some of {', '.join(METHODS)}"
    return finding(placed, "unknown-method", message, instead, example=example, key="method", item=item)
