"""The short form of `make soak NAMES=requests`: a gateway that lives long keeps its size."""

from __future__ import annotations

import pytest

from tests.soak import traffic
from tests.soak.plan import Plan

pytestmark = [pytest.mark.gateway, pytest.mark.attack("F16", "F17")]

PLAN = Plan(requests=2_400, step=800, streams=240, connections=20, transfers=8)


def test_memory_and_descriptors_stay_as_after_the_first_step() -> None:
    with traffic.traffic() as here:
        sizes = traffic.all_kinds(here, PLAN)
        here.close()
    assert here.made >= PLAN.requests
    assert here.wrong + traffic.outside_band(sizes) == []
