"""One run from its first check to its receipt. Nothing untrusted starts before the judge has proved that it denies.

Order: project and credentials; the gateway (it starts while docker is loaded and the engine is asked); the canary; the
box; its own probes; the agent. Each step says how it is undone at the moment it is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.certs import authority
from impyard.runner import boxspec, credentials, gateway, leftovers
from impyard.runner.gained import Snapshot, gained, snapshot
from impyard.runner.outcome import Ending, Event, Outcome, judge_ending, parse_event
from impyard.runner.project import check_root, check_workspace, env_files, find_root, new_run, policy_files
from impyard.runner.receipt import EXITS, Receipt
from impyard.runner.signals import Interrupted, Signals
from impyard.runner.stage import Line, News, Stage
from impyard.runner.text import visible
from impyard.runner.user import box_user, give_back, group, hand_over, passwd
from impyard.runner.view import View

DEFAULT_MEMORY = 4 * 1024**3
DEFAULT_CPUS = 2.0
DEFAULT_PIDS = 512
RECEIPT_FILES = 200
RECEIPT_HOSTS = 200


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for. `None` leaves a choice to impyard; `ceiling_s` in seconds, `memory` in bytes."""

    prompt: bytes
    project: Path | None = None
    policies: Sequence[Path] = ()
    workspace: Path | None = None
    model: str | None = None
    ceiling_s: float = 1800.0
    cpus: float | None = None
    memory: int | None = None
    pids: int = DEFAULT_PIDS
    image: str | None = None


def run(options: Options, view: View, version: str) -> int:
    """Run the agent and return the exit status. Raises ImpyardError, with nothing left behind, when it is refused."""
    with Signals() as signals:
        this = _Run(options, view, version, signals)
        try:
            try:
                this.prepare()
                this.watch()
            finally:
                signals.note_only()
        except Interrupted:
            this.abandon()
            raise KeyboardInterrupt from None
        except BaseException:
            this.abandon()
            raise
        return this.finish()


@dataclass(slots=True)
class _Denials:
    """Denials of the agent's requests, by host. What impyard itself asked for is told apart."""

    own_hosts: set[str] = field(default_factory=set)
    hosts: Counter[str] = field(default_factory=Counter)
    own: int = 0

    def count(self, event: Event) -> bool:
        """Take note of a denial; whether it is the agent's."""
        host = str(event.get("host") or "?")
        if host in self.own_hosts:
            self.own += 1
            return False
        self.hosts[host] += 1
        return True


