"""bin/impyard in a mount namespace of its own, where Docker's socket, /run and the commands are the test's.

The virtual environment is a stand-in that reports the command line it was given; the set-up of a real one is what CI's
own start shows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The commands of the machine that the launcher and the stand-ins may use.
SYSTEM = ["bash", "cat", "cp", "env", "flock", "grep", "id", "mkdir", "mountpoint", "nohup"]
SYSTEM += ["readlink", "rm", "setsid", "sleep", "tail"]

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode != 0,
    reason="this machine gives no user namespace",
)

DOCKERD = """#!/usr/bin/env bash
echo "dockerd $*" >> "$CALLS"
case ${DOCKERD:-good}:$* in
good:* | no-networks:*--bridge=none*) ;;
*) echo "cannot make networks"; exit 1 ;;
esac
exec "$PYTHON" -c '
import socket, signal
signal.alarm(15)
s = socket.socket(socket.AF_UNIX); s.bind("/run/docker.sock"); s.listen()
while True:
    c, _ = s.accept(); c.recv(4096); c.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nOK"); c.close()
'
"""
PYTHON = """#!/usr/bin/env bash
if [[ "$*" == *impyard.runner* ]]; then printf 'ran'; printf ' [%s]' "$@"; echo; exit 0; fi
exec "$PYTHON" "$@"
"""
UV = """#!/usr/bin/env bash
[[ $* == "python find >=3.12" ]] && echo {}
"""


@dataclass
class Machine:
    """A checkout and the commands in PATH. calls: what was called that changes a machine."""

    folder: Path

    def command(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)  # it may be a link to the machine's own command, which must not be written through
        with path.open("x") as file:
            file.write(script)
        path.chmod(0o755)

    def run(
        self, *arguments: str, uid: int = 0, before: str = "", after: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Call the launcher as root or another user; `before` and `after` are shell lines around it, as root."""
        launcher = str(self.folder / "checkout/bin/impyard")
        script = (
            "mount -t tmpfs none /run && mount -t tmpfs none /var/log\n"
            f"export PATH={self.folder}/bin\n{before}\n" + '"$@"; status=$?\n' + f"{after}\nexit $status"
        )
        command = ["unshare", "-Urm", "bash", "-c", script, "bash"]
        if uid:
            self.command("id", f"#!/usr/bin/env bash\n[[ $1 == -un ]] && echo someone || echo {uid}\n")
        return subprocess.run(
            [*command, launcher, *arguments],
            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "CALLS": str(self.folder / "calls"),
                 "PYTHON": sys.executable, **environment},
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    checkout = tmp_path / "checkout"
    for folder in (tmp_path / "bin", checkout / "bin", checkout / ".venv/bin"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "bin/impyard", checkout / "bin")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    made = Machine(tmp_path)
    for name in SYSTEM:
        found = shutil.which(name)
        assert found, name
        (tmp_path / "bin" / name).symlink_to(found)
    python = checkout / ".venv/bin/python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (checkout / ".venv/impyard-installed").write_text(f"{checkout}\nplain\n{(ROOT / 'pyproject.toml').read_text()}")
    return made


def test_a_checkout_that_is_set_up_runs_the_command_and_calls_nothing_else(machine: Machine) -> None:
    result = machine.run("decisions", "--run", "a b", "", "*")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "ran [-P] [-m] [impyard.runner] [decisions] [--run] [a b] [] [*]\n"
    assert machine.calls == []


@pytest.mark.parametrize("command", ["run", "prove", "image"])
def test_as_root_docker_is_installed_and_started_and_outlives_the_launcher(machine: Machine, command: str) -> None:
    machine.command("dockerd-package", DOCKERD)
    machine.command(
        "apt-get",
        '#!/usr/bin/env bash\necho "apt-get $*" >> "$CALLS"\n'
        '[[ $* == *" docker.io"* ]] && cp "${0%/*}/dockerd-package" "${0%/*}/dockerd"\n',
    )
    result = machine.run(
        command,
        after="grep -q docker.sock /proc/*/cmdline && echo alive",
    )
    assert result.returncode == 0, result
    assert result.stdout == f"ran [-P] [-m] [impyard.runner] [{command}]\nalive\n"
    assert "installing the Debian package docker.io" in result.stderr and "starting dockerd" in result.stderr
    assert machine.calls == [
        "apt-get -o DPkg::Lock::Timeout=300 install -qq -y --no-install-recommends docker.io cgroupfs-mount",
        "dockerd ",
    ]


def test_an_engine_that_runs_is_left_alone(machine: Machine) -> None:
    machine.command("dockerd", DOCKERD)
    wait = 'while [[ ! -S /run/docker.sock ]]; do sleep 0.05; done; rm "$CALLS"'
    result = machine.run("run", before=f"dockerd >/dev/null 2>&1 & {wait}")
    assert result.returncode == 0 and machine.calls == [] and result.stderr == ""


