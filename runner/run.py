"""One run of the agent, from its options to its receipt: the box is followed, shown and written down."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.store import Vault, default_dir
from impyard.certs.authority import data_dir
from impyard.runner import streams
from impyard.runner.agent import choose_agent
from impyard.runner.decisions.tend import tend
from impyard.runner.enclosure import Enclosure
from impyard.runner.gained import Snapshot, gained, new_links, new_repositories, snapshot
from impyard.runner.gateway import Spawned
from impyard.runner.outcome import Ending, Event, Outcome, judge_ending, parse_event
from impyard.runner.plan import DEFAULT_PIDS, Plan
from impyard.runner.project import check_root, check_workspace, find_root, policy_files
from impyard.runner.receipt import EXITS, failed_of
from impyard.runner.resumed import Resumed
from impyard.runner.signals import Interrupted, Signals
from impyard.runner.stage import Line, News, Screen
from impyard.runner.terminal.uisettings import ui_settings
from impyard.runner.text import counted, shortened, visible
from impyard.runner.times import now
from impyard.runner.typed import as_typed, command_line
from impyard.runner.view import JsonView, View

if TYPE_CHECKING:
    from impyard.runner.clone.make import Clone
    from impyard.runner.terminal.interactive import InteractiveView

RECEIPT_FILES = 200
RECEIPT_HOSTS = 200
RECEIPT_PROMPT = 200  # characters
GATEWAY_LOST_STATUS = 126  # of a relay that lost the gateway
GATEWAY_NEWS_S = 2.0
STALL_S = 5.0  # how long one write may stand still once the box has ended
TICK_S = 1.0
PI_GREETING = "No project session found with id"


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for. `None` leaves a choice to impyard; `ceiling_s` in seconds, `memory` in bytes.

    `learn` suggests rules for what was denied, at the end. `terminal` (rows and columns) is for pi's own UI; then the
    view is an InteractiveView. `resumed` is what an earlier run left to go on with, its `workspace` among it.
    """

    prompt: bytes
    project: Path | None = None
    policies: Sequence[Path] = ()
    workspace: Path | None = None
    clone: bool = False
    with_changes: bool = False
    with_history: bool = False
    model: str | None = None
    ceiling_s: float = 1800.0
    cpus: float | None = None
    memory: int | None = None
    pids: int = DEFAULT_PIDS
    image: str | None = None
    allowed: Sequence[Path] = ()
    learn: bool = False
    terminal: tuple[int, int] | None = None
    resumed: Resumed | None = None


def run(options: Options, view: View, version: str, spawned: Spawned | None = None) -> int:
    """Run the agent and return the exit status; `spawned` as for an Enclosure.

    Raises ImpyardError when the run is refused and KeyboardInterrupt when a signal came before the agent started; both
    leave nothing behind.
    """
    plan = make_plan(options)
    with Signals() as signals:
        this = _Run(options, plan, view, version, signals, spawned)
        try:
            this.prepare()
            this.watch()
        except BaseException as exc:
            signals.note_only()
            this.abandon()
            if isinstance(exc, Interrupted):
                raise KeyboardInterrupt from None
            raise
        return this.finish()


def make_plan(options: Options) -> Plan:
    """What to open for these options.

    Raises ImpyardError for a project, workspace, policy or model that must not be used.
    """
    secret_folders = (data_dir(),)
    root = find_root(options.project)
    check_root(root, secret_folders)
    workspace, resumed = options.workspace, options.resumed
    if workspace is not None and not (resumed is not None and resumed.is_own):
        workspace = check_workspace(workspace, root, secret_folders)
    agent = choose_agent(options.model, os.environ, lambda: Vault(default_dir()).overview().credentials)
    if options.terminal is not None:
        agent = replace(agent, settings={**agent.settings, **ui_settings(os.environ)})
    return Plan(
        root=root,
        policies=policy_files(root, options.policies, workspace),
        ceiling_s=options.ceiling_s,
        agent=agent,
        prompt=options.prompt,
        workspace=workspace,
        clone=_clone(options),
        cpus=options.cpus,
        memory=options.memory,
        pids=options.pids,
        image=options.image,
        allowed=tuple(options.allowed),
        terminal=options.terminal,
        resumed=resumed,
    )


def _clone(options: Options) -> Clone | None:
    """The clone that is asked for. Raises ImpyardError for options that do not go together."""
    if not options.clone:
        if options.with_changes or options.with_history:
            raise ImpyardError("--with-changes and --with-history say what is in a clone", hint="add --clone")
        return None
    if options.workspace is not None:
        raise ImpyardError("--clone and --workspace both say where the agent works", hint="leave one of them away")
    from impyard.runner.clone.make import Clone

    return Clone(options.with_changes, options.with_history)


