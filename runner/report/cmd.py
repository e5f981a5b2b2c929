"""`impyard report`: a run as one HTML file, to read, to keep and to send."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from impyard.runner import runs
from impyard.runner.policy.place import project_option
from impyard.runner.project import find_root
from impyard.runner.text import size_text


@click.command(short_help="Make one HTML file of a run: requests, denials, hosts, cost.")
@click.argument("run", default="last")
@project_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it here; `-` is standard output. Default: report.html in the run's folder.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
def report(run: str, project: Path | None, output: Path | None, opens: bool) -> int:
    """Make one HTML file of RUN, else of the newest.

    It shows the run's timeline with what was allowed and denied, hosts, bytes, tokens and cost, the receipt and the
    check of the log. The file loads nothing and runs no script. A run that goes on is shown as far as it is.

    \b
    Examples:
      impyard report
      impyard report last --open
      impyard report 20261129-201824 -o run.html
    """
    from impyard.runner.report import file as report_file
    from impyard.runner.report import markup
    from impyard.runner.report.data import gather
    from impyard.runner.report.page import page

    root = find_root(project)
    [found] = runs.look(root, [runs.resolve(root, run)])
    to_stdout = output is not None and str(output) == "-"
    if to_stdout and opens:
        raise click.UsageError("--open needs a file: leave out `-o -`")
    workspace = found.receipt.get("workspace")
    workspaces = [Path(workspace)] if isinstance(workspace, str) and workspace else []
    target = None if to_stdout else report_file.place(output, root, found.paths.folder, workspaces)
    pieces = markup.document(page(gather(root, found, project)))
    if target is None:
        for piece in pieces:
            sys.stdout.write(piece)
        return 0
    size = report_file.write(target, pieces)
    click.echo(f"{target} ({size_text(size)})")
    if opens:
        click.launch(str(target))
    return 0
