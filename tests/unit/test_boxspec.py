"""What a box is made of, as data: the claims about the box that the create call alone decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impyard.runner.agent import demo_agent
from impyard.runner.boxspec import (
    Box,
    Limits,
    agent_environment,
    create_call,
    denied_host,
    pi_command,
    relay_config,
)
from impyard.runner.project import RunPaths
from impyard.runner.user import BoxUser

ROOT = Path("/srv/my projéct")
PATHS = RunPaths(ROOT, "20261129-120000-ab12")
KEYS = Path("/home/ada/.local/share/impyard")


def box(**changes: Any) -> Box:
    plain = Box(
        paths=PATHS,
        image="sha256:" + "0" * 64,
        user=BoxUser(1001, 1002, "ada", 1001, 1002, 1001),
        workspace=PATHS.workspace,
        limits=Limits(cpus=1.5, memory=512 * 1024**2, pids=99, ceiling_s=60.0),
        covered=[(ROOT / ".env", False), (ROOT / "venv" / ".env", True)],
        secret_folders=[KEYS],
    )
    return replace(plain, **changes)


def host_config(**changes: Any) -> dict[str, Any]:
    config = create_call(box(**changes))["HostConfig"]
    assert isinstance(config, dict)
    return config


def mounts(**changes: Any) -> dict[str, dict[str, Any]]:
    return {mount["Target"]: mount for mount in host_config(**changes)["Mounts"]}


def test_there_is_no_network_and_no_name_server_but_the_relay() -> None:
    config = host_config()
    assert config["NetworkMode"] == "none"
    assert config["Dns"] == ["127.0.0.1"]
    assert not {"PortBindings", "ExtraHosts", "Links"} & set(config)


def test_there_are_no_rights_beyond_an_ordinary_users() -> None:
    call, config = create_call(box()), host_config()
    assert call["User"] == "1001:1002"
    assert config["CapDrop"] == ["ALL"]
    assert "CapAdd" not in config
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert config["Privileged"] is False
    assert config["ReadonlyRootfs"] is True
    assert not {"PidMode", "UTSMode", "UsernsMode", "Devices", "DeviceRequests"} & set(config)


def test_the_limits_are_the_engines_and_swap_is_no_way_around() -> None:
    config = host_config()
    assert config["Memory"] == config["MemorySwap"] == 512 * 1024**2
    assert (config["NanoCpus"], config["PidsLimit"]) == (1_500_000_000, 99)
    assert "size=" in config["Tmpfs"]["/tmp"]


@pytest.mark.attack("133", "116")
def test_only_workspace_session_and_home_are_writable() -> None:
    writable = {target for target, mount in mounts().items() if not mount["ReadOnly"]}
    assert writable == {str(PATHS.workspace), str(PATHS.session), str(PATHS.home)}


def test_the_project_is_read_only_at_its_own_path_and_its_runs_are_covered() -> None:
    assert mounts()[str(ROOT)]["Source"] == str(ROOT)
    assert mounts()[str(ROOT)]["ReadOnly"] is True
    assert host_config()["Tmpfs"][str(ROOT / "runs")].startswith("ro,")


def test_what_is_mounted_inside_the_project_is_mounted_read_only_by_itself() -> None:
    inner = ROOT / "data"
    found = mounts(inner_mounts=[inner])
    assert found[str(inner)]["ReadOnly"] is True
    assert found[str(ROOT)]["BindOptions"]["NonRecursive"] is True
    assert all(mount["BindOptions"]["NonRecursive"] for mount in found.values() if mount["ReadOnly"])


def test_a_workspace_that_is_a_mount_of_its_own_stays_writable() -> None:
    place = ROOT / "data"
    targets = [mount["Target"] for mount in host_config(inner_mounts=[place], workspace=place)["Mounts"]]
    assert targets.count(str(place)) == 1
    assert mounts(inner_mounts=[place], workspace=place)[str(place)]["ReadOnly"] is False


def test_every_env_file_is_covered() -> None:
    assert mounts()[str(ROOT / ".env")]["Source"] == "/dev/null"
    assert str(ROOT / "venv" / ".env") in host_config()["Tmpfs"]


def test_a_workspace_of_the_callers_is_mounted_writable_at_its_own_path() -> None:
    place = Path("/srv/elsewhere")
    assert mounts(workspace=place)[str(place)]["ReadOnly"] is False
    assert str(PATHS.workspace) not in mounts(workspace=place)


@pytest.mark.attack("F44")
def test_neither_keys_nor_the_engines_socket_are_mounted_and_no_mount_is_shared_back() -> None:
    for mount in mounts().values():
        assert not str(mount["Source"]).startswith((str(KEYS), "/var/run", "/run/docker"))
        assert mount["BindOptions"]["Propagation"] == "rprivate"


@pytest.mark.attack("121")
def test_the_log_is_out_of_reach() -> None:
    sources = [str(mount["Source"]) for mount in mounts().values()]
    assert str(PATHS.runs) not in sources
    assert not any("decisions" in source for source in sources)


@pytest.mark.attack("F51")
def test_on_selinux_hosts_labels_are_left_alone() -> None:
    assert "label=disable" in host_config(selinux=True)["SecurityOpt"]


def test_it_can_be_found_by_its_labels_and_goes_by_itself() -> None:
    call = create_call(box(labels={"impyard.pid": "77", "impyard.run": "forged"}))
    assert call["Labels"]["impyard.run"] == PATHS.id
    assert call["Labels"]["impyard.project"] == str(ROOT)
    assert call["Labels"]["impyard.pid"] == "77"
    assert call["HostConfig"]["AutoRemove"] is True
    assert box().name == f"impyard-box-{PATHS.id}"


@pytest.mark.attack("164")
def test_the_image_is_named_by_its_digest() -> None:
    assert str(create_call(box())["Image"]).startswith("sha256:")


@pytest.mark.attack("160")
def test_what_people_name_things_stays_data() -> None:
    odd = Path("/srv/a:ro,b --privileged\"'")
    call = create_call(box(paths=RunPaths(odd, PATHS.id), workspace=RunPaths(odd, PATHS.id).workspace))
    assert call["HostConfig"]["Privileged"] is False
    assert {mount["Target"]: mount for mount in call["HostConfig"]["Mounts"]}[str(odd)]["ReadOnly"] is True
    json.dumps(call)


@pytest.mark.attack("160")
def test_neither_credential_nor_prompt_is_in_the_create_call() -> None:
    assert "Env" not in create_call(box())
    assert create_call(box())["Cmd"] == []


def test_the_first_process_is_the_relay_whatever_the_image_says() -> None:
    assert create_call(box())["Entrypoint"] == ["python3", "-I", "-S", "/opt/impyard/relay.py"]


@pytest.mark.attack("F46")
def test_the_environment_leads_every_tool_to_the_relay_and_its_certificate() -> None:
    env = agent_environment(box())
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        assert env[name] == "http://127.0.0.1:3128"
    assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "DENO_CERT"):
        assert env[name] == env["NODE_EXTRA_CA_CERTS"] == "/run/impyard/ca.pem"
    assert {"/run/impyard/ca.pem", "/etc/ssl/certs/ca-certificates.crt"} <= set(mounts())


@pytest.mark.parametrize(("cpus", "heaps"), [(0.5, "2"), (2.0, "2"), (2.5, "3"), (16.0, "16")])
def test_a_program_has_as_many_heaps_as_its_box_has_processors(cpus: float, heaps: str) -> None:
    limits = replace(box().limits, cpus=cpus)
    assert agent_environment(replace(box(), limits=limits))["MALLOC_ARENA_MAX"] == heaps


def test_the_environment_takes_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-value")
    monkeypatch.setenv("PATH", "/canary-value")
    assert "canary-value" not in json.dumps(agent_environment(box()))


def test_pi_runs_without_extensions_and_writes_its_session_to_the_run() -> None:
    command = pi_command(PATHS, demo_agent())
    assert command[:3] == ["pi", "--mode", "json"]
    for flag in ("--offline", "--no-approve", "--no-extensions"):
        assert flag in command
    assert command[command.index("--session-dir") + 1] == str(PATHS.session)
    assert command[-2:] == ["--model", "demo/demo"]


def test_without_a_model_pi_takes_its_default() -> None:
    assert "--model" not in pi_command(PATHS, replace(demo_agent(), pattern=None))


def test_the_relay_is_told_what_to_check() -> None:
    config = relay_config(box(), ["pi"], {"A": "b"}, prompt=True, mode="run")
    assert config["deadline_s"] == 60.0
    assert config["stdin"] in mounts()
    assert config["door"] in mounts()
    assert config["cwd"] == str(PATHS.workspace)
    assert config["probes"]["uid"] == 1001
    assert config["probes"]["env_files"] == [str(ROOT / ".env")]
    assert config["probes"]["key_paths"] == [str(KEYS)]
    assert str(ROOT) in config["probes"]["code_paths"]
    assert config["probes"]["denied_host"] == denied_host(box())
    json.dumps(config)


def test_an_agent_with_a_terminal_is_typed_to_and_no_other_is() -> None:
    """The engine gives no terminal: the relay does, once the probes are done."""
    plain, typed = create_call(box()), create_call(replace(box(), terminal=(24, 80)))
    for key in ("AttachStdin", "OpenStdin", "StdinOnce"):
        assert (plain.pop(key), typed.pop(key)) == (False, True)
    assert plain == typed and typed["Tty"] is False
    config = relay_config(replace(box(), terminal=(24, 80)), ["pi"], {}, prompt=True, mode="run")
    assert (config["terminal"], config["stdin"]) == ([24, 80], None)
    assert relay_config(box(), ["pi"], {}, prompt=True, mode="run")["terminal"] is None
    assert agent_environment(box())["TERM"] == "dumb"
    assert agent_environment(replace(box(), terminal=(24, 80)))["TERM"] == "xterm-256color"
    command = pi_command(PATHS, demo_agent(), "@/etc/passwd")
    assert "--mode" not in command and command[-2:] == ["--", " @/etc/passwd"]
    assert "--" not in pi_command(PATHS, demo_agent(), "")
