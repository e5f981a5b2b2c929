"""One run of the agent, from its options to its receipt: the box is followed, shown and written down."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.decisions.tend import tend
from impyard.runner.enclosure import Enclosure
from impyard.runner.gained import Snapshot, snapshot
from impyard.runner.gateway import Spawned
from impyard.runner.next_commands import look_command, next_commands
from impyard.runner.outcome import Ending, Event, Outcome, judge_ending, parse_event, probe_report
from impyard.runner.plan import Plan
from impyard.runner.receipt import EXITS
from impyard.runner.receipt_parts import add_decisions, add_gains
from impyard.runner.run_plan import Options, make_plan
from impyard.runner.showing import Showing, ticking
from impyard.runner.signals import Interrupted, Signals
from impyard.runner.stage import Line, News, Screen
from impyard.runner.text import visible
from impyard.runner.times import now
from impyard.runner.typed import as_typed
from impyard.runner.view import JsonView, View

if TYPE_CHECKING:
    from impyard.runner.terminal.interactive import InteractiveView

GATEWAY_LOST_STATUS = 126  # of a relay that lost the gateway
GATEWAY_NEWS_S = 2.0
PI_GREETING = "No project session found with id"


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


class _Run:
    """`prepare`, `watch`, `finish`; or `abandon` after a failure."""

    def __init__(
        self, options: Options, plan: Plan, view: View, version: str, signals: Signals, spawned: Spawned | None
    ) -> None:
        self.options = options
        self.view = view
        self.screen = cast("InteractiveView", view) if options.terminal is not None else None
        self.signals = signals
        self.showing = Showing(self._nobody_reads)
        self.enclosure = Enclosure(plan, version, signals, self._note, spawned)
        self.began = time.monotonic()
        self.before = Snapshot()
        self.outcome = Outcome()
        self.probes: list[Event] | None = None
        self.ending: Ending | None = None
        self.interrupts = 0

    def prepare(self) -> None:
        """Everything up to the created box."""
        plan = self.enclosure.plan
        if plan.workspace is not None:
            self.before = snapshot(plan.workspace)
        self.enclosure.open()
        if plan.clone is not None:
            self.before = snapshot(self.enclosure.workplace.folder)
        receipt = self.enclosure.receipt
        self.showing.show(self.view.opening, receipt.run, receipt.model, receipt.workspace, plan.ceiling_s)
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
        if self.showing.fault:
            raise Interrupted
        stage = self.enclosure.start()
        status = None
        with ticking(lambda: self.showing.give_up_if_stalled(stage.last_phase_since)), self._screen_for_the_box():
            for item in stage.items():
                if isinstance(item, Line):
                    self._take(item.data)
                elif isinstance(item, Screen):
                    assert self.screen is not None
                    self.showing.show(self.screen.screen, item.data)
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
        error = self._fault_of_box(reason) or error or self.showing.fault
        enclosure.close()
        receipt = enclosure.receipt
        receipt.ended = now()
        receipt.duration_s = round(time.monotonic() - self.began, 3)
        receipt.exit_reason, receipt.exit_status = reason, EXITS[reason]
        receipt.agent_exit, receipt.agent_stop = ending.status, self.outcome.stop_reason
        receipt.error = "; ".join(filter(None, [error, enclosure.stage.storage_error, *enclosure.trouble])) or None
        receipt.probes = list(self.probes or ())
        log = enclosure.paths.runs / "decisions.jsonl"
        add_decisions(receipt, enclosure.closed, enclosure.denials, log)
        if reason == "agent-error" and (agent := enclosure.plan.agent) is not None:
            from impyard.runner.keys.refusedkey import refused_key  # what no run needs that ends well

            receipt.refused_key = refused_key(log, receipt.run, agent.provider, agent.host(), Vault(default_dir()))
        add_gains(receipt, self.before, snapshot(enclosure.workplace.folder))
        try:
            receipt.write(enclosure.paths.receipt)
            enclosure.seal()
        except OSError as exc:
            self._note(f"the receipt could not be written: {exc.strerror or exc}")
        if reason == "refused":
            raise ImpyardError(error or "the box refused to start", hint=f"the receipt is {enclosure.paths.receipt}")
        look = look_command(receipt, self.options.project)
        more = next_commands(receipt, self.options, enclosure.paths.session, enclosure.denials)
        self.showing.show(self.view.closing, receipt, look, str(enclosure.paths.stdout), more)
        if self.options.learn:
            from impyard.runner.policy.learned import learned  # it loads the judge, which no other run needs

            plan, options = enclosure.plan, self.options
            where = (plan.root, plan.policies, receipt.run, options.policies, options.project)
            self.showing.show(learned, *where, isinstance(self.view, JsonView))
        tend(enclosure.paths.runs)
        return EXITS[reason]

    def _fault_of_box(self, reason: str) -> str | None:
        """What the box met that ended it, for those reasons that only this machine can explain."""
        enclosure = self.enclosure
        if reason == "exposed":
            look = ": look at it before you use git there" if enclosure.bare in enclosure.box.shut else ""
            return f"{enclosure.bare} was replaced on this machine, which took its cover off in the box{look}"
        if reason == "disk-full":
            return f"{enclosure.full}; what the box wrote is in {enclosure.workplace.folder}"
        if reason == "out-of-memory":
            limit = enclosure.box.limits.memory // 1024**2
            return f"the agent needed more memory than its {limit} MiB; --memory gives it more"
        return None

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
        self.showing.show(self.view.event, data, event)

    def _give_terminal(self) -> None:
        """The probes are done: an agent with a UI comes up now."""
        stage = self.enclosure.stage
        assert stage is not None
        if self.screen is not None and self.probes and all(probe.get("ok") for probe in self.probes):
            self.showing.show(
                self.screen.begin, stage.send, self.enclosure.paths.terminal_log, lambda: self._on_signal(0)
            )

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
            self.showing.show(self.view.denied, event)
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
        if self.interrupts > 1 and self.screen is None:
            self.showing.give_up()

    def _nobody_reads(self, stands_still: bool) -> None:
        """The run is as good as interrupted."""
        stage = self.enclosure.stage
        if self.ending is not None or (stage is not None and stage.is_over):
            return
        if not stands_still:  # standard error may be the terminal that stands still
            with suppress(OSError):
                print(f"{self.showing.fault}: ending the run", file=sys.stderr, flush=True)
        if self.enclosure.started and stage is not None:
            stage.end("interrupted", politely=True)

    def _note(self, text: str) -> None:
        self.showing.show(self.view.note, text)


def _out_of_memory(container: str, started: int) -> bool:
    from impyard.runner import engine

    return engine.ran_out_of_memory(container, since=started, until=int(time.time()) + 1)


def _last_line(data: bytes) -> str:
    """The last line of standard error that says something: pi greets each new session with a warning."""
    lines = [line for line in data.decode("utf-8", "replace").strip().splitlines() if PI_GREETING not in line]
    return visible(lines[-1]) if lines else ""
