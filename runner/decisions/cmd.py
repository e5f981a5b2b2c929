"""`impyard decisions`: its options, and what they choose. Reading and printing are done by the modules beside it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from impyard.addon.errors import ImpyardError
from impyard.addon.reasons import DECIDED, REASONS
from impyard.runner import proofs, runs
from impyard.runner.amounts import Whole
from impyard.runner.decisions import logread, outcomes, removed
from impyard.runner.decisions.lines import Selection
from impyard.runner.decisions.logfiles import open_log
from impyard.runner.decisions.read import NEAR_BYTES, page
from impyard.runner.decisions.when import EXAMPLES, When
from impyard.runner.lazygroup import Entry, LazyGroup
from impyard.runner.leftovers import runner_lives
from impyard.runner.options import project_option, run_option
from impyard.runner.project import RUN_ID, RunPaths, find_root
from impyard.runner.receipt import read_receipt
from impyard.runner.text import visible

PAGE = 50
EVERY = 10**12  # more than there can be
_ID = re.compile(r"[0-9a-z-]*[0-9a-f]{4}\.[0-9]+")
VERDICTS = {"allow": "allow", "allowed": "allow", "deny": "deny", "denied": "deny", "failed": "failed"}

COMMANDS: dict[str, Entry] = {
    "show": Entry("impyard.runner.decisions.show:show_command", "Show all that is known of one decision."),
    "rotate": Entry("impyard.runner.decisions.rotate_cmd:rotate_command", "Begin new log files, compress old ones."),
}


class Decisions(LazyGroup):
    """The group; a decision's id in the place of a command means `show`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if _ID.fullmatch(args[0]):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


class Count(Whole):
    """How many; `all` is more than there can be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return EVERY if value == "all" else super().convert(value, param, ctx)


class Reason(click.ParamType[str]):
    """One of the judge's reasons."""

    name = "reason"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        said = str(value).lower()
        if said in DECIDED:
            return said
        if said in REASONS:
            self.fail(
                f"no decision has the reason `{said}`, only answers; --failed shows what came to nothing", param, ctx
            )
        close = difflib.get_close_matches(said, DECIDED, 1, 0.5) or [name for name in DECIDED if said and said in name]
        means = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(DECIDED)}"
        self.fail(f"`{value}` is no reason; {means}", param, ctx)


@click.group(cls=Decisions, entries=COMMANDS, invoke_without_command=True)
@project_option
@run_option
@click.option("--denied", is_flag=True, help="Only denials.")
@click.option("--failed", is_flag=True, help="Only what was allowed and came to nothing.")
@click.option(
    "--verdict", type=click.Choice(list(VERDICTS)), help="Only this one: allow, deny or failed.", metavar="VERDICT"
)
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Only this host; `*.example.org` means all below.")
@click.option("--method", "methods", multiple=True, metavar="METHOD", help="Only this method, such as post.")
@click.option("--reason", "reasons", multiple=True, type=Reason(), metavar="REASON", help="Only this reason.")
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", help="Only this rule: its name, or its place as gateway.yaml:8."
)
@click.option("--since", type=When(), metavar="TIME", help=f"Only from this time on: {EXAMPLES} (UTC).")
@click.option("--until", type=When(), metavar="TIME", help="Only before this time.")
@click.option(
    "-n",
    "count",
    metavar="N",
    type=Count(0),
    help=f"How many, counted from the newest, or `all`.  [default: {PAGE}; all with --csv]",
)
@click.option("--all", "everything", is_flag=True, help="Also impyard's own checks and calls of the demo model.")
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with each new decision; Ctrl-C, or the end of the run that --run names, ends it, with exit status 0.",
)
@click.option("--summary", is_flag=True, help="Count by host, method and shape of the path.")
@click.option("--json", "as_json", is_flag=True, help="The log's own lines, as JSON; none is left out as --all says.")
@click.option("--csv", "as_csv", is_flag=True, help="All of them with what came of each, as CSV for a spreadsheet.")
@click.option(
    "--verify",
    "verifying",
    is_flag=True,
    help="Check the whole log's hash chains against each other and the runs' receipts.",
)
@click.pass_context
def decisions(
    ctx: click.Context,
    project: Path | None,
    run: str | None,
    denied: bool,
    failed: bool,
    verdict: str | None,
    hosts: Sequence[str],
    methods: Sequence[str],
    reasons: Sequence[str],
    rules: Sequence[str],
    since: str | None,
    until: str | None,
    count: int | None,
    everything: bool,
    follow: bool,
    summary: bool,
    as_json: bool,
    as_csv: bool,
    verifying: bool,
) -> int:
    """Show what the judge decided, newest last, and what came of it.

    \b
    impyard decisions --denied --since 2h
    impyard decisions --run last --host "*.example.org" --follow
    impyard decisions --summary --since yesterday
    impyard decisions show 09c6.12

    In a terminal a table; piped, one line per decision with tab-separated fields: time, verdict, method,
    place, reason, rule, id, outcome. The outcome of an allowed request is the status of its answer, or what
    went wrong. With --follow it comes too late for that: a request that fails gets a second line, `failed`.

    --summary piped: host, method, shape of the path, how many allowed, failed, denied, bytes up and down, first and
    last time, reasons, the last id. That is the order of the table and of --csv, which has a heading.

    What was left out is said on stderr: damaged lines, older ones, impyard's own checks. An option for a host,
    method, reason or rule may be given again: one of them is enough.
    """
    ctx.obj = project
    filters = {"--run": run, "--denied": denied, "--failed": failed, "--verdict": verdict, "--host": hosts}
    filters |= {"--method": methods, "--reason": reasons, "--rule": rules, "--since": since, "--until": until}
    ways = {"--follow": follow, "--summary": summary, "--csv": as_csv}
    others = {"--json": as_json, "--all": everything, "-n": count is not None, "--verify": verifying}
    if ctx.invoked_subcommand is not None:
        if named := [name for name, given in {**filters, **ways, **others}.items() if given]:
            raise click.UsageError(f"{named[0]} does not go with {ctx.invoked_subcommand}")
        return 0
    if verifying and any({**filters, **ways, "--all": everything, "--run": None}.values()):
        raise click.UsageError("--verify reads the whole log; it goes with --run and --json only")
    if follow and (summary or as_csv):
        raise click.UsageError(f"--follow does not go with {'--summary' if summary else '--csv'}")
    if as_json and as_csv:
        raise click.UsageError("--json does not go with --csv")
    kinds = {"deny"} if denied else set()
    kinds |= {"failed"} if failed else set()
    kinds |= {VERDICTS[verdict]} if verdict else set()
    if len(kinds) > 1:
        raise click.UsageError("one verdict only: --denied, --failed or --verdict")
    if since and until and since >= until:
        raise click.UsageError(f"nothing can be since {since} and before {until}")
    root = find_root(project)
    log = root / "runs" / "decisions.jsonl"
    run, unknown = _run(root, log, run, log_may_know=follow or verifying)
    if verifying:
        from impyard.runner.decisions.check import verify_log  # it loads the judge, which the views do without

        if not verify_log(root, log, run, as_json) and unknown:
            raise unknown
        return 0
    kind = kinds.pop() if kinds else None
    selection = Selection(
        run,
        own_checks=everything or (as_json and not summary),
        verdict=None if kind == "failed" else kind,
        failed=outcomes.failures(outcomes.path_beside(log), since) if kind == "failed" else None,
        hosts=hosts,
        methods=methods,
        reasons=reasons,
        rules=rules,
        since=since,
        until=until,
        proofs=proofs.known(),
    )
    if summary:
        from impyard.runner.decisions.summary_view import show_summary

        show_summary(log, selection, count=count, as_json=as_json, as_csv=as_csv)
    elif as_csv:
        from impyard.runner.decisions.csv_out import write_csv

        write_csv(log, selection, count)
    elif count == EVERY and not follow:
        from impyard.runner.decisions.view import show_all

        show_all(log, selection, as_json=as_json)
    else:
        from impyard.runner.decisions.view import show

        show(
            log,
            selection,
            count=PAGE if count is None else count,
            following=follow,
            as_json=as_json,
            is_over=partial(_has_ended, root, run) if run else None,
        )
    return 0


