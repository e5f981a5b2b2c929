"""The commands that a run's summary proposes: to see what was denied, and for what the agent wrote."""

from __future__ import annotations

from pathlib import Path

from impyard.runner.denials import Denials
from impyard.runner.receipt import Receipt, failed_of
from impyard.runner.run_plan import Options
from impyard.runner.typed import command_line

MOST_STORED = 3  # credentials that are asked for
UNFINISHED = ("ceiling", "interrupted", "agent-error")


def look_command(receipt: Receipt, project: Path | None) -> str:
    """What shows the run's denied requests, and those that failed where there are some."""
    what = () if failed_of(receipt.traffic) else ("--denied",)
    return command_line("decisions", "--run", receipt.run, *what, project=project)


def next_commands(receipt: Receipt, options: Options, session: Path, denials: Denials) -> list[tuple[str, str]]:
    """What to do now, as (name, command). `session` is the folder with what was said in the run, if anything;
    `denials` what it was denied."""
    project, is_interactive = options.project, options.terminal is not None
    names = ("diff", "apply") if receipt.clone else ()
    found = [(name, command_line("runs", name, receipt.run, project=project)) for name in names]
    found += _for_denials(receipt.run, options, denials)
    if (is_interactive or receipt.exit_reason in UNFINISHED) and any(session.iterdir()):
        how = "-i" if is_interactive else "go on"
        found.append(("resume", command_line("runs", "resume", receipt.run, how, project=project)))
    return found


def _for_denials(run: str, options: Options, denials: Denials) -> list[tuple[str, str]]:
    """What helps with what was denied; nothing where no command does."""
    if not denials.kinds:
        return []
    from impyard.runner.policy.mendable import is_mendable, store_words  # what no run needs that was denied nothing

    found = []
    if any(reason == "policy-broken" for reason, *_ in denials.kinds):
        check = [str(file) for file in options.policies]
        found.append(("check", command_line("policy", "check", *check, project=options.project)))
    for name in list(denials.unavailable)[:MOST_STORED]:
        found.append(("store", command_line(*store_words(name))))
    if not options.learn and any(is_mendable(*kind) for kind in denials.kinds):
        files = [word for file in options.policies for word in ("--policy", str(file))]
        found.append(("suggest", command_line("policy", "suggest", "--run", run, *files, project=options.project)))
    return found
