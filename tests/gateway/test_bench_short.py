"""The benchmark measures: each part that needs no container, for a moment. Times are not asserted, only that they are
of real work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench import kept_connections
from tests.bench.__main__ import MEASURES
from tests.bench.bed import Bed
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, ratios
from tests.bench.table import lines
from tests.support.gateway import ROOT

pytestmark = pytest.mark.gateway

SHORT = Plan(rounds=1, seconds=0.2, connections=(2,), body_mib=4, rules=100, commands=1, decisions=3000)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("kept", 3),
        ("new", 6),
        ("h2", 6),
        ("rules", 2),
        ("bodies", 11),
        ("keys", 2),
        ("event", 3),
        ("websocket", 2),
        ("streams", 3),
        ("logs", 5),
        ("help", 2),
    ],
)
def test_each_measure_yields_its_figures(name: str, figures: int) -> None:
    rows = list(MEASURES[name][0](SHORT))
    assert len(rows) >= figures
    for row in rows:
        assert any(digit in row.figure for digit in "0123456789"), row
    assert len(lines(rows)) == len(rows) + 2


def test_each_measured_request_was_judged_and_recorded() -> None:
    with Bed() as bed, bed.gateway() as target:
        seen, cpu_s = bed.load(target, 2, 0.3)
        assert target.gateway is not None
        verdicts = [line["verdict"] for line in target.gateway.decisions()]
    assert seen.errors == 0
    assert seen.per_s > 0
    assert cpu_s > 0
    # One more for each connection whose last request was under way at the end.
    assert seen.total <= len(verdicts) <= seen.total + 2
    assert set(verdicts) == {"allow"}


def test_a_gateway_that_denies_is_not_taken_for_a_fast_one() -> None:
    with Bed() as bed, bed.gateway() as target:
        assert target.gateway is not None
        target.gateway.policy_path.write_text("networkPolicies: []\n")
        with pytest.raises(RuntimeError, match="failed requests"):
            kept_connections.compare(bed, [target], SHORT, 1)


def test_rounds_turn_the_order_and_ratios_are_taken_within_a_round() -> None:
    order: list[str] = []

    def place(name: str) -> float:
        order.append(name)
        return len(order)

    results = alternate(["a", "b"], 3, place)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert results == [[1, 4, 5], [2, 3, 6]]
    assert ratios([2.0, 1.0], [1.0, 1.0]).median == 1.5


def test_an_interrupt_ends_with_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench", "kept", "--rounds", "50"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not _started_for(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _started_for(str(tmp_path)), "nothing was started"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    assert err.splitlines() == ["measuring kept …", "interrupted"]
    assert not _started_for(str(tmp_path)) and not list((tmp_path / "tmp").iterdir())


def _started_for(folder: str) -> list[str]:
    """The command lines that name a folder, which those of the measures' origins, gateways and loads do."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
        if folder in words:
            found.append(words)
    return found
