"""What may stand in a command line: names of runs, decisions, hosts, models, keys, as a shell is offered them.

Only names are read: of runs with the first line of their prompts, of models in pi's settings, of what is in the vault.
What an agent may have written (a prompt) reaches the terminal with its control characters escaped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from impyard.addon.errors import ImpyardError
from impyard.runner.ownhosts import is_own
from impyard.runner.project import find_root
from impyard.runner.text import visible

MAX_RUNS = 40
ABOUT_CHARS = 60
RECEIPT_HEAD_BYTES = 64 * 1024  # the prompt stands in it, before all that may be long
LOG_TAIL_BYTES = 32 * 1024
MAX_DECISIONS = 20
TIMES = {"30m": "", "2h": "", "1d": "", "7d": "", "today": "since midnight, UTC", "yesterday": ""}
AGES = {"30d": "", "90d": "", "365d": ""}
_LONG_ID = re.compile(r"(?:gateway-)?[0-9]{8}-[0-9]{6}-([0-9a-f]{4}\.[0-9]+)")
_CLONE = re.compile(rb'\n  "clone": \{\s*"')  # not an empty one
_PROMPT = re.compile(rb'\n  "prompt": ("(?:[^"\\]|\\.)*")')

Item = CompletionItem[str]
Source = Callable[[click.Context], Iterator[Item]]


def runs(context: click.Context) -> Iterator[Item]:
    """The runs of the project, newest first, each with the first line of its prompt."""
    folder = _root(context) / "runs"
    from impyard.runner.project import RUN_ID

    known = sorted((e.name for e in os.scandir(folder) if RUN_ID.fullmatch(e.name)), reverse=True)
    if known:
        yield CompletionItem("last", help="the newest run")
    for name in known[:MAX_RUNS]:
        yield CompletionItem(name, help=_about(folder / name))


def cloned_runs(context: click.Context) -> Iterator[Item]:
    """The runs that worked in a clone of the project."""
    folder = _root(context) / "runs"
    last, *every = runs(context)
    for item in every:
        if _CLONE.search(_head(folder / item.value)):
            if item is every[0]:
                yield last
            yield item


def _head(run: Path) -> bytes:
    """The beginning of a run's receipt, or nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(run / "run.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            return file.read(RECEIPT_HEAD_BYTES)
    return b""


def _about(run: Path) -> str:
    """The first line of a run's prompt, or nothing."""
    with contextlib.suppress(ValueError):
        found = _PROMPT.search(_head(run))
        prompt = json.loads(found[1]) if found else ""
        first = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
        return visible(first if len(first) <= ABOUT_CHARS else first[: ABOUT_CHARS - 1] + "…")
    return ""


def decisions(context: click.Context) -> Iterator[Item]:
    """The newest decisions in the log, denied ones first, by their ids as the table shows them."""
    seen = set()
    for item in whole_decisions(context):
        short = found[1] if (found := _LONG_ID.fullmatch(item.value)) else item.value
        if short not in seen:
            seen.add(short)
            yield CompletionItem(short, help=item.help)


def whole_decisions(context: click.Context) -> Iterator[Item]:
    """The same by their whole ids."""
    wanted = filter(_fits(context), _newest(context))
    for entry in sorted(wanted, key=lambda entry: entry["verdict"] != "deny")[:MAX_DECISIONS]:
        said = f"{entry['verdict']} {entry.get('method')} {entry.get('host')}{entry.get('path') or ''}"
        yield CompletionItem(str(entry["id"]), help=visible(said[:ABOUT_CHARS]))


def _fits(context: click.Context) -> Callable[[dict[str, object]], bool]:
    """What the command takes: `policy allow` what a rule can allow, `policy deny` what was allowed, others any."""
    path = context.command_path.split()[-2:]
    if path == ["policy", "deny"]:
        return lambda entry: entry["verdict"] == "allow"
    if path != ["policy", "allow"]:
        return lambda entry: True
    from impyard.runner.policy.mendable import is_mendable

    def fits(entry: dict[str, object]) -> bool:
        reason, method, scheme, host = (str(entry.get(key)) for key in ("reason", "method", "scheme", "host"))
        port = entry.get("port")
        if entry["verdict"] != "deny" or not isinstance(port, int):
            return False
        return is_mendable(reason, method, scheme, host, port) or (over_deny and reason == "rule")

    over_deny = bool(context.params.get("over_deny"))
    return fits


def times(context: click.Context) -> Iterator[Item]:
    """Some ways to say since when."""
    yield from (CompletionItem(text, help=meaning or None) for text, meaning in TIMES.items())


