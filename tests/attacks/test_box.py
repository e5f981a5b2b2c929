"""The box: what an agent in it tries against its walls. Most attempts ship, as claims of `impyard prove`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.box

# Claim of `impyard prove` to the entries that it attempts.
CLAIMS: dict[str, tuple[str, ...]] = {
    "interfaces": ("146",),
    "routes": ("8", "146"),
    "user": ("F13",),
    "capabilities": ("145", "F13"),
    "new-privileges": ("145", "F13"),
    "root-file-system": ("152", "F52"),
    "code": ("134",),
    "docker-socket": ("13", "F13", "F44"),
    "env-files": ("140",),
    "ca-key": ("142", "F13"),
    "direct-tcp": ("1",),
    "direct-udp": ("17",),
    "denied-by-proxy": ("1",),
    "denied-by-name": ("1", "F48"),
    "curl, through the proxy": ("1",),
    "curl, proxy variables ignored": ("1",),
    "curl, plain HTTP without variables": ("2",),
    "curl to an address": ("1", "4"),
    "TCP to other ports of an address": ("4",),
    "TCP to host, neighbours, metadata": ("10", "11", "13", "16"),
    "listeners of the host": ("10", "F47"),
    "UDP to an outside name server": ("5", "17"),
    "UDP over IPv6": ("5", "8"),
    "questions for more than a name": ("22",),
    "AAAA question by DNS": ("22",),
    "TCP question to Docker's resolver": ("19",),
    "host by Docker's alias for it": ("10", "F49"),
    "other ports of a name": ("4",),
    "raw socket": ("7", "145"),
    "packet socket": ("145",),
    "new user namespace": ("145",),
    "new network namespace": ("146",),
    "new mount namespace": ("145",),
    "namespaces of process 1": ("146",),
    "default route": ("146",),
    "interface taken down": ("146",),
    "device node": ("145",),
    "other root folder": ("145",),
    "mount": ("145",),
    "become root": ("145",),
    "set-user-id programs": ("F13",),
    "system call filter": ("145",),
    "kill process 1": ("F54",),
    "stop process 1": ("F54",),
    "trace process 1": ("145",),
    "slow process 1 down": ("148",),
    "memory and files of process 1": ("140",),
    "kernel settings": ("145",),
    "disks": ("140",),
    "write to pi and the tools": ("134", "152"),
    "change the policy": ("134", "F13"),
    "change it by another path": ("134",),
    "the decision log": ("F13",),
    "processes are limited": ("148",),
    "memory is limited": ("149",),
    "temporary files are limited": ("151",),
}
# Attempts of these that a container with rights makes good, on nothing but itself.
IN_A_CONTAINER = (
    *("raw socket", "packet socket", "new user namespace", "new network namespace", "new mount namespace"),
    *("namespaces of process 1", "default route", "interface taken down", "device node", "other root folder", "mount"),
    *("system call filter", "trace process 1", "slow process 1 down", "memory and files of process 1"),
    *("write to pi and the tools", "change the policy", "change it by another path"),
    *("the decision log", "processes are limited", "memory is limited"),
)
CONTROL = """
import json, os, signal, sys
sys.path.insert(0, "/opt/impyard")
from impyard.box import prove
facts = dict(denied_host="x.invalid", outside="198.51.100.1", code_paths=["/project"])
wanted = sys.argv[1].split(",")
found = prove.judge_all([claim for claim in prove.claims(facts) if claim[0] in wanted])
os.kill(1, signal.SIGCONT)  # tracing has stopped it
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def proved(box_image: str, module_project: Project) -> dict[str, dict[str, Any]]:
    """What `impyard prove` found on this machine, by claim."""
    result = module_project.impyard("prove", "--json", limit_s=180)
    return {claim["name"]: claim for claim in json.loads(result.out)["claims"]}


@pytest.mark.parametrize(
    "claim", [pytest.param(claim, marks=pytest.mark.attack(*entries)) for claim, entries in CLAIMS.items()]
)
def test_the_claim_holds(proved: dict[str, dict[str, Any]], claim: str) -> None:
    assert proved[claim]["ok"], proved[claim]


def test_each_claim_from_inside_the_box_has_its_entry(proved: dict[str, dict[str, Any]]) -> None:
    from impyard.runner.prove import ATTEMPTS, PROBES

    inside = {name for name, claim in proved.items() if claim["group"] in (ATTEMPTS, PROBES)}
    assert inside == set(CLAIMS)


@pytest.mark.attack("7", "134", "145", "146", "148", "149", "151", "152", control=True)
def test_control_a_container_with_rights_makes_the_attempts_good(ordinary_container: Callable[..., str]) -> None:
    output = ordinary_container(
        f"mkdir -p /project/policies /project/runs; touch /project/runs/decisions.jsonl;"
        f"echo '{CONTROL.replace(chr(39), chr(34))}' > /control.py;"
        f"python3 -I /control.py '{','.join(IN_A_CONTAINER)}'; true",  # not bash's last: it would be process 1 itself
        cap_add=["SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "SYS_NICE", "MKNOD"],
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        network_mode="none",
        user="0",
    )
    found = {claim["name"]: claim for claim in json.loads(output)}
    assert set(found) == set(IN_A_CONTAINER)
    assert [name for name, claim in found.items() if claim["ok"]] == []
