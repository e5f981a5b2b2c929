"""The commands that a run's summary proposes: to see what was denied, and for what the agent wrote."""

from __future__ import annotations

from pathlib import Path

from impyard.runner.receipt import Receipt, failed_of
from impyard.runner.run_plan import Options
from impyard.runner.typed import command_line

UNFINISHED = ("ceiling", "interrupted", "agent-error")


def look_command(receipt: Receipt, project: Path | None) -> str:
    """What shows the run's denied requests, and those that failed where there are some."""
    what = () if failed_of(receipt.traffic) else ("--denied",)
    return command_line("decisions", "--run", receipt.run, *what, project=project)


def next_commands(receipt: Receipt, options: Options, session: Path) -> list[tuple[str, str]]:
    """What to do now, as (name, command). `session` is the folder with what was said in the run, if anything."""
    project, is_interactive = options.project, options.terminal is not None
    names = ("diff", "apply") if receipt.clone else ()
    found = [(name, command_line("runs", name, receipt.run, project=project)) for name in names]
    if receipt.decisions.get("denied_hosts") and not options.learn:
        files = [word for file in options.policies for word in ("--policy", str(file))]
        found.append(("suggest", command_line("policy", "suggest", "--run", receipt.run, *files, project=project)))
    if (is_interactive or receipt.exit_reason in UNFINISHED) and any(session.iterdir()):
        how = "-i" if is_interactive else "go on"
        found.append(("resume", command_line("runs", "resume", receipt.run, how, project=project)))
    return found
