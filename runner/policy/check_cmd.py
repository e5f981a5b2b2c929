"""`impyard policy check`: faults of a policy, and what is odd in it, each at its place."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from impyard.addon.errors import Fault, ImpyardError
from impyard.runner.options import project_option
from impyard.runner.policy.place import located
from impyard.runner.text import beside, columns_of, counted, visible, wrapped


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@project_option
@click.option("--strict", is_flag=True, help="Exit with 1 for lints too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--codes", is_flag=True, help="List the lints there are, and stop.")
def check(files: tuple[Path, ...], project: Path | None, strict: bool, as_json: bool, codes: bool) -> int:
    """Check a policy: faults, and lints for what is allowed but hardly meant.

    \b
    impyard policy check                  this project's policy
    impyard policy check --strict a.yaml  a file, in CI

    Several FILEs are judged as one policy, later ones win, as with --policy. A comment in a rule, on its host's line,
    or on a line right above silences a lint there: `# impyard: allow CODE`.

    Exit status: 0 fine, 1 faults (with --strict: or lints), 2 wrong usage.
    """
    from impyard.addon.errors import PolicyError
    from impyard.addon.policy import read_policy
    from impyard.runner.policy.expect import ENDING
    from impyard.runner.policy.lint import CODES, lints
    from impyard.runner.policy.read import read_files

    if codes:
        width = max(map(len, CODES)) + 2
        for code, about in CODES.items():
            click.echo(beside(code, about, width, columns_of(sys.stdout)))
        return 0
    root, paths = _files(project, files)
    contents: Sequence[tuple[Path, bytes]] = ()
    report: dict[str, Any] = {"files": [_name(path, root) for path in paths], "errors": [], "lints": []}
    try:
        contents = read_files(paths, root)
        policy = read_policy(contents, root=root)
        found = lints(contents, root=root, policy=policy)
    except PolicyError as exc:
        if as_json:
            report["errors"] = [_fault(fault) for fault in exc.faults]
            click.echo(json.dumps(report, indent=2))
            return 1
        _print_faults(exc.faults, contents, root)
        count = counted(len(exc.faults), "fault")
        hint = exc.hint
        if any(fault.file.endswith(ENDING) for fault in exc.faults):
            hint = f"`impyard policy test` is for files that end in {ENDING}: they hold expectations, no policy"
        raise ImpyardError(
            f"{count}: this policy would not be used, and everything would be denied", hint=hint
        ) from exc
    if as_json:
        report |= {
            "hash": policy.hash,
            "entries": len(policy.entries),
            "rules": sum(len(e.rules) for e in policy.entries),
        }
        report["lints"] = [{name: getattr(lint, name) for name in lint.__slots__} for lint in found]
        click.echo(json.dumps(report, indent=2))
        return 1 if found and strict else 0
    lines = _lines(contents, root)
    for lint in found:
        _print_at(lint.file, lint.line, lint.column, lint.message, lines, code=lint.code)
        click.echo(wrapped(f"    instead: {visible(lint.instead)}", columns_of(sys.stdout), "      "))
    rules = sum(len(entry.rules) for entry in policy.entries)
    names = ", ".join(visible(_name(path, root)) for path in paths)
    fine = f"{names}: {counted(len(policy.entries), 'entry', 'entries')}, {counted(rules, 'rule')}"
    if found:
        click.echo(f"{fine}, no faults, {counted(len(found), 'lint')}")
    else:
        click.echo(click.style(f"{fine}, nothing to complain about", fg="green"))
    return 1 if found and strict else 0


def _files(project: Path | None, files: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    """The root, and the files as they are named: unlike for a run, they may lie anywhere and be anything."""
    from impyard.runner.project import find_root

    if not files:
        return located(project, ())
    return find_root(project), tuple(Path(os.path.abspath(path)) for path in files)


def _name(path: Path, root: Path) -> str:
    from impyard.addon.policy import shown

    return shown(path, root)


def _fault(fault: Fault) -> dict[str, object]:
    return {"file": fault.file, "line": fault.line, "column": fault.column, "message": fault.message}


def _lines(contents: Sequence[tuple[Path, bytes]], root: Path) -> dict[str, list[str]]:
    return {_name(path, root): data.decode("utf-8-sig", "backslashreplace").splitlines() for path, data in contents}


def _print_faults(faults: Sequence[Fault], contents: Sequence[tuple[Path, bytes]], root: Path) -> None:
    lines = _lines(contents, root)
    for fault in faults:
        _print_at(fault.file, fault.line, fault.column, fault.message, lines)


def _print_at(file: str, line: int, column: int, message: str, lines: dict[str, list[str]], *, code: str = "") -> None:
    """A finding: its place and message, the line itself, a caret. Faults are red, lints yellow."""
    from impyard.runner.policy.excerpt import excerpt

    columns = columns_of(sys.stdout)
    where = f"{file}:{line}:{column}" if line else file
    color = "yellow" if code else "red"
    text = visible(f"{where}: {code + ': ' if code else ''}{message}")
    shown = wrapped(text, columns, "    ")
    head = visible(where) + ":"
    click.echo(click.style(head, bold=True) + shown[len(head) :] if shown.startswith(head) else shown)
    known = lines.get(file, [])
    if 0 < line <= len(known):
        source, caret = excerpt(known[line - 1], column, columns)
        click.echo(source)
        click.echo(click.style(caret, fg=color))
