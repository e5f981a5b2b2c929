"""The box can change neither the project, nor its rules, nor the agent's code, nor the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.box

# Run in the project; each line of output is `what: what happened`. Nothing here is kept back by file modes.
ATTEMPTS = """
PROJECT="$1"
try() { what=$1; shift; if said=$("$@" 2>&1); then echo "$what: done"; else echo "$what: ${said##*: }"; fi; }
append() { echo changed >> "$1"; }
try 'append to a file' append "$PROJECT/README.md"
try 'overwrite a file' cp /etc/hostname "$PROJECT/README.md"
try 'new file' touch "$PROJECT/new"
try 'new file below' touch "$PROJECT/src/new"
try 'remove' rm -f "$PROJECT/README.md"
try 'rename' mv -f "$PROJECT/README.md" "$PROJECT/other"
try 'mode' chmod 777 "$PROJECT/README.md"
try 'time' touch "$PROJECT/README.md"
try 'link' ln -s /etc/passwd "$PROJECT/link"
try 'second name' ln "$PROJECT/README.md" "$PROJECT/second"
try 'truncate' truncate -s 0 "$PROJECT/src/deep/code.py"
try 'policy' append "$PROJECT/policies/gateway.yaml"
try 'replace the policy' cp /etc/hostname "$PROJECT/policies/gateway.yaml"
try 'remove the policies' rm -rf "$PROJECT/policies"
try 'git hook' append "$PROJECT/.git/hooks/pre-commit"
try 'git settings' git config --file "$PROJECT/.git/config" core.fsmonitor ./x
try 'git attributes' append "$PROJECT/.gitattributes"
try 'git attributes of its own' append "$PROJECT/.git/info/attributes"
try 'git elsewhere' append "$PROJECT/.git/commondir"
try 'git aside' mv "$PROJECT/.git/hooks" "$PROJECT/.git/aside"
for name in .envrc Makefile package.json conftest.py .npmrc .vscode/tasks.json .idea/workspace.xml \\
    .github/workflows/ci.yml .husky/pre-commit .devcontainer/devcontainer.json .claude/settings.json; do
  try "change $name" append "$PROJECT/$name"
done
try 'another path' append "/proc/self/root$PROJECT/Makefile"
"""
IMAGE_ATTEMPTS = """
try 'pi' append /opt/pi/node_modules/@earendil-works/pi-coding-agent/package.json
try 'new code of pi' touch /opt/pi/node_modules/.bin/new
try 'relay' append /opt/impyard/relay.py
try 'tools' touch /usr/local/bin/new
try 'shell' cp /etc/hostname /usr/bin/curl
try 'etc' touch /etc/new
try 'root' touch /new
"""
CONTROL_FILES = """
try 'box.json' append /run/impyard/box.json
try 'prompt' append /run/impyard/prompt.txt
try 'certificate' append /run/impyard/ca.pem
try 'roots' append /etc/ssl/certs/ca-certificates.crt
try 'passwd' append /etc/passwd
try 'door' touch /run/impyard/door/new
try 'remove the door' rm -f /run/impyard/door/judge.sock
"""
ATTEMPTS_MADE = 30 + 16
READ_ONLY = "Read-only file system"
# Files of root's, whose modes already keep the box's user off; that the file system is read-only shows beside them.
ROOTS_OWN = ("pi", "relay", "box.json", "prompt", "certificate", "roots", "passwd")
SCRATCH = {"/tmp", "/var/tmp"}


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of the project but its runs: mode, time of change, content."""
    found = {}
    for folder, names, files in os.walk(root):
        if Path(folder) == root:
            names.remove("runs")
        for path in (Path(folder) / name for name in (*names, *files)):
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (path.stat().st_mode, path.stat().st_mtime_ns, content)
    return found


@pytest.fixture
def open_project(project: Project) -> Project:
    """A project whose files everybody may write to, as far as their modes go."""
    root = project.root
    (root / "README.md").write_text("as it was\n")
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "deep" / "code.py").write_text("print()\n")
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (root / ".git" / name).mkdir()
    (root / "runs").mkdir()
    (root / ".git" / "info").mkdir()
    for name in ATTEMPTS.partition("for name in ")[2].partition(";")[0].replace("\\", "").split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    project.script("attempts.sh", ATTEMPTS)
    project.script("inside.sh", ATTEMPTS + IMAGE_ATTEMPTS + CONTROL_FILES)
    for path in (root, *root.rglob("*")):
        path.chmod(0o777)
    return project


def said(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines())


@pytest.mark.attack("116", "121", "133")
@pytest.mark.attack("134", "137", "152", "F13")
@pytest.mark.attack("134", "137", "152", "F13", control=True)
def test_nothing_but_the_workspace_can_be_written(
    open_project: Project, ordinary_container: Callable[..., str], box_image: str
) -> None:
    project = open_project
    other = project.demo("write mine to note.txt")  # an earlier run, which this one must not see
    assert other.run is not None
    before = state(project.root)
    root = project.root
    look = (
        f"ls -A {root}/runs; echo -; ls -A {root}/runs/*; echo -; touch {root}/runs/new {root}/runs/$IMPYARD_RUN/new;"
        f"cat {root}/runs/decisions.jsonl {root}/runs/{other.run.name}/workspace/note.txt;"
        "find / -name decisions.jsonl -not -path '/proc/*' 2>/dev/null; awk '$4 ~ /^rw/ {print $2, $3}' /proc/mounts"
    )
    result = project.demo(f"run: bash {root}/inside.sh {root} > found", f"run: ({look}) > look 2> look.err; true")
    assert result.code == 0 and result.run is not None, result
    found = said(result.file("found"))
    assert len(found) == ATTEMPTS_MADE
    for name, answer in found.items():
        assert answer == READ_ONLY or (name in ROOTS_OWN and answer == "Permission denied"), (name, answer)
    assert state(root) == before

    own = result.run.name
    runs, parts, rest = result.file("look").split("-\n", 2)
    assert runs.split() == [own], "neither the log nor another run is to be seen"
    assert sorted(parts.split()) == [".pihome", "session", "workspace"]
    assert "decisions.jsonl" not in rest
    errors = result.file("look.err").splitlines()
    assert len(errors) == 4
    assert all(line.endswith((READ_ONLY, "Permission denied")) for line in errors[:2]), errors
    assert all(line.endswith("No such file or directory") for line in errors[2:]), errors
    writable = {line.split()[0] for line in rest.splitlines() if not line.startswith(("/proc", "/dev", "/sys/fs/"))}
    assert writable == {f"{root}/runs/{own}/{name}" for name in ("workspace", "session", ".pihome")} | SCRATCH

    # The control: the same script, on a copy in an ordinary container.
    copy = project.base / "copy"
    shutil.copytree(root, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o777)
    project.script("image.sh", ATTEMPTS.split("try 'append", 1)[0] + IMAGE_ATTEMPTS)
    files = {str(copy): {"bind": "/copy", "mode": "rw"}, str(root): {"bind": "/project", "mode": "ro"}}
    done = said(ordinary_container("bash /project/attempts.sh /copy; bash /project/image.sh /copy", volumes=files))
    assert set(done) < set(found)
    assert {name for name, answer in done.items() if answer != "done"} <= {
        "rename",
        "mode",
        "time",
        "second name",
        "another path still",
    }
