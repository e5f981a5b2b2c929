"""What the agent works in: a new folder of the run, a clone of the project in one, or a folder that was there before.

Called by enclosure.py, in its order. What is undone at the end is put on the enclosure's stack before it is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from impyard.addon.errors import ImpyardError
from impyard.runner import checkout, leftovers, places
from impyard.runner.gitsettings import own_settings
from impyard.runner.plan import Plan
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.secretfiles.scan import Found
from impyard.runner.signals import Signals
from impyard.runner.text import counted, visible
from impyard.runner.user import BoxUser, Inode, Owner, give_back, hand_over, home_of

if TYPE_CHECKING:
    from impyard.runner.clone import git as clonegit


def find_repository(plan: Plan) -> clonegit.Project | None:
    """The repository to clone, before anything is made. Raises ImpyardError for one that cannot be cloned."""
    if plan.clone is None:
        return None
    from impyard.runner.clone import make as clone  # what no other run needs

    return clone.find_project(plan.root, plan.clone)


class Workplace:
    """`folder` is where the agent works. `make_clone`, `guard` it, `hand_over`, in this order.

    `undo` is for what is to be undone at the end, and `trouble` for words about what could not be.
    """

    def __init__(
        self,
        plan: Plan,
        paths: RunPaths,
        user: BoxUser,
        repository: clonegit.Project | None,
        signals: Signals,
        note: Callable[[str], None],
        undo: ExitStack,
        trouble: list[str],
    ) -> None:
        self.folder = plan.workspace or paths.workspace
        self._plan = plan
        self._paths = paths
        self._user = user
        self._repository = repository
        self._signals = signals
        self._note = note
        self._undo = undo
        self._trouble = trouble

    @property
    def is_new(self) -> bool:
        """Whether it is an empty folder, which nobody has made yet."""
        return self._plan.workspace is None and self._repository is None

    def make_clone(self, receipt: Receipt) -> None:
        """Make the clone, where the plan has one."""
        if self._repository is None:
            return
        from impyard.runner.clone import make as clone

        plan = self._plan
        assert plan.clone is not None
        if not plan.clone.changes and (words := clone.words_about_changes(clone.uncommitted(self._repository))):
            self._note(words)
        receipt.clone = clone.make_clone(self._repository, plan.clone, self._paths, plan.allowed, self._note)

    def covered_whole(self, receipt: Receipt) -> Sequence[Found]:
        """The project's own history, which a clone stands in for."""
        if not receipt.clone:
            return ()
        from impyard.runner.clone.make import covered_folders

        return covered_folders(self._plan.root)

    def guard(self, receipt: Receipt) -> checkout.Guard:
        """What the box must not write of a checkout to work on, with all of it there."""
        plan = self._plan
        if plan.workspace is None and plan.clone is None:
            return checkout.Guard()
        homes = {os.environ.get("HOME", ""), home_of(self._user.owner_uid)}  # under sudo they differ
        settings = own_settings(sorted(homes), os.environ)
        holds = self._undo.enter_context(closing(places.Holds()))
        own = plan.resumed is not None and plan.resumed.is_own
        # Not ours, its files change hands, for one run at a time; two sessions that go on from one would not know of
        # each other.
        holds.hold(self.folder, self._user.is_ours and not own)
        if own and not receipt.clone:
            return checkout.Guard()  # the box made all of it, and keeps it
        guard = checkout.find_guard(self.folder, settings, holds.hold)
        for path in guard.whole:
            self._note(f"the agent cannot commit in {path}, which is read-only as a whole: parts of it lie elsewhere")
        for path in guard.apart:
            self._note(
                f"the agent cannot commit in {path}: its repository lies outside of the workspace; a clone would do"
            )
        with self._signals.shielded():
            receipt.made = [place.record() for place in guard.missing]
            receipt.write(self._paths.receipt)
            try:
                made = places.make(guard.missing)
            except OSError as exc:
                why = str(exc.strerror or exc).lower()
                raise ImpyardError(
                    f"cannot make {visible(str(exc.filename))}, to keep it from the agent: {why}",
                    hint="what git obeys must be there before: make that folder writable, or choose another workspace",
                ) from exc
            self._undo.callback(self._unmake, made, receipt)
        return guard

    def hand_over(self) -> None:
        """Make the box's user the owner of what is in it already; a folder that was there before goes back at the end,
        and a clone with the rest of the run's folder."""
        if self._repository is not None:
            hand_over(self.folder, self._user)
        if self._plan.workspace is not None:
            with self._signals.shielded():
                owners = hand_over(self.folder, self._user)
                self._undo.callback(self.give_back, self.folder, self._user, owners)
                leftovers.note_owners(self._paths, self.folder, owners)

    def give_back(self, folder: Path, user: BoxUser, owners: Mapping[Inode, Owner]) -> None:
        """Make the user's owner in the end that of what is in a folder, but for what was somebody else's before."""
        if missed := give_back(folder, user, owners):
            self._trouble.append(f"{counted(missed, 'file')} in {folder} could not be given back to you")

    def _unmake(self, made: Sequence[places.Missing], receipt: Receipt) -> None:
        receipt.made = []
        for path in places.unmake(made):
            self._trouble.append(f"{path} is not as impyard made it for this run: look at it before you use git here")
