"""The decisions that are meant, oldest first, from logs as they come."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.lines import Selection
from impyard.runner.decisions.logfiles import Log, open_log
from impyard.runner.decisions.read import CERTAIN_BYTES, find, page, read, short_id, start_of
from impyard.runner.ownhosts import DEMO_HOST, DEMO_RULE

RUN = "20260101-000000-aaaa"


def line(seq: int, *, run: str = RUN, ts: str = "2026-01-01T00:00:00.000Z", **more: Any) -> bytes:
    fields = {"ts": ts, "id": f"{run}.{seq}", "run": run, "seq": seq, "verdict": "allow", "reason": "rule"}
    fields |= {"rule": None, "at": None, "method": "GET", "scheme": "https", "host": "a.example.org", "port": 443}
    return json.dumps(fields | {"path": f"/{seq}"} | more, separators=(",", ":")).encode() + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def paths(log: Path, **wanted: Any) -> list[str]:
    return [found.entry.path for found in read(log, Selection(**wanted))]


def opened(log: Path) -> Log:
    found = open_log(log)
    assert found is not None
    return found


def fill(log: Path, lines: Iterable[bytes]) -> None:
    log.write_bytes(b"".join(lines))


DENIED = {"verdict": "deny", "reason": "no-rule"}


@pytest.mark.parametrize(
    "wanted, found",
    [
        ({}, "1234"),
        ({"run": "20260101-000000"}, "124"),
        ({"denied": True}, "2"),
        ({"verdict": "allow"}, "134"),
        ({"hosts": ["*.EXAMPLE.org"]}, "124"),
        ({"hosts": ["a.example.org"]}, "12"),
        ({"hosts": ["example.org"]}, ""),
        ({"hosts": ["b.*", "other.example"]}, "34"),
        ({"methods": ["post"]}, "3"),
        ({"methods": ["post", "Get"]}, "1234"),
        ({"reasons": ["no-rule"]}, "2"),
        ({"rules": ["read"]}, "4"),
        ({"rules": ["gateway.yaml:8"]}, "4"),
        ({"rules": ["policies/gateway.yaml:8"]}, "4"),
        ({"rules": ["gateway.yaml"]}, "34"),
        ({"rules": ["yaml:8"]}, ""),
        ({"since": "2026-01-02"}, "34"),
        ({"until": "2026-01-02"}, "12"),
        ({"since": "2026-01-02", "until": "2026-01-03"}, "3"),
        ({"failed": {f"{RUN}.4", f"{RUN}.2"}}, "4"),
        ({"hosts": ["*.example.org"], "rules": ["read"]}, "4"),
    ],
)
def test_each_filter_keeps_what_it_names(log: Path, wanted: dict[str, Any], found: str) -> None:
    fill(
        log,
        [
            line(1),
            line(2, **DENIED),
            line(3, run="x", method="POST", host="other.example", at="policies/gateway.yaml:18", ts="2026-01-02T03"),
            line(4, host="b.example.org", rule="Read", at="policies/gateway.yaml:8", ts="2026-01-03T00:00:00.000Z"),
        ],
    )
    assert "".join(paths(log, **wanted)).replace("/", "") == found


def test_the_bytes_of_a_line_come_with_it(log: Path) -> None:
    fill(log, [line(1), line(2)])
    assert [found.line + b"\n" for found in read(log, Selection())] == [line(1), line(2)]


@pytest.mark.parametrize(
    "damage", [b"\x00\xff\n", b"[]\n", b'{"ts":1}\n', b"\n\n{}\n", b"[" * 5000 + b"\n", b"x" * (10 << 20) + b"\n"]
)
@pytest.mark.parametrize("wanted", [{}, {"hosts": ["a.example.org"]}, {"since": "2026-01-01"}], ids=str)
def test_damage_is_left_out(log: Path, damage: bytes, wanted: dict[str, Any]) -> None:
    fill(log, [line(1), damage, line(2), damage, line(3), line(4)[:-9]])
    selection = Selection(**wanted)
    assert [found.entry.path for found in read(log, selection)] == ["/1", "/2", "/3"]
    assert selection.damaged == 3 or wanted.get("hosts")
    with opened(log) as file:
        assert [found.offset for found in page(file, 9, Selection(**wanted))] == [
            0,
            *(log.read_bytes().index(line(seq)) for seq in (2, 3)),
        ]


def test_needles_lose_no_line_where_blocks_meet(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, (line(seq, **(DENIED if seq % 17 == 0 else {})) for seq in range(1, 150)))
    expected = [f"/{seq}" for seq in range(17, 150, 17)]
    for block in (1, 7, 100, 301, 4096):
        monkeypatch.setattr(logread, "BLOCK_BYTES", block)
        assert paths(log, denied=True) == expected, block
        with opened(log) as file:
            found = page(file, 1000, Selection(denied=True))
        assert len(found) == len(expected)


def test_what_comes_while_it_is_read_is_left_for_the_next_time(log: Path) -> None:
    fill(log, [line(1), line(2)])
    seen = []
    for found in read(log, Selection()):
        seen.append(found.entry.path)
        with log.open("ab") as file:
            file.write(line(9))
    assert seen == ["/1", "/2"]


def test_a_log_that_is_missing_has_no_decisions_and_a_folder_is_an_error(log: Path, tmp_path: Path) -> None:
    assert paths(log) == []
    with pytest.raises(ImpyardError, match="not an ordinary file"):
        list(read(tmp_path, Selection()))


def test_since_reads_from_where_the_time_begins(log: Path) -> None:
    """With a clock that was set back for a while in between."""
    pad = "x" * 30_000
    old = [line(seq, ts="2026-01-01T00:00:00.000Z", query=pad) for seq in range(400)]
    wrong = [line(seq, ts="1970-01-01T00:00:00.000Z", query=pad) for seq in range(400, 420)]
    young = [line(seq, ts="2026-01-02T00:00:00.000Z", query=pad) for seq in range(420, 500)]
    fill(log, [*old, *young[:40], *wrong, *young[40:]])
    assert paths(log, since="2026-01-02") == [f"/{seq}" for seq in range(420, 500)]
    with opened(log) as file:
        start = start_of(file, "2026-01-02")
        assert 200 * 30_000 < start <= sum(map(len, old))
        assert file.pread(8, start - 1) == b'\n{"ts":"'
        assert start_of(file, "2027") == log.stat().st_size
        assert start_of(file, "1970") == 0
        assert len(page(file, 1000, Selection(since="2026-01-02"))) == 80
    assert CERTAIN_BYTES > 20 * 30_000


def test_memory_stays_flat(log: Path) -> None:
    fill(log, (line(seq, query="x" * 1000) for seq in range(8_000)))
    tracemalloc.start()
    assert sum(1 for _ in read(log, Selection())) == 8_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20 < 8 << 20 < log.stat().st_size


def test_an_id_is_found_by_all_of_it_by_its_beginning_and_by_its_end(log: Path) -> None:
    other = "gateway-20260101-000001-bbbb"
    fill(log, [line(1), line(2), line(12), line(1, run=other), b"damage\n"])
    for text, id in {
        f"{RUN}.1": f"{RUN}.1",
        f"{RUN}.12": f"{RUN}.12",
        f"{RUN}.2": f"{RUN}.2",
        "aaaa.1": f"{RUN}.1",
        "bbbb.1": f"{other}.1",
        "gateway": f"{other}.1",
        " aaaa.12 ": f"{RUN}.12",
    }.items():
        assert find(log, text).entry.id == id
    for text in ("20260101-000000", f"{RUN}.", "2"):
        with pytest.raises(ImpyardError) as caught:
            find(log, text)
        assert "more than one" in caught.value.message and f"{RUN}.12" in str(caught.value.hint)
    for text in ("", "aaaa.3", "a.example.org", "\udcff", "\x1b[2J"):
        with pytest.raises(ImpyardError, match="no decision"):
            find(log, text)
    assert short_id(f"{RUN}.12") == "aaaa.12"


def test_calls_of_the_demo_model_are_left_out_unless_they_are_asked_for(log: Path) -> None:
    asked = {"host": DEMO_HOST, "rule": DEMO_RULE}
    fill(log, [line(1), line(2, **asked), line(3, **asked | DENIED), line(4, host=DEMO_HOST)])
    selection = Selection(own_checks=False)
    assert [found.entry.path for found in read(log, selection)] == ["/1", "/3", "/4"]
    assert selection.demo == 1
    assert len(paths(log, own_checks=False, hosts=["demo-model.*"])) == 3
    assert len(paths(log)) == 4