def test_a_browser_is_installed_for_the_tests_alone_as_root_and_where_there_is_none(machine: Machine) -> None:
    stamp = machine.folder / "checkout/.venv/impyard-installed"
    stamp.write_text(stamp.read_text().replace("\nplain\n", "\ndev\n"))
    machine.command("apt-get", '#!/usr/bin/env bash\necho "apt-get $*" >> "$CALLS"\n')
    result = machine.run(IMPYARD_SETUP="browser")
    assert machine.calls == ["apt-get -o DPkg::Lock::Timeout=300 install -qq -y --no-install-recommends chromium"]
    assert (result.returncode, result.stdout) == (0, "") and result.stderr.count("\n") == 1
    machine.command("chromium", "#!/usr/bin/env bash\n")
    assert machine.run(IMPYARD_SETUP="browser").stderr == "" and len(machine.calls) == 1
    (machine.folder / "bin/chromium").unlink()
    assert machine.run(uid=1000, IMPYARD_SETUP="browser").returncode == 0 and len(machine.calls) == 1


def test_commands_that_need_no_engine_start_none(machine: Machine) -> None:
    machine.command("dockerd", DOCKERD)
    for arguments in (["doctor"], ["decisions"], ["run", "--help"], ["--help"], []):
        assert machine.run(*arguments).returncode == 0
    assert machine.calls == []


def test_without_a_packet_filter_docker_is_started_without_networks(machine: Machine) -> None:
    machine.command("dockerd", DOCKERD)
    result = machine.run("run", DOCKERD="no-networks")
    assert result.returncode == 0, result
    assert machine.calls == ["dockerd ", "dockerd --iptables=false --ip6tables=false --bridge=none"]


def test_an_engine_that_does_not_start_shows_its_last_words(machine: Machine) -> None:
    machine.command("dockerd", DOCKERD)
    result = machine.run("run", DOCKERD="broken")
    assert result.returncode == 125 and result.stdout == ""
    assert "cannot make networks" in result.stderr and "error: Docker does not start" in result.stderr


def test_with_systemd_the_service_is_started(machine: Machine) -> None:
    machine.command("dockerd", DOCKERD)
    machine.command(
        "systemctl", '#!/usr/bin/env bash\necho "systemctl $*" >> "$CALLS"\nsetsid dockerd >/dev/null 2>&1 &\n'
    )
    result = machine.run("run", before="mkdir -p /run/systemd/system")
    assert result.returncode == 0, result
    assert machine.calls[0] == "systemctl start docker"


@pytest.mark.parametrize(("command", "status"), [("run", 125), ("prove", 1)])
def test_an_ordinary_user_without_docker_is_told_what_to_install(machine: Machine, command: str, status: int) -> None:
    result = machine.run(command, uid=1000)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr == (
        "error: Docker is not installed\n"
        "hint: sudo apt-get install docker.io && sudo usermod -aG docker someone, then log in again\n"
    )


def test_an_engine_elsewhere_is_the_commands_business(machine: Machine) -> None:
    assert machine.run("run", DOCKER_HOST="unix:///elsewhere").returncode == 0


Change = Callable[[Machine], None]


def _other_packages(machine: Machine) -> None:
    with (machine.folder / "checkout/pyproject.toml").open("a") as file:
        file.write("# another dependency\n")


def _moved(machine: Machine) -> None:
    stamp = machine.folder / "checkout/.venv/impyard-installed"
    stamp.write_text(stamp.read_text().replace("checkout", "elsewhere", 1))


@pytest.mark.parametrize("change", [_other_packages, _moved])
def test_packages_are_installed_again_when_what_is_asked_for_changed(machine: Machine, change: Change) -> None:
    python = machine.folder / "checkout/.venv/bin/python"
    python.write_text(PYTHON.replace("exec", 'if [[ $2 == pip ]]; then echo "$*" >> "$CALLS"; exit 0; fi\nexec'))
    package = machine.folder / "checkout/impyard/runner"
    package.mkdir(parents=True)
    (package / "part.py").touch()
    change(machine)
    for expected in (1, 1):  # once only
        result = machine.run("doctor")
        assert result.returncode == 0, result
        assert len(machine.calls) == expected
    assert machine.calls[0].endswith(f"-e {machine.folder}/checkout")
    assert list(package.glob("__pycache__/part.*.pyc")), "compiled once, not at each start"


def test_a_failed_install_shows_why_and_is_tried_again(machine: Machine) -> None:
    python = machine.folder / "checkout/.venv/bin/python"
    python.write_text(PYTHON.replace("exec", 'if [[ $2 == pip ]]; then echo "no such package"; exit 1; fi\nexec'))
    _other_packages(machine)
    for _ in range(2):
        result = machine.run("run")
        assert result.returncode == 125
        assert "no such package\nerror: cannot install impyard's packages\n" in result.stderr


