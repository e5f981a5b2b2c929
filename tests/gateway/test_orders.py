"""What comes from both sides and from hooks in any order: nothing crashes, no room is kept, and the verdict is fresh.

The layers are driven without sockets (tests/support/layers.py), because a loop rarely makes these orders by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from mitmproxy.proxy.layers.http._http1 import Http1Client

from impyard.addon.hooks import JudgeAddon
from impyard.addon.limits import Limits
from impyard.addon.originends import JudgedHttp1Client
from impyard.addon.resolve import Lookup, Resolver
from impyard.addon.routes import Router
from tests.support.layers import Stage, judge_in
from tests.support.orders import GET, OK, SWITCHED, UPLOAD, walk

pytestmark = pytest.mark.gateway

POLICY = """\
networkPolicies:
  - host: p.test
    scheme: http
    upstream: http://127.0.0.1:81
    policies:
      - {action: ALLOW, method: [GET, HEAD, POST, PUT], path: /ok.*}
      - {action: ALLOW, method: POST, path: /limited.*, max_body: 20}
      - {action: ALLOW, method: GET, path: /ws, websocket: true}
  - host: named.test
    scheme: http
    policies:
      - {action: ALLOW, method: GET, path: /ok}
"""
TIGHTER = POLICY.replace("/ok", "/other")
ENDLESS = {"decisions": 10**9, "log_bytes": 10**12}


def room_left(judge: JudgeAddon) -> int:
    """How many requests may be begun now."""
    taken = 0
    while judge.turns.room.take():
        taken += 1
    for _ in range(taken):
        judge.turns.leave()
    return taken


def verdicts(folder: Path) -> list[str]:
    return [json.loads(line)["verdict"] for line in (folder / "decisions.jsonl").read_bytes().splitlines()]


def answers_after(known: asyncio.Event) -> Lookup:
    """A look-up that takes until then."""

    async def lookup(_name: str) -> list[str]:
        await known.wait()
        return ["8.8.8.8"]  # nothing is dialled here

    return lookup


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[JudgeAddon]:
    logging.disable()
    yield judge_in(tmp_path, POLICY, Limits(requests=100, **ENDLESS))
    logging.disable(logging.NOTSET)


@pytest.mark.attack("127")
@pytest.mark.parametrize(("http2", "seeds"), [(False, 1000), (True, 200)])
def test_no_order_of_events_crashes_a_layer_or_keeps_room(judge: JudgeAddon, http2: bool, seeds: int) -> None:
    async def all_of_them() -> None:
        for seed in range(seeds):
            await walk(judge, seed, http2=http2)
            assert room_left(judge) == 100 and not judge.begun, seed

    asyncio.run(all_of_them())


@pytest.mark.attack("127", control=True)
def test_the_core_alone_crashes_in_some_of_these_orders(judge: JudgeAddon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JudgedHttp1Client, "_handle_event", Http1Client._handle_event)

    async def until_one_does() -> None:
        for seed in range(1500):
            await walk(judge, seed, http2=False)

    with pytest.raises(AssertionError):
        asyncio.run(until_one_does())


def test_a_denied_upload_whose_sender_leaves_before_the_answer(judge: JudgeAddon) -> None:
    async def attempt() -> None:
        stage = Stage(judge)
        stage.says(stage.client, UPLOAD.replace(b"/ok", b"/no"))
        await stage.hook()  # requestheaders; the response hook is under way
        stage.ends(stage.client)
        await stage.leave(at_once=False)
        assert not stage.origins

    asyncio.run(attempt())


def test_an_origin_that_says_more_than_its_answer_while_the_upload_goes_on(judge: JudgeAddon) -> None:
    async def attempt() -> None:
        stage = Stage(judge)
        stage.says(stage.client, UPLOAD)
        await stage.hook()
        stage.dial()
        stage.says(stage.origins[0], OK + OK)
        await stage.run_hooks()
        assert stage.sent[stage.client].count(b"HTTP/1.1") == 1
        await stage.leave(at_once=True)

    asyncio.run(attempt())


def test_a_switch_in_the_middle_of_an_upload_is_an_error_of_the_origin(judge: JudgeAddon) -> None:
    async def attempt() -> None:
        stage = Stage(judge)
        stage.says(stage.client, UPLOAD)
        await stage.hook()
        stage.dial()
        stage.says(stage.origins[0], SWITCHED + b"raw")
        await stage.run_hooks()
        assert stage.sent[stage.client].startswith(b"HTTP/1.1 502") and b"unasked" in stage.sent[stage.client]
        await stage.leave(at_once=True)

    asyncio.run(attempt())


# --- verdicts that wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [TIGHTER, "networkPolicies: ["])
def test_who_waited_for_room_is_judged_by_the_policy_in_force(tmp_path: Path, later: str) -> None:
    judge = judge_in(tmp_path, POLICY, Limits(requests=1))

    async def attempt() -> bytes:
        first, second = Stage(judge), Stage(judge)
        for stage in (first, second):
            stage.says(stage.client, GET)
        await first.hook()
        waiting = asyncio.create_task(second.hook())
        await asyncio.sleep(0)
        (tmp_path / "gateway.yaml").write_text(later)
        await first.leave(at_once=True)
        await waiting
        await second.run_hooks()
        assert not second.dials
        return bytes(second.sent[second.client])

    assert asyncio.run(attempt()).startswith(b"HTTP/1.1 403")
    first, *others = verdicts(tmp_path)  # on a slow machine the first one, too, is judged again before it goes
    assert (first, set(others)) == ("allow", {"deny"})
    assert room_left(judge) == 1


@pytest.mark.parametrize("tightened", [True, False])
def test_who_waited_for_a_name_is_judged_by_the_policy_in_force(tmp_path: Path, tightened: bool) -> None:
    known = asyncio.Event()
    judge = judge_in(tmp_path, POLICY, router=Router(Resolver(answers_after(known))))

    async def attempt() -> bytes:
        stage = Stage(judge)
        stage.says(stage.client, GET.replace(b"p.test", b"named.test"))
        waiting = asyncio.create_task(stage.hook())
        await asyncio.sleep(0)
        if tightened:
            (tmp_path / "gateway.yaml").write_text(TIGHTER)
        known.set()
        await waiting
        await stage.run_hooks()
        assert bool(stage.dials) is not tightened
        return bytes(stage.sent[stage.client])

    assert asyncio.run(attempt()).startswith(b"HTTP/1.1 403" if tightened else b"")
    assert verdicts(tmp_path) == ["deny" if tightened else "allow"]


@pytest.mark.parametrize("where", ["room", "name"])
def test_whoever_left_while_it_waited_is_let_go_nowhere(tmp_path: Path, where: str) -> None:
    known = asyncio.Event()
    judge = judge_in(tmp_path, POLICY, Limits(requests=1), router=Router(Resolver(answers_after(known))))

    async def attempt() -> None:
        first, second = Stage(judge), Stage(judge)
        first.says(first.client, GET)
        if where == "room":
            await first.hook()
        second.says(second.client, GET if where == "room" else GET.replace(b"p.test", b"named.test"))
        waiting = asyncio.create_task(second.hook())
        await asyncio.sleep(0)
        if where == "room":  # the turn comes in the same moment in which the client leaves
            judge.client_disconnected(first.client)
        second.client.timestamp_end = 1.0
        judge.client_disconnected(second.client)
        known.set()
        await waiting
        assert not second.dials and not judge.begun and room_left(judge) == 1

    asyncio.run(attempt())
