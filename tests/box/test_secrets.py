"""No secret of the machine is in the box: not in files, not in the environment, not in what the engine knows of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable

import pytest

from impyard.certs.authority import KEY_FILE
from impyard.runner.engine import client
from tests.support.project import Project
from tests.support.service import Given, Service

pytestmark = pytest.mark.box

# What the image's own files hold of this kind is told from what impyard adds by the control.
FIND_KEYS = "grep -rlIs --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev -e 'BEGIN [A-Z ]*PRIVATE KEY' / | sort"
OWN_VARIABLES = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.attack("140")
@pytest.mark.attack("140", control=True)
def test_env_files_are_covered_wherever_they_are(project: Project, ordinary_container: Callable[..., str]) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    root = project.root
    outside = project.base / "elsewhere.env"
    hidden = [root / ".env", root / "a" / "b" / ".env", root / ".env.local", root / "a" / ".env.production"]
    for path in (*hidden, outside, root / "settings" / "real.conf", root / "a" / ".env.folder" / "inner.conf"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"API_KEY={canary}\n")
    (root / "link").mkdir()
    (root / "link" / ".env").symlink_to(root / "settings" / "real.conf")
    (root / "a" / ".env.outside").symlink_to(outside)
    (root / ".env.example").write_text("API_KEY=your key here\n")
    (root / ".env.sample").write_text(f"# of the service\nAPI_KEY={canary}\n")
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777)

    seen = (
        f"cat {' '.join(map(str, hidden))} {root}/link/.env {root}/a/.env.outside {root}/a/.env.folder/inner.conf;"
        f"grep -rhs API_KEY=c[a]nary {root}; cat {root}/.env.example {root}/.env.sample; id -u"
    )
    result = project.demo(
        f"run: ({seen}) > read 2> errors; (cat /proc/self/mountinfo; env) | grep -c c[a]nary > count; true",
        "run: touch there; until [ -e go ]; do sleep 0.1; done",
        env={"HOST_API_KEY": canary},
        watch=lambda: _inspected(project),
    )
    assert result.code == 0, result
    assert result.file("read").splitlines() == [
        *("API_KEY=your key here", "# of the service", "API_KEY="),
        str(result.receipt["user"]["uid"]),
    ]
    assert result.file("count").strip() == "0"
    assert canary not in result.watched
    assert str(root / ".env") in result.watched, "the engine's view is that of this project's box"
    assert canary not in (result.out + result.err + json.dumps(result.receipt) + project.log.read_text())
    assert all(path.read_text() == f"API_KEY={canary}\n" for path in hidden), "the host's files are as they were"

    # The control: an ordinary container with the project in it.
    files = {str(root): {"bind": str(root), "mode": "ro"}}
    assert ordinary_container(f"({seen}) 2>/dev/null; true", volumes=files).count(canary) >= 6
    assert canary in json.dumps(client().api.create_host_config(binds=[canary])), "a value in a create call would show"


def _inspected(project: Project) -> str:
    """All that the engine says of the running box; then let it go on."""
    waiting = project.started_file("there")
    (box,) = project.boxes()
    api = client().api
    view = json.dumps([api.inspect_container(box.id), api.containers(all=True), api.top(box.id)])
    (waiting.parent / "go").touch()
    return view


@pytest.mark.attack("142", "140", "F13")
@pytest.mark.attack("142", "140", "F13", control=True)
@pytest.mark.attack("F44")
def test_keys_and_the_data_folder_are_nowhere_in_the_box(
    project: Project, ordinary_container: Callable[..., str]
) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    project.data.mkdir()
    (project.data / marker).write_text(marker)
    result = project.demo(
        f"run: ({FIND_KEYS}) > keys; find / -name '{marker}' -o -name '{KEY_FILE}' > names 2>err;"
        "ls -A / /home /root /run /var/run /mnt /media /opt > places 2>&1; true",
        "run: find / -name '*.sock' -not -path '/proc/*' 2>/dev/null > sockets; true",
        f"run: ls {project.data} > data 2>&1; cat /proc/mounts /proc/self/mountinfo > mounts; true",
    )
    assert result.code == 0, result
    key = (project.data / "ca" / KEY_FILE).read_text()
    assert "PRIVATE KEY" in key
    assert result.file("keys") == ordinary_container(f"({FIND_KEYS}) || true", user="1000")
    assert result.file("names") == ""
    assert "No such file" in result.file("data")
    assert "docker.sock" not in result.file("sockets")
    assert set(result.file("sockets").split()) <= {f"/run/impyard/door/{name}.sock" for name in ("judge", "life")}
    assert str(project.data) not in result.file("mounts") and marker not in result.file("mounts")
    assert os.environ.get("HOME", "/root") == "/" or ".pi" not in result.file("places")

    # The control: mounted, the key and the marker are found by the same commands.
    files = {str(project.data): {"bind": "/data", "mode": "ro"}}
    assert f"/data/ca/{KEY_FILE}" in ordinary_container(f"({FIND_KEYS}) || true", volumes=files)
    assert f"/data/{marker}" in ordinary_container(f"find / -name {marker} 2>/dev/null; true", volumes=files)


@pytest.mark.attack("F13")
def test_the_environment_of_the_box_is_its_own(project: Project) -> None:
    secret = f"value-{secrets.token_hex(8)}"
    mine = {"AWS_SECRET_ACCESS_KEY": secret, "HOST_ONLY": secret, "ANTHROPIC_API_KEY": secret, "LD_PRELOAD": ""}
    mine |= {"NODE_OPTIONS": f"--title={secret}", "BASH_ENV": f"/{secret}", "GIT_CONFIG_GLOBAL": f"/{secret}"}
    result = project.demo(
        "run: env -0 > environment; cat /proc/[0-9]*/environ > all 2>/dev/null; cat /proc/[0-9]*/cmdline > commands;"
        "cat /run/impyard/box.json > box.json; cat ~/agent/*.json > agent; whoami > who; hostname >> who; true",
        env=mine,
    )
    assert result.code == 0, result
    names = {item.partition("=")[0] for item in result.file("environment").split("\0") if item}
    everything = "".join(result.file(name) for name in ("environment", "all", "commands", "box.json", "agent"))
    assert secret not in everything
    assert str(project.data) not in result.file("environment")
    assert not names & (set(mine) - {"LD_PRELOAD"})
    # Of the names that this machine's environment has, the box has those of every system and those that it sets itself.
    config = json.loads(result.file("box.json"))
    assert names & set(os.environ) <= set(config["env"]) | OWN_VARIABLES
    values = dict(item.split("=", 1) for item in result.file("environment").split("\0") if "=" in item)
    for name in ("HOME", "USER", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        assert values[name] == config["env"][name], name
    assert values["PATH"].endswith(config["env"]["PATH"])  # pi puts its own folder before it
    assert result.file("who").split() == [result.receipt["user"]["name"], "box"]


@pytest.mark.attack("139", "140")
@pytest.mark.attack("139", "140", control=True)
def test_no_providers_key_is_in_the_box_and_the_chosen_one_has_a_stand_in(project: Project) -> None:
    chosen, other = f"sk-ant-api03-{secrets.token_hex(20)}", f"sk-other-{secrets.token_hex(20)}"
    service = Service(lambda asked: Given(b'{"type": "error", "error": {"type": "authentication_error"}}', 401))
    project.policy.write_text(
        f"networkPolicies:\n  - host: api.anthropic.com\n    upstream: http://127.0.0.1:{service.port}\n"
        "    inject: {credential: anthropic, over_http: true}\n"
        "    policies: [{action: ALLOW, method: POST, path: /v1/messages}]\n"
    )
    agent = project.base / "pi"
    agent.mkdir()
    (agent / "auth.json").write_text(
        json.dumps({"anthropic": {"type": "api_key", "key": chosen}, "openai": {"type": "api_key", "key": other}})
    )
    (agent / "settings.json").write_text(
        json.dumps({"defaultProvider": "anthropic", "packages": ["npm:evil"], "shellCommandPrefix": f"echo {other}"})
    )
    # The provider refuses, so the run ends in an error; the box's files are looked at while it goes on.
    process = project.start(
        "run", "--model", "anthropic/claude-sonnet-4-5", "say hello", env={"PI_CODING_AGENT_DIR": str(agent)}
    )
    homes: list[str] = []
    while process.poll() is None:
        for folder in project.run_folders():
            with contextlib.suppress(FileNotFoundError):  # the run ends while we look
                texts = [path.read_text() for path in (folder / ".pihome").rglob("*.json") if path.is_file()]
                homes += ["".join(texts)] if len(texts) >= 2 else []
    result = project.finish(process)
    service.close()
    assert result.code == 1
    assert "imported the credential anthropic" in result.out and str(agent / "auth.json") in result.out
    assert any("sk-ant-api03-impyard" in text for text in homes), "its stand-in was there"
    assert not any(chosen in text or other in text or "evil" in text for text in homes)
    left = [path for path in project.root.rglob("*") if path.is_file() and chosen in path.read_text(errors="replace")]
    assert left == []
    assert {asked.headers["x-api-key"] for asked in service.asked} == {chosen}, "the control: it got where it belongs"
