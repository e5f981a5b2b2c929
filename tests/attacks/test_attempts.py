"""Every attempt that ships, against the judge and, as its control, against a proxy that judges nothing.

A control asserts what is declared of each attempt: that a bare proxy lets it out, or that it does not.
"""

from __future__ import annotations

from collections import Counter

import pytest

from impyard.box.attacks import score
from impyard.box.attacks.bed import ATTEMPTS
from impyard.box.attacks.model import GROUPS, Attempt
from tests.attacks.conftest import Bed

pytestmark = pytest.mark.gateway


def marked(*, control: bool = False) -> list[object]:
    options = {"control": True} if control else {}
    return [
        pytest.param(attempt, id=attempt.key, marks=pytest.mark.attack(attempt.entry, **options))
        for attempt in ATTEMPTS
        if not control or attempt.bare
    ]


@pytest.mark.parametrize("attempt", marked())
def test_it_is_held(judged: Bed, attempt: Attempt) -> None:
    tried, _seen, faults = judged.make(attempt)
    assert faults == []
    assert tried.after == 200


@pytest.mark.parametrize("attempt", marked(control=True))
def test_it_gets_out_where_nobody_judges(bare: Bed, attempt: Attempt) -> None:
    _tried, seen, _faults = bare.make(attempt)
    assert score.escaped(attempt, seen)


def test_names_are_unique_and_every_group_has_controls() -> None:
    assert [key for key, count in Counter(attempt.key for attempt in ATTEMPTS).items() if count > 1] == []
    assert {attempt.group for attempt in ATTEMPTS} == {attempt.group for attempt in ATTEMPTS if attempt.bare}
    assert {attempt.group for attempt in ATTEMPTS} <= set(GROUPS)