def test_without_a_new_enough_python_the_ways_to_get_one_are_named(machine: Machine) -> None:
    shutil.rmtree(machine.folder / "checkout/.venv")
    machine.command("python3", "#!/usr/bin/env bash\nexit 1\n")  # what an old one says to the question
    result = machine.run("run")
    assert result.returncode == 125
    assert result.stderr.startswith("error: impyard needs Python 3.12 or newer, and found no python3\nhint: ")
    machine.command("python3", "#!/usr/bin/env bash\n[[ $1 == --version ]] && echo Python 3.11.2\n")
    result = machine.run("run", uid=1000)
    assert "and found Python 3.11.2\nhint: " in result.stderr
    for way in ("pipx install uv", "python3 -m pip install --user uv", "pyenv", "IMPYARD_PYTHON"):
        assert way in result.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/usr/bin/env bash\necho broken: no lib >&2; exit 127\n", "broken: no lib"),
        ("#!/nowhere/python\n", "bin/mine: "),
        ('#!/usr/bin/env bash\n[[ $2 == *print* ]] && echo "it is Python 3.9"; exit 1\n', "it is Python 3.9"),
        (None, "No such file"),
    ],
)
def test_a_python_that_is_named_and_no_good_shows_its_own_error(
    machine: Machine, script: str | None, words: str
) -> None:
    shutil.rmtree(machine.folder / "checkout/.venv")
    if script is not None:
        machine.command("mine", script)
    mine = f"{machine.folder}/bin/mine"
    result = machine.run("run", IMPYARD_PYTHON=mine)
    first, second = result.stderr.splitlines()
    assert result.returncode == 125 and second.startswith("hint: ")
    assert first.startswith(f"error: IMPYARD_PYTHON={mine} is no Python 3.12 or newer: ") and words in first
    assert ": line " not in first


def test_commands_are_named_as_they_can_be_typed(machine: Machine) -> None:
    python = machine.folder / "checkout/.venv/bin/python"
    python.write_text(PYTHON.replace("printf 'ran'", 'echo "$IMPYARD_COMMAND"; exit 0'))
    launcher = f"{machine.folder}/checkout/bin/impyard"
    assert machine.run("runs").stdout == f"{launcher}\n"
    in_path = machine.folder / "bin/impyard"
    in_path.symlink_to(launcher)
    assert machine.run("runs").stdout == "impyard\n"
    in_path.unlink()
    machine.command("impyard", "#!/usr/bin/env bash\n")  # another one
    assert machine.run("runs").stdout == f"{launcher}\n"


@pytest.mark.parametrize("place", ["pyenv", "path", "uv", "uv just installed", "variable"])
def test_a_new_enough_python_is_found(machine: Machine, place: str) -> None:
    shutil.rmtree(machine.folder / "checkout/.venv")
    machine.command("python3", "#!/usr/bin/env bash\nexit 1\n")
    fake = (
        "#!/usr/bin/env bash\n"
        "case $* in\n"
        "--version) echo Python 3.13.9 ;;\n"
        '"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;\n'
        "*impyard.runner*) echo ran ;;\n"
        "esac\n"
    )
    (machine.folder / "bin/env2").mkdir()
    (machine.folder / ".pyenv/versions/3.13.9/bin").mkdir(parents=True)
    (machine.folder / ".local/bin").mkdir(parents=True)
    names = {
        "pyenv": ".pyenv/versions/3.13.9/bin/python3",
        "path": "bin/python3.13",
        "uv": "bin/env2/python",
        "uv just installed": "bin/env2/python",
        "variable": "bin/env2/python",
    }
    path = machine.folder / names[place]
    path.write_text(fake)
    path.chmod(0o755)
    if place == "uv":
        machine.command("uv", UV.format(path))
    if place == "uv just installed":  # by pip, into a folder that is not in PATH
        machine.command("../.local/bin/uv", UV.format(path))
    result = machine.run("doctor", IMPYARD_PYTHON=str(path) if place == "variable" else "")
    assert (result.returncode, result.stdout) == (0, "ran\n"), result
    assert "making .venv with Python 3.13.9" in result.stderr


@pytest.mark.parametrize(
    ("place", "command", "status"), [(".venv", "doctor", 1), (".venv", "run", 125), (".", "doctor", 1)]
)
def test_a_checkout_of_another_user_that_is_not_set_up_is_one_clear_error(
    machine: Machine, place: str, command: str, status: int
) -> None:
    checkout = machine.folder / "checkout"
    (checkout / ".venv/impyard-installed").unlink()
    if place == ".":
        shutil.rmtree(checkout / ".venv")
    mount, folder = shutil.which("mount"), checkout / place
    closed = f"{mount} --bind {folder} {folder} && {mount} -o remount,ro,bind {folder} || exit 99"
    result = machine.run(command, uid=1000, before=closed)
    assert result.returncode == status
    assert result.stderr == (
        f"error: impyard is not set up in this checkout, and you cannot write {checkout}/.venv\n"
        f"hint: use a clone of your own, or ask the owner of this one to call {checkout}/bin/impyard once\n"
    )
