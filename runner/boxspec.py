"""What a box is made of: the engine's create call, the relay's configuration, the agent's environment; as plain data.

Pure: nothing here looks at the machine. Every path is absolute and resolved, and every value goes to the engine as a
field of its JSON, never as a command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner import defaults
from impyard.runner.agent import Agent
from impyard.runner.ownhosts import probe_host
from impyard.runner.plan import Plan
from impyard.runner.project import RunPaths
from impyard.runner.user import BoxUser

# Paths inside every box.
INSIDE = Path("/run/impyard")
DOOR = INSIDE / "door"
CONFIG = INSIDE / "box.json"
PROMPT = INSIDE / "prompt.txt"
CA_CERTIFICATE = INSIDE / "ca.pem"
TRUST_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

RELAY = ["python3", "-I", "-S", "/opt/impyard/relay.py"]
PROXY = "http://127.0.0.1:3128"
# Loopback is the box itself: agents test their own servers there.
NO_PROXY = "localhost,127.0.0.1,::1"
OUTSIDE_ADDRESS = "198.51.100.1"  # TEST-NET-2 of RFC 5737: nobody's, so that a probe of it disturbs nobody

# What each family of tools reads its roots from; the ones that know no variable use the system's file. All TLS of a box
# ends at the gateway, so its one certificate does: a curl that reads the system's 150 takes three times as long.
TRUST_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "NIX_SSL_CERT_FILE",
    "BUNDLE_SSL_CA_CERT",
    "HEX_CACERTS_PATH",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
)

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the machine a box may use. `memory` in bytes, swap included; `ceiling_s` is wall-clock time."""

    cpus: float
    memory: int
    pids: int
    ceiling_s: float


def limits_for(plan: Plan, *, cpus: int, memory: int) -> Limits:
    """The limits that are asked for, else ours, on a machine with so many processors and so much memory (in bytes; 0:
    not known). Raises ImpyardError for more than it has."""
    if plan.cpus is not None and plan.cpus > cpus:
        raise ImpyardError(f"--cpus {plan.cpus:g}: this machine has {cpus}", hint="ask for less")
    if plan.memory is not None and memory and plan.memory > memory:
        raise ImpyardError(f"--memory: this machine has only {memory // MIB} MiB", hint="ask for less")
    usual = defaults.MEMORY_GIB * 1024 * MIB
    return Limits(
        cpus=plan.cpus or min(defaults.CPUS, cpus),
        memory=plan.memory or min(usual, memory or usual),
        pids=plan.pids,
        ceiling_s=plan.ceiling_s,
    )


@dataclass(frozen=True, slots=True)
class Box:
    """Everything that tells one box from another.

    `covered` are the paths to hide, with whether each is a folder; `cleaned` those that show another file in their
    place, with that file; `shut` and `pinned` are those of the workspace's
    git repositories (see checkout.py); `inner_mounts` are the mount points inside the project; `secret_folders` are
    named to the probes, which try to read them; `terminal` (rows and columns) is for an agent that somebody types to;
    `labels` are added to those that every box has.
    """

    paths: RunPaths
    image: str
    user: BoxUser
    workspace: Path
    limits: Limits
    covered: Sequence[tuple[Path, bool]] = ()
    cleaned: Sequence[tuple[Path, Path]] = ()
    shut: Sequence[Path] = ()
    pinned: Sequence[Path] = ()
    inner_mounts: Sequence[Path] = ()
    secret_folders: Sequence[Path] = ()
    selinux: bool = False
    terminal: tuple[int, int] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The container's name."""
        return f"impyard-box-{self.paths.id}"


