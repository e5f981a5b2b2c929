"""`impyard policy test`: the expectations beside the policy, each judged by the judge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.options import project_option
from impyard.runner.policy.place import located, policy_option
from impyard.runner.text import columns_of, visible, wrapped

if TYPE_CHECKING:
    from impyard.addon.policy import Policy
    from impyard.runner.policy.expect import Expectations, Outcome


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@project_option
@policy_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def test(files: tuple[Path, ...], project: Path | None, policies: tuple[Path, ...], as_json: bool) -> int:
    """Judge the expectations in FILEs, by default those in policies/*_test.yaml, and print what is otherwise.

    \b
    impyard policy test
    impyard policy test policies/github_test.yaml --policy draft.yaml

    A file is a list, judged by the project's policy, by the files that --policy names, or those of its key `policy`:

    \b
    - GET https://api.github.com/repos/ada/engine: allow
    - PUT https://api.github.com/repos/ada/engine: deny no-rule
      description: no writing

    Exit status: 0 all is as expected, 1 something is not, or nothing was expected, 2 wrong usage.
    """
    from impyard.runner.policy.expect import judged
    from impyard.runner.project import find_root

    root = find_root(project)
    paths = tuple(Path(os.path.abspath(path)) for path in files) or _found(root)
    read = _read(paths, root)
    loaded: dict[tuple[Path, ...], Policy] = {}
    outcomes: list[Outcome] = []
    for each in read:
        by = tuple(Path(os.path.abspath(path)) for path in policies) or each.policies or located(root, ())[1]
        if by not in loaded:
            loaded[by] = _policy(by, root)
        outcomes += judged(each.expectations, loaded[by])
    failed = [outcome for outcome in outcomes if not outcome.is_met]
    if as_json:
        click.echo(json.dumps(_document(outcomes), indent=2))
        return 1 if failed else 0
    for outcome in failed:
        _show(outcome)
    where = ", ".join(visible(_name(each.path, root)) for each in read)
    met = len(outcomes) - len(failed)
    if failed:
        click.echo(click.style(f"{len(failed)} of {len(outcomes)} failed", fg="red") + f", {met} as expected ({where})")
    else:
        click.echo(click.style(f"{met} as expected", fg="green") + f" ({where})")
    return 1 if failed else 0


def _found(root: Path) -> tuple[Path, ...]:
    from impyard.runner.policy.expect import ENDING

    found = tuple(sorted((root / "policies").glob(f"*{ENDING}")))
    if not found:
        raise ImpyardError(
            f"there are no expectations in {root / 'policies'}",
            hint=f"write some to policies/gateway{ENDING}, as in - GET https://host/path: allow",
        )
    return found


def _read(paths: Sequence[Path], root: Path) -> list[Expectations]:
    """The expectations of all files. Raises PolicyError with the faults of all."""
    from impyard.addon.errors import Fault, PolicyError
    from impyard.runner.policy.expect import read_expectations
    from impyard.runner.policy.read import read_files

    found, faults = [], list[Fault]()
    hint: str | None = None
    for path, data in read_files(paths, root):
        try:
            found.append(read_expectations(path, data, _name(path, root)))
        except PolicyError as exc:
            faults += exc.faults
            hint = exc.hint
    if faults:
        raise PolicyError(tuple(faults), hint=hint)
    return found


def _policy(paths: tuple[Path, ...], root: Path) -> Policy:
    from impyard.addon.policy import read_policy
    from impyard.runner.policy.read import read_files

    return read_policy(read_files(paths, root), root=root)


def _name(path: Path, root: Path) -> str:
    from impyard.addon.policy import shown

    return shown(path, root)


def _show(outcome: Outcome) -> None:
    wanted = outcome.expectation
    about = f" ({wanted.description})" if wanted.description else ""
    asked = f"{wanted.asked.method} {wanted.asked.url}"
    text = f"{wanted.file}:{wanted.line}: {asked}: expected {wanted.wanted}, got {outcome.got}{about}"
    click.echo(wrapped(visible(text), columns_of(sys.stdout), "    "))


def _document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "expectations": len(outcomes),
        "failed": sum(not outcome.is_met for outcome in outcomes),
        "results": [
            {
                "file": outcome.expectation.file,
                "line": outcome.expectation.line,
                "method": outcome.expectation.asked.method,
                "url": outcome.expectation.asked.url,
                "description": outcome.expectation.description,
                "ok": outcome.is_met,
                "expected": outcome.expectation.wanted,
                "got": outcome.got,
                "verdict": outcome.decision.verdict.value,
                "reason": outcome.decision.reason,
                "rule": outcome.decision.rule,
                "at": outcome.decision.at,
            }
            for outcome in outcomes
        ],
    }
