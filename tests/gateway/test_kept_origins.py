"""HTTP/2 from the box to origins that speak HTTP/1.1: their connections are kept, and carry one request at a time."""

from __future__ import annotations

import socket

import pytest

from tests.gateway.conftest import Bed
from tests.gateway.test_protocols import Http2
from tests.support.origin import Seen

pytestmark = pytest.mark.gateway


def test_requests_in_a_row_share_a_connection_to_the_origin(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    for number in range(5):
        client.wait(client.send(f"/pub/{number}"))
    client.wait(client.send("/v1/messages", "POST", body=b"what is asked", extra=(("content-length", "13"),)))
    client.wait(client.send("/v1/messages", "POST", body=b"of unknown length"))
    last = client.send("/pub/last")
    client.wait(last)
    client.close()
    assert {status for status, _ in client.answers.values()} == {200}
    assert client.answers[last][1] == b"last"
    assert bed.a.connections == 1
    assert [seen.target for seen in bed.a.seen] == [
        *(f"/pub/{n}" for n in range(5)),
        *["/v1/messages"] * 2,
        "/pub/last",
    ]
    assert [seen.body_start for seen in bed.a.seen[5:7]] == [b"what is asked", b"of unknown length"]
    assert bed.a.seen[0].head.split(b"\r\n")[:2] == [b"GET /pub/0 HTTP/1.1", b"Host: a.test"]


def test_requests_at_once_never_wait_for_each_other_in_one_connection(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    first = client.send("/pub/sse")  # goes on until it is released
    client.wait_for_data(first, b"data: one")
    second = client.send("/pub/second")
    client.wait(second)
    third = client.send("/pub/third")
    client.wait(third)
    bed.a.release.set()
    client.wait(first)
    client.close()
    assert [client.answers[each][0] for each in (first, second, third)] == [200, 200, 200]
    assert bed.a.connections == 2  # the third went where the second was through


def test_an_answer_that_ends_with_its_connection_is_whole_and_the_next_request_gets_another(bed: Bed) -> None:
    def until_the_end(connection: socket.socket, _: Seen) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nthat is all")

    bed.a.answers["/pub/until-the-end"] = until_the_end
    client = Http2(bed.gateway, "a.test")
    first = client.send("/pub/until-the-end")
    client.wait(first)
    second = client.send("/pub/second")
    client.wait(second)
    client.close()
    assert client.answers[first] == (200, b"that is all")
    assert client.answers[second][0] == 200
    assert bed.a.connections == 2


def test_a_kept_connection_that_the_origin_has_closed_costs_no_request(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    for number in range(3):  # after each the origin closes
        stream = client.send("/pub/last")
        client.wait(stream)
        assert client.answers[stream] == (200, b"last"), number
    client.close()
    assert bed.a.connections == 3


def test_a_connection_is_not_shared_with_a_request_for_another_host(bed: Bed) -> None:
    """The connection's name is the client's to choose: both requests come on one connection of the box."""
    client = Http2(bed.gateway, "a.test")
    client.wait(first := client.send("/pub/one"))
    client.wait(second := client.send("/pub/two", authority="wrong-name.test"))
    client.close()
    assert client.answers[first][0] == 200
    assert client.answers[second][0] != 200
    assert [seen.target for seen in bed.a.seen] == ["/pub/one"]


def test_several_cookies_arrive_as_one_field(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    client.wait(stream := client.send("/pub/cookies", extra=(("cookie", "a=1"), ("x-between", "1"), ("cookie", "b=2"))))
    client.close()
    assert client.answers[stream][0] == 200
    assert bed.a.seen[0].header("cookie") == ["a=1; b=2"]
    assert bed.a.seen[0].header("x-between") == ["1"]
