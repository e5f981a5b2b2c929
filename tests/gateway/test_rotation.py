"""A gateway at work while its logs are rotated, compressed and read: it denies nothing for it and loses nothing."""

from __future__ import annotations

import threading
import time

import pytest

from impyard.addon.decisions import verify
from impyard.runner.decisions import logread, rotation
from impyard.runner.decisions.logfiles import open_log, rotated
from tests.gateway.conftest import Bed
from tests.support.gateway import read_reply

pytestmark = pytest.mark.gateway

REQUESTS = 200


def test_requests_go_on_while_the_logs_are_rotated_and_none_is_lost(own_bed: Bed) -> None:
    gateway = own_bed.gateway
    ended = threading.Event()
    faults: list[OSError] = []

    def rotating() -> None:
        try:
            while not ended.is_set():
                rotation.rotate(gateway.runs)
                list(rotation.pack_all(gateway.runs, settled_s=0))
                time.sleep(0.02)
        except OSError as exc:
            faults.append(exc)

    thread = threading.Thread(target=rotating)
    thread.start()
    try:
        with gateway.tls("a.test") as connection:
            for _ in range(REQUESTS):
                connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
                assert read_reply(connection).status == 200
        assert gateway.get("https://a.test/secret").status == 403
    finally:
        ended.set()
        thread.join()
    closed = gateway.stop()
    assert faults == []
    assert not gateway.told("log-unwritable")
    log = gateway.runs / "decisions.jsonl"
    assert len(rotated(log)) > 3
    assert sum(each.is_packed for each in rotated(log)) > 1
    with open_log(log) or pytest.fail("there is no log") as found:
        lines = list(logread.raw_lines(found))
    assert len(lines) == closed["decisions"] == REQUESTS + 1
    run = str(closed.get("run") or lines[0].split(b'"run":"')[1].split(b'"')[0].decode())
    assert verify(lines, receipts={run: (closed["decisions"], closed["last"])}) == []
    with open_log(gateway.runs / "outcomes.jsonl") or pytest.fail("there are no outcomes") as found:
        assert sum(1 for _ in logread.raw_lines(found)) == REQUESTS
