"""What the benchmark stores, and when it says that something was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.stored import Ratio, losses, names_of, store, stored


@pytest.mark.parametrize(
    ("ratio", "lost"),
    [
        (Ratio("kept-1", 1.61), False),
        (Ratio("kept-1", 1.59), True),
        (Ratio("kept-1", 9.0), False),
        (Ratio("start", 2.39, more=False), False),
        (Ratio("start", 2.41, more=False), True),
        (Ratio("new", 0.1), False),
    ],
)
def test_a_loss_is_more_than_a_fifth_of_what_was_stored(ratio: Ratio, lost: bool) -> None:
    assert bool(losses({"kept-1": 2.0, "start": 2.0}, [ratio])) is lost


def test_storing_replaces_what_was_measured_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    store([Ratio("a", 1.0), Ratio("b", 2.0)], path)
    store([Ratio("b", 3.00049)], path)
    assert stored(path) == {"a": 1.0, "b": 3.0}


def test_a_stored_name_belongs_to_one_measure() -> None:
    assert names_of({"kept-1": 1, "kept-16": 1, "keptlong": 1, "start": 1}, "kept") == {"kept-1", "kept-16"}
