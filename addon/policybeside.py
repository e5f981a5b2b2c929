"""Compiling a big policy beside the gateway's loop, so that no request waits for it.

It is done in a thread. Threads of Python take turns, and while this one works they are short. A request still gives its
turn away many times, and some steps of loading cannot be interrupted, so the thread rests between short stretches of
work, and the loop has the time for whole requests.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from impyard.addon.errors import Fault, PolicyError
from impyard.addon.policy import Policy, read_policy

logger = logging.getLogger(__name__)

# After so long the older policy is not in force any more, and everything is denied until the new one is.
LIMIT_S = 5.0
_TURN_S = 0.00005
# A rest is about as long as a new connection takes the loop. Very big policies have to do without in the end.
_WORK_S, _REST_S, _RESTS_S = 0.002, 0.006, 1.2
# Processor time that a policy may take in the loop: several times what usual ones take that are small enough for it.
AT_ONCE_S = 0.05

Contents = Sequence[tuple[Path, bytes]]


def loaded(contents: Contents, root: Path | None, rest: Callable[[], None] | None = None) -> Policy | PolicyError:
    """The policy in files that were read, or what keeps it from being used. What fails, denies.

    Raises nothing but Costly, when `rest` does.
    """
    try:
        return read_policy(contents, root=root, rest=rest)
    except PolicyError as exc:
        return exc
    except Costly:
        raise
    except Exception as exc:
        logger.error("a policy could not be loaded", exc_info=exc)
        return FAILED


FAILED = PolicyError((Fault("policy", 0, 0, "could not be loaded"),))
LATE = PolicyError((Fault("policy", 0, 0, "takes too long to load; nothing is allowed until it is in force"),))


class Beside:
    """One load at a time. What is given while another one is under way comes after it, the newest alone."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._loading: _Loading | None = None
        self._dropped = False
        self._next: Contents | None = None
        self._waits_since = 0.0

    def load(self, contents: Contents) -> None:
        """Begin to load, or as soon as the load under way has ended."""
        now = time.monotonic()
        if self._loading is None:
            self._begin(contents, now)
        else:
            self._waits_since = now if self._next is None else self._waits_since
            self._next = contents

    def drop(self) -> None:
        """Nothing of what was given is wanted any more."""
        self._dropped, self._next = True, None

    def news(self) -> Policy | PolicyError | None:
        """What has to be in force by now in place of what is; None when nothing has changed."""
        if self._loading is None:
            return None
        if self._loading.is_alive():
            since = self._since if not self._dropped else self._waits_since if self._next is not None else math.inf
            return LATE if time.monotonic() - since > LIMIT_S else None
        found = None if self._dropped else self._loading.result
        self._loading = None
        if self._next is not None:
            contents, self._next = self._next, None
            self._begin(contents, self._waits_since)
        return found

    def _begin(self, contents: Contents, since: float) -> None:
        """since: when the oldest change was seen that is not in force."""
        self._since, self._dropped = since, False
        self._loading = _Loading(contents, self.root)
        try:
            self._loading.start()
        except RuntimeError as exc:  # no more threads: it never lives, and so has failed
            logger.error("a policy could not be loaded", exc_info=exc)


class _Loading(threading.Thread):
    """result: is the failure until it is there, should the thread die."""

    def __init__(self, contents: Contents, root: Path | None) -> None:
        super().__init__(name="policy", daemon=True)  # the gateway's end does not wait for it
        self._contents, self._root = contents, root
        self.result: Policy | PolicyError = FAILED

    def run(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _TURN_S))
        try:
            self.result = loaded(self._contents, self._root, _Pace())
        finally:
            sys.setswitchinterval(before)


class Costly(Exception):
    """A policy takes longer than the loop can spare."""


class Budget:
    """Called between two pieces of work: raises Costly once they have taken too long together.

    A small file can be much work: YAML's aliases repeat what they name, and some expressions are costly to compile.
    """

    def __init__(self) -> None:
        self._until = time.thread_time() + AT_ONCE_S

    def __call__(self) -> None:
        if time.thread_time() > self._until:
            raise Costly


class _Pace:
    """Called between two pieces of work: rests when there was enough of it."""

    def __init__(self) -> None:
        self._began = time.thread_time()  # what waits for its turn is no work
        self._left = _RESTS_S

    def __call__(self) -> None:
        if time.thread_time() - self._began > _WORK_S and self._left > 0:
            time.sleep(_REST_S)
            self._left -= _REST_S
            self._began = time.thread_time()
