"""`impyard policy allow` and `impyard policy deny`: a rule for just one recorded request, or one named by its URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.options import project_option
from impyard.runner.policy.place import located, policy_option

if TYPE_CHECKING:
    from impyard.addon.judge import Decision
    from impyard.addon.policy import Policy, Rule
    from impyard.runner.policy.put import Contents, Deciding, Put
    from impyard.runner.policy.replay import Recorded
    from impyard.runner.policy.suggest import Apart, Kind
    from impyard.runner.policy.text import NewRule

_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_SHORT = "ID... | METHOD URL"


@click.command(short_help="Allow just what a denied request asked for.")
@click.argument("wanted", nargs=-1, required=True, metavar=_SHORT)
@project_option
@policy_option
@click.option("--over-deny", is_flag=True, help="Also where a DENY rule denied it: the exception goes below that rule.")
@_yes
def allow(wanted: tuple[str, ...], project: Path | None, policies: tuple[Path, ...], over_deny: bool, yes: bool) -> int:
    """Allow just what denied requests asked for: method, host and path.

    ID is a decision's, as `impyard decisions` shows it; its beginning or end will do where there is but one. The
    rule goes into the host's entry, above its DENY rules, or into a new entry. All else in the file stays as it is.

    \b
    Examples:
      impyard policy allow 20261129-201824-09c6.5
      impyard policy allow GET https://api.example.org/v1/models
    """

    def made(contents: Contents, root: Path, policy: Policy, asked: Sequence[Recorded]) -> Contents:
        return _allowing(contents, root, policy, asked, over_deny=over_deny, yes=yes)

    return _change(wanted, project, policies, made, yes=yes)


@click.command(short_help="Deny just what an allowed request asked for.")
@click.argument("wanted", nargs=-1, required=True, metavar=_SHORT)
@project_option
@policy_option
@_yes
def deny(wanted: tuple[str, ...], project: Path | None, policies: tuple[Path, ...], yes: bool) -> int:
    """Deny just what allowed requests asked for: method, host and path.

    The rule goes below the one that allows it. A rule that `policy allow` wrote for just this is taken out instead.
    To deny more than this, edit what it shows you.

    \b
    Examples:
      impyard policy deny 20261129-201824-09c6.5
      impyard policy deny POST https://api.example.org/v1/files
    """
    return _change(wanted, project, policies, _denying, yes=yes)


Making = Callable[["Contents", Path, "Policy", Sequence["Recorded"]], "Contents"]


def _change(what: Sequence[str], project: Path | None, policies: tuple[Path, ...], make: Making, *, yes: bool) -> int:
    from impyard.runner.policy import change as policychange
    from impyard.runner.policy.loaded import policy_of

    root, paths = located(project, policies)
    log = root / "runs" / "decisions.jsonl"
    asked = _meant(what, log)
    with ExitStack() as held:
        if yes:
            policychange.lock(paths, held)
        before, policy = policychange.read(paths, root)
        after = make(before, root, policy, asked)
        if after == before:
            return 0
        others = policychange.flips(log, [each.host for each in asked], policy, policy_of(after, root), asked)
        return 0 if policychange.carry_out(before, after, root, others, yes=yes) else 1


def _meant(what: Sequence[str], log: Path) -> list[Recorded]:
    """The requests that are named, each once."""
    from impyard.runner.decisions.read import find
    from impyard.runner.policy.asked import asked
    from impyard.runner.policy.change import say
    from impyard.runner.policy.methods import remark
    from impyard.runner.policy.recorded import key_of, of_asked, recorded, upgrade_of

    if what[0].isalpha() or (len(what) == 2 and "/" in what[1]):
        if len(what) != 2:
            raise ImpyardError(
                "name decisions by their ids, or one request as METHOD URL",
                hint="as in `impyard policy allow GET https://api.example.org/v1/models`",
            )
        named = asked(what[0].upper(), what[1])
        if about := remark(named.method):
            say(f"careful: {about}", fg="yellow")
        return [of_asked(named)]
    found = {}
    for text in what:
        line = recorded(find(log, text).line)
        if line is None:
            raise ImpyardError(f"the line of decision {text!r} is damaged", hint="name the request as METHOD URL")
        found[key_of(line), line.query, upgrade_of(line)] = line
    return list(found.values())


def _allowing(
    contents: Contents, root: Path, policy: Policy, asked: Sequence[Recorded], *, over_deny: bool, yes: bool
) -> Contents:
    """The policy's files with rules that allow all of it. Raises ImpyardError for what no rule allows."""
    from impyard.runner.policy.change import say
    from impyard.runner.policy.suggest import Collector, suggestion
    from impyard.runner.policy.suggest_show import say_beside

    found = Collector(policy)
    over: list[Recorded] = []
    for each in asked:
        if each.id and each.verdict == "allow" and each.reason == "rule":
            say(f"note: {each.id} was allowed; the policy of now is asked about it")
        known = set(found.apart)
        found.add_denied(each)
        for apart in set(found.apart) - known:
            if apart.reason == "rule" and over_deny:
                del found.apart[apart]
                over.append(each)
            else:
                raise _refused(apart, each)
    if found.allowed_now:
        say("it is allowed already" if len(asked) == 1 else f"allowed already: {found.allowed_now} of {len(asked)}")
    made = suggestion(contents, root, found, patterns=False)
    for apart in made.apart:
        raise _refused(apart, None)
    say_beside(made, counts=False)
    changed = made.contents
    for each in over:
        changed = _over(changed, root, each, yes=yes)
    return changed


