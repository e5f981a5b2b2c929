"""The benchmark of real work, with little of it: it is done in each place, the box among them, and nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from impyard.runner import engine
from tests.bench import real_work, squid
from tests.bench.places import BOX, PLAIN, Failed, Places
from tests.bench.plan import Plan
from tests.bench.table import Row

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs the docker command, to compare with"),
]

LITTLE = Plan(rounds=1, body_mib=2, commands=1)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with Places() as made:
        yield made


@pytest.mark.parametrize(("measure", "parts"), [(real_work.curl_at, 1), (real_work.git_at, 2)], ids=["curl", "git"])
def test_the_work_is_done_in_each_place(
    places: Places, measure: Callable[[Places, Plan], Iterator[Row]], parts: int
) -> None:
    rows = list(measure(places, LITTLE))
    assert len(rows) == 2 * parts
    for of_direct, of_squid in zip(rows[::2], rows[1::2], strict=True):
        assert float(of_direct.figure) > 0, of_direct
        assert of_squid.ratio is not None if squid.installed() else squid.NEEDS in of_squid.note
    assert not [box for box in engine.boxes() if "impyard-bench-" in box.labels.get("impyard.project", "")]
    names = ["docker", "ps", "--all", "--format", "{{.Names}}"]
    assert (
        f"impyard-bench-{os.getpid()}-" not in subprocess.run(names, capture_output=True, text=True, check=True).stdout
    )


def test_what_fails_is_no_fast_work(places: Places) -> None:
    denied = places.script("denied.sh", f"timed curl curl -fsS https://denied.test:{places.port}/small\n")
    with pytest.raises(Failed, match="403"):
        places.run(BOX, denied)
    with pytest.raises(Failed, match="denied"):
        places.run(PLAIN, denied)