def _run(root: Path, log: Path, run: str | None, *, log_may_know: bool) -> tuple[str | None, ImpyardError | None]:
    """The whole id of the run that is meant; where only the log may know it, what was given, and the error if it does
    not either."""
    if run is None:
        return None, None
    try:
        return runs.resolve(root, run), None
    except runs.UnknownRun as exc:
        if run in ("", "last"):
            raise
        if len(run) == runs.END_CHARS and (whole := ending_in(log, run)):
            return whole, None
        gone = removed.words(log)
        unknown = runs.UnknownRun(f"there is no run {run!r} in {root} any more, or there never was", hint=gone)
        fault = unknown if gone else exc
        if not (log_may_know or knows(log, run)):
            raise fault from exc
        return run, fault


def _has_ended(root: Path, run: str) -> bool:
    """Whether a run has said its last word, or its runner went away without one. Of a gateway without a box, and of a
    run that is still to come, nobody knows."""
    try:
        receipt = read_receipt(RunPaths(root, run).receipt) if RUN_ID.fullmatch(run) else {}
    except ImpyardError:
        return False
    return bool(receipt) and (receipt.get("ended") is not None or runner_lives(receipt) is False)


def knows(log: Path, run: str) -> bool:
    """Whether the log has a decision of this run at all, be it one of impyard's own checks."""
    found = open_log(log)
    if found is None:
        return False
    with found:
        return bool(page(found, 1, Selection(run)))


def ending_in(log: Path, end: str) -> str | None:
    """The run of the log whose id ends so, for those whose folders were pruned. Raises ImpyardError when that means
    more than one of those near the newest."""
    found: dict[str, int] = {}
    everything = Selection()
    needle = f"-{end}".encode("utf-8", "surrogateescape")
    with open_log(log) or nullcontext() as opened:
        for line in logread.from_end(opened, needles=(needle,)) if opened is not None else ():
            if found and next(iter(found.values())) - line.offset > NEAR_BYTES:
                break
            entry = everything.entry(line) if needle in line.text else None
            if entry is not None and entry.run.endswith(f"-{end}"):
                found.setdefault(entry.run, line.offset)
                if len(found) > 1:
                    raise ImpyardError(
                        f"{end!r} means more than one run",
                        hint=f"give more of its id: {', '.join(map(visible, found))}",
                    )
    return next(iter(found), None)
