"""squid with ssl_bump, a proxy in C that judges by expressions and writes a line about each request, to compare with.

One process, no cache, certificates by its own helper. It is there when the Debian package squid-openssl is installed;
otherwise `missing_row` says so in the table.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from impyard.certs.authority import CERT_FILE, KEY_FILE, ensure_authority
from tests.bench import processes
from tests.bench.bed import Bed, Target
from tests.bench.client import HOST, Way
from tests.bench.table import Row
from tests.support.listening import free_port

NEEDS = "needs the Debian package squid-openssl"
HELPERS = ("/usr/lib/squid/security_file_certgen", "/usr/libexec/squid/security_file_certgen")
# What squid becomes when root starts it; Debian's package makes this user.
USER = "proxy"
MEASURED = "(small|bytes/[0-9]+|sink|events)"


@dataclass(frozen=True, slots=True)
class Squid:
    """A running squid. port: on 127.0.0.1. ca: file with its authority's certificate. log: a JSON line a request."""

    port: int
    pid: int
    ca: Path
    log: Path


def installed() -> bool:
    """Whether there is a squid that can look into TLS."""
    return shutil.which("squid", path=_search_path()) is not None and _helper() is not None


def missing_row(what: str) -> Row:
    """The row of a measure that cannot compare with squid here."""
    return Row(what, "-", note=NEEDS)


@contextmanager
def squid_target(bed: Bed, *, rules: int = 20) -> Iterator[Target]:
    """squid in front of the bed's origin, with as many rules as `Bed.gateway` has. Raises RuntimeError without one."""
    origin = f"https://{HOST}:{bed.port}"
    allow = [f"^{origin}/{MEASURED}$"]
    allow += [f"^{origin}/v{n % 7}/(users|repos|orgs)/[^/]+/item{n}(/.*)?$" for n in range(rules - 1)]
    # The name has an IPv6 address too, on which the origin does not listen.
    with squid(allow, trust=Path(bed.origin_ca), hosts={HOST: "127.0.0.1"}) as running:
        yield Target("squid", way(running, bed.port), running.pid)


def way(running: Squid, port: int) -> Way:
    """The way through a squid to an origin's port."""
    return Way(f"127.0.0.1:{running.port}", port, str(running.ca))


@contextmanager
def squid(
    allow: Sequence[str], *, trust: Path, hosts: Mapping[str, str] | None = None, cpus: set[int] | None = None
) -> Iterator[Squid]:
    """A squid of one's own on loopback, and what it needs in a folder of its own.

    allow: expressions for whole URLs; no other passes. trust: the authorities it takes origins' certificates from.
    hosts: addresses of names that it is not to look up. cpus: None for the one of what is measured.

    Raises RuntimeError when there is none or it does not start.
    """
    helper = _helper()
    program = shutil.which("squid", path=_search_path())
    if program is None or helper is None:
        raise RuntimeError(NEEDS)
    with tempfile.TemporaryDirectory(prefix="impyard-squid-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        port = free_port()
        authority = ensure_authority(folder / "ca")
        (folder / "allow").write_text("\n".join(allow) + "\n")
        (folder / "hosts").write_text("".join(f"{address} {host}\n" for host, address in (hosts or {}).items()))
        shutil.copyfile(trust, folder / "trust.pem")
        (folder / "squid.conf").write_text(_settings(folder, port, helper))
        user = _give_away(folder)
        made = subprocess.run(
            [helper, "-c", "-s", str(folder / "certificates"), "-M", "16MB"],
            user=user,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"squid's helper could not make its folder: {made.stderr[:300]}")
        output = folder / "output"
        command = [program, "-N", "-f", str(folder / "squid.conf")]
        process = processes.start(command, cpus or processes.measured_cpu(), log=output)
        try:
            processes.wait_for_port(port, process, "squid", output)
            yield Squid(port, process.pid, authority.cert_path, folder / "access.jsonl")
        finally:
            processes.stop(process)


def _settings(folder: Path, port: int, helper: str) -> str:
    """squid.conf: everything is looked into, every URL judged, nothing kept."""
    return f"""\
http_port 127.0.0.1:{port} ssl-bump tls-cert={folder}/ca/{CERT_FILE} tls-key={folder}/ca/{KEY_FILE} \
generate-host-certificates=on dynamic_cert_mem_cache_size=16MB
sslcrtd_program {helper} -s {folder}/certificates -M 16MB
sslcrtd_children 4 startup=1 idle=1
tls_outgoing_options cafile={folder}/trust.pem
acl hello at_step SslBump1
ssl_bump peek hello
ssl_bump bump all
acl tunnel method CONNECT
acl allowed url_regex "{folder}/allow"
http_access allow tunnel
http_access allow allowed
http_access deny all
cache deny all
cache_mem 8 MB
logformat line {{"ts":%ts.%03tu,"method":"%rm","url":"%ru","status":%>Hs,"tag":"%Ss"}}
access_log stdio:{folder}/access.jsonl logformat=line
buffered_logs off
cache_log {folder}/cache.log
pid_filename {folder}/squid.pid
coredump_dir {folder}
hosts_file {folder}/hosts
visible_hostname bench
strip_query_terms off
via off
forwarded_for delete
pinger_enable off
shutdown_lifetime 0 seconds
"""


def _helper() -> str | None:
    return next((path for path in HELPERS if os.access(path, os.X_OK)), None)


def _search_path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"


def _give_away(folder: Path) -> int | None:
    """Make the folder that user's whom squid becomes; its number, or None where squid stays who we are."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam(USER)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)
    return user.pw_uid