def _over(contents: Contents, root: Path, asked: Recorded, *, yes: bool) -> Contents:
    """The files with an exception for one request below each DENY that it meets."""
    from impyard.runner.policy.change import say, unasked
    from impyard.runner.policy.loaded import policy_of
    from impyard.runner.policy.put import put
    from impyard.runner.policy.suggest import kind_of

    policy = policy_of(contents, root)
    kind = kind_of(asked)
    _, met = _judged(asked, policy)
    if met is None or met.rule.allow:
        return contents  # an exception before this one does for it too
    kind = replace(kind, query=kind.query or _condition(asked, met.rule))
    rule, told = _rule(kind, asked, allow=True)
    done = put(contents, root, kind.where, [rule], over=met)
    for text in (*(f"careful: {kind.where}: {each}" for each in told), *(f"note: {each}" for each in done.remarks)):
        say(text)
    for each in done.wins:
        say(f'the exception would also win, for other requests to its path, over "{each.label}" ({each.at})', fg="red")
    if yes and done.wins:
        raise unasked()
    decision, now = _judged(asked, done.policy)
    if not decision.allowed:
        by = f" ({now.rule.at})" if now is not None else ""
        raise ImpyardError(
            f"{_named(asked)} would still be denied: {decision.reason}{by}",
            hint="`impyard policy explain METHOD URL` says why; write the rule yourself",
        )
    return done.contents


def _condition(asked: Recorded, over: Rule) -> tuple[tuple[str, str], ...]:
    """The condition by which an exception from a DENY about the query is no more than what was asked for."""
    from impyard.addon.readings import Query
    from impyard.runner.policy.pathrules import quoted

    query = Query(asked.query)
    values = {key: sorted(set(query.values(key))) for key, _ in over.query}
    return tuple((key, "|".join(map(quoted, those))) for key, those in values.items() if those)


def _denying(contents: Contents, root: Path, policy: Policy, asked: Sequence[Recorded]) -> Contents:
    """The policy's files with rules that deny all of it."""
    from impyard.runner.policy.change import say
    from impyard.runner.policy.put import put, take_out
    from impyard.runner.policy.suggest import kind_of

    for each in asked:
        decision, met = _judged(each, policy)
        if not decision.allowed or met is None:
            say(f"{_named(each)} is denied already ({decision.reason})")
            continue
        kind = kind_of(each)
        if _is_just_for(met, kind, each) and (taken := take_out(contents, root, met)) is not None:
            say(f"note: the rule at {met.rule.at} allowed just this, and is taken out")
            contents, policy = taken
            decision, met = _judged(each, policy)
            if not decision.allowed or met is None:
                continue
        rule, _ = _rule(kind, each, allow=False)
        done = put(contents, root, kind.where, [rule], over=met)
        if _judged(each, done.policy)[0].allowed:
            raise ImpyardError(f"{_named(each)} would still be allowed", hint="write the rule into the file yourself")
        _say_lints(contents, done, root)
        contents, policy = done.contents, done.policy
    return contents


