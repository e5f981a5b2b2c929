"""What must not start does not start: exit 125, one reason, one way out, and no container was ever created."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.boxes import MakeProject
from tests.support.engineproxy import engine_proxy
from tests.support.listening import Listening
from tests.support.project import PLAIN_POLICY, Caller, Project, Result, containers_created
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box

PROMPT = "write 4 to answer.txt"


def refused(project: Project, *args: str, root: Path | None = None, **options: Any) -> Result:
    """Run impyard, which must refuse, and leave no trace but perhaps lines in the log."""
    since = time.time()
    result = project.impyard("run", "--model", "demo", *args, PROMPT, **options)
    _check(project, result, since, root or project.root)
    return result


def _check(project: Project, result: Result, since: float, root: Path) -> None:
    assert result.code == 125, result
    lines = result.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], result.err
    assert all(len(line) > 15 for line in lines)
    if "DOCKER_HOST" not in os.environ:
        assert containers_created(root, since) == []
    assert project.run_folders() == []
    assert project.leftovers() == []


def error(result: Result) -> str:
    return result.err.splitlines()[0]


@pytest.mark.attack("157", "158", "161", control=True)
def test_the_same_run_is_not_refused(project: Project) -> None:
    """The control of all that follow, and of the watch for containers."""
    since = time.time()
    assert project.demo(PROMPT).code == 0
    assert len(containers_created(project.root, since)) == 1


# -- the gateway ------------------------------------------------------------------------------------------------------


@pytest.mark.attack("157")
def test_a_gateway_that_cannot_start(project: Project) -> None:
    broken = project.base / "broken" / "mitmproxy"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('mitmproxy is broken')\n")
    path = os.pathsep.join([str(broken.parent), project.env["PYTHONPATH"]])
    assert "mitmproxy is broken" in error(refused(project, env={"PYTHONPATH": path}))


@contextlib.contextmanager
def standing_still(project: Project) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run whose gateway has opened its door, while the runner waits for the engine: nothing is proved yet."""
    with engine_proxy(hold="/info") as proxy:
        process = project.start("run", "--model", "demo", PROMPT, env={"DOCKER_HOST": proxy.host})
        assert proxy.held.wait(60), proxy.calls
        wait_until(lambda: [folder for folder in project.run_folders() if (folder / "door" / "life.sock").exists()])
        (folder,) = project.run_folders()
        yield process, folder / "door"
        proxy.release()
        process.wait(60)
    assert not any("/containers/create" in call for call in proxy.calls), proxy.calls


@pytest.mark.attack("157")
def test_a_gateway_that_dies_right_after_its_start(project: Project) -> None:
    since = time.time()
    with standing_still(project) as (process, _door):
        os.kill(project.gateway(), signal.SIGKILL)
    result = project.finish(process)
    _check(project, result, since, project.root)
    assert "gateway" in error(result)


