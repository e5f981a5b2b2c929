"""A run that goes well: the file appears and is the caller's; the model's calls passed the judge, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from impyard.runner.engine import client
from tests.support.boxes import MakeProject
from tests.support.engineproxy import engine_proxy
from tests.support.model import HOST, MODEL, Model
from tests.support.project import OUT_OF_MEMORY, Caller, Project, containers_created

pytestmark = pytest.mark.box

WHO = "run: { id -u; id -g; whoami; echo $HOME; touch $HOME/x && echo home; } > who.txt"
PROMPT = ("write 4 to answer.txt", WHO, "run: mkdir -p deep/er && echo found > deep/er/file")


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


@pytest.fixture(params=["this_user", "ordinary_user"])
def caller(request: pytest.FixtureRequest) -> Caller:
    found: Caller = request.getfixturevalue(request.param)
    return found


def test_the_answer_lands_on_the_host_as_the_callers_file(
    make_project: MakeProject, model: Model, caller: Caller
) -> None:
    project = make_project(model.policy(), caller=caller)
    folder = model.register(project.base / "home")
    project.own(project.base)
    model.look = lambda: [line["verdict"] for line in project.asked()]

    result = project.impyard("run", "--model", MODEL, "\n".join(PROMPT), env={"PI_CODING_AGENT_DIR": str(folder)})

    assert result.code == 0, result
    assert result.run is not None
    workspace = result.run / "workspace"
    assert result.file("answer.txt") == "4"
    for path in (workspace, *workspace.rglob("*"), result.run / "run.json", *(result.run / "session").iterdir()):
        assert (path.stat().st_uid, path.stat().st_gid) == (caller.uid, caller.gid), path
    uid, gid, name, home, home_is_writable = result.file("who.txt").split()
    user = result.receipt["user"]
    assert (int(uid), int(gid), name) == (user["uid"], user["gid"], user["name"])
    assert int(uid) != 0 and name != "root"
    if caller.uid != 0:
        assert (int(uid), name) == (caller.uid, caller.name)
    assert home == str(result.run / ".pihome") and home_is_writable == "home"

    _only_the_model_was_reached(project, model, result.run.name)
    receipt = result.receipt
    assert (receipt["exit_reason"], receipt["exit_status"]) == ("finished", 0)
    assert receipt["decisions"]["allowed"] == len(model.calls) and receipt["decisions"]["denied"] == 0
    assert {file["path"] for file in receipt["files"]} == {"answer.txt", "who.txt", "deep/er/file"}
    assert all(probe["ok"] for probe in receipt["probes"]) and len(receipt["probes"]) >= 12
    assert receipt["policy"]["files"] == ["policies/gateway.yaml"]
    for word in ("answer.txt", "finished", f"{len(model.calls)} allowed"):
        assert word in result.out


def _only_the_model_was_reached(project: Project, model: Model, run: str) -> None:
    """Each call at the origin has its earlier line, and no line is an allow that was no call."""
    assert len(model.calls) == len(PROMPT) + 1
    assert {call.line for call in model.calls} == {"POST /v1/messages?beta=true HTTP/1.1"}
    for number, call in enumerate(model.calls, 1):
        assert call.seen == ["allow"] * number, "the line must be there before the request arrives"
    lines = project.asked(run)
    assert [line["verdict"] for line in lines] == ["allow"] * len(model.calls)
    assert {(line["host"], line["method"], line["path"], line["rule"]) for line in lines} == {
        (HOST, "POST", "/v1/messages", "the model")
    }
    own_checks = [line for line in project.decisions(run) if line not in lines]
    assert {line["verdict"] for line in own_checks} == {"deny"} and own_checks[0]["reason"] == "canary"
    assert project.impyard("decisions", "--verify").code == 0


def test_without_its_rule_the_model_is_not_reached(project: Project, model: Model) -> None:
    """The control: the same run under a policy whose entry is about another path."""
    project.policy.write_text(model.policy("/v1/other"))
    folder = model.register(project.base / "home")
    result = project.impyard("run", "--model", MODEL, "write 4 to answer.txt", env={"PI_CODING_AGENT_DIR": str(folder)})
    assert result.code == 1 and model.calls == []
    assert result.receipt["exit_reason"] == "agent-error"
    lines = project.asked()
    assert lines and {(line["verdict"], line["host"]) for line in lines} == {("deny", HOST)}
    assert result.receipt["decisions"]["denied_hosts"] == {HOST: len(lines)}
    assert not (project.run_folders()[0] / "workspace" / "answer.txt").exists()
    assert HOST in result.out and "impyard decisions" in result.out


def test_scripts_get_the_agents_events_as_they_are(project: Project) -> None:
    result = project.demo("write 4 to answer.txt", args=["--json"])
    assert result.code == 0
    events = [json.loads(line) for line in result.out.splitlines()]
    assert {"agent_start", "message_end", "agent_end"} <= {event["type"] for event in events}
    assert result.run is not None
    assert result.out == (result.run / "stdout.jsonl").read_text()


def test_the_box_is_made_from_the_images_id_with_every_lock(project: Project, box_image: str) -> None:
    began = 0.0
    process = project.start("run", "--model", "demo", "run: touch there; sleep 30")
    project.started_file("there")
    (box,) = project.boxes()
    made = client().api.inspect_container(box.id)
    assert containers_created(project.root, began) == [box.id], "the watch for new containers sees this one"
    process.terminate()
    assert project.finish(process).code == 130
    host = made["HostConfig"]
    assert made["Image"] == made["Config"]["Image"] == box_image
    assert made["Config"]["User"].split(":")[0] != "0"
    assert (host["NetworkMode"], list(made["NetworkSettings"]["Networks"])) == ("none", ["none"])
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False)
    assert "no-new-privileges" in host["SecurityOpt"] and host["ReadonlyRootfs"] is True
    assert host["Memory"] == host["MemorySwap"] > 0 and host["PidsLimit"] == 512 and host["NanoCpus"] > 0
    assert not host["Devices"] and not host["PortBindings"] and host["PidMode"] == "" and host["IpcMode"] == "private"
    assert made["Name"] == f"/impyard-box-{made['Config']['Labels']['impyard.run']}"


def test_a_locale_without_umlauts_is_no_reason_to_refuse_them(make_project: MakeProject) -> None:
    project = make_project(name="grün")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # as Latin-1, which not every machine has
    result = project.demo("write ä to ö.txt", env=locale)
    assert (result.code, result.err) == (0, "")
    assert result.file("ö.txt") == "ä"
    assert result.receipt["workspace"] == str(result.run / "workspace" if result.run else "")
    assert "\\xf6.txt" in result.out, "the terminal keeps its encoding"


def test_nothing_is_left_for_python_to_complain_about(project: Project) -> None:
    """Python's development mode tells of what is closed by chance or in the wrong order; Python 3.13 always does."""
    strict = {"PYTHONDEVMODE": "1"}
    commands = [
        ("run", "--model", "demo", "write 4 to answer.txt"),
        ("run", "--model", "demo", *OUT_OF_MEMORY),  # asks the engine why it was killed
        ("prove",),
    ]
    assert [project.impyard(*command, env=strict).err for command in commands] == ["", "", ""]
    with engine_proxy(hold="/start") as proxy:  # ended between what is opened and what is started
        process = project.start("run", "--model", "demo", "x", env={**strict, "DOCKER_HOST": proxy.host})
        assert proxy.held.wait(60), proxy.calls
        process.terminate()
        proxy.release()
        assert project.finish(process).err == ""
