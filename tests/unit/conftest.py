"""What holds for every unit test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code: only the tests' own time limit counts.
settings.register_profile("impyard", deadline=None)
settings.load_profile("impyard")