def ages(context: click.Context) -> Iterator[Item]:
    """Some ways to say how long something is kept."""
    yield from (CompletionItem(text, help=meaning or None) for text, meaning in AGES.items())


def hosts(context: click.Context) -> Iterator[Item]:
    """The hosts that were asked for of late."""
    yield from map(CompletionItem, dict.fromkeys(str(entry.get("host")) for entry in _newest(context)))


def rules(context: click.Context) -> Iterator[Item]:
    """The rules that decided of late, by the names and places that the log has for them."""
    named = (str(entry[key]) for entry in _newest(context) for key in ("rule", "at") if entry.get(key))
    yield from map(CompletionItem, dict.fromkeys(named))


def _newest(context: click.Context) -> list[dict[str, object]]:
    """The decisions at the end of the log, newest first; not those about hosts of impyard's own, or of its proofs."""
    from impyard.runner import proofs
    from impyard.runner.decisions.logfiles import open_log

    log = open_log(_root(context) / "runs" / "decisions.jsonl")
    if log is None:
        return []
    with log:
        lines = log.pread(LOG_TAIL_BYTES, max(0, log.size - LOG_TAIL_BYTES)).splitlines()
    found, own = [], proofs.known()
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            is_decision = isinstance(entry, dict) and isinstance(entry.get("id"), str) and "verdict" in entry
            if is_decision and not is_own(str(entry.get("host"))) and entry.get("run") not in own:
                found.append(entry)
    return found


def models(context: click.Context) -> Iterator[Item]:
    """The demo model, and those that pi's settings name."""
    from impyard.runner.keys.pifiles import agent_folder, read_object

    yield CompletionItem("demo", help="a script, no key needed")
    folder = agent_folder(os.environ)
    found: dict[str, None] = {}
    with contextlib.suppress(Exception):
        theirs = read_object(folder / "settings.json")
        if isinstance(provider := theirs.get("defaultProvider"), str) and (name := theirs.get("defaultModel")):
            found[f"{provider}/{name}"] = None
        found |= dict.fromkeys(name for name in theirs.get("enabledModels") or () if "/" in name and "*" not in name)
    with contextlib.suppress(Exception):
        custom = read_object(folder / "models.json").get("providers") or {}
        found |= {f"{name}/{one['id']}": None for name, entry in custom.items() for one in entry.get("models") or ()}
    yield from map(CompletionItem, found)


def vault_names(context: click.Context) -> Iterator[Item]:
    """What is in the vault; for `set`, also what a policy can bind without more; for `import`, what there is to take
    over, and from where the rest would come."""
    from impyard.runner.keys.sources import KEY_VARIABLES, TOOL_VARIABLES, available

    found: dict[str, str] = {}
    if context.info_name == "import":
        found = {each.name: visible(each.where) for each in available(os.environ)}
    if context.info_name != "remove":
        variables = KEY_VARIABLES | TOOL_VARIABLES
        found = {name: f"not there yet: set {names[-1]}" for name, names in variables.items()} | found
    if context.info_name == "set":
        from impyard.addon.vault.templates import BY_HOST, READY

        found = dict.fromkeys({*found, *READY}.difference(BY_HOST.values()), "")
    if context.info_name != "import":
        from impyard.addon.vault.store import Vault, default_dir

        with contextlib.suppress(ImpyardError):  # one that cannot be read has no names, the others are known
            found |= dict.fromkeys(Vault(default_dir()).overview().credentials, "in the vault" if found else "")
    yield from (CompletionItem(name, help=what or None) for name, what in sorted(found.items()))


def presets(context: click.Context) -> Iterator[Item]:
    """The policies that can be added."""
    import impyard.policies

    folder = Path(impyard.policies.__path__[0]) / "presets"
    yield from (CompletionItem(path.stem) for path in sorted(folder.glob("*.yaml")) if not path.stem.endswith("_test"))


def methods(context: click.Context) -> Iterator[Item]:
    """The methods that most requests have."""
    yield from map(CompletionItem, ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"))


def reasons(context: click.Context) -> Iterator[Item]:
    """Why something is denied, with what that means."""
    from impyard.addon.reasons import DECIDED, REASONS

    yield from (CompletionItem(name, help=REASONS[name]) for name in DECIDED)


def _root(context: click.Context) -> Path:
    named = next((found for c in _up(context) if (found := c.params.get("project"))), None)
    return find_root(Path(named).expanduser() if named else None)


def _up(context: click.Context | None) -> Iterator[click.Context]:
    while context is not None:
        yield context
        context = context.parent
