"""Secrets on their way to a host that they are not bound to: denied, cut, recorded without them.

Each attempt has its control: a gateway whose tripwire finds nothing, by a planted fault, lets the same through.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import wsproto.events

from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import Reply, read_reply
from tests.support.keybed import A_KEY, KEY, KeyBed, entry, key_bed
from tests.support.origin import Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

HOSTS = ["bound.test", "other.test", "passes.test"]
ENTRIES = [
    entry("bound.test", "{credential: key, template: anthropic}"),
    entry("other.test"),
    entry("passes.test", more="sentinels: pass"),
    entry("'*.wild.test'", more="scheme: http", upstream="{plain}"),
]
PLANTED = """
import sys
from impyard.addon import bodywatch, secretwatch
from impyard.addon.vault import tripwire
def fails(*_, **__):
    raise RuntimeError("planted")
{plant}
from impyard.addon.__main__ import main
sys.exit(main())
"""
BLIND = PLANTED.format(plant="tripwire.Tripwire._look = lambda *_, **__: None")


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("watching"), pki, *ENTRIES, hosts=HOSTS) as bed:
        yield bed


@pytest.fixture(scope="module")
def blinded(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("blinded"), pki, *ENTRIES, hosts=HOSTS, fault=BLIND) as bed:
        yield bed


@pytest.fixture
def blind(blinded: KeyBed) -> KeyBed:
    blinded.clear()
    return blinded


@pytest.fixture
def bed(watching: KeyBed) -> Iterator[KeyBed]:
    """Whatever a test tried, no real value is in what the gateway wrote, printed or told."""
    watching.clear()
    yield watching
    written = [path.read_text() for path in watching.gateway.runs.glob("*.jsonl")]
    for text in (*written, watching.words(), json.dumps(watching.gateway.events)):
        assert KEY not in text


def secret(bed: KeyBed, kind: str) -> str:
    return KEY if kind == "value" else bed.gateway.sentinel("key").key


def codes(text: str) -> str:
    return "".join(f"%{ord(letter):02x}" for letter in text)


def some_codes(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if at % 3 == 0 else letter for at, letter in enumerate(text))


def encoded(before: int) -> Callable[[str], str]:
    return lambda text: base64.b64encode(b"." * before + text.encode() + b"~?>").decode()


def wrapped(text: str) -> str:
    return base64.encodebytes(b"." * 40 + text.encode()).decode()


# What is asked for with a secret: path, header lines, body.
HEADS: dict[str, Callable[[str], tuple[str, str]]] = {
    "path": lambda text: (f"/pub/{text}", ""),
    "partly encoded in the path": lambda text: (f"/pub/{some_codes(text)}", ""),
    "query": lambda text: (f"/pub/x?q={text}", ""),
    "encoded in the query": lambda text: (f"/pub/x?q={codes(text)}", ""),
    "encoded twice in the query": lambda text: (f"/pub/x?q={codes(codes(text))}", ""),
    "base64 in the query": lambda text: (f"/pub/x?q={encoded(1)(text).replace('=', '%3D')}", ""),
    "header": lambda text: ("/pub/x", f"x-note: <{text}>\r\n"),
    "name of a header": lambda text: ("/pub/x", f"x-{text}: 1\r\n"),
    "cookie": lambda text: ("/pub/x", f"cookie: a=b; sid={text}\r\n"),
    "user agent": lambda text: ("/pub/x", f"user-agent: curl/8 {text}\r\n"),
    "basic authentication": lambda text: (
        "/pub/x",
        f"authorization: Basic {base64.b64encode(f'me:{text}'.encode()).decode()}\r\n",
    ),
}
BODIES: dict[str, Callable[[str], str]] = {
    "JSON": lambda text: json.dumps({"messages": [{"content": f"the key is {text}, see?"}]}),
    "a form": lambda text: f"a=b&key={some_codes(text)}&c=d",
    "parts": lambda text: f'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n{text}\r\n--x--\r\n',
    **{f"base64 behind {before}": encoded(before) for before in range(3)},
    "url-safe base64": lambda text: encoded(2)(text).translate(str.maketrans("+/", "-_")),
    "base64 in lines": wrapped,
    "base64 in lines of JSON": lambda text: json.dumps({"file": wrapped(text)}),
    "the end of a megabyte": lambda text: "x" * (1 << 20) + text,
}


def post(bed: KeyBed, body: bytes, headers: str = "") -> Reply:
    return bed.get("other.test", headers=headers, method="POST", body=body)


def tripped(bed: KeyBed, kind: str, where: str) -> dict[str, Any]:
    """The line of the denial, which names what was found and where."""
    line = bed.gateway.decisions()[-1]
    assert (line["verdict"], line["reason"]) == ("deny", "secret-in-request")
    assert line["secret"] == {"credential": "key", "kind": kind, "where": where}
    return line


@pytest.mark.parametrize("kind", ["value", "sentinel"])
@pytest.mark.parametrize("way", HEADS)
def test_a_secret_in_a_head_is_denied(bed: KeyBed, blind: KeyBed, way: str, kind: str) -> None:
    path, headers = HEADS[way](secret(bed, kind))
    reply = bed.get("other.test", path, headers)
    assert (reply.status, reply.json()["reason"]) == (403, "secret-in-request")
    assert bed.untouched()
    (line,) = bed.gateway.decisions()
    found = line["secret"]
    assert (found["credential"], found["kind"]) == ("key", kind)
    assert found["where"].split()[0] == ("path" if "path" in way else "query" if "query" in way else "header")
    assert secret(bed, kind) not in json.dumps(line)
    wait_until(lambda: any(told.get("id") == line["id"] for told in bed.gateway.events))
    assert next(told for told in bed.gateway.events if told.get("id") == line["id"])["secret"] == found

    path, headers = HEADS[way](secret(blind, kind))
    assert blind.get("other.test", path, headers).status == 200
    if kind == "value":
        assert (path + headers.strip()).split(": ")[-1].encode() in blind.seen().head


@pytest.mark.parametrize("kind", ["value", "sentinel"])
def test_a_secret_in_a_name_of_a_host_is_denied_before_the_name_is_looked_up(
    bed: KeyBed, blind: KeyBed, kind: str
) -> None:
    label = secret(bed, kind)[:60]  # a label has room for no more
    reply = bed.gateway.get(f"http://{label}.wild.test/pub/x")
    assert reply.status == 403
    assert bed.untouched()
    assert tripped(bed, kind, "host")["host"].endswith(".wild.test")
    assert label.lower() not in json.dumps(bed.gateway.decisions())

    assert blind.gateway.get(f"http://{secret(blind, kind)[:60]}.wild.test/pub/x").status == 200


@pytest.mark.parametrize("kind", ["value", "sentinel"])
@pytest.mark.parametrize("way", BODIES)
def test_a_secret_in_a_body_is_denied(bed: KeyBed, blind: KeyBed, way: str, kind: str) -> None:
    body = BODIES[way](secret(bed, kind)).encode()
    reply = post(bed, body)
    assert (reply.status, reply.json()["reason"]) == (403, "secret-in-request")
    first, second = bed.gateway.decisions()
    assert (first["verdict"], second["follows"]) == ("allow", first["id"])
    tripped(bed, kind, "body")
    assert "secret-in-request" in bed.gateway.outcomes(1)[0]["error"]
    if len(body) < 65536:
        assert bed.untouched()  # not even its head went out
    else:
        assert all(seen.body_bytes < len(body) for seen in bed.origin.seen)

    body = BODIES[way](secret(blind, kind)).encode()
    assert post(blind, body).status == 200
    assert blind.seen().body_bytes == len(body)


def chunked(bed: KeyBed, pieces: list[bytes]) -> Reply:
    with bed.gateway.tls("other.test") as connection:
        connection.sendall(b"POST /pub/x HTTP/1.1\r\nhost: other.test\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(0.002)
        connection.sendall(b"0\r\n\r\n")
        return read_reply(connection)


def test_single_bytes_add_up(bed: KeyBed, blind: KeyBed) -> None:
    pieces = [bytes([byte]) for byte in f"<{KEY}>".encode()]
    assert chunked(bed, pieces).json()["reason"] == "secret-in-request"
    assert all(seen.body_bytes < len(pieces) - 1 for seen in bed.origin.seen)
    tripped(bed, "value", "body")

    assert chunked(blind, pieces).status == 200


def test_a_body_is_cut_wherever_the_secret_is_split(bed: KeyBed, blind: KeyBed) -> None:
    """Over HTTP/2, in two frames, at each offset."""
    whole = f"<{KEY}>".encode()
    statuses = {}
    for each, cuts in ((bed, range(1, len(whole))), (blind, range(1, 3))):
        client = Http2(each.gateway, "other.test")
        streams = []
        for cut in cuts:
            stream = client.send("/pub/x", "POST", authority="other.test", body=whole[:cut], end=False)
            client.send_more(stream, whole[cut:], end=True)
            streams.append(stream)
            client.wait(stream)
        assert not client.reset
        statuses[each] = {client.answers[stream][0] for stream in streams}
        client.close()
    assert (statuses[bed], statuses[blind]) == ({403}, {200})
    assert all(seen.body_bytes < len(whole) - 1 for seen in bed.origin.seen)


def speak(bed: KeyBed, host: str, *sent: wsproto.events.Event) -> bytes:
    """What an echoing WebSocket answers until it is closed, or has echoed `done`."""
    client = WebSocket(bed, "/pub/ws", host=host)
    assert client.status == 101
    for event in sent:
        client.socket.sendall(client._ws.send(event))
    client.socket.settimeout(5)
    with contextlib.suppress(OSError):  # what came before may have ended it already
        client.socket.sendall(client._ws.send(wsproto.events.BytesMessage(b"done")))
    while not client.closed and not client.received.endswith(b"done"):
        client.read()
    return client.received


Message = wsproto.events.BytesMessage
FRAMES: dict[str, Callable[[bytes], list[wsproto.events.Event]]] = {
    "a message": lambda text: [Message(b"<" + text + b">")],
    "fragments": lambda text: [Message(text[:9], message_finished=False), Message(text[9:])],
    "two messages": lambda text: [Message(text[:9]), Message(text[9:])],
    "a ping": lambda text: [wsproto.events.Ping(text)],
}


@pytest.mark.parametrize("kind", ["value", "sentinel"])
@pytest.mark.parametrize("way", FRAMES)
def test_a_websocket_ends_at_a_secret(bed: KeyBed, blind: KeyBed, way: str, kind: str) -> None:
    received = speak(bed, "other.test", *FRAMES[way](secret(bed, kind).encode()))
    assert b"done" not in received
    assert bed.origin.seen[0].body_bytes <= 9
    assert "follows" in tripped(bed, kind, "message")
    assert "secret-in-request" in bed.gateway.outcomes(1)[0]["error"]

    assert speak(blind, "other.test", *FRAMES[way](secret(blind, kind).encode())).endswith(b"done")


def test_what_was_refused_is_no_error_of_an_upstream(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> None:
    with key_bed(tmp_path_factory.mktemp("counted"), pki, *ENTRIES, hosts=HOSTS) as bed:
        assert post(bed, KEY.encode()).status == 403
        assert post(bed, b"x" * 100_000 + KEY.encode()).status == 403
        bed.origin.answers["/pub/x"] = lambda connection, seen: None
        assert post(bed, b"the control: an answer that does not come").status == 502
        totals = bed.gateway.stop()
        assert (totals["allowed"], totals["denied"], totals["upstream_errors"]) == (3, 2, 1)
        assert totals["outcomes"] == len(bed.gateway.outcomes(3)) == 3  # by which the check misses one


def test_curl_hears_why(bed: KeyBed, blind: KeyBed) -> None:
    def curl(each: KeyBed) -> str:
        with each.gateway.tcp_port() as port:
            command = [
                "curl",
                "-sS",
                "-x",
                f"http://127.0.0.1:{port}",
                "--cacert",
                str(each.gateway.authority.cert_path),
            ]
            command += ["--http1.1", "-F", f"upload={KEY}", "https://other.test/pub/x"]
            return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    assert "secret-in-request" in curl(bed)
    assert "hello from the origin" in curl(blind)


@pytest.mark.parametrize("kind", ["value", "sentinel"])
def test_what_is_bound_to_the_host_may_go_there(bed: KeyBed, kind: str) -> None:
    text = secret(bed, kind)
    assert bed.get("bound.test", f"/pub/{text}", f"cookie: a={text}\r\n", "POST", text.encode()).status == 200
    assert bed.get("bound.test", method="POST", body=b"x" * 100_000 + text.encode()).status == 200
    assert speak(bed, "bound.test", Message(text.encode())).endswith(b"done")
    assert all(line["verdict"] == "allow" for line in bed.gateway.decisions())


def test_sentinels_pass_where_the_policy_says_so_but_values_do_not(bed: KeyBed) -> None:
    sentinel = secret(bed, "sentinel")
    assert bed.get("passes.test", f"/pub/{sentinel}", method="POST", body=sentinel.encode()).status == 200
    assert sentinel.encode() in bed.seen().head + bed.seen().body_start
    assert bed.get("passes.test", method="POST", body=KEY.encode()).status == 403
    tripped(bed, "value", "body")


def test_a_changed_policy_and_a_changed_vault_count_at_once(bed: KeyBed) -> None:
    new = KEY[:20] + "aNEWvalueThatNobodyHasSeen" + KEY[20:]
    assert post(bed, new.encode()).status == 200
    bed.vault.put(msgspec.structs.replace(A_KEY, key=new))
    time.sleep(0.15)
    assert [post(bed, text.encode()).status for text in (new, KEY)] == [403, 403]
    bed.change_policy([*ENTRIES[2:], entry("other.test", "{credential: key, template: anthropic}")])
    assert [post(bed, text.encode()).status for text in (new, KEY)] == [200, 200]


def test_other_reasons_give_way(bed: KeyBed) -> None:
    assert bed.get("nowhere.test", f"/{KEY}").json()["reason"] == "secret-in-request"
    assert bed.get("other.test", f"/not-allowed/{KEY}").json()["reason"] == "secret-in-request"
    assert bed.get("nowhere.test", "/x").json()["reason"] == "unlisted-host"
    bed.gateway.policy_path.write_text("- nonsense")
    assert bed.get("other.test", f"/pub/{KEY}").json()["reason"] == "policy-broken"


def test_compressed_bodies_are_not_looked_into(bed: KeyBed) -> None:
    """A limit, as the documents say."""
    assert post(bed, gzip.compress(KEY.encode()), "content-encoding: gzip\r\n").status == 200


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        ("secretwatch.SecretWatch.judged = fails", "judge-error"),
        ("bodywatch.BodyWatch._look = bodywatch.BodyWatch._feed = fails", "judge-error"),
    ],
    ids=["head", "body"],
)
def test_a_tripwire_that_fails_lets_nothing_through(
    tmp_path_factory: pytest.TempPathFactory, pki: Pki, plant: str, reason: str
) -> None:
    fault = PLANTED.format(plant=plant)
    with key_bed(tmp_path_factory.mktemp("failing"), pki, *ENTRIES, hosts=HOSTS, fault=fault) as bed:
        assert post(bed, b"nothing special").json()["reason"] == reason
        assert post(bed, b"nothing special" * 10_000).json()["reason"] == reason
        assert all(seen.body_bytes == 0 for seen in bed.origin.seen)
        if "body" in plant:
            with pytest.raises((AssertionError, OSError, socket.timeout)):
                assert speak(bed, "other.test", Message(b"nothing special")).endswith(b"done")


@pytest.mark.parametrize("plant", ["forwarded.client_left = fails", "Record.close = fails"])
def test_a_refused_body_goes_nowhere_even_if_its_denial_fails_too(
    tmp_path_factory: pytest.TempPathFactory, pki: Pki, plant: str
) -> None:
    plant = "from impyard.addon import forwarded\nfrom impyard.addon.record import Record\n" + plant
    fault = PLANTED.format(plant=plant)
    with key_bed(tmp_path_factory.mktemp("denial"), pki, *ENTRIES, hosts=HOSTS, fault=fault) as bed:
        sentinel = secret(bed, "sentinel").encode()
        for _ in range(6):
            with contextlib.suppress(AssertionError, OSError):
                post(bed, sentinel)
        time.sleep(0.2)
        assert bed.untouched()
        with contextlib.suppress(AssertionError, OSError):
            post(bed, b"nothing special")
        assert [seen.body_start for seen in bed.origin.seen] == [b"nothing special"]
