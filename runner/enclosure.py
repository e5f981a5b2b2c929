"""The gateway, its door and one box: opened in the order that keeps the box locked, closed whatever happens.

Order: the run's folder; the gateway (it starts while docker is loaded and the engine is asked); the canary; the box,
with the stand-ins for credentials that the gateway made.
Nothing untrusted starts before the judge has proved that it denies. Each step says how it is undone before it is made.
What runs in the box, and what is shown of it, is run.py's and prove.py's business.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault, default_dir
from impyard.certs import authority
from impyard.runner import boxspec, gateway, leftovers
from impyard.runner.denials import Denials
from impyard.runner.diskwatch import DiskWatch, check_room
from impyard.runner.gateway import Event
from impyard.runner.keys import firstuse, handover, standins
from impyard.runner.memory import check_memory
from impyard.runner.plan import Plan
from impyard.runner.project import check_root, mounts_under, new_run
from impyard.runner.receipt_parts import add_box, first_receipt
from impyard.runner.records import check_records
from impyard.runner.removal import remove_tree
from impyard.runner.secretfiles.coverwatch import CoverWatch
from impyard.runner.signals import Signals
from impyard.runner.stage import Stage
from impyard.runner.terminal import uisettings
from impyard.runner.text import visible
from impyard.runner.user import box_user, owned, share_run
from impyard.runner.workplace import Workplace, find_repository

NEW_ACCOUNT = "made an account for the demo model; its key goes into the vault as `demo`"


class Enclosure:
    """`open` it, `start` it, read `stage.items()`, `close` it in any case.

    News are put in among the stage's items: denials of the box's requests, and a log that cannot be written. `spawned`
    is a gateway process that is up already, or on its way. `bare` is a path whose cover has come off, `full` says which
    disk has no room: the box is ended then.
    """

    def __init__(
        self,
        plan: Plan,
        version: str,
        signals: Signals,
        on_note: Callable[[str], None],
        spawned: gateway.Spawned | None = None,
    ) -> None:
        self.plan = plan
        self.denials = Denials()
        self.started = False
        self.trouble: list[str] = []
        self.closed: Event | None = None
        self.stage: Stage | None = None
        self.bare: Path | None = None
        self.full = ""
        self._version = version
        self._signals = signals
        self._note = on_note
        self._spawned = spawned
        self._stack = ExitStack()
        self._log_unwritable = False
        self._kept: firstuse.State = "none"

    def open(self) -> None:
        """Everything up to the created box. Raises ImpyardError when it must not be; `close` then undoes what was."""
        try:
            self._open()
        except OSError as exc:
            where = f" {visible(str(exc.filename))}" if exc.filename else f" the run in {self.plan.root / 'runs'}"
            raise ImpyardError(
                f"cannot prepare{where}: {(exc.strerror or str(exc)).lower()}",
                hint="the project's runs/ folder must be yours, writable, and have some space left",
            ) from exc

    def _open(self) -> None:
        plan = self.plan
        secret_folders = (authority.data_dir(),)
        check_root(plan.root, secret_folders)
        check_records(plan.root)
        check_memory()
        check_room((plan.root, plan.root / "runs", *((plan.workspace,) if plan.workspace else ())))
        repository = find_repository(plan)
        self.user = user = box_user(os.geteuid(), os.getegid(), os.environ)
        with self._signals.shielded():
            self.paths = paths = new_run(plan.root)
            self._stack.callback(self._clean_folder)
        self.workplace = workplace = Workplace(
            plan, paths, user, repository, self._signals, self._note, self._stack, self.trouble
        )
        runner = leftovers.this_process()
        self.receipt = first_receipt(plan, paths, workplace.folder, user, runner, self._version)
        self.receipt.write(paths.receipt)  # at once: it tells the next run whose folder this is, should we be killed
        policies = plan.policies
        if plan.agent is not None and plan.agent.is_demo:
            policies = (*policies, self._start_demo())
        if plan.agent is not None and (names := plan.agent.left_out):
            self._note(f"of pi's models.json the box does not get {', '.join(names)}: it may hold a secret")
        self._kept = firstuse.bring(plan.agent, policies, os.environ, self._note) if plan.agent else "none"
        self._policies = policies
        self._start_gateway(policies)

        # The gateway needs half a second to come up. All this happens meanwhile.
        from impyard.runner import engine

        facts = engine.describe()
        leftovers.sweep(plan.root, self._note)
        limits = boxspec.limits_for(plan, cpus=facts.cpus, memory=facts.memory)
        image = self._image()
        workplace.make_clone(self.receipt)
        apart = (plan.workspace,) if plan.workspace and not plan.workspace.is_relative_to(plan.root) else ()
        secret = handover.kept_back(
            (plan.root, *apart),
            plan.allowed,
            plan.root,
            plan.workspace,
            None if user.is_ours else user.uid,
            self.receipt,
            self._note,
            workplace.covered_whole(self.receipt),
        )
        guard = workplace.guard(self.receipt)
        hidden = {found.path for found in secret}
        self.box = boxspec.Box(
            paths=paths,
            image=image,
            user=user,
            workspace=workplace.folder,
            limits=limits,
            covered=[(found.path, found.is_folder) for found in secret if found.clean is None],
            cleaned=handover.write_clean_copies(secret, paths.control),
            shut=[path for path in guard.shut if path not in hidden],
            pinned=guard.pinned,
            inner_mounts=mounts_under(plan.root),
            secret_folders=secret_folders,
            terminal=plan.terminal,
            selinux=facts.selinux,
            labels={
                **{f"impyard.{name}": value for name, value in runner.items()},
                "impyard.deadline": str(int(time.time() + limits.ceiling_s)),
            },
        )
        self._covers = CoverWatch((*hidden, *self.box.shut), self._on_bare)
        self._stack.callback(self._covers.stop)
        handover.write_files(paths, user, plan.prompt, own_workspace=workplace.is_new, resumed=plan.resumed)

        ready = self.gateway.ready()
        self._hand_over_keys(ready)
        self.denials.own_hosts.add(boxspec.denied_host(self.box))
        self.gateway.prove()
        self.denials.own += 1  # the gateway sends no news of a canary
        add_box(self.receipt, plan, self.box, policies, ready, facts.version)
        self.receipt.write(paths.receipt)
        workplace.hand_over()
        with self._signals.shielded():
            self._stack.callback(self._remove_box)
            container = engine.create(self.box.name, boxspec.create_call(self.box))
            self.stage = Stage(
                container,
                paths.stdout if plan.terminal is None else paths.terminal_log,
                paths.stderr,
                terminal=plan.terminal is not None,
            )

    def start(self) -> Stage:
        """Start the box and return its stage. Raises ImpyardError when the gateway or the engine fails."""
        assert self.stage is not None
        if self.gateway.lost:
            raise ImpyardError(
                "the gateway ended before the box could start", hint="`impyard doctor` looks for a reason"
            )
        disks = DiskWatch({self.paths.runs, self.workplace.folder}, self._on_full)
        for watch in (self._covers, disks):
            watch.start()
            self._stack.callback(watch.stop)
        self.stage.start(self.plan.ceiling_s)
        self.started = True
        return self.stage

    def close(self) -> None:
        """Take everything down, box first. What could not be undone is in `trouble`. Safe to call twice.

        A box that was never started leaves no folder behind.
        """
        try:
            self._stack.close()
        except (ImpyardError, OSError) as exc:
            # Each step has been tried: an ExitStack goes on after a failure. The last one is shown.
            self.trouble.append(str(exc))

    def seal(self) -> None:
        """Once the receipt is final: nothing of the run is left to be put in order by the next one."""
        self.trouble += leftovers.close_folder(self.paths)

    # -- steps of open ------------------------------------------------------------------------------------------------

    def _start_demo(self) -> Path:
        """The demo model's server and the policy file that leads to it."""
        from impyard.runner.demo import DemoServer, account_key, policy_text

        key = account_key(default_dir(), lambda: self._note(NEW_ACCOUNT))
        with self._signals.shielded():
            server = DemoServer(key)
            self._stack.callback(server.close)
        file = self.paths.folder / "demo-policy.yaml"
        file.write_text(policy_text(server.port), "utf-8")
        return file

    def _start_gateway(self, policies: Sequence[Path]) -> None:
        folder = authority.default_dir()
        if not (folder / authority.CERT_FILE).exists():
            authority.ensure_authority(folder)
        config = {
            "run": self.paths.id,
            "door": str(self.paths.door),
            "policies": [str(file) for file in policies],
            "root": str(self.paths.root),
            "runs": str(self.paths.runs),
            "ca": str(folder),
            "vault": str(default_dir()) if self.plan.agent is not None else None,
            "secret": secrets.token_hex(32),
            "door_uid": None if self.user.is_ours else self.user.uid,
            "door_gid": None if self.user.is_ours else self.user.gid,
        }
        with self._signals.shielded():
            self.gateway = gateway.Gateway(
                self._stack.enter_context(self._spawned or gateway.spawn()),
                config,
                self.paths.gateway_log,
                self._on_gateway,
                self._on_gateway_lost,
            )
            self._stack.callback(self._close_gateway)

    def _image(self) -> str:
        """The image's id: the one named by the caller, else impyard's own, built when it is missing."""
        from impyard.runner import image
        from impyard.runner.engine_image import image_id

        if self.plan.image is None:
            if image.current_image() is None:
                self._model_key(self.gateway.ready())  # a build takes minutes: what is amiss should show before it
            return image.ensure_image(self._note)
        found = image_id(self.plan.image)
        if found is None:
            raise ImpyardError(
                f"there is no image `{self.plan.image}` on this machine",
                hint="leave --image away for impyard's own, or pull or build that one first",
            )
        return found

    def _model_key(self, ready: Event) -> Credential | None:
        """The stand-in for the model's credential. Raises ImpyardError when the model would get none."""
        agent = self.plan.agent
        if agent is None:
            return None
        return standins.for_agent(
            standins.read_keys(ready), agent, os.environ, self._policies, self.paths.root, self._kept
        )

    def _hand_over_keys(self, ready: Event) -> None:
        """The HOME of the box and its environment, with the gateway's stand-ins where tools look for credentials."""
        plan, paths, agent = self.plan, self.paths, self.plan.agent
        env: dict[str, str] = {}
        files: dict[str, str] = {}
        if agent is not None:
            removed = Vault(default_dir()).overview().removed if agent is not None else ()
            env, files = standins.for_tools(standins.read_keys(ready), agent, self._note, removed)
        if plan.terminal is not None:
            files = {**files, **uisettings.FILES}
        handover.write_home(paths.home, self.user, agent, self._model_key(ready), files)
        relay = boxspec.relay_config(
            self.box,
            boxspec.pi_command(paths, agent, self._typed()) if agent is not None else [],
            {**env, **boxspec.agent_environment(self.box)},
            prompt=agent is not None,
            mode=plan.mode,
            listeners=plan.listeners,
            deep=plan.deep,
        )
        handover.write_config(paths, relay)

    def _typed(self) -> str | None:
        """What is typed first to pi's UI, which may be nothing; None without one."""
        return None if self.plan.terminal is None else self.plan.prompt.decode("utf-8", "replace").strip()

    # -- in the lifeline's thread, which must not wait for a terminal --------------------------------------------------

    def _on_gateway(self, event: Event) -> None:
        kind = event.get("event")
        if kind == "denied":
            worth_showing = self.denials.count(event)
        else:
            unwritable = kind == "log-unwritable" and not self._log_unwritable
            self._log_unwritable = self._log_unwritable or unwritable
            worth_showing = unwritable or kind == "credential"
        if worth_showing and self.stage is not None:
            self.stage.tell(event)

    def _on_gateway_lost(self) -> None:
        """Without its judge the box must not go on."""
        if self.stage is not None:
            self.stage.end("gateway-lost")

    def _on_bare(self, path: Path) -> None:
        """In a thread of its own: what the box must not see lies open to it."""
        self.bare = path
        if self.stage is not None:
            self.stage.end("exposed")

    def _on_full(self, words: str) -> None:
        """In a thread of its own: a disk of this machine is nearly full."""
        self.full = words
        if self.stage is not None:
            self.stage.end("disk-full")

    # -- steps of close -----------------------------------------------------------------------------------------------

    def _clean_folder(self) -> None:
        """Nothing that only a living run needs stays; a run that never had a box leaves nothing at all."""
        paths = self.paths
        self.trouble += leftovers.clean_folder(paths)
        if self.started:
            theirs = owned(self.user, paths.root)
            for folder in (paths.session, paths.workspace):
                if folder.is_dir() and not folder.is_symlink():
                    self.workplace.give_back(folder, theirs, {})
            with suppress(FileNotFoundError):
                if paths.stderr.stat().st_size == 0:
                    paths.stderr.unlink()
        else:
            remove_tree(paths.folder)
        share_run(paths.runs, paths.folder, self.user)

    def _remove_box(self) -> None:
        from impyard.runner import engine

        if self.stage is not None:
            self.stage.close()
        else:
            engine.make_gone(self.box.name)

    def _close_gateway(self) -> None:
        self.closed = self.gateway.close()