def _answer(connection: socket.socket, _door: Path) -> None:
    connection.recv(65536)
    body = b'{"error": "Access denied by egress policy: canary"}'
    connection.sendall(
        b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\nx-impyard-verdict: deny\r\n"
        b"x-impyard-decision: 20261129-000000-abcd.1\r\nx-impyard-canary: " + b"0" * 64 + b"\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )


def _pass_on(connection: socket.socket, door: Path) -> None:
    """Asks the real gateway, which answers rightly: an eavesdropper, who would see all and could change all."""
    with socket.socket(socket.AF_UNIX) as real:
        real.connect(str(door / "moved.sock"))
        real.sendall(connection.recv(65536))
        while data := real.recv(65536):
            connection.sendall(data)


@pytest.mark.parametrize("serve", [_answer, _pass_on], ids=["answers itself", "passes on to the real one"])
@pytest.mark.attack("158")
def test_an_impostor_at_the_door(project: Project, serve: Callable[[socket.socket, Path], None]) -> None:
    since = time.time()
    with standing_still(project) as (process, door), socket.socket(socket.AF_UNIX) as listener:
        (door / "judge.sock").rename(door / "moved.sock")
        listener.bind(str(door / "judge.sock"))
        listener.listen(8)

        def answer(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                serve(connection, door)

        listening = Listening(listener, answer)
    listening.close()
    result = project.finish(process)
    _check(project, result, since, project.root)
    assert "door" in error(result) and "gateway" in error(result)


# -- the policy -------------------------------------------------------------------------------------------------------


def _missing(policy: Path) -> None:
    policy.unlink()


def _a_folder(policy: Path) -> None:
    policy.unlink()
    policy.mkdir()


def _a_pipe(policy: Path) -> None:
    policy.unlink()
    os.mkfifo(policy)


def _a_dangling_link(policy: Path) -> None:
    policy.unlink()
    policy.symlink_to("nowhere.yaml")


def _a_broken_disk(policy: Path) -> None:
    policy.unlink()
    policy.symlink_to("/proc/self/mem")  # reading it is an input/output error, also for root


def _empty(policy: Path) -> None:
    policy.write_text("")


def _no_yaml(policy: Path) -> None:
    policy.write_text("networkPolicies:\n  - host: [\n")


def _unknown_key(policy: Path) -> None:
    policy.write_text(PLAIN_POLICY + "    allow_everything: true\n")


def _bad_regex(policy: Path) -> None:
    policy.write_text(PLAIN_POLICY.replace("/.*", "'/(?=a)'"))


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (_missing, ""),
        (_a_folder, ""),
        (_a_pipe, ""),
        (_a_dangling_link, ""),
        (_a_broken_disk, ""),
        (_empty, ""),
        (_no_yaml, "gateway.yaml:"),
        (_unknown_key, "gateway.yaml:5"),
        (_bad_regex, "gateway.yaml:4"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_policy_that_is_none(project: Project, spoil: Callable[[Path], None], place: str) -> None:
    spoil(project.policy)
    result = refused(project, "--project", str(project.root))
    assert "gateway.yaml" in error(result) and place in error(result)


def test_a_policy_that_nobody_may_read(make_project: MakeProject, ordinary_user: Caller) -> None:
    project = make_project(caller=ordinary_user)
    project.policy.chmod(0)
    assert "permission denied" in error(refused(project)).lower()


# -- the log ----------------------------------------------------------------------------------------------------------


def test_a_log_that_may_not_be_written(make_project: MakeProject, ordinary_user: Caller) -> None:
    project = make_project(caller=ordinary_user)
    project.runs.mkdir()
    project.log.touch(0o444)
    project.own(project.runs)
    assert "decisions.jsonl" in error(refused(project))


def test_a_log_that_is_a_folder(project: Project) -> None:
    project.log.mkdir(parents=True)
    assert "decisions.jsonl" in error(refused(project))


def test_a_log_that_is_a_link(project: Project) -> None:
    project.runs.mkdir()
    project.log.symlink_to(project.base / "elsewhere")
    assert "decisions.jsonl" in error(refused(project))
    assert not (project.base / "elsewhere").exists()


def test_runs_that_may_not_be_written(make_project: MakeProject, ordinary_user: Caller) -> None:
    project = make_project(caller=ordinary_user)
    project.runs.mkdir(0o555)
    project.own(project.runs)
    assert "runs" in error(refused(project))


@pytest.fixture
def tiny_disk(project: Project, needs_root: None) -> Iterator[Path]:
    """A full file system of one page, with an empty `decisions.jsonl` on it."""
    folder = project.base / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "none", str(folder)], check=True)
    (folder / "decisions.jsonl").touch()
    (folder / "filler").write_bytes(bytes(4096))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)
    yield
    subprocess.run(["umount", str(target)], check=True)


def test_a_log_on_a_full_disk(project: Project, tiny_disk: Path) -> None:
    project.runs.mkdir()
    project.log.touch()
    since = time.time()
    with mounted(tiny_disk / "decisions.jsonl", project.log):
        result = project.impyard("run", "--model", "demo", PROMPT)
    with mounted(tiny_disk, project.runs):
        whole = project.impyard("run", "--model", "demo", PROMPT)
        assert project.run_folders() == []
    assert "decisions.jsonl" in error(result) and "space" in result.err
    assert "is full" in error(whole)
    (tiny_disk / "decisions.jsonl").unlink()
    for each in (result, whole):
        assert each.code == 125 and len(each.err.splitlines()) == 2
    assert containers_created(project.root, since) == [] and project.run_folders() == []


# -- the engine and its image -----------------------------------------------------------------------------------------


