"""What people wait for: installing, cloning and small calls in a box behind the judge, beside an ordinary container.

The same script in all places, in turning order: the box of `impyard run`, a container of the same image on the host's
network, and that container with squid for a proxy. Every cache is empty each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from impyard.runner.image import box_dir
from tests.bench.places import BOX, ORIGIN, PLAIN, SQUID, Failed, Places
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.squid import missing_row
from tests.bench.stored import Ratio
from tests.bench.table import Row

OF_DIRECT, OF_SQUID = 1.25, 1.0
REGISTRY_ROUNDS = 3  # registries are other people's
GIT_ROUNDS, CURL_ROUNDS = 5, 7
FILE_MIB = 4
# Small, of one file each, and for any Python; --no-deps keeps the number.
PACKAGES = """
attrs babel black blinker certifi chardet click colorama coverage decorator distlib docutils filelock flask idna
iniconfig itsdangerous jinja2 markdown more-itertools networkx packaging pathspec platformdirs pluggy pygments pytest
python-dateutil pytz requests rich six sortedcontainers tabulate tomli tqdm typing-extensions urllib3 werkzeug wheel
"""


def npm(plan: Plan) -> Iterator[Row]:
    """`npm ci` of the lock file that the image has pi by; and again from the full cache, which is files alone."""
    with Places() as places:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(box_dir() / name, places.project / name)
        options = "--ignore-scripts --no-audit --no-fund --no-progress"
        script = places.script(
            "npm.sh",
            f"cp {places.project}/package*.json . && export npm_config_registry={places.registries.npm}\n"
            f"timed ci npm ci {options}\nrm -r node_modules\n"
            f"timed files npm ci --offline {options}\n",
        )
        parts = {"ci": "npm ci of pi's lock file", "files": "  npm ci from a full cache, no request"}
        yield from _compared(places, script, parts, min(plan.rounds, REGISTRY_ROUNDS))


def pip(plan: Plan) -> Iterator[Row]:
    """`pip download`, with the pip of this Python: the image has none."""
    if (found := find_spec("pip")) is None or found.origin is None:
        raise RuntimeError("needs pip in the Python that measures")
    with Places() as places:
        shutil.copytree(Path(found.origin).parent, places.project / "tools" / "pip")
        packages = PACKAGES.split()
        script = places.script(
            "pip.sh",
            f"export PIP_INDEX_URL={places.registries.pip} PYTHONPATH={places.project}/tools\n"
            f"timed download python3 -m pip download --no-deps --only-binary :all: -d wheels {' '.join(packages)}\n",
        )
        parts = {"download": f"pip download of {len(packages)} packages"}
        yield from _compared(places, script, parts, min(plan.rounds, REGISTRY_ROUNDS))


def git(plan: Plan) -> Iterator[Row]:
    """`git clone` of what does not compress, and a push of it to an empty repository."""
    with Places() as places:
        yield from git_at(places, plan)


def git_at(places: Places, plan: Plan) -> Iterator[Row]:
    mib = min(plan.body_mib, 100)
    _make_repository(places.repositories / "big.git", mib)
    url = f"https://{ORIGIN}:{places.git_port}"
    script = places.script(
        "git.sh",
        f"timed clone git clone -q {url}/big.git\ntimed push git -C big push -q {url}/empty.git HEAD:refs/heads/main\n",
    )
    parts = {"clone": f"git clone of {mib} MB", "push": f"git push of {mib} MB"}
    rounds = min(plan.rounds, GIT_ROUNDS)
    yield from _compared(places, script, parts, rounds, lambda: _make_empty(places.repositories / "empty.git"))


def curl(plan: Plan) -> Iterator[Row]:
    """Small calls, each by a curl of its own and so over a new connection."""
    with Places() as places:
        yield from curl_at(places, plan)


def curl_at(places: Places, plan: Plan) -> Iterator[Row]:
    count = min(200, 20 * plan.commands)
    script = places.script(
        "curl.sh",
        f"calls() {{ for ((i = 0; i < {count}; i++)); do\n"
        f"    curl -fsS -o answer https://{ORIGIN}:{places.port}/small || return 1\ndone; }}\n"
        "timed calls calls\n",
    )
    yield from _compared(places, script, {"calls": f"{count} calls by curl"}, min(plan.rounds, CURL_ROUNDS))


def _compared(
    places: Places,
    script: Path,
    parts: dict[str, str],
    rounds: int,
    before: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """The rows of each part that a script times. before: is called ahead of each time that the script is run."""

    def one(place: str) -> dict[str, float]:
        before()
        return places.run(place, script)

    try:
        one(PLAIN)  # what is asked from outside must be there at all
    except Failed as exc:
        yield from (Row(what, "-", note=f"does not work here without a proxy either: {exc}") for what in parts.values())
        return
    try:
        results = dict(zip(places.names, alternate(places.names, rounds, one), strict=True))
    except Failed as exc:
        raise RuntimeError(f"{script.name}: {exc}") from exc
    for part, what in parts.items():
        seconds = {place: [times[part] for times in results[place]] for place in places.names}
        made_of = "; ".join(f"{place} {spread(taken).median:.2f} s" for place, taken in seconds.items())
        name = f"{script.stem}-{part}"
        yield _row(f"{what}, of direct", seconds[BOX], seconds[PLAIN], OF_DIRECT, made_of, f"{name}-direct")
        if SQUID in seconds:
            yield _row(f"{what}, of squid", seconds[BOX], seconds[SQUID], OF_SQUID, made_of, f"{name}-squid")
        else:
            yield missing_row(f"{what}, of squid")


def _row(what: str, ours: list[float], theirs: list[float], at_most: float, made_of: str, name: str) -> Row:
    found = ratios(ours, theirs)
    ratio = Ratio(name, found.median, more=False)
    return Row(
        what, f"{found.median:.2f}", found.text(".2f"), f"<= {at_most:.2f}", found.median <= at_most, made_of, ratio
    )


def _make_repository(made: Path, mib: int) -> None:
    """A bare repository with one commit of random bytes."""
    with tempfile.TemporaryDirectory(prefix="impyard-bench-") as work:
        _git("init", "-q", "-b", "main", work)
        for number in range(-(-mib // FILE_MIB)):
            Path(work, f"{number}.bin").write_bytes(os.urandom(min(FILE_MIB, mib - number * FILE_MIB) << 20))
        _git("-C", work, "add", ".")
        _git("-C", work, *("-c", "user.name=b", "-c", "user.email=b@bench.test", "commit", "-q", "-m", "one"))
        _git("clone", "-q", "--bare", work, made)
    # In one pack, so that serving it is no search for likeness among random bytes.
    _git("-C", made, "-c", f"core.bigFileThreshold={FILE_MIB >> 1}m", "repack", "-a", "-d", "-q")


def _make_empty(made: Path) -> None:
    shutil.rmtree(made, ignore_errors=True)
    _git("init", "-q", "--bare", made)
    _git("-C", made, "config", "http.receivepack", "true")


def _git(*words: str | Path) -> None:
    subprocess.run(["git", *words], check=True, capture_output=True)
