"""`impyard doctor`: what this machine has and lacks for a run, each with the command that mends it.

Every check looks and changes nothing. A check that fails in a way nobody foresaw is itself a failure, never a gap.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from impyard.addon.errors import ImpyardError, PolicyError
from impyard.runner.options import project_option
from impyard.runner.text import columns_of, counted, size_text, visible, wrapped
from impyard.runner.typed import as_typed, command_line

if TYPE_CHECKING:
    from impyard.addon.policy import Policy

Status = Literal["ok", "warn", "fail"]
PYTHON = (3, 12)
MITMPROXY = (12, 3)
# A run's own files are small; the image is about 1 GB and is built twice over in layers.
IMAGE_FREE_BYTES = 3 * 10**9
RUN_FREE_BYTES = 200 * 10**6
EXPIRY_WARNING = datetime.timedelta(days=30)
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found. `mend` is a command or a sentence that puts it right, empty when nothing needs mending."""

    name: str
    status: Status
    found: str
    mend: str = ""


@click.command()
@project_option
@click.option("--secrets", is_flag=True, help="Look for keys and tokens in each file that the box would see.")
@click.option("--json", "as_json", is_flag=True, help="The checks as one JSON document.")
def doctor(project: Path | None, secrets: bool, as_json: bool) -> int:
    """Check what this machine has and lacks, and say how to mend it.

    Exit status 1 when something is missing that no run can do without.

    \b
    impyard doctor             Docker, the image, the project and its policy, keys
    impyard doctor --secrets   also each file that the box would see
    """
    checks = []
    for found in examine(project, thorough=secrets):
        check = replace(found, mend=as_typed(found.mend))
        checks.append(check)
        if not as_json:
            _print(check)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    return 1 if failed else 0


def examine(project: Path | None, *, thorough: bool = False) -> Iterator[Check]:
    """Each check's outcome, as soon as it is known; `thorough` looks for secrets in all of the project's files."""
    checks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("system", _system),
        ("python", _python),
        ("mitmproxy", _mitmproxy),
        ("docker", _docker),
        ("authority", _authority),
        ("project", lambda: _project(project)),
        ("policy", lambda: _policy(project)),
        ("credentials", _credentials),
        ("secrets", lambda: _secrets(project, thorough)),
        ("disk", lambda: _disk(project)),
        ("logs", lambda: _logs(project)),
    ]
    for name, run in checks:
        try:
            yield from run()
        except ImpyardError as exc:
            yield Check(name, "fail", exc.message, exc.hint or "")
        except Exception as exc:  # noqa: BLE001 - a doctor that dies tells nothing about the other parts
            yield Check(name, "fail", f"could not be checked: {type(exc).__name__}: {exc}", "report this as a bug")


def _print(check: Check) -> None:
    columns, indent = columns_of(sys.stdout), " " * 19
    status = click.style(f"{check.status:<4}", fg=COLOURS[check.status])
    found = [wrapped(indent + visible(line), columns) for line in check.found.splitlines() or [""]]
    click.echo(f"{status}  {check.name:<13}" + "\n".join(found).lstrip())
    if check.mend:
        mend = wrapped(f"{indent}mend: {visible(check.mend)}", columns)
        click.echo(mend.replace("mend:", click.style("mend:", bold=True), 1))


def _system() -> Iterator[Check]:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() != "Linux":
        yield Check("system", "fail", found, "impyard needs Linux: the box reaches its judge through a unix socket")
    else:
        yield Check("system", "ok", found)


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON:
        yield Check("python", "fail", found, "install Python 3.12 or newer, then start bin/impyard again")
    else:
        yield Check("python", "ok", found)


def _mitmproxy() -> Iterator[Check]:
    wanted = ".".join(map(str, MITMPROXY))
    mend = f"{sys.executable} -m pip install 'mitmproxy~={wanted}.0'"
    try:
        version = metadata.version("mitmproxy")
    except metadata.PackageNotFoundError:
        yield Check("mitmproxy", "fail", "not installed", mend)
        return
    series = tuple(int(part) if part.isdigit() else -1 for part in version.split(".")[:2])
    if series != MITMPROXY:
        yield Check("mitmproxy", "fail", f"{version}, but the judge is written for {wanted}", mend)
    else:
        yield Check("mitmproxy", "ok", version)


def _docker() -> Iterator[Check]:
    from impyard.runner import engine

    about = engine.describe()
    info = engine.client().info()
    cgroup = info.get("CgroupVersion") or "1"
    yield Check("docker", "ok", f"{about.version}, API {about.api}, rootful, cgroup v{cgroup}")
    limits = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    if missing := [name for name, key in limits.items() if not info.get(key)]:
        yield Check(
            "limits",
            "warn",
            f"this engine cannot limit: {', '.join(missing)}",
            "enable these cgroup controllers (kernel command line `cgroup_enable=memory`), then restart Docker",
        )
    yield _image()
    root = Path(str(info.get("DockerRootDir") or "/var/lib/docker"))
    yield from _free(root, IMAGE_FREE_BYTES, "docker disk", "docker system prune")


