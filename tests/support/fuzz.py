"""How long properties are searched: shortly and always alike, or long and at random.

`IMPYARD_FUZZ=20 python -m pytest tests/attacks -k properties` looks at twenty times as many examples, new ones each
time. Without it the same few are looked at in every run, so that a change fails for itself alone.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("IMPYARD_FUZZ", "0"))


def examples(count: int, *, shrink: bool = True) -> settings:
    """Settings for `count` examples in the short form. shrink: whether a counterexample is made small."""
    return settings(
        max_examples=count * max(1, FACTOR),
        derandomize=not FACTOR,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
    )
