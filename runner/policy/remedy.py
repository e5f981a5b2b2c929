"""What helps with a denied request, by what `impyard policy allow` itself would make of it under the policy of now."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.addon.policy import Policy
from impyard.runner.policy.change import read
from impyard.runner.policy.put import Contents
from impyard.runner.policy.recorded import recorded
from impyard.runner.policy.suggest import Collector, suggestion
from impyard.runner.project import policy_files


class Remedy(Enum):
    """ALLOW: `policy allow` writes a rule. OVER_DENY: it does so with `--over-deny`. ALLOWED: the policy allows it by
    now. CHECK: the policy is, or was, broken. STORE: the credential that goes with it is missing. NOTHING: no command
    of impyard's answers it."""

    ALLOW = "allow"
    OVER_DENY = "over-deny"
    ALLOWED = "allowed"
    CHECK = "check"
    STORE = "store"
    NOTHING = "nothing"


class Remedies:
    """Finds them for decisions of one project, under the policy that `policy allow` changes there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._now: tuple[Contents, Policy] | None = None  # None: it must not be used
        with suppress(ImpyardError):
            self._now = read(policy_files(root, (), None), root)

    @property
    def is_broken(self) -> bool:
        """Whether the policy of now must not be used."""
        return self._now is None

    def of(self, line: bytes) -> Remedy:
        """What helps with the denial in a line of the log."""
        asked = recorded(line)
        if asked is None:
            return Remedy.NOTHING
        if asked.reason in ("policy-broken", "credential-unavailable"):
            return Remedy.CHECK if asked.reason == "policy-broken" else Remedy.STORE
        if self._now is None:
            return Remedy.CHECK
        contents, policy = self._now
        found = Collector(policy)
        found.add_denied(asked)
        if found.allowed_now:
            return Remedy.ALLOWED
        if any(apart.reason == "rule" for apart in found.apart):
            return Remedy.OVER_DENY
        try:
            made = suggestion(contents, self._root, found, patterns=False)
        except ImpyardError:  # the text of the policy gives no place for it
            return Remedy.NOTHING
        return Remedy.ALLOW if made.rules and not made.apart else Remedy.NOTHING
