"""Short forms of `make soak`, on an engine of the tests' own: runs in a row and at once, kills, a broken engine."""

from __future__ import annotations

import random
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import engine_calls, kills, runs
from tests.soak.bed import Bed, bed, engine_with_image
from tests.support.boxes import skip
from tests.support.engineproxy import Fault
from tests.support.ownengine import OwnEngine

pytestmark = [pytest.mark.box, pytest.mark.waits]

RUNS, AT_ONCE = 2, 4
KILLS, SEED = 6, 20
# Of every call and every way in which it can fail (`make soak`): those that leave most undone.
FAULTS = [
    Fault("/create", "lost"),
    Fault("/attach", "hang"),
    Fault("/wait", "hang"),
    Fault("/start", "dead"),
    Fault("DELETE /containers/", "reset"),
]


@pytest.fixture(scope="module")
def own() -> Iterator[OwnEngine]:
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        skip("an engine of its own takes root")
    with engine_with_image() as engine:
        yield engine


@pytest.fixture(scope="module")
def here(own: OwnEngine) -> Iterator[Bed]:
    with bed(own) as found:
        yield found


def test_runs_in_a_row_and_at_once_leave_nothing(here: Bed) -> None:
    seconds, wrong = runs.in_a_row(here, RUNS)
    assert wrong == []
    assert len(seconds) == RUNS
    assert runs.at_once(here, AT_ONCE) == []
    assert here.project.impyard("decisions", "--verify").code == 0


@pytest.mark.attack("130", "154", "155", "F54")
def test_whoever_is_killed_whenever_the_end_is_defined(here: Bed) -> None:
    chosen = kills.plan_kills(random.Random(SEED), KILLS, here.run_s, 0)
    victims: Counter[str] = Counter()
    assert kills.strike_all(here, chosen, victims, SEED) == []
    assert len(victims) == KILLS, "each kind once"


@pytest.mark.attack("155", "157")
def test_an_engine_that_restarts_in_mid_run(here: Bed) -> None:
    blow = kills.Kill("engine", "TERM", here.run_s * 0.7, twice=False, pause_s=0.2, goes_on=True)
    assert kills.strike_all(here, iter([blow]), Counter(), SEED) == []


@pytest.mark.attack("157", "F53")
def test_an_engine_that_fails_at_any_call(own: OwnEngine) -> None:
    assert engine_calls.attempt_all(FAULTS, own) == []


@pytest.mark.attack("154", "155", control=True)
def test_what_is_left_behind_is_noticed(here: Bed, box_image: str) -> None:
    """The control of all above: each kind of thing that a run could leave."""
    base, tmp = here.project.base, Path(here.project.env["TMPDIR"])
    label = f"impyard.project={here.project.root}"
    created = here.own.docker("create", "--label", label, "--network", "none", box_image).strip()
    sleeper = subprocess.Popen(["sleep", "300"], env=here.project.env)
    draft = here.project.run_folders()[0] / ".run.json.0123abcd"
    draft.touch()
    (tmp / "left").touch()
    (base / "left").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(base / "left")], check=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp / "left.sock"))
        left.listen()
        found = "\n".join(here.leftovers(settle_s=0.5))
        for kind in ("container", "process", "mount", "socket", "temporary file", f"file {draft}"):
            assert kind in found, found
    subprocess.run(["umount", str(base / "left")], check=True)
    sleeper.kill()
    sleeper.wait()
    for path in (draft, tmp / "left", tmp / "left.sock"):
        path.unlink(missing_ok=True)
    here.own.docker("rm", created)
    assert here.leftovers() == []