def _image() -> Check:
    from impyard.runner import image_cmd

    about = image_cmd.describe()
    if about["id"] is None:
        found = f"{about['image']} is not built yet; the first run builds it"
        return Check("image", "warn", found, command_line("image", "build"))
    return Check("image", "ok", f"{about['image']}, {size_text(about['bytes'])}")


def _authority() -> Iterator[Check]:
    from impyard.certs import authority

    folder = authority.default_dir()
    if not (folder / authority.CERT_FILE).exists() and not (folder / authority.KEY_FILE).exists():
        yield Check("authority", "ok", f"none yet; the first run makes one in {folder}")
        return
    ca = authority.inspect(folder)  # raises when unreadable, open to others, or expired
    left = ca.not_after - datetime.datetime.now(datetime.UTC)
    found = f"valid until {ca.not_after:%Y-%m-%d}, key mode 0600, sha256 {ca.fingerprint[:16]}…"
    if left < EXPIRY_WARNING:
        yield Check("authority", "warn", found, f"rm -r {folder}  (the next run makes a new one)")
    else:
        yield Check("authority", "ok", found)


def _project(project: Path | None) -> Iterator[Check]:
    from impyard.certs.authority import default_dir
    from impyard.runner.project import check_root, find_root

    root = find_root(project)
    check_root(root, (default_dir(),))  # raises for what no run takes
    yield Check("project", "ok", str(root))


def _policy(project: Path | None) -> Iterator[Check]:
    from impyard.addon.policy import load_policy
    from impyard.runner.project import find_root

    root = find_root(project)
    path = root / "policies" / "gateway.yaml"
    if not path.exists():
        yield Check("policy", "fail", f"{path} does not exist", command_line("init"))
        return
    try:
        policy = load_policy([path], root=root)
    except PolicyError as exc:
        yield Check("policy", "fail", exc.message, exc.hint or "")
        return
    yield Check("policy", "ok", f"{path}, {counted(len(policy.entries), 'entry', 'entries')}, {policy.hash[:19]}…")
    yield from _proxy(policy)


def _proxy(policy: Policy) -> Iterator[Check]:
    """What becomes of the proxy variables of this shell, where there are any."""
    from impyard.addon.hostproxies import VARIABLES, HostProxies, NoProxy
    from impyard.addon.policy import Proxy

    named = [name for name in VARIABLES if os.environ.get(name) or os.environ.get(name.lower())]
    if not named:
        return
    users = [entry for entry in policy.entries if isinstance(entry.upstream, Proxy) and not entry.upstream.host]
    if not users:
        mend = "write `upstream_proxy: environment` into the entries of hosts that only the proxy reaches"
        yield Check("proxy", "warn", f"{', '.join(named)} set, and used for no entry of the policy", mend)
        return
    proxies = HostProxies()
    try:
        for scheme in {scheme for entry in users for scheme in entry.ports}:
            proxies.chosen(Proxy(), scheme, "proxied.invalid", 443)
    except NoProxy as exc:
        yield Check("proxy", "fail", str(exc), "set it to http://HOST:PORT; SOCKS is not spoken")
        return
    yield Check("proxy", "ok", f"{', '.join(named)}, for {len(users)} of the policy's entries")


def _credentials() -> Iterator[Check]:
    from impyard.runner.doctor_credentials import credential_checks

    yield from credential_checks(os.environ)


def _secrets(project: Path | None, thorough: bool) -> Iterator[Check]:
    from impyard.runner.doctor_secrets import secret_checks

    yield from secret_checks(project, thorough=thorough)


def _disk(project: Path | None) -> Iterator[Check]:
    from impyard.runner.project import find_root

    yield from _free(find_root(project), RUN_FREE_BYTES, "disk", command_line("runs", "prune", "--keep", "10"))


def _logs(project: Path | None) -> Iterator[Check]:
    from impyard.runner.decisions.rotation import files_of
    from impyard.runner.project import find_root
    from impyard.runner.records import check_records

    root = find_root(project)
    check_records(root)  # raises where no run could be written down
    runs = root / "runs"
    if files := files_of(runs):
        size = sum(path.stat().st_size for path in files if path.exists())
        yield Check("logs", "ok", f"{size_text(size)} in {counted(len(files), 'file')} in {runs}")


def _free(path: Path, wanted: int, name: str, mend: str) -> Iterator[Check]:
    """Free space for this user where `path` is, or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        free = shutil.disk_usage(path).free
        writable = os.statvfs(path).f_flag & os.ST_RDONLY == 0
    except PermissionError:
        return  # docker's folder is root's own on some systems; the build itself will say
    found = f"{size_text(free)} free at {path}"
    if not writable:
        yield Check(name, "fail", f"{path} is on a read-only file system", "choose a project on a writable disk")
    elif free < RUN_FREE_BYTES:
        yield Check(name, "fail", found, mend)
    elif free < wanted:
        yield Check(name, "warn", found, mend)
    else:
        yield Check(name, "ok", found)
