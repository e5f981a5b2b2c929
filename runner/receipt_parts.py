"""What goes into a run's receipt: at its start, when the box is made, and at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impyard.runner.boxspec import Box
from impyard.runner.denials import Denials
from impyard.runner.gained import Snapshot, gained, new_links, new_repositories
from impyard.runner.gateway import Event
from impyard.runner.plan import Plan
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.text import counted, shortened, visible
from impyard.runner.times import now
from impyard.runner.user import BoxUser

MAX_FILES = 200
MAX_HOSTS = 200
PROMPT_CHARS = 200


def first_receipt(
    plan: Plan, paths: RunPaths, workspace: Path, user: BoxUser, runner: Mapping[str, str], version: str
) -> Receipt:
    """What is known when a run begins; `runner` as leftovers.this_process says it."""
    return Receipt(
        run=paths.id,
        project=str(paths.root),
        workspace=str(workspace),
        model=plan.agent.label if plan.agent else None,
        started=now(),
        impyard=version,
        runner_pid=int(runner["pid"]),
        runner_start=runner["start"],
        runner_space=runner["space"],
        ceiling_s=plan.ceiling_s,
        user={"uid": user.uid, "gid": user.gid, "name": user.name},
        interactive=plan.terminal is not None,
        prompt=first_line(plan.prompt) if plan.prompt else None,
        prompt_sha256=hashlib.sha256(plan.prompt).hexdigest() if plan.agent else None,
        resumes=plan.resumed.run if plan.resumed else None,
        # What was applied before says nothing of what this one will change.
        clone={key: value for key, value in plan.resumed.clone.items() if key != "applied"} if plan.resumed else {},
    )


def first_line(prompt: bytes) -> str:
    """The prompt's first line, cut where it is long, and how many lines more it has."""
    first, *rest = prompt.decode("utf-8", "replace").strip().split("\n")
    more = f" … (+{counted(len(rest), 'line')})" if rest else ""
    return shortened(visible(first.strip()), PROMPT_CHARS) + more


def add_box(
    receipt: Receipt, plan: Plan, box: Box, policies: Sequence[Path], ready: Event, engine_version: str
) -> None:
    """Say what the box is made of and judged by. `policies` are all of the gateway's files, the demo model's last;
    `ready` is the gateway's word."""
    receipt.engine = engine_version
    receipt.image = {"id": box.image, "name": plan.image}
    receipt.pi = None if plan.image else _pi_version()
    receipt.ca = str(ready.get("ca"))
    receipt.policy = {"files": [_shown(file, box.paths.root) for file in policies], "hash": ready.get("policy")}
    if plan.agent is not None and plan.agent.is_demo:
        receipt.policy["added"] = policies[-1].read_text("utf-8")
    receipt.limits = {"cpus": box.limits.cpus, "memory": box.limits.memory, "pids": box.limits.pids}


def add_closed(receipt: Receipt, closed: Event) -> None:
    """Say what the gateway counted, by its last word."""
    receipt.decisions = {
        "seq": closed.get("decisions"),
        "last": closed.get("last"),
        "allowed": closed.get("allowed", 0),
        "denied": closed.get("denied", 0),
    }


def add_decisions(receipt: Receipt, closed: Event | None, denials: Denials, log: Path) -> None:
    """Say what was allowed and denied: by the gateway's last word, or by the log when it went without one."""
    if closed is None:
        from impyard.runner.tally import tally  # it loads the policy's parts, which no run needs that ends well

        found = tally(log, receipt.run)
        closed = {"decisions": found.seq, "last": found.last, "allowed": found.allowed, "denied": found.denied}
    add_closed(receipt, closed)
    receipt.decisions |= {
        "denied": max(int(closed.get("denied") or 0) - denials.own, sum(denials.hosts.values())),
        "own_checks": denials.own,
        "denied_hosts": dict(denials.hosts.most_common(MAX_HOSTS)),
        "secrets": denials.spotted.requests,
    }
    receipt.secrets = denials.spotted.records()
    receipt.credentials = dict(closed.get("credentials") or {})
    names = ("bytes_up", "bytes_down", "upstream_errors", "failed", "outcomes")
    receipt.traffic = {key: closed.get(key) for key in names}


def add_gains(receipt: Receipt, before: Snapshot, after: Snapshot) -> None:
    """Say what the workspace gained."""
    files = gained(before, after)
    receipt.files = [file.record() for file in files[:MAX_FILES]]
    receipt.files_more = max(0, len(files) - MAX_FILES)
    receipt.files_complete = before.complete and after.complete
    receipt.repositories = new_repositories(before, after)[:MAX_FILES]
    receipt.links = new_links(before, after)[:MAX_FILES]


def _pi_version() -> str | None:
    """The version of pi that the image is built with."""
    from impyard.runner.image import box_dir

    package: dict[str, Any] = json.loads((box_dir() / "package.json").read_bytes())
    found = package.get("dependencies", {}).get("@earendil-works/pi-coding-agent")
    return str(found) if found else None


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