@pytest.mark.attack("157")
def test_an_image_that_is_missing_and_cannot_be_built(project: Project) -> None:
    result = refused(project, env={"IMPYARD_BASE_IMAGE": "127.0.0.1:1/none:1"})
    assert "127.0.0.1:1/none:1" in error(result)
    assert "there is no image `impyard-none:1`" in error(refused(project, "--image", "impyard-none:1"))


@pytest.mark.attack("157")
def test_an_engine_that_is_down(project: Project) -> None:
    result = refused(project, env={"DOCKER_HOST": f"unix://{project.base}/none.sock"})
    assert "Docker" in error(result) and "start" in result.err
    with socket.socket(socket.AF_UNIX) as nobody_listens:
        nobody_listens.bind(str(project.base / "dead.sock"))
        result = refused(project, env={"DOCKER_HOST": f"unix://{project.base}/dead.sock"})
    assert "Docker" in error(result) and "connection refused" in error(result)
    assert "DOCKER_HOST" in error(refused(project, env={"DOCKER_HOST": "tcp://127.0.0.1:1"}))


def test_an_engine_that_the_user_may_not_use(make_project: MakeProject, ordinary_user: Caller) -> None:
    project = make_project(caller=ordinary_user)
    closed = project.base / "closed.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(closed))
        listener.listen(1)
        closed.chmod(0)
        result = refused(project, env={"DOCKER_HOST": f"unix://{closed}"})
    assert "permission denied" in error(result) and "docker group" in result.err


# -- the project ------------------------------------------------------------------------------------------------------


@pytest.mark.attack("161")
def test_the_whole_machine_as_a_project(project: Project) -> None:
    policy = ["--policy", str(project.policy)]
    assert "`/`" in error(refused(project, "--project", "/", *policy, root=Path("/")))
    (project.base / "link").symlink_to("/")
    assert "`/`" in error(refused(project, "--project", str(project.base / "link"), *policy, root=Path("/")))
    for folder in ("/etc", "/usr", "/tmp", "/home", "/var/lib/docker"):
        if os.access(folder, os.R_OK):
            assert folder in error(refused(project, "--project", folder, *policy, root=Path(folder)))


@pytest.mark.attack("161")
def test_a_home_as_a_project(project: Project) -> None:
    home = {"HOME": str(project.root)}
    assert "home" in error(refused(project, env=home))
    assert "home" in error(refused(project, "--project", str(project.base), env=home, root=project.base))
    real = str(project.caller.home)
    if real != "/":
        policy = ["--policy", str(project.policy)]
        assert "home" in error(refused(project, "--project", real, *policy, root=Path(real)))


@pytest.mark.parametrize("place", ["keys", "."])
def test_keys_inside_the_project(project: Project, place: str) -> None:
    result = refused(project, env={"IMPYARD_DATA_DIR": str(project.root / place)})
    assert "private keys" in error(result)
    (project.base / "link").symlink_to(project.root / "keys")
    result = refused(project, env={"IMPYARD_DATA_DIR": str(project.base / "link")})
    assert "private keys" in error(result)


@pytest.mark.attack("136")
def test_runs_that_lead_elsewhere(project: Project) -> None:
    (project.base / "elsewhere").mkdir()
    project.runs.symlink_to(project.base / "elsewhere")
    assert "link" in error(refused(project))
    assert list((project.base / "elsewhere").iterdir()) == []


@pytest.mark.usefixtures("needs_root")
def test_a_machine_without_memory_for_one_run_more(project: Project, tmp_path: Path) -> None:
    """What the kernel says of its memory is covered for impyard, in a mount namespace of its own."""
    meminfo = tmp_path / "meminfo"
    script = 'mount --bind "$0" /proc/meminfo && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", script, str(meminfo))
    meminfo.write_text("MemTotal: 8000000 kB\nMemAvailable: 50000 kB\nSwapFree: 0 kB\n")
    result = refused(project, prefix=prefix)
    assert error(result) == "error: this machine has 51.2 MB of memory left, and a run needs some 209.7 MB"
    meminfo.write_text("MemTotal: 8000000 kB\nMemAvailable: 5000000 kB\nSwapFree: 0 kB\n")
    control = project.demo(PROMPT, prefix=prefix)
    assert control.code == 0, control
