"""Two boxes at once: neither reaches the other, by any name, address, socket or file."""

from __future__ import annotations

from typing import Any

import pytest

from impyard.runner import engine
from tests.support.project import Project
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box

# Serves on all that a box has: TCP, UDP, an abstract socket, a shared memory file, a name; then waits for its end.
SERVE = r"""
import os, socket, sys, time
listeners = [socket.create_server(("0.0.0.0", 8077)), socket.socket(socket.AF_UNIX)]
listeners[1].bind("\0impyard-neighbour"); listeners[1].listen()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("0.0.0.0", 8077))
for path in ("/dev/shm/neighbour", "/tmp/neighbour", "/var/tmp/neighbour"): open(path, "w").write("mine")
open("hostname", "w").write(socket.gethostname()); open("there", "w").close()
until = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < until: time.sleep(0.05)
"""
# argv: addresses to try. Prints what it reached.
REACH = r"""
import glob, os, socket, sys, urllib.request
found = []
for address in sys.argv[1:]:
    try: socket.create_connection((address, 8077), 3).close(); found.append(f"tcp {address}")
    except OSError: pass
try:
    one = socket.socket(socket.AF_UNIX); one.connect("\0impyard-neighbour"); found.append("abstract socket")
except OSError: pass
found += [path for path in ("/dev/shm/neighbour", "/tmp/neighbour", "/var/tmp/neighbour") if os.path.exists(path)]
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        if b"serve.py" in open(path, "rb").read(): found.append("process")
    except OSError: pass
print(found)
"""


@pytest.mark.attack("11", "16")
@pytest.mark.attack("11", control=True)
def test_two_boxes_at_once(project: Project, box_image: str) -> None:
    project.script("serve.py", SERVE)
    project.script("reach.py", REACH)
    serving = project.start("run", "--model", "demo", f"run: python3 {project.root}/serve.py")
    there = project.started_file("there")
    (box,) = project.boxes()
    names = ["127.0.0.1", "box", box.id[:12], box.name, "172.17.0.2", "172.17.0.3", "10.0.2.2"]
    result = project.demo(f"run: python3 {project.root}/reach.py {' '.join(names)} > found")
    assert result.code == 0 and result.file("found").strip() == "[]", result.file("found")
    (there.parent / "go").touch()
    assert project.finish(serving).code == 0

    # The control: two ordinary containers on one network, which share what people let containers share.
    docker = engine.client()
    network = docker.networks.create("impyard-test-two")
    made: list[Any] = []
    try:
        files = {str(project.root): {"bind": "/project", "mode": "ro"}}
        options: dict[str, Any] = {"entrypoint": "/bin/bash", "network": network.name, "volumes": files}
        made.append(docker.containers.create(box_image, ["-c", "cd /tmp; python3 /project/serve.py"], **options))
        made[0].start()
        made[0].reload()
        address = made[0].attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"]
        wait_until(lambda: made[0].exec_run("test -e /tmp/there").exit_code == 0, 30)
        made.append(docker.containers.create(box_image, ["-c", f"python3 /project/reach.py {address}"], **options))
        made[1].start()
        assert made[1].wait(timeout=60)["StatusCode"] == 0
        assert f"tcp {address}" in made[1].logs().decode()
    finally:
        for container in made:
            container.remove(force=True)
        network.remove()