def create_call(box: Box) -> dict[str, Any]:
    """The body of the engine's `POST /containers/create` (API 1.41)."""
    return {
        "Image": box.image,
        "Entrypoint": RELAY,  # whatever the image would start by itself
        "Cmd": [],
        "User": f"{box.user.uid}:{box.user.gid}",
        "Hostname": "box",
        "WorkingDir": "/",
        "Labels": {**box.labels, "impyard.run": box.paths.id, "impyard.project": str(box.paths.root)},
        "AttachStdout": True,
        "AttachStderr": True,
        # What is typed comes as messages on standard input. The agent's terminal is the relay's: the engine's would
        # join output and error, and the relay's own report with them.
        **dict.fromkeys(("AttachStdin", "OpenStdin", "StdinOnce"), box.terminal is not None),
        "Tty": False,
        "HostConfig": {
            "NetworkMode": "none",
            "Dns": ["127.0.0.1"],
            # The relay takes ports 53, 80 and 443 of its own loopback without a capability.
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "CapDrop": ["ALL"],
            # On SELinux hosts the project's files would need new labels, which are not impyard's to change.
            "SecurityOpt": ["no-new-privileges", *(["label=disable"] if box.selinux else [])],
            "ReadonlyRootfs": True,
            "Privileged": False,
            "IpcMode": "private",
            "Init": False,  # the relay is process 1: it cannot be killed from inside, and ends everything with it
            "AutoRemove": True,
            "LogConfig": {"Type": "none"},
            "PidsLimit": box.limits.pids,
            "Memory": box.limits.memory,
            "MemorySwap": box.limits.memory,
            "NanoCpus": int(box.limits.cpus * 1e9),
            "ShmSize": 64 * MIB,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "Tmpfs": _tmpfs(box),
            "Mounts": _mounts(box),
        },
    }


def relay_config(
    box: Box,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    prompt: bool,
    mode: str,
    listeners: Sequence[tuple[str, int]] = (),
    deep: Sequence[str] = (),
) -> dict[str, Any]:
    """What the relay reads at `CONFIG`. `mode` is "run" or "prove"; `prompt` feeds the prompt to the agent's stdin.
    `listeners` are addresses and ports of this machine that "prove" tries to reach; `deep` are groups of the
    attempts of box/attacks that it adds."""
    return {
        "run": box.paths.id,
        "mode": mode,
        "deadline_s": box.limits.ceiling_s,
        "door": str(DOOR),
        "argv": list(argv),
        "stdin": str(PROMPT) if prompt and box.terminal is None else None,
        "terminal": list(box.terminal) if box.terminal is not None else None,
        "cwd": str(box.workspace),
        "env": dict(env),
        "probes": {
            "denied_host": denied_host(box),
            "code_paths": [
                str(box.paths.root),
                "/opt/pi",
                *map(str, box.shut),
                *(str(path) for path, _ in box.cleaned),
            ],
            "env_files": [str(path) for path, is_folder in box.covered if not is_folder],
            "key_paths": [str(folder) for folder in box.secret_folders],
            "uid": box.user.uid,
            "outside": OUTSIDE_ADDRESS,
            "listeners": [list(listener) for listener in listeners],
            "deep": {"ca": str(CA_CERTIFICATE), "groups": list(deep)} if deep else None,
        },
    }


def denied_host(box: Box) -> str:
    """The name that no policy allows, which the relay asks for to see that the door denies."""
    return probe_host(box.paths.id)


