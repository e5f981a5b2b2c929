"""Heads of any size, in both versions of HTTP: refused by their size alone, recorded once, and nobody else is held up.

The limit itself still passes: without that, a gateway that refuses everything would pass too.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from impyard.addon.limits import DEFAULTS
from tests.gateway.conftest import Bed
from tests.gateway.test_protocols import Http2
from tests.support.gateway import read_reply

pytestmark = pytest.mark.gateway

URL = "/pub/" + "u" * (DEFAULTS.url_bytes - len("/pub/"))
# `host` is one of them.
LINES = "x: y\r\n" * (DEFAULTS.headers - 1)
HEAD = "x: " + "y" * (DEFAULTS.head_bytes - 100) + "\r\n"


def honest(bed: Bed) -> None:
    started = time.monotonic()
    assert bed.gateway.get("https://a.test/pub/honest").status == 200
    assert time.monotonic() - started < 2


@pytest.mark.attack("97", control=True)
@pytest.mark.parametrize(
    ("path", "lines"), [(URL, ""), ("/pub/x", LINES), ("/pub/x", HEAD)], ids=["url", "count", "size"]
)
def test_a_head_at_its_limit_passes(bed: Bed, path: str, lines: str) -> None:
    assert bed.gateway.get("https://a.test" + path, headers=lines).status == 200
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["allow"]


@pytest.mark.attack("97")
@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        (URL + "u", "", 414),
        ("/pub/" + "u" * (64 << 10), "", 414),
        ("/pub/" + "u" * (1 << 20), "", 414),
        ("/pub/x", LINES + "x: y\r\n", 431),
        ("/pub/x", "x: y\r\n" * 10_000, 431),
        ("/pub/x", HEAD + HEAD, 431),
        ("/pub/x", "x: " + "y" * (1 << 20) + "\r\n", 431),
    ],
    ids=["url", "url-64-KiB", "url-1-MiB", "count", "10000-headers", "size", "head-1-MiB"],
)
@pytest.mark.parametrize("way", ["tunnel", "plain", "h2"])
def test_a_head_over_its_limit_is_refused_with_one_line(bed: Bed, path: str, lines: str, status: int, way: str) -> None:
    if way == "h2":
        client = Http2(bed.gateway, "a.test")
        path, lines = path[: 66 << 10], lines[: 66 << 10]  # the client's own packing takes seconds for more
        extra = [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines.splitlines())]
        stream = client.send(path, extra=tuple(extra))
        client.wait(stream)
        if stream in client.answers:
            assert client.answers[stream][0] == status
            after = client.send("/pub/after")  # only that request was refused
            client.wait(after)
            assert client.answers[after][0] == 200
            bed.gateway.outcomes(1)
            bed.a.clear()
        client.close()
    else:
        target = path if way == "tunnel" else "http://plain.test" + path
        host = "a.test" if way == "tunnel" else "plain.test"
        with bed.gateway.tls(host) if way == "tunnel" else bed.gateway.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(f"GET {target} HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n".encode())
            reply = read_reply(connection)
        assert reply.status == status
        assert reply.headers["x-impyard-reason"] == "too-large"
        assert reply.headers["x-impyard-decision"].startswith("r1.")
    denied = [line for line in bed.gateway.decisions() if line["verdict"] == "deny"]
    assert [line["reason"] for line in denied] == ["too-large"]
    assert bed.untouched()
    honest(bed)