class _Run:
    """`prepare`, `watch`, `finish`; or `abandon` after a failure."""

    def __init__(
        self, options: Options, plan: Plan, view: View, version: str, signals: Signals, spawned: Spawned | None
    ) -> None:
        self.options = options
        self.view = view
        self.screen = cast("InteractiveView", view) if options.terminal is not None else None
        self.signals = signals
        self.enclosure = Enclosure(plan, version, signals, self._note, spawned)
        self.began = time.monotonic()
        self.before = Snapshot()
        self.outcome = Outcome()
        self.probes: list[Event] | None = None
        self.ending: Ending | None = None
        self.interrupts = 0
        self.showing = False
        self.showing_since = 0.0
        self.view_fault: str | None = None

    def prepare(self) -> None:
        """Everything up to the created box."""
        plan = self.enclosure.plan
        if plan.workspace is not None:
            self.before = snapshot(plan.workspace)
        self.enclosure.open()
        if plan.clone is not None:
            self.before = snapshot(self.enclosure.workplace.folder)
        receipt = self.enclosure.receipt
        receipt.prompt = first_line(plan.prompt) if plan.prompt else None
        receipt.prompt_sha256 = hashlib.sha256(plan.prompt).hexdigest()
        self._show(self.view.opening, receipt.run, receipt.model, receipt.workspace, plan.ceiling_s)
        if resumed := plan.resumed:
            self._note(f"goes on with run {resumed.run}, in {resumed.workspace}")
            own = [name for name in receipt.policy["files"] if not name.startswith("runs/")]  # not the demo model's
            if resumed.policies and list(resumed.policies) != own:
                before, after = (", ".join(names) for names in (resumed.policies, own))
                self._note(f"its requests were judged by {before}, and are now by {after}; --policy names another")
        if self.before.shared and self.enclosure.user.is_ours:  # those of another user are not handed over
            self._note(
                f"files in the workspace with a name outside of it too: {self.before.shared} (hard links, as of pnpm "
                "or a local `git clone`); what the agent writes into them shows there"
            )

    def watch(self) -> None:
        """Start the box and follow it to its end."""
        started = int(time.time())
        self.signals.deliver_to(self._on_signal)
        if self.view_fault:
            raise Interrupted
        stage = self.enclosure.start()
        status = None
        with _ticking(self._give_up_if_stalled), self._screen_for_the_box():
            for item in stage.items():
                if isinstance(item, Line):
                    self._take(item.data)
                elif isinstance(item, Screen):
                    assert self.screen is not None
                    self._show(self.screen.screen, item.data)
                elif isinstance(item, News):
                    self._pass_on(item.event)
                else:
                    status = item.status
        self.signals.note_only()
        gateway = self.enclosure.gateway
        if status == GATEWAY_LOST_STATUS:  # the relay may hear of it first
            deadline = time.monotonic() + GATEWAY_NEWS_S
            while not gateway.lost and time.monotonic() < deadline:
                time.sleep(0.05)
        self.ending = Ending(
            ended_by=stage.ended_by or ("gateway-lost" if gateway.lost else None),
            status=status,
            probes=self.probes,
            out_of_memory=status == 137 and _out_of_memory(stage.container, started),
            last_words=_last_line(stage.last_words),
            ceiling_passed=stage.ceiling_passed,
            interactive=self.options.terminal is not None,
        )

    def finish(self) -> int:
        """Take everything down, write the receipt, show the summary, return the exit status."""
        enclosure, ending = self.enclosure, self.ending
        assert ending is not None and enclosure.stage is not None
        reason, error = judge_ending(ending, self.outcome)
        if reason == "exposed":
            error = f"{enclosure.bare} was replaced on this machine, which took its cover off in the box"
            if enclosure.bare in enclosure.box.shut:
                error += ": look at it before you use git there"
        elif reason == "disk-full":
            error = f"{enclosure.full}; what the box wrote is in {enclosure.workplace.folder}"
        elif reason == "out-of-memory":
            limit = enclosure.box.limits.memory // 1024**2
            error = f"the agent needed more memory than its {limit} MiB; --memory gives it more"
        else:
            error = error or self.view_fault
        enclosure.close()
        receipt = enclosure.receipt
        receipt.ended = now()
        receipt.duration_s = round(time.monotonic() - self.began, 3)
        receipt.exit_reason, receipt.exit_status = reason, EXITS[reason]
        receipt.agent_exit, receipt.agent_stop = ending.status, self.outcome.stop_reason
        receipt.error = "; ".join(filter(None, [error, enclosure.stage.storage_error, *enclosure.trouble])) or None
        receipt.probes = list(self.probes or ())
        self._count()
        if reason == "agent-error" and (agent := enclosure.plan.agent) is not None:
            from impyard.runner.keys.refusedkey import refused_key  # what no run needs that ends well

            log = enclosure.paths.runs / "decisions.jsonl"
            receipt.refused_key = refused_key(log, receipt.run, agent.provider, agent.host(), Vault(default_dir()))
        after = snapshot(enclosure.workplace.folder)
        files = gained(self.before, after)
        receipt.files = [file.record() for file in files[:RECEIPT_FILES]]
        receipt.files_more = max(0, len(files) - RECEIPT_FILES)
        receipt.files_complete = self.before.complete and after.complete
        receipt.repositories = new_repositories(self.before, after)[:RECEIPT_FILES]
        receipt.links = new_links(self.before, after)[:RECEIPT_FILES]
        try:
            receipt.write(enclosure.paths.receipt)
            enclosure.seal()
        except OSError as exc:
            self._note(f"the receipt could not be written: {exc.strerror or exc}")
        if reason == "refused":
            raise ImpyardError(error or "the box refused to start", hint=f"the receipt is {enclosure.paths.receipt}")
        self._show(self.view.closing, receipt, self._look_command(), str(enclosure.paths.stdout), self._next_commands())
        if self.options.learn:
            from impyard.runner.policy.learned import learned  # it loads the judge, which no other run needs

            plan, options = enclosure.plan, self.options
            where = (plan.root, plan.policies, receipt.run, options.policies, options.project)
            self._show(learned, *where, isinstance(self.view, JsonView))
        tend(enclosure.paths.runs)
        return EXITS[reason]

    def abandon(self) -> None:
        """Undo what was prepared, after a failure or a signal."""
        self.enclosure.close()
        for item in self.enclosure.trouble:
            self._note(item)
        if self.signals.received and not self.enclosure.started:
            self._note("interrupted before the agent started")

    def _take(self, data: bytes) -> None:
        """One line of the box's output."""
        if self.probes is None:
            self.probes = probe_report(data)
            if self.probes is not None:
                self._give_terminal()
                return
        event = parse_event(data)
        if event is not None:
            self.outcome.see(event)
        self._show(self.view.event, data, event)

    def _give_terminal(self) -> None:
        """The probes are done: an agent with a UI comes up now."""
        stage = self.enclosure.stage
        assert stage is not None
        if self.screen is not None and self.probes and all(probe.get("ok") for probe in self.probes):
            self._show(self.screen.begin, stage.send, self.enclosure.paths.terminal_log, lambda: self._on_signal(0))

    @contextmanager
    def _screen_for_the_box(self) -> Iterator[None]:
        """Whatever happens in the block, the terminal is the person's again after it."""
        try:
            yield
        finally:
            if self.screen is not None:
                self.screen.leave()

    def _pass_on(self, event: Event) -> None:
        """Show what the gateway said."""
        if event.get("event") == "denied":
            self._show(self.view.denied, event)
        elif event.get("event") == "credential":
            hint = str(event.get("hint") or "`impyard vault list` shows what there is")
            self._note(f"{event.get('what')}; {as_typed(hint)}")
        else:
            self._note(f"the decision log cannot be written, so every request is denied: {event.get('error')}")

    def _on_signal(self, _number: int) -> None:
        """In a signal handler: end the box, from a thread, as the main one may be writing to a terminal that stands
        still. A second signal also gives up on that terminal, but for one that a box writes to all the time.

        Also called by the thread that reads the keys of a person at the box's own UI."""
        self.interrupts += 1
        stage = self.enclosure.stage
        assert stage is not None
        # An agent that is not there yet has nothing to store, and its relay may not hear a SIGTERM yet.
        politely = self.interrupts == 1 and self.probes is not None
        threading.Thread(target=stage.end, args=("interrupted",), kwargs={"politely": politely}, daemon=True).start()
        if self.interrupts > 1 and self.showing and self.screen is None:
            raise TimeoutError("nobody reads the output")

    def _give_up_if_stalled(self) -> None:
        """In a signal handler: a box that has ended does not wait long for a terminal that stands still."""
        since = self.enclosure.stage and self.enclosure.stage.last_phase_since
        if self.showing and since and time.monotonic() > max(since, self.showing_since) + STALL_S:
            raise TimeoutError("nobody reads the output")

    def _show(self, show: Callable[..., None], *arguments: Any) -> None:
        """Show something, until nobody can read it any more; then the run is as good as interrupted."""
        if self.view_fault:
            return
        try:
            self.showing_since, self.showing = time.monotonic(), True
            show(*arguments)
            self.showing = False
        except OSError as exc:
            self.showing = False
            self.view_fault = _fault_of_output(exc)
            stands_still = isinstance(getattr(exc, "cause", exc), TimeoutError)
            if stands_still:  # what is held back for it would keep this process from ending
                with suppress(OSError):
                    streams.give_up()
            stage = self.enclosure.stage
            if self.ending is not None or (stage is not None and stage.is_over):
                return
            if not stands_still:  # standard error may be the terminal that stands still
                with suppress(OSError):
                    print(f"{self.view_fault}: ending the run", file=sys.stderr, flush=True)
            if self.enclosure.started and stage is not None:
                stage.end("interrupted", politely=True)

    def _note(self, text: str) -> None:
        self._show(self.view.note, text)

    def _count(self) -> None:
        """The receipt's counts: the gateway's own, or those of the log when it went without a word."""
        enclosure = self.enclosure
        receipt, closed, denials = enclosure.receipt, enclosure.closed, enclosure.denials
        if closed is None:
            from impyard.runner.tally import tally  # it loads the policy's parts, which no run needs that ends well

            found = tally(enclosure.paths.runs / "decisions.jsonl", receipt.run)
            closed = {"decisions": found.seq, "last": found.last, "allowed": found.allowed, "denied": found.denied}
        receipt.decisions = {
            "seq": closed.get("decisions"),
            "last": closed.get("last"),
            "allowed": closed.get("allowed", 0),
            "denied": max(int(closed.get("denied") or 0) - denials.own, sum(denials.hosts.values())),
            "own_checks": denials.own,
            "denied_hosts": dict(denials.hosts.most_common(RECEIPT_HOSTS)),
            "secrets": denials.spotted.requests,
        }
        receipt.secrets = denials.spotted.records()
        receipt.credentials = dict(closed.get("credentials") or {})
        receipt.traffic = {key: closed.get(key) for key in ("bytes_up", "bytes_down", "upstream_errors", "failed")}

    def _next_commands(self) -> list[tuple[str, str]]:
        """What to do with what the agent wrote, as (name, command)."""
        receipt, project = self.enclosure.receipt, self.options.project
        names = ("diff", "apply") if receipt.clone else ()
        found = [(name, command_line("runs", name, receipt.run, project=project)) for name in names]
        if receipt.decisions.get("denied_hosts") and not self.options.learn:
            files = [word for file in self.options.policies for word in ("--policy", str(file))]
            found.append(("suggest", command_line("policy", "suggest", "--run", receipt.run, *files, project=project)))
        unfinished = receipt.exit_reason in ("ceiling", "interrupted", "agent-error")
        if (self.screen is not None or unfinished) and any(
            self.enclosure.paths.session.iterdir()
        ):  # else nothing was said
            how = "-i" if self.screen is not None else "go on"
            found.append(("resume", command_line("runs", "resume", receipt.run, how, project=project)))
        return found

    def _look_command(self) -> str:
        what = () if failed_of(self.enclosure.receipt.traffic) else ("--denied",)
        return command_line("decisions", "--run", self.enclosure.paths.id, *what, project=self.options.project)


