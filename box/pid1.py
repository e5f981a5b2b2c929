"""The duties of the box's first process: it ends the box at the deadline, starts the agent, and takes in orphans.

The kernel keeps signals of the box's own processes away from process 1 unless it has a handler for them, SIGKILL and
SIGSTOP included (pid_namespaces(7)), and when it ends, all others are killed. So nothing that runs as the same user
can stop it, and leaving is all that it takes to end the box.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from impyard.box.guard import protect_process_1
from impyard.box.loop import READ, Loop

CEILING, REFUSED, GATEWAY_LOST = 124, 125, 126
OF_THE_RELAY = (CEILING, REFUSED, GATEWAY_LOST)
# How long before the deadline the agent is asked to end: so many seconds, of a short time only a part.
TERM_BEFORE_S, TERM_BEFORE_PART = 2.0, 0.1
GRACE_S = 5.0  # how long an agent that is told to end may take
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
# The kernel takes the agent's processes first when the box is out of memory.
AGENT_OOM_SCORE = 500
MAX_FILES = 65536


def end(status: int) -> NoReturn:
    """End the box, at once and whatever runs in it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


def refuse(reason: str) -> NoReturn:
    """End a box whose agent has not started, with the reason on standard error."""
    with contextlib.suppress(OSError):
        os.write(2, f"impyard: refused to start: {reason}\n".encode("utf-8", "replace"))
    end(REFUSED)


def agent_status(wait_status: int) -> int:
    """The exit status of an agent as a shell gives it (128 + signal when one killed it), and 1 for one that would speak
    for the relay: what ended a box is not the agent's to say."""
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else 1 if code in OF_THE_RELAY else code


def set_dumpable(value: int) -> None:
    """Let processes of the same user trace this one and read its memory (1), or not (0). Raises OSError.

    Children inherit it until they execute another program, which sets it to 1.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, value, 0, 0, 0) != 0 or libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != value:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def harden() -> tuple[int, int]:
    """Close this process to others of the same user, and let it open more files.

    Returns how many it may open now, and how many before, which is what the agent gets.
    """
    set_dumpable(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted, soft


class Warden:
    """Ends the box at its deadline, and watches over the agent.

    status: the agent's exit status (see `agent_status`), or CEILING when it ended because the deadline drew near; None
    while it runs.

    The deadline is a kernel timer on the monotonic clock whose handler leaves at once; it needs no turn of the loop, no
    memory, no new process, and no other signal can put it off.
    """

    def __init__(self, loop: Loop, deadline: float, agent_files: int) -> None:
        """`deadline` is a time of time.monotonic(); `agent_files` how many files the agent may open."""
        self._loop = loop
        self._deadline = deadline
        self._term_at = deadline - min(TERM_BEFORE_S, TERM_BEFORE_PART * (deadline - time.monotonic()))
        self._told_at: float | None = None
        self._at_ceiling = False
        self._agent_files = agent_files
        self._starting = False
        self._agent: int | None = None
        self._agent_is_told = False
        self.status: int | None = None

    def arm(self) -> None:
        """Take over the signals and start the clock."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._loop.watch(reader, READ, lambda: self._wake(reader))
        signal.signal(signal.SIGALRM, self._alarm)
        signal.signal(signal.SIGTERM, self._told_to_end)
        signal.signal(signal.SIGINT, self._told_to_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler of our own, so that the wake-up is written
        self._set_timer()

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdin: str | None, terminal: int | None = None
    ) -> None:
        """Start the agent in a session of its own, on a terminal where there is one. Refuses to start when the program
        cannot be executed."""
        self._starting = (
            True  # the agent may run, and this process be told to end, before the lines below have had a turn
        )
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = self.fork(lambda: self._execute(argv, env, cwd, stdin, terminal, writer))
        os.close(writer)
        reason = b""
        while data := os.read(reader, 4096):  # ends when the agent's exec closes the pipe
            reason += data
        os.close(reader)
        if reason:
            refuse(reason.decode("utf-8", "replace"))
        self._agent = pid
        if self._told_at is not None:
            self._pass_on()

    def fork(self, call: Callable[[], object]) -> int:
        """Run `call` in a child that has ordinary signals and a session of its own; it ends when `call` returns."""
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGALRM,
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            call()
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - a child must never go on as if it were process 1
            with contextlib.suppress(OSError):
                os.write(2, f"impyard: {type(exc).__name__}: {exc}\n".encode("utf-8", "replace"))
        finally:
            os._exit(REFUSED)

    def become_agent(self) -> None:
        """Give a child the standing that the agent has. Raises OSError when it cannot be had."""
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._agent_files, hard))
        set_dumpable(1)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(AGENT_OOM_SCORE))
        protect_process_1()

    def _execute(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        stdin: str | None,
        terminal: int | None,
        writer: int,
    ) -> NoReturn:
        doing = "take over the terminal" if terminal is not None else f"open {stdin}"
        try:
            if terminal is not None:
                from impyard.box.terminal import take_over

                take_over(terminal)
            else:
                os.dup2(os.open(stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
            doing = f"enter {cwd}"
            os.chdir(cwd)
            os.umask(0o022)
            doing = "take the agent's standing"
            self.become_agent()
            doing = f"execute {argv[0]}"
            os.execvpe(argv[0], list(argv), dict(env))
        except OSError as exc:
            os.write(writer, f"cannot {doing}: {exc.strerror}".encode("utf-8", "replace"))
        os._exit(REFUSED)

    def _set_timer(self) -> None:
        times = [self._deadline]
        if self._told_at is None:
            times.append(self._term_at)
        else:
            times.append(self._told_at + GRACE_S)
        signal.setitimer(signal.ITIMER_REAL, max(min(times) - time.monotonic(), 1e-6))

    def _alarm(self, *_: Any) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            end(CEILING)
        if self._told_at is None and now >= self._term_at:
            self._at_ceiling = True
            self._tell()
        elif self._told_at is not None and now >= self._told_at + GRACE_S:
            end(128 + signal.SIGKILL)
        self._set_timer()  # also after an alarm that a program of the box sent

    def _told_to_end(self, *_: Any) -> None:
        if not self._starting:
            refuse("told to end before the agent started")
        if self._told_at is None:
            self._tell()
            self._set_timer()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._agent is not None and self.status is None and not self._agent_is_told:
            self._agent_is_told = True  # before the call: a signal may come at any line
            with contextlib.suppress(OSError):
                os.killpg(self._agent, signal.SIGTERM)

    def _wake(self, reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(reader, 4096):
                pass
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent:
                self.status = CEILING if self._at_ceiling else agent_status(status)
