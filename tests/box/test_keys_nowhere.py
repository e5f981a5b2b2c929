"""After runs of every kind: no file, process, container or log shows a credential, in whatever form."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.addon.vault.credential import Credential
from impyard.runner.engine import client
from tests.support.keys import Keys
from tests.support.project import OUT_OF_MEMORY, Project
from tests.support.service import Asked, Given, Service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box


def policy(port: int) -> str:
    inject = "    inject: {credential: github, over_http: true}\n"
    bearer = '    inject: {{credential: {}, headers: {{authorization: "Bearer {{key}}"}}, over_http: true}}\n'
    rules = "    policies: [{action: ALLOW, method: [GET, POST], path: /.*}]\n"
    return (
        f"networkPolicies:\n  - host: open.test\n    upstream: http://127.0.0.1:{port}\n{rules}"
        f"  - host: api.test\n    upstream: http://127.0.0.1:{port}\n{inject}{rules}"
        f"  - host: gone.test\n    upstream: http://127.0.0.1:1\n{inject}{rules}"
        f"  - host: lost.test\n    upstream: http://127.0.0.1:1\n{bearer.format('lost')}{rules}"
        f"  - host: house.test\n    upstream: http://127.0.0.1:1\n{bearer.format('house')}"
        "    policies: [{action: ALLOW, method: GET, path: /.*}]\n"  # a denial is final for pi, an error is not
    )


@pytest.fixture
def keys(project: Project) -> Keys:
    return Keys(project)


@pytest.fixture
def service() -> Iterator[Service]:
    def answer(asked: Asked) -> Given:
        """What it was sent, plain and in other forms."""
        brought = asked.headers.get("authorization", "")
        coded = base64.b64encode(b"you are " + brought.encode())
        return Given(f"you are {brought}\n".encode() + coded, headers={"content-type": "text/plain", "x-you": brought})

    service = Service(answer)
    yield service
    service.close()


ASK = """
ask() { curl -sS -m 20 -i https://$1/echo >> answers 2>&1; }
ask api.test; ask gone.test; ask lost.test; curl -sS -m 20 https://open.test/$GH_TOKEN >> answers 2>&1; cat answers
ulimit -Hc > limits; stat -c %u /proc/1/environ /proc/self/environ >> limits; cat /proc/1/mem >> limits 2>&1
touch there
"""
WAIT = "until [ -e go.{0} ]; do sleep 0.1; done; ask api.test; ask open.test; touch done.{0}\n"
LATER = ASK + WAIT.format(1) + WAIT.format(2) + "sleep 60"


def test_no_value_shows_anywhere_after_runs_of_every_kind(project: Project, keys: Keys, service: Service) -> None:
    project.policy.write_text(policy(service.port))
    place = Place(project, keys)
    finished = project.demo(project.script("ask.sh", ASK), "run: cat ~/agent/* ~/.npmrc; env", env=keys.environ)
    assert finished.code == 0, finished
    assert b"welcome" not in finished.out.encode() and "you are" in finished.file("answers"), "the echo was heard"
    uid = str(finished.receipt["user"]["uid"])
    assert finished.file("limits").split()[:3] == ["0", "0", uid], "no core file; process 1 is not dumpable, others are"
    assert "Permission denied" in finished.file("limits")

    lost = place.start()
    wait_until(place.gateways)
    (gateway,) = place.gateways()
    watched = place.start()
    place.wait_for("there", 2)
    assert keys.in_text(place.seen_of_boxes()) == [], "the engine, the processes and their environments"
    os.kill(gateway, signal.SIGKILL)
    project.policy.write_text("networkPolicies: 1\n")
    place.go(1)
    project.policy.write_text(policy(service.port))
    project.log.rename(project.base / "log")
    project.log.mkdir()
    place.go(2)
    watched.send_signal(signal.SIGINT)
    assert [place.code(process) for process in (lost, watched)] == [126, 130], "gateway killed, Ctrl-C"
    project.log.rmdir()
    (project.base / "log").rename(project.log)

    planted = plant_in_pis_files(project.base / "pi")
    house = keys.environ | {"PI_CODING_AGENT_DIR": str(project.base / "pi")}
    unbound = {"ANTHROPIC_API_KEY": f"sk-ant-api03-{secrets.token_hex(20)}"}
    processes = [
        place.start("--ceiling", "0.05"),
        project.start("run", "--model", "demo", *OUT_OF_MEMORY, env=keys.environ),
        project.start("run", "--model", "anthropic/x", "x", env=keys.environ | unbound),
        project.start("run", "--model", "house/m", "x", env=house),
    ]
    ends = [place.code(process) for process in processes]
    assert ends == [124, 137, 125, 1], "ceiling, memory, refused to start, a model that is denied"
    assert any(line["host"] == "house.test" for line in project.asked())
    wrong = Credential(name="demo", kind="api_key", key=f"sk-demo-{secrets.token_hex(20)}", source="set")
    keys.vault.put(wrong)
    assert place.code(project.start("run", "--model", "demo", "x", env=keys.environ)) == 1, "refused by the provider"
    assert wrong.key in keys.values()
    keys.vault.remove("demo")
    assert place.code(project.start("run", "--model", "demo", "x", env=keys.environ)) == 125, "without a credential"

    values = keys.values()
    assert {*unbound.values(), wrong.key, keys.github, keys.npm, keys.demo} <= set(values)
    assert {line["reason"] for line in project.asked()} >= {
        *("rule", "secret-in-request", "policy-broken", "credential-unavailable")
    }
    for command in (["decisions", "--json", "-n", "1000"], ["decisions"], ["runs", "show"], ["vault", "list"]):
        place.code(project.start(*command))
    assert keys.under(project.base / "project") == [] and keys.in_text("".join(place.printed)) == []
    files = b"".join(path.read_bytes() for path in project.runs.rglob("*") if path.is_file() and not path.is_symlink())
    assert [each for each in planted if each.encode() in files or each in "".join(place.printed)] == [], "of pi's files"

    (project.run_folders()[0] / "session" / "planted").write_bytes(b"x" + base64.b64encode(b"y" + wrong.key.encode()))
    assert len(keys.under(project.runs)) == 1, "the control: the same search finds one that is there"


def plant_in_pis_files(folder: Path) -> list[str]:
    """pi's models.json with a provider, and secrets wherever one may stand in it; those secrets."""
    made: list[str] = []

    def secret() -> str:
        made.append(f"Real{secrets.token_hex(20)}")
        return made[-1]

    entry = {
        **{"baseUrl": "https://house.test/v1", "api": "openai-completions", "apiKey": secret(), "token": secret()},
        "headers": {"x-pat": secret(), "x-note": f"Bearer {secret()}", "user-agent": secret()},
        "compat": {"supportsStore": False, "unheardOf": secret()},
        "models": [{"id": "m", "headers": {"x-sign": f"!echo {secret()}"}, "samplingParams": {"user": secret()}}],
        "modelOverrides": {"o": {"headers": {"x-over": secret()}}, secret(): {}},
    }
    folder.mkdir()
    (folder / "models.json").write_text(json.dumps({"providers": {"house": entry}}))
    return made


class Place:
    """The runs of one project, several of them at once, and all that they print."""

    def __init__(self, project: Project, keys: Keys) -> None:
        self.project, self.keys = project, keys
        self.printed: list[str] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """A run that asks its questions and then waits for a file `go.1`."""
        script = self.project.script("later.sh", LATER)
        return self.project.start("run", "--model", "demo", *options, script, env=self.keys.environ)

    def gateways(self) -> list[int]:
        return [pid for pid, line in self.project.processes().items() if "impyard.addon" in line]

    def wait_for(self, name: str, count: int) -> list[Path]:
        """Wait until so many living runs have a file of this name; their workspaces."""

        def living() -> list[Path]:
            return [run / "workspace" for run in self.project.run_folders() if (run / ".box").exists()]

        wait_until(lambda: sum((workspace / name).exists() for workspace in living()) >= count)
        return living()

    def go(self, step: int) -> None:
        """Let all that live go on, and wait until one of them has asked again."""
        for workspace in self.wait_for("there", 1):
            (workspace / f"go.{step}").touch()
        self.wait_for(f"done.{step}", 1)

    def code(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a command; its status. What it printed is kept."""
        result = self.project.finish(process)
        self.printed += [result.out, result.err]
        return result.code

    def seen_of_boxes(self) -> bytes:
        """What this machine shows of the running boxes and their gateways."""
        api, seen = client().api, [subprocess.run(["ps", "axww"], capture_output=True, check=True).stdout]
        boxes = self.project.boxes()
        assert len(boxes) == 2
        pids = self.gateways()
        for box in boxes:
            seen.append(repr(api.inspect_container(box.id)).encode())
            pids += [int(row[1]) for row in api.top(box.id)["Processes"]]
        assert len(pids) >= 6, "relays, agents and their tools, gateways"
        for path in [Path(f"/proc/{pid}/environ") for pid in pids] + [*Path("/proc").glob("[0-9]*/cmdline")]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                seen.append(path.read_bytes())
        assert b"GH_TOKEN=ghp_impyard" in b"".join(seen), "the stand-in shows, so a value would"
        return b"".join(seen)