def _is_just_for(met: Deciding, kind: Kind, asked: Recorded) -> bool:
    """Whether a rule is what `policy allow` writes for this request: no condition more, no name, no other method."""
    wanted, _ = _rule(kind, asked, allow=True)
    rule, where = met.rule, kind.where
    return (
        (met.entry.host, dict(met.entry.ports)) == (where.host, {where.scheme: where.port})
        and (rule.methods, rule.path) == (frozenset([kind.method]), wanted.path)
        and {key: expression.pattern for key, expression in rule.query} == dict(wanted.query)
        and (rule.websocket, rule.max_body, rule.name) == (kind.websocket, None, None)
    )


def _rule(kind: Kind, asked: Recorded, *, allow: bool) -> tuple[NewRule, tuple[str, ...]]:
    from impyard.runner.policy.pathrules import NoRule
    from impyard.runner.policy.suggest import rule_of

    try:
        return rule_of(kind, asked, allow=allow)
    except NoRule as exc:
        raise _no_rule("method" if str(exc) == "method" else "ambiguous-path", _named(asked)) from exc


def _judged(asked: Recorded, policy: Policy) -> tuple[Decision, Deciding | None]:
    from impyard.runner.policy.put import deciding
    from impyard.runner.policy.replay import NotRecorded, Replay

    try:
        return deciding(Replay(policy).request(asked), policy)
    except NotRecorded as exc:
        raise _no_rule("cut", _named(asked)) from exc


def _say_lints(before: Contents, done: Put, root: Path) -> None:
    """What `impyard policy check` finds in the new rule: one for a single path is easily walked around."""
    from impyard.runner.policy.change import say
    from impyard.runner.policy.lint import lints

    known = {(lint.code, lint.message) for lint in lints(before, root=root)}
    for lint in lints(done.contents, root=root, policy=done.policy):
        if (lint.code, lint.message) not in known:
            if lint.code == "never-decides":
                at = _rule_at(done.policy, lint.file, lint.line)
                say(f"note: the rule at {at} has no effect any more; you may leave it out", fg="yellow")
            else:
                say(f"note: {lint.message}; {lint.instead}", fg="yellow")


def _rule_at(policy: Policy, file: str, line: int) -> str:
    """The place of the rule that a line belongs to, as everything else names it."""
    places = [(rule.at.rpartition(":")) for entry in policy.entries for rule in entry.rules]
    return f"{file}:{max((int(n) for named, _, n in places if named == file and int(n) <= line), default=line)}"


def _refused(apart: Apart, asked: Recorded | None) -> ImpyardError:
    from impyard.runner.policy.recorded import encoded

    what = apart.what if asked is None else _named(asked)
    if apart.reason == "rule":
        which = asked.id if asked is not None and asked.id else what
        return ImpyardError(
            f"{apart.at} denies {_short(what)} on purpose",
            hint=f"`impyard policy allow {which} --over-deny` puts an exception below that rule, or edit it yourself",
        )
    if apart.reason == "malformed" and asked is not None and not asked.path.isascii():
        url = encoded(asked)
        form = f"have it sent so, and allow this: `impyard policy allow {asked.method} {url}`"
        return ImpyardError(
            f"no rule is written for {what}: bytes of its path are not percent-encoded, which no rule can allow",
            hint=form if url else "nor are they UTF-8: have another path asked for",
        )
    return _no_rule(apart.reason, what)


def _no_rule(reason: str, what: str) -> ImpyardError:
    from impyard.runner.policy.suggest_words import ADVICE

    why = "" if reason == "otherwise" else f": {reason}"
    return ImpyardError(f"no rule is written for {_short(what)}{why}", hint=ADVICE.get(reason, "write it by hand"))


def _named(asked: Recorded) -> str:
    from impyard.runner.policy.recorded import key_of

    return _short(" ".join(key_of(asked)))


def _short(what: str) -> str:
    from impyard.runner.text import shortened, unstarred

    return shortened(unstarred(what), 120)