def probe_report(data: bytes) -> list[Event] | None:
    """The relay's report of its probes, None for a line that is another."""
    try:
        event = json.loads(data)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("impyard") != "probes" or not isinstance(event.get("probes"), list):
        return None
    return [probe for probe in event["probes"] if isinstance(probe, dict)]


@contextmanager
def _ticking(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` each second from a signal handler, which also reaches a main thread that waits in a write."""
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _fault_of_output(exc: OSError) -> str:
    """Why nothing can be shown any more."""
    if isinstance(getattr(exc, "cause", exc), TimeoutError | BrokenPipeError):
        return "nobody reads the output any more"
    return f"the output cannot be written any more ({(exc.strerror or str(exc)).lower()})"


def first_line(prompt: bytes) -> str:
    """The prompt's first line, cut where it is long, and how many lines more it has."""
    first, *rest = prompt.decode("utf-8", "replace").strip().split("\n")
    more = f" … (+{counted(len(rest), 'line')})" if rest else ""
    return shortened(visible(first.strip()), RECEIPT_PROMPT) + more


def _out_of_memory(container: str, started: int) -> bool:
    from impyard.runner import engine

    return engine.ran_out_of_memory(container, since=started, until=int(time.time()) + 1)


def _last_line(data: bytes) -> str:
    """The last line of standard error that says something: pi greets each new session with a warning."""
    lines = [line for line in data.decode("utf-8", "replace").strip().splitlines() if PI_GREETING not in line]
    return visible(lines[-1]) if lines else ""
