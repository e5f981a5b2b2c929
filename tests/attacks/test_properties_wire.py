"""The judged target is the forwarded target, whatever bytes the box sends: equal, or denied.

Each example is a batch of connections through one gateway; afterwards `TapeBed.check` compares the decisions with the
bytes that the origins received.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.gateway.test_failing_closed import PLANTED
from tests.support.fuzz import examples
from tests.support.httpgrammar import H2Stream, h2_streams, streams
from tests.support.tapebed import TapeBed, h2_bytes

pytestmark = pytest.mark.gateway

PSEUDO = ((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/"))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapeBed]:
    bed = TapeBed(tmp_path_factory.mktemp("tape"))
    try:
        yield bed
    finally:
        bed.close()


def plain(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"GET / HTTP/1.1", b"Host: a.test", *lines, b"", body])


@pytest.mark.attack("28", "32", "34", "40", "43", "44", "65", "73", "77", "79", "82", "86", "89")
@examples(24)
@given(st.lists(streams(), min_size=1, max_size=24))
@example([plain(b"Connection: x-a, close", b"X-A: 1")])
@example([plain(b"Connection: a")])
@example([plain(b"Content-Length: 3", b"Content_Length: 0", body=b"abc")])
@example([plain(b"Proxy-Foo: a"), plain(b"X_Forwarded_Host: evil.test"), plain(b"proxy_authorization: a")])
def test_in_a_tunnel_what_was_judged_is_what_arrives(bed: TapeBed, sent: list[bytes]) -> None:
    bed.send([(bed.tunnel, data) for data in sent])
    bed.check()


@pytest.mark.attack("32", "34", "50", "52", "53", "55", "83")
@examples(12)
@given(st.lists(streams(absolute=b"http://plain.test", host=b"plain.test"), min_size=1, max_size=24))
def test_in_absolute_form_what_was_judged_is_what_arrives(bed: TapeBed, sent: list[bytes]) -> None:
    bed.send([(bed.gateway.connect, data) for data in sent])
    bed.check()


@pytest.mark.attack("41", "80", "86")
@pytest.mark.parametrize("host", ["a.test", "two.test"])
@examples(12)
@given(st.lists(st.lists(h2_streams(), min_size=1, max_size=4), min_size=1, max_size=16))
@example([[H2Stream((*PSEUDO, (b"content-length", b"2")))]])  # and no body
@example([[H2Stream((*PSEUDO, (b"te", b"trailers")))]])
def test_over_http2_what_was_judged_is_what_arrives(bed: TapeBed, host: str, sent: list[list[H2Stream]]) -> None:
    bed.send([(lambda: bed.tunnel_h2(host), h2_bytes(each, host)) for each in sent])
    bed.check()


def test_much_was_let_through_and_much_was_denied(bed: TapeBed) -> None:
    """Of the above: a gateway that denies all would pass them."""
    assert bed.through > 100
    assert bed.denied > 100
    assert "Traceback" not in bed.gateway.stderr_path.read_text()


@pytest.mark.attack("40", "71", "89", control=True)
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        ("forwarded.strip_for_origin = lambda *args: None", "header connection"),
        (
            "import dataclasses; read = hooks.request_from\n"
            "hooks.request_from = lambda *args: dataclasses.replace(read(*args), path='/')",
            "target",
        ),
        ("hooks.JudgeAddon._body_bytes = staticmethod(lambda flow: 7)", "body"),
    ],
    ids=["nothing is stripped", "another path is judged", "another length is judged"],
)
def test_control_a_gateway_that_sends_something_else_is_found_out(tmp_path: Path, plant: str, found: str) -> None:
    fault = textwrap.dedent(PLANTED).format(unguard="", plant=plant)
    bed = TapeBed(tmp_path, fault=fault)
    try:
        bed.send([(bed.tunnel, plain(b"Connection: a").replace(b"/ ", b"/odd "))])
        with pytest.raises(AssertionError, match=found):
            bed.check()
    finally:
        bed.close()