class _Run:
    """The state of one run. `prepare`, `watch`, `finish`; or `abandon` after a failure."""

    def __init__(self, options: Options, view: View, version: str, signals: Signals) -> None:
        self.options, self.view, self.version, self.signals = options, view, version, signals
        self.stack = ExitStack()
        self.began = time.monotonic()
        self.outcome = Outcome()
        self.denials = _Denials()
        self.probes: list[Event] | None = None
        self.ending: Ending | None = None
        self.log_unwritable = False
        self.stage: Stage | None = None
        self.closed: Event | None = None
        self.trouble: list[str] = []
        self.view_gone = False
        self.showing = False
        self.interrupts = 0
        self.started = False

    def prepare(self) -> None:
        """Everything up to the created box."""
        options = self.options
        secret_folders = (authority.data_dir(),)
        root = find_root(options.project)
        check_root(root, secret_folders)
        given = check_workspace(options.workspace, root, secret_folders) if options.workspace else None
        files = policy_files(root, options.policies, given)
        agent = credentials.choose_agent(options.model, os.environ)
        self.user = user = box_user(os.geteuid(), os.getegid(), os.environ)

        with self.signals.shielded():
            self.paths = paths = new_run(root)
            self.stack.callback(self._remove_folder)
        self.workspace = given or paths.workspace
        runner = leftovers.this_process()
        self.receipt = Receipt(
            run=paths.id,
            project=str(root),
            workspace=str(self.workspace),
            model=agent.label,
            started=_now(),
            impyard=self.version,
            runner_pid=int(runner["pid"]),
            runner_start=runner["start"],
            runner_space=runner["space"],
            ceiling_s=options.ceiling_s,
            prompt_sha256=hashlib.sha256(options.prompt).hexdigest(),
            user={"uid": user.uid, "gid": user.gid, "name": user.name},
        )
        self.receipt.write(paths.receipt)
        if agent.is_demo:
            files = (*files, self._start_demo())
        self.gateway = self._start_gateway(files)

        # The gateway needs half a second to come up. All this happens meanwhile.
        from impyard.runner import engine

        facts = engine.describe()
        leftovers.sweep(root, self._note)
        image = self._image()
        limits = self._limits(facts)
        covered = list(env_files(root, *(() if given is None or given.is_relative_to(root) else (given,))))
        box = boxspec.Box(
            paths=paths,
            image=image,
            user=user,
            workspace=self.workspace,
            limits=limits,
            covered=covered,
            secret_folders=secret_folders,
            selinux=facts.selinux,
            labels={
                **{f"impyard.{name}": value for name, value in runner.items()},
                "impyard.deadline": str(int(time.time() + limits.ceiling_s)),
            },
        )
        self._write_files(box, agent)

        ready = self.gateway.ready()
        self.denials.own_hosts.add(boxspec.denied_host(box))
        self.denials.own_hosts.add(self.gateway.prove())
        self.receipt.engine = facts.version
        self.receipt.image = {"id": image, "name": options.image}
        self.receipt.pi = None if options.image else _pi_version()
        self.receipt.ca = str(ready.get("ca"))
        self.receipt.policy = {"files": [_shown(file, root) for file in files], "hash": ready.get("policy")}
        if agent.is_demo:
            self.receipt.policy["added"] = files[-1].read_text("utf-8")
        self.receipt.limits = {"cpus": limits.cpus, "memory": limits.memory, "pids": limits.pids}
        self.receipt.write(paths.receipt)

        self.before = self._hand_over_workspace(given)
        self._show(self.view.opening, paths.id, agent.label, str(self.workspace), limits.ceiling_s)
        with self.signals.shielded():
            self.stack.callback(self._remove_box, box.name)
            container = engine.create(box.name, boxspec.create_call(box))
            self.stage = Stage(container, paths.stdout, paths.stderr)

    def watch(self) -> None:
        """Start the box and follow it to its end."""
        stage = self.stage
        assert stage is not None
        started = int(time.time())
        self.signals.deliver_to(self._on_signal)
        if self.gateway.lost:
            raise ImpyardError("the gateway ended before the box could start", hint="look at the run's gateway.log")
        stage.start(self.options.ceiling_s)
        self.started = True
        status = None
        for item in stage.items():
            if isinstance(item, Line):
                self._take(item.data)
            elif isinstance(item, News):
                self._pass_on(item.event)
            else:
                status = item.status
        self.signals.note_only()
        self.ending = Ending(
            ended_by=stage.ended_by or ("gateway-lost" if self.gateway.lost else None),
            status=status,
            probes=self.probes,
            out_of_memory=status == 137 and self._out_of_memory(stage.container, started),
            last_words=_last_line(stage.last_words),
        )

    def finish(self) -> int:
        """Take everything down, write the receipt, show the summary, return the exit status."""
        assert self.ending is not None and self.stage is not None
        reason, error = judge_ending(self.ending, self.outcome)
        self._take_down()
        receipt = self.receipt
        receipt.ended = _now()
        receipt.duration_s = round(time.monotonic() - self.began, 3)
        receipt.exit_reason, receipt.exit_status = reason, EXITS[reason]
        receipt.agent_exit, receipt.agent_stop = self.ending.status, self.outcome.stop_reason
        receipt.error = "; ".join(filter(None, [error, self.stage.storage_error, *self.trouble])) or None
        receipt.probes = list(self.probes or ())
        self._count(receipt)
        files = gained(self.before, snapshot(self.workspace))
        receipt.files = [asdict(file) for file in files[:RECEIPT_FILES]]
        receipt.files_more = max(0, len(files) - RECEIPT_FILES)
        try:
            receipt.write(self.paths.receipt)
        except OSError as exc:
            self._note(f"the receipt could not be written: {exc.strerror or exc}")
        if reason == "refused":
            raise ImpyardError(error or "the box refused to start", hint=f"the receipt is {self.paths.receipt}")
        self._show(self.view.closing, receipt, self._look_command())
        return EXITS[reason]

    def abandon(self) -> None:
        """Undo what was prepared, after a failure or a signal. What goes wrong here is shown as a note."""
        self._take_down()
        for item in self.trouble:
            self._note(item)
        if self.signals.received and not self.started:
            self._note("interrupted before the box started")

    # -- steps of prepare ---------------------------------------------------------------------------------------------

    def _start_demo(self) -> Path:
        """The demo model's server and the policy file that leads to it."""
        from impyard.runner.demo import DemoServer, policy_text

        with self.signals.shielded():
            server = DemoServer()
            self.stack.callback(server.close)
        file = self.paths.folder / "demo-policy.yaml"
        file.write_text(policy_text(server.port), "utf-8")
        return file

    def _start_gateway(self, files: Sequence[Path]) -> gateway.Gateway:
        folder = authority.default_dir()
        if not (folder / authority.CERT_FILE).exists():
            authority.ensure_authority(folder)
        config = {
            "run": self.paths.id,
            "door": str(self.paths.door),
            "policies": [str(file) for file in files],
            "root": str(self.paths.root),
            "runs": str(self.paths.runs),
            "ca": str(folder),
            "secret": secrets.token_hex(32),
            "door_uid": None if self.user.is_caller else self.user.uid,
            "door_gid": None if self.user.is_caller else self.user.gid,
        }
        with self.signals.shielded():
            started = gateway.start(config, self.paths.gateway_log, self._on_gateway, self._on_gateway_lost)
            self.stack.callback(self._close_gateway)
        return started

    def _image(self) -> str:
        """The image's id: the one named by the caller, else impyard's own, built when it is missing."""
        from impyard.runner import image
        from impyard.runner.engine_image import image_id

        if self.options.image is None:
            return image.ensure_image(self._note)
        found = image_id(self.options.image)
        if found is None:
            raise ImpyardError(
                f"there is no image `{self.options.image}` on this machine",
                hint="leave --image away for impyard's own, or pull or build that one first",
            )
        return found

    def _limits(self, facts: Any) -> boxspec.Limits:
        options = self.options
        if options.cpus is not None and options.cpus > facts.cpus:
            raise ImpyardError(f"--cpus {options.cpus:g}: this machine has {facts.cpus}", hint="ask for less")
        if options.memory is not None and facts.memory and options.memory > facts.memory:
            raise ImpyardError(
                f"--memory: this machine has {facts.memory // 1024**2} MiB, less than was asked for",
                hint="ask for less",
            )
        return boxspec.Limits(
            cpus=options.cpus or min(DEFAULT_CPUS, facts.cpus),
            memory=options.memory or min(DEFAULT_MEMORY, facts.memory or DEFAULT_MEMORY),
            pids=options.pids,
            ceiling_s=options.ceiling_s,
        )

    def _write_files(self, box: boxspec.Box, agent: credentials.Agent) -> None:
        """The run's folders and what the box reads, in the hands of the box's user."""
        paths, user = self.paths, self.user
        folders = [paths.session, paths.home] + ([paths.workspace] if self.workspace == paths.workspace else [])
        for folder in folders:
            folder.mkdir(mode=0o700)
        credentials.write_agent_folder(agent, paths.home)
        for folder in folders:
            hand_over(folder, user)
        # Readable for all: the run's own folder is closed to others, and the box's user may be another than ours.
        paths.prompt.write_bytes(self.options.prompt)
        paths.prompt.chmod(0o444)
        paths.control.mkdir(mode=0o700)
        env = boxspec.agent_environment(box)
        command = boxspec.pi_command(paths, agent)
        relay = boxspec.relay_config(box, command, env, prompt=True, mode="run")
        ours = authority.inspect(authority.default_dir())
        for name, data in (
            ("box.json", json.dumps(relay).encode()),
            ("ca.pem", ours.cert_pem),
            ("trust.pem", authority.box_bundle(ours)),
            ("passwd", passwd(user, paths.home).encode()),
            ("group", group(user).encode()),
        ):
            (paths.control / name).write_bytes(data)
            (paths.control / name).chmod(0o444)

    def _hand_over_workspace(self, given: Path | None) -> Snapshot:
        if given is None:
            return {}
        before = snapshot(given)
        owners = hand_over(given, self.user)
        self.stack.callback(self._give_back, given, owners)
        return before

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """One line of the box's output."""
        if self.probes is None:
            report = _probe_report(data)
            if report is not None:
                self.probes = report
                return
        event = parse_event(data)
        if event is not None:
            self.outcome.see(event)
        self._show(self.view.event, data, event)

    def _pass_on(self, event: Event) -> None:
        """Show what the gateway said."""
        if event.get("event") == "denied":
            self._show(self.view.denied, event)
        else:
            self._note(f"the decision log cannot be written, so every request is denied: {event.get('error')}")

    def _on_signal(self, _number: int) -> None:
        """In a signal handler: end the box, from a thread, as the main one may be writing to a terminal that stands
        still. A second signal also gives up on that terminal."""
        self.interrupts += 1
        assert self.stage is not None
        threading.Thread(
            target=self.stage.end, args=("interrupted",), kwargs={"politely": self.interrupts == 1}
        ).start()
        if self.interrupts > 1 and self.showing:
            raise TimeoutError("nobody reads the output")

    def _on_gateway(self, event: Event) -> None:
        """In the lifeline's thread, which must not wait for a terminal: count a denial, and pass it on."""
        if event.get("event") == "denied":
            if self.denials.count(event) and self.stage is not None:
                self.stage.tell(event)
        elif event.get("event") == "log-unwritable" and not self.log_unwritable:
            self.log_unwritable = True
            if self.stage is not None:
                self.stage.tell(event)

    def _on_gateway_lost(self) -> None:
        """In the lifeline's thread: without its judge the box must not go on."""
        if self.stage is not None:
            self.stage.end("gateway-lost")

    def _show(self, show: Callable[..., None], *arguments: Any) -> None:
        """Show something, until nobody can read it any more; then the run is as good as interrupted."""
        if self.view_gone:
            return
        try:
            self.showing = True
            show(*arguments)
            self.showing = False
        except OSError:
            self.showing = False
            self.view_gone = True
            if self.stage is not None:
                self.stage.end("interrupted", politely=True)

    def _note(self, text: str) -> None:
        self._show(self.view.note, text)

    def _out_of_memory(self, container: str, started: int) -> bool:
        from impyard.runner import engine

        return engine.ran_out_of_memory(container, since=started, until=int(time.time()) + 1)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _take_down(self) -> None:
        try:
            self.stack.close()
        except (ImpyardError, OSError) as exc:
            # Each step has been tried: an ExitStack goes on after a failure. The last one is shown.
            self.trouble.append(str(exc))

    def _remove_folder(self) -> None:
        """Last step: nothing that only a living run needs stays; a run that never had a box leaves nothing at all."""
        paths = self.paths
        self.trouble += leftovers.clean_folder(paths)
        if not self.started:
            from impyard.runner.removal import remove_tree

            remove_tree(paths.folder)
            return
        for folder in (paths.session, paths.workspace):
            if folder.is_dir() and not folder.is_symlink():
                self._give_back(folder, None)
        for file in (paths.gateway_log, paths.stderr):
            if file.is_file() and file.stat().st_size == 0:
                file.unlink()

    def _give_back(self, folder: Path, owners: Mapping[tuple[int, int], tuple[int, int]] | None) -> None:
        missed = give_back(folder, self.user, owners)
        if missed:
            self.trouble.append(f"{missed} files in {folder} could not be given back to you")

    def _remove_box(self, name: str) -> None:
        from impyard.runner import engine

        if self.stage is not None:
            self.stage.close()
        else:
            engine.remove(name)

    def _close_gateway(self) -> None:
        self.closed = self.gateway.close()

    def _count(self, receipt: Receipt) -> None:
        closed = self.closed or {}
        hosts = self.denials.hosts
        receipt.decisions = {
            "seq": closed.get("decisions"),
            "last": closed.get("last"),
            "allowed": closed.get("allowed", 0),
            "denied": max(int(closed.get("denied") or 0) - self.denials.own, sum(hosts.values())),
            "own_checks": self.denials.own,
            "denied_hosts": dict(hosts.most_common(RECEIPT_HOSTS)),
        }
        receipt.traffic = {key: closed.get(key) for key in ("bytes_up", "bytes_down", "upstream_errors")}

    def _look_command(self) -> str:
        command = f"impyard decisions --run {self.paths.id} --denied"
        if self.options.project is not None:
            command += f" --project {shlex.quote(str(self.options.project))}"
        return command


def _probe_report(data: bytes) -> list[Event] | None:
    event = _object(data)
    if event.get("impyard") != "probes" or not isinstance(event.get("probes"), list):
        return None
    return [probe for probe in event["probes"] if isinstance(probe, dict)]


def _object(data: bytes) -> Event:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _pi_version() -> str | None:
    from impyard.runner.image import box_dir

    package = _object((box_dir() / "package.json").read_bytes())
    found = (package.get("dependencies") or {}).get("@earendil-works/pi-coding-agent")
    return str(found) if found else None


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return visible(lines[-1]) if lines else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
