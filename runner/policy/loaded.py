"""A policy that one command asks for several times, as it is before a change and after it, loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from impyard.addon.policy import Policy, read_policy


def policy_of(contents: Sequence[tuple[Path, bytes]], root: Path | None) -> Policy:
    """What the files say. Raises PolicyError as `read_policy`."""
    return _policy_of(tuple(contents), root)


@lru_cache(maxsize=2)
def _policy_of(contents: tuple[tuple[Path, bytes], ...], root: Path | None) -> Policy:
    return read_policy(contents, root=root)
