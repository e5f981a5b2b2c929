"""`impyard report`: a run as one HTML file, to read, to keep and to send."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click

from impyard.runner import runs
from impyard.runner.options import project_option
from impyard.runner.project import find_root
from impyard.runner.text import size_text

OPENER_S = 3.0


@click.command(short_help="Make one HTML file of a run: requests, denials, hosts, cost.")
@click.argument("run", default="last")
@project_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
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
    if opens and not _opened(target):
        click.echo(f"no browser was found; open {target} yourself", err=True)
    return 0


def _opened(file: Path) -> bool:
    """Hand a file to the desktop's opener; False when there is none, or it says at once that it knows no browser."""
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        return False
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        [opener, str(file)], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    with suppress(subprocess.TimeoutExpired):  # some openers last as long as the browser
        return process.wait(OPENER_S) == 0
    return True