def agent_environment(box: Box) -> dict[str, str]:
    """The agent's environment, but for stand-ins of credentials. Nothing of the host's own goes in."""
    home = str(box.paths.home)
    return {
        "PATH": "/opt/pi/node_modules/.bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "USER": box.user.name,
        "LOGNAME": box.user.name,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        # Nothing of the host's own terminal is told; the filter knows what pi does on this one.
        **({"TERM": "xterm-256color", "COLORTERM": "truecolor"} if box.terminal is not None else {"TERM": "dumb"}),
        "PI_PROGRAM_STATUS": "0",  # a question to the terminal that would be dropped
        "TMPDIR": "/tmp",
        "IMPYARD_RUN": box.paths.id,
        "PI_CODING_AGENT_DIR": f"{home}/agent",
        "PI_CODING_AGENT_SESSION_DIR": str(box.paths.session),
        "PI_OFFLINE": "1",
        "PI_SKIP_VERSION_CHECK": "1",
        "PI_TELEMETRY": "0",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY),
        "NO_PROXY": NO_PROXY,
        "no_proxy": NO_PROXY,
        "NODE_USE_ENV_PROXY": "1",
        # Node adds this to its own roots; with the other variables it takes their place.
        **dict.fromkeys(("NODE_EXTRA_CA_CERTS", *TRUST_VARIABLES), str(CA_CERTIFICATE)),
        # The project may belong to another user than the box's; git would refuse to read it.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_TERMINAL_PROMPT": "0",
        "NO_UPDATE_NOTIFIER": "1",
        "npm_config_update_notifier": "false",  # npm has a switch of its own; on, each use asks for one package more
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # glibc gives each thread a heap of its own, up to eight for each processor of the machine. As many as the box
        # has processors do, and pi takes an eighth less memory.
        "MALLOC_ARENA_MAX": str(max(2, math.ceil(box.limits.cpus))),
    }


def pi_command(paths: RunPaths, agent: Agent, typed: str | None = None) -> list[str]:
    """pi's command line. The prompt comes on its stdin, where no first character means anything to pi; `typed` (None:
    not so) is for its terminal UI, as what is typed first, which may be nothing."""
    command = ["pi", *(["--mode", "json"] if typed is None else []), "--offline", "--no-approve", "--no-extensions"]
    command += ["--session-dir", str(paths.session), "--session-id", paths.id]
    command += ["--model", agent.pattern] if agent.pattern else []
    # An argument that starts with @ names a file even behind `--`.
    return [*command, "--", f" {typed}"] if typed else command


def _tmpfs(box: Box) -> dict[str, str]:
    """Mount point to options: scratch space, and what must not show."""
    mounts = {
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={1024 * MIB}",
        "/var/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={256 * MIB}",
        # Over all runs, which the project's own mount would show. What this run may see is mounted into it.
        str(box.paths.runs): "ro,nosuid,nodev,noexec,mode=755,size=1m",
    }
    for path, is_folder in box.covered:
        if is_folder:
            mounts[str(path)] = "ro,nosuid,nodev,noexec,mode=755,size=1m"
    return mounts


def _mounts(box: Box) -> list[dict[str, Any]]:
    paths = box.paths
    mounts = [
        _bind(paths.root, paths.root, writable=False),
        *(_bind(path, path, writable=False) for path in box.inner_mounts if path != box.workspace),
        _bind(box.workspace, box.workspace, writable=True),
        *(_bind(path, path, writable=True) for path in box.pinned),
        *(_bind(path, path, writable=False) for path in box.shut),
        _bind(paths.session, paths.session, writable=True),
        _bind(paths.home, paths.home, writable=True),
        _bind(paths.door, DOOR, writable=False),
        _bind(paths.control / "box.json", CONFIG, writable=False),
        _bind(paths.control / "ca.pem", CA_CERTIFICATE, writable=False),
        _bind(paths.control / "trust.pem", TRUST_BUNDLE, writable=False),
        _bind(paths.control / "passwd", Path("/etc/passwd"), writable=False),
        _bind(paths.control / "group", Path("/etc/group"), writable=False),
        _bind(paths.prompt, PROMPT, writable=False),
        *(_bind(shown, path, writable=False) for path, shown in box.cleaned),
    ]
    return mounts + [_bind(Path("/dev/null"), path, writable=False) for path, is_folder in box.covered if not is_folder]


def _bind(source: Path, target: Path, *, writable: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": str(target),
        "ReadOnly": not writable,
        # A read-only mark is for one mount (before engine 25, at least): what is mounted inside would stay writable.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": not writable},
    }
