"""`impyard decisions` with its filters, as CSV, summed up, and one decision as a whole."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.reasons import REASONS
from impyard.runner import cli
from impyard.runner.decisions import outcome_stream
from impyard.runner.decisions import summary as decisions_summary
from impyard.runner.decisions.lines import Selection, parse
from impyard.runner.decisions.outcomes import Failures, Row, failures
from impyard.runner.decisions.summary import summed_up
from impyard.runner.decisions.view import follow_log
from impyard.runner.decisions.when import moment
from tests.support import called

RUN = "20260101-000000-aaaa"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Result(called.Result):
    @property
    def paths(self) -> str:
        """The last letter of each path that is shown."""
        return "".join(line.split("\t")[3][-1] for line in self.out.splitlines())


Command = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(
        "".join(f"# line {number}\n" for number in range(1, 30)) + "networkPolicies: []\n"
    )
    (tmp_path / "runs").mkdir()
    return tmp_path.resolve()


@pytest.fixture
def decisions(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str) -> Result:
        return Result(cli.main(["decisions", "--project", str(project), *args]), *capsys.readouterr())

    return call


def decision(seq: int, path: str, *, minutes: float = 0, run: str = RUN, **more: Any) -> bytes:
    fields = {"ts": stamp(minutes), "id": f"{run}.{seq}", "run": run, "seq": seq, "verdict": "allow", "reason": "rule"}
    fields |= {"rule": None, "at": None, "method": "GET", "scheme": "https", "host": "a.example.org", "port": 443}
    return (
        json.dumps(fields | {"path": path, "http": "1.1", "headers": {}} | more, separators=(",", ":")).encode() + b"\n"
    )


def outcome(seq: int, *, minutes: float = 0.01, run: str = RUN, **more: Any) -> bytes:
    fields = {"ts": stamp(minutes), "id": f"{run}.{seq}", "run": run, "status": 200, "bytes_up": 10, "bytes_down": 1000}
    return json.dumps(fields | {"ms": 1.5, "error": None} | more, separators=(",", ":")).encode() + b"\n"


def stamp(minutes: float) -> str:
    return (NOW + timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


DENIED: dict[str, Any] = {
    "verdict": "deny",
    "reason": "no-rule",
    "nearest": {"at": "policies/gateway.yaml:8", "failed": "method"},
}
RULE: dict[str, Any] = {"rule": "read only", "at": "policies/gateway.yaml:12"}


@pytest.fixture
def log(project: Path) -> Path:
    """Five requests: a was allowed, b denied, c failed, d and e went elsewhere."""
    (project / "runs" / "outcomes.jsonl").write_bytes(
        outcome(4)
        + outcome(5, minutes=1.1, status=None, error="[Errno 111] Connect call failed", bytes_down=0)
        + outcome(6, minutes=2.1)
    )
    path = project / "runs" / "decisions.jsonl"
    path.write_bytes(
        decision(4, "/items/1/a", **RULE)
        + decision(5, "/items/2/c", minutes=1, method="POST")
        + decision(6, "/d", minutes=2, host="b.example.org", port=8443)
        + decision(7, "/e", minutes=3, host="other.example", verdict="deny", reason="unlisted-host")
        + decision(8, "/items/3/b", minutes=4, **DENIED)
    )
    return path


@pytest.mark.parametrize(
    "args, shown",
    [
        ("", "acdeb"),
        ("--denied", "eb"),
        ("--verdict denied", "eb"),
        ("--verdict allow", "acd"),
        ("--failed", "c"),
        ("--verdict failed", "c"),
        ("--host *.example.org", "acdb"),
        ("--host A.example.org --host other.example", "aceb"),
        ("--host b.example.org:8443", "d"),
        ("--host *:443 --host [2001:db8::1]", "aceb"),
        ("--host b.example.org:443", ""),
        ("--method post", "c"),
        ("--reason no-rule", "b"),
        ("--reason no-rule --reason unlisted-host", "eb"),
        ("--rule gateway.yaml:12", "a"),
        ("--rule READ*", "a"),
        ("--since 2026-01-01T12:02", "deb"),
        ("--since 2026-01-01T14:02+02:00 --until 2026-01-01T12:03", "d"),
        ("--denied --host *.example.org", "b"),
        ("--run 20260101-000000-aaaa -n 2", "eb"),
        ("-n all", "acdeb"),
    ],
)
def test_filters_choose_what_is_shown(log: Path, decisions: Command, args: str, shown: str) -> None:
    assert decisions(*args.split()).paths == shown
    rows = csv.DictReader(io.StringIO(decisions("--csv", *args.split()).out))
    assert "".join(row["path"][-1] for row in rows) == shown


@pytest.mark.parametrize(
    "args, words",
    [
        ("--reason no-rul", "did you mean `no-rule`?"),
        ("--reason xyz", "there are rule, no-rule"),
        ("--since 3x", "`3x` is no time; such are 2h"),
        ("--since 2026-01-02 --until 2026-01-01", "nothing can be"),
        ("--denied --failed", "one verdict only"),
        ("--summary --follow", "--follow does not go with --summary"),
        ("--csv --json", "--json does not go with --csv"),
        ("--verify --host a", "--verify reads the whole log"),
        ("--denied show x", "--denied does not go with show"),
        ("shwo", "did you mean 'show'?"),
    ],
)
def test_what_does_not_go_is_a_usage_error(decisions: Command, args: str, words: str) -> None:
    result = decisions(*args.split())
    assert (result.status, result.out) == (2, "")
    assert words in result.err


def test_all_are_the_same_as_many(log: Path, decisions: Command) -> None:
    for args in ((), ("--json",), ("--denied",), ("--host", "a.*")):
        many, every = decisions("-n", "100", *args), decisions("-n", "all", *args)
        assert every == many and every.out


def test_nothing_that_is_meant_is_said(log: Path, decisions: Command) -> None:
    assert decisions("--host", "nope").err == "no decisions that these options ask for\n"
    assert decisions("--summary", "--host", "nope").err == "no decisions that these options ask for\n"
    assert decisions("--failed", "--host", "nope").err == "no request was allowed and failed\n"


@pytest.mark.parametrize(
    "text, means",
    [
        ("2h", "2026-01-01T10:00"),
        ("2h30m", "2026-01-01T09:30"),
        ("1 Week", "2025-12-25T12:00"),
        ("30 secs", "2026-01-01T11:59:30"),
        ("1d 30m", "2025-12-31T11:30"),
        ("90 minutes ago", "2026-01-01T10:30"),
        ("yesterday", "2025-12-31T00:00"),
        ("today", "2026-01-01T00:00"),
        ("now", "2026-01-01T12:00"),
        ("9:05", "2026-01-01T09:05"),
        ("2025-11-29", "2025-11-29T00:00"),
        ("2025-11-29T17:30+01:00", "2025-11-29T16:30"),
        ("2025-11-29T17:30Z", "2025-11-29T17:30"),
    ],
)
def test_times_are_taken_as_people_say_them(text: str, means: str) -> None:
    assert moment(text, NOW) == datetime.fromisoformat(means).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "2x",
        "99999999w",
        "2026-13-01",
        "25:00",
        "ago",
        "2h x",
        "1 dec",
        "29dec",
        "3 may",
        "2 din",
        "1m ays",
        "\udcff",
        "0001-01-01T00:00+14:00",
    ],
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert moment(text, NOW) is None


@pytest.mark.parametrize("name", ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:8443", "[2001:DB8::1]:*"])
def test_a_host_is_taken_as_the_table_shows_it(project: Path, decisions: Command, name: str) -> None:
    (project / "runs" / "decisions.jsonl").write_bytes(decision(4, "/a", host="2001:db8::1", port=8443))
    assert decisions("--host", name).paths == "a"


def test_of_a_host_in_capitals_all_views_say_the_same(project: Path, decisions: Command) -> None:
    lines = decision(4, "/a", host="A.example"), decision(5, "/b", host="a.example")
    (project / "runs" / "decisions.jsonl").write_bytes(b"".join(lines))
    assert decisions("--host", "A.example").paths == "b"
    assert decisions("--host", "a.example", "--csv").out.count("\n") == 2
    assert "1 allowed" in decisions("--host", "a.example", "--summary").err


def test_all_views_take_the_first_outcome_also_of_a_clock_that_was_set_back(project: Path, decisions: Command) -> None:
    refused: dict[str, Any] = {"status": None, "error": "[Errno 111] Connect call failed"}
    (project / "runs" / "decisions.jsonl").write_bytes(b"".join(decision(seq, f"/{seq}") for seq in (4, 5, 6)))
    (project / "runs" / "outcomes.jsonl").write_bytes(
        outcome(4, minutes=-60, **refused) + outcome(5, **refused) + outcome(5) + outcome(6) + outcome(6, **refused)
    )
    verdicts = ["failed", "failed", "allow"]
    assert [line.split("\t")[1] for line in decisions().out.splitlines()] == verdicts
    since = ("--since", stamp(-1))
    for more in ((), since):
        assert [line.split(",")[1] for line in decisions("--csv", *more).out.splitlines()[1:]] == verdicts
        assert "(2 failed)" in decisions("--summary", *more).err
        for every in ((), ("-n", "all"), ("--csv",)):
            assert decisions("--failed", *every, *more).out.count("/5") >= 1
            assert f"{RUN}.6" not in decisions("--failed", *every, *more).out
            assert f"{RUN}.4" in decisions("--failed", *every, *more).out
    assert "allow, but it failed" in decisions("show", "aaaa.4").out


@pytest.mark.parametrize("args", [(), ("--csv",), ("--summary",), ("-n", "all")], ids=str)
def test_a_line_that_is_too_long_is_damage_in_every_view(
    project: Path, decisions: Command, args: tuple[str, ...]
) -> None:
    first, last = decision(4, "/a"), decision(7, "/d")
    long = decision(5, "/" + "b" * (3 << 20)) + decision(6, "/" + "c" * (1 << 20))
    (project / "runs" / "decisions.jsonl").write_bytes(first + long + b"\xff\n" + last)
    result = decisions(*args)
    assert f"3 damaged lines, the first left out: byte {len(first)} of" in result.err
    assert "is no decision" in result.err
    assert result.out.count("a.example.org") in (2, 4) or "\t2\t" in result.out


# -- CSV --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/a;=1+1", '/a;"=1', "/a; @x", "/a|-1", "\uff1d1+1"])
@pytest.mark.parametrize("separator", ",;|")
def test_no_cell_is_a_formula_whatever_separates_them(
    project: Path, decisions: Command, text: str, separator: str
) -> None:
    (project / "runs" / "decisions.jsonl").write_bytes(decision(4, text))
    rows = list(csv.reader(io.StringIO(decisions("--csv").out), delimiter=separator))
    assert [cell for row in rows for cell in row if cell.strip(' "').startswith(tuple("=+-@\uff1d"))] == []
    assert "1" in str(rows) or "x" in str(rows)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(project: Path, decisions: Command, text: str) -> None:
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(decision(1, "/a", run="x", method=text, rule=text, query=text, at="x:1"))
    out = decisions("--csv").out
    [row] = csv.DictReader(io.StringIO(out))
    for name in ("method", "rule", "query"):
        assert row[name].startswith("'") and row[name].isprintable()
    [group] = csv.DictReader(io.StringIO(decisions("--summary", "--csv").out))
    assert group["method"] == row["method"]


def test_csv_has_what_came_of_each_in_order(log: Path, decisions: Command) -> None:
    rows = list(csv.DictReader(io.StringIO(decisions("--csv").out)))
    assert [(row["verdict"], row["status"], row["error"], row["bytes_down"]) for row in rows] == [
        ("allow", "200", "", "1000"),
        ("failed", "", "connection refused", "0"),
        ("allow", "200", "", "1000"),
        ("deny", "", "", ""),
        ("deny", "", "", ""),
    ]
    assert rows[2]["url"] == "https://b.example.org:8443/d"


def test_csv_waits_for_no_outcome_for_ever(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_stream, "MOST_WAITING", 10)
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(b"".join(decision(seq, f"/{seq}", minutes=seq) for seq in range(1, 3000)))
    outcomes = project / "runs" / "outcomes.jsonl"
    outcomes.write_bytes(b"".join(outcome(seq, minutes=seq + 0.1) for seq in range(2, 3000)) + outcome(1, minutes=4000))
    rows = list(outcome_stream.rows_with_outcomes(log, outcomes, Selection()))
    assert [row.entry.seq for row in rows] == list(range(1, 3000))
    assert rows[0].outcome is None and all(row.outcome for row in rows[1000:])


# -- the summary ------------------------------------------------------------------------------------------------------


def test_the_summary_counts_by_host_method_and_shape(log: Path, decisions: Command) -> None:
    groups = [json.loads(line) for line in decisions("--summary", "--json").out.splitlines()]
    assert [(g["host"], g["method"], g["path"], g["allowed"], g["denied"], g["failed"]) for g in groups] == [
        ("a.example.org", "GET", "/items/{n}/a", 1, 0, 0),
        ("a.example.org", "POST", "/items/{n}/c", 1, 0, 1),
        ("a.example.org", "GET", "/items/{n}/b", 0, 1, 0),
        ("b.example.org:8443", "GET", "/d", 1, 0, 0),
        ("other.example", "GET", "/e", 0, 1, 0),
    ]
    assert groups[0] | {"bytes_up": 10, "bytes_down": 1000, "first": stamp(0), "last": stamp(0)} == groups[0]
    assert groups[2]["reasons"] == {"no-rule": 1} and groups[2]["last_id"] == f"{RUN}.8"
    result = decisions("--summary", "--host", "a.*", "-n", "1")
    assert result.out.split("\t")[:6] == ["a.example.org", "GET", "/items/{n}/a", "1", "0", "0"]
    assert result.err.splitlines() == [
        "in all 2 allowed (1 failed), 1 denied, 1 host, 20 B up, 1.0 KB down",
        "1 of 3 kinds of request: -n all shows the others",
    ]


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (("--method", "pst"), "--method POST"),
        (("--host", "a.exmaple.org"), "--host a.example.org"),
        (("--host", "B.example.org:844"), "--host b.example.org:8443"),
        (("--host", "nope"), ""),
        (("--host", "*.exmaple.org"), ""),
        (("--method", "get", "--host", "a.example.org", "--since", "1h"), ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", [(), ("--summary",), ("-n", "all")], ids=str)
def test_what_may_have_been_meant_is_said(
    log: Path, decisions: Command, args: tuple[str, ...], meant: str, way: tuple[str, ...]
) -> None:
    result = decisions(*args, *way)
    hint = f"hint: did you mean `{meant}`?\n" if meant else ""
    assert (result.status, result.out) == (0, "")
    assert result.err == f"no decisions that these options ask for\n{hint}"


def test_a_reason_that_only_answers_have_is_none_of_a_decision(decisions: Command) -> None:
    result = decisions("--reason", "upstream")
    assert result.status == 2 and "--failed shows what came to nothing" in result.err
    assert "upstream" not in decisions("--reason", "zzzz").err


def test_the_columns_of_the_summary_have_one_order(log: Path, decisions: Command) -> None:
    heads, *rows = csv.reader(io.StringIO(decisions("--summary", "--csv", "--denied").out.removeprefix("\ufeff")))
    assert heads[:6] == ["host", "method", "path", "allowed", "failed", "denied"]
    assert rows[0][3:6] == ["0", "0", "1"]
    failed, denied = (decisions("--summary", f"--{kind}").out.split("\t") for kind in ("failed", "denied"))
    assert (failed[3:6], denied[3:6]) == (["1", "1", "0"], ["0", "0", "1"])
    assert len(failed) == len(heads)


def test_impyards_own_checks_of_all_runs_are_one_line(project: Path, decisions: Command) -> None:
    runs = [f"2026010{number}-000000-aaaa" for number in range(1, 6)]
    lines = []
    for number, run in enumerate(runs):
        hosts = {f"{number}.canary.impyard.invalid": "canary", f"{run}.probe.impyard.invalid": "unlisted-host"}
        for seq, (host, reason) in enumerate(hosts.items(), 1):
            lines.append(decision(seq, "/", run=run, host=host, verdict="deny", reason=reason, method="GET"))
        # The agent's own request for the same name is shown with its host.
        if number == 0:
            lines.append(decision(4, "/", run=run, host=host, verdict="deny", reason="unlisted-host"))
    (project / "runs" / "decisions.jsonl").write_bytes(b"".join(lines))
    result = decisions("--summary", "--all")
    shown = [line.split("\t") for line in result.out.splitlines()]
    assert [(fields[0], fields[5]) for fields in shown] == [
        ("impyard's own checks", "10"),
        (f"{runs[0]}.probe.impyard.invalid", "1"),
    ]
    assert "11 denied, 1 host, " in result.err


def test_a_flood_counts_as_many_as_its_line_stands_for(project: Path, decisions: Command) -> None:
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(decision(9, "/a", verdict="deny", reason="busy", times=40) * 2)
    assert json.loads(decisions("--summary", "--json").out)["denied"] == 80


def random_log(rng: random.Random, *, set_back: bool) -> tuple[list[bytes], list[bytes], dict[str, int]]:
    """Runs side by side, answers out of order, some never; with a clock that is set back an hour in the middle.
    Returns decisions, outcomes and bytes by host."""
    events: list[tuple[int, int, bytes]] = []
    expected: dict[str, int] = {}
    seqs = {f"20260101-00000{number}-aaaa": 0 for number in range(3)}
    for moment_ in range(3000):
        run = rng.choice(list(seqs))
        seqs[run] += 1
        host = f"h{rng.randrange(5)}.example.org"
        minutes = moment_ / 10 - (60 if set_back and moment_ > 1500 else 0)
        allowed = rng.random() < 0.8
        verdict: dict[str, Any] = {"verdict": "allow"} if allowed else {"verdict": "deny", "reason": "no-rule"}
        line = decision(seqs[run], f"/{moment_}", minutes=minutes, run=run, host=host, **verdict)
        events.append((moment_, 0, line))
        if allowed and rng.random() < 0.95:
            size, later = rng.randrange(1000), moment_ + rng.choice([0, 1, 3, 500])
            at = later / 10 - (60 if set_back and later > 1500 else 0)
            events.append((later, 1, outcome(seqs[run], minutes=at, run=run, bytes_down=size)))
            expected[host] = expected.get(host, 0) + size
    events.sort(key=lambda event: event[:2])
    lines = [line for _, kind, line in events if kind == 0], [line for _, kind, line in events if kind == 1]
    return *lines, expected


@pytest.mark.parametrize("set_back", [False, True])
@pytest.mark.parametrize("block", [256, 5000, 1 << 18])
def test_the_bytes_are_those_of_the_outcomes(
    project: Path, monkeypatch: pytest.MonkeyPatch, set_back: bool, block: int
) -> None:
    monkeypatch.setattr("impyard.runner.decisions.logread.BLOCK_BYTES", block)
    lines, outcomes, expected = random_log(random.Random(block), set_back=set_back)
    log, beside = project / "runs" / "decisions.jsonl", project / "runs" / "outcomes.jsonl"
    log.write_bytes(b"".join(lines))
    beside.write_bytes(b"".join(outcomes))
    summary = summed_up(log, beside, Selection())
    found: dict[str, int] = {}
    for group in summary.groups:
        found[group.host] = found.get(group.host, 0) + group.bytes_down
    assert found == expected
    one = summed_up(log, beside, Selection(hosts=["h3.example.org"]))
    assert sum(group.bytes_down for group in one.groups) == expected["h3.example.org"]


@pytest.mark.parametrize("fails", [False, True])
def test_two_processes_find_what_one_does(project: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    lines, outcomes, _ = random_log(random.Random(5), set_back=False)
    log, beside = project / "runs" / "decisions.jsonl", project / "runs" / "outcomes.jsonl"
    log.write_bytes(b"damage\n" + b"".join(lines) + b'{"ts":"half')
    beside.write_bytes(b"".join(outcomes))

    def found() -> tuple[list[dict[str, Any]], int, int, int]:
        selection = Selection()
        summary = summed_up(log, beside, selection)
        assert selection.first_damage is not None
        return [g.record() for g in summary.groups], summary.unknown, selection.damaged, selection.first_damage.offset

    alone = found()
    monkeypatch.setattr(decisions_summary, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    children: list[int] = []
    fork = os.fork

    def forked() -> int:
        if fails:
            raise OSError("no more processes")
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", forked)
    assert found() == alone and alone[2:] == (2, 0)
    assert len(children) == (0 if fails else 1)


def test_what_a_box_makes_up_does_not_fill_the_memory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_summary, "MOST_GROUPS", 10)
    monkeypatch.setattr(decisions_summary, "MOST_PATHS", 10)
    monkeypatch.setattr(outcome_stream, "MOST_OPEN", 10)
    words = ["".join(random.Random(seed).choices("bcdfg", k=6)) for seed in range(500)]
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(b"".join(decision(seq, f"/{word}", host=f"{word}.test") for seq, word in enumerate(words)))
    summary = summed_up(log, project / "runs" / "none", Selection())
    assert len(summary.groups) <= 21
    assert sum(group.allowed for group in summary.groups) == 500 == summary.unknown
    assert summary.groups[0].host == decisions_summary.OTHER


# -- following --------------------------------------------------------------------------------------------------------


class Ended(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize(
    "wanted, shown",
    [
        ({"hosts": ["*.example.org"], "methods": ["get"]}, ["allow /old", "allow /2", "failed /2"]),
        ({"denied": True}, ["deny /1", "deny /3"]),
        ({"failed": set()}, ["failed /old", "failed /2"]),
    ],
    ids=str,
)
def test_what_follows_is_chosen_too(project: Path, wanted: dict[str, Any], shown: list[str]) -> None:
    log, beside = project / "runs" / "decisions.jsonl", project / "runs" / "outcomes.jsonl"
    log.write_bytes(decision(1, "/old"))
    beside.write_bytes(b"")
    steps = iter(
        [
            (
                log,
                decision(2, "/1", method="POST", **DENIED) + decision(3, "/2") + decision(4, "/3", host="x", **DENIED),
            ),
            (beside, outcome(3, status=None, error="gone") + outcome(1, status=None, error="gone")),
        ]
    )

    def step(_seconds: float) -> None:
        path, text = next(steps, (None, b""))
        if path is None:
            raise Ended
        with path.open("ab") as file:
            file.write(text)

    seen: list[str] = []
    selection = Selection(**wanted)
    selection.failed = None
    failing = Failures(beside)
    with pytest.raises(Ended):
        follow_log(
            log, 0, selection, lambda rows: seen.extend(f"{row.verdict} {row.entry.path}" for row in rows), failing,
            sleep=step,
        )  # fmt: skip
    assert sorted(seen) == sorted([*shown, *(["failed /old"] if "hosts" in wanted else [])])
    failing.close()


# -- one decision -----------------------------------------------------------------------------------------------------


def test_all_of_a_decision_is_shown(log: Path, decisions: Command) -> None:
    shown = decisions("show", "aaaa.4").out
    for part in (
        f"decision  {RUN}.4",
        "2026-01-01 12:00:00.000 UTC",
        "GET https://a.example.org/items/1/a",
        "read only",
        "policies/gateway.yaml:12",
        "  10 | # line 10",
        "> 12 | # line 12",
        "  14 | # line 14",
        "200 after 2 ms; 10 B up, 1.0 KB down",
    ):
        assert part in shown
    assert "line 9\n" not in shown
    assert decisions(f"{RUN}.4").out == shown  # an id alone means the same
    document = json.loads(decisions("show", "aaaa.4", "--json").out)
    assert document["decision"]["path"] == "/items/1/a"
    assert document["rule"] == {"at": "policies/gateway.yaml:12", "line": 12, "text": "# line 12"}
    assert document["outcome"]["bytes_down"] == 1000


ODD: list[dict[str, Any]] = [{"body_bytes": value} for value in ("abc", 10**400, [1], 1.5)]
ODD += [{"http": {"a": 1}}, {"headers": {"a": {"b": 1}}}, {"upstream": 5}, {"port": 10**30}, {"ts": "x"}]


@pytest.mark.parametrize(
    "line",
    [
        *(decision(4, "/a", **odd) for odd in ODD),
        *(
            decision(4, "/a").replace(b'"headers":{}', b'"headers":{},"zz":' + odd)
            for odd in (b'"\xff\xfe"', b"1" * 5000, b"[" * 900 + b"]" * 900, b"1e999", '"\u202e"'.encode())
        ),
    ],
    ids=lambda line: repr(line[-30:-2]),
)
def test_no_line_of_the_list_is_fatal_where_it_is_shown(project: Path, decisions: Command, line: bytes) -> None:
    (project / "runs" / "decisions.jsonl").write_bytes(line)
    (project / "runs" / "outcomes.jsonl").write_bytes(outcome(4, bytes_up=10**400) + outcome(4, ms=10**400))
    for args in (("show", "aaaa.4"), ("show", "aaaa.4", "--json"), ("--summary",), ("--csv",), ("--json",), ()):
        result = decisions(*args)
        assert (result.status, "internal" in result.err, "\u202e" in result.out) == (0, False, False)
    assert json.loads(decisions("show", "aaaa.4", "--json").out)["decision"]["path"] == "/a"


def test_a_denial_is_shown_with_what_came_closest_and_what_to_do(log: Path, decisions: Command) -> None:
    shown = decisions("show", "aaaa.8").out
    for part in ("it is for another method", ">  8 | # line 8", f"no-rule: {REASONS['no-rule']}", "nothing was sent"):
        assert part in shown
    assert "impyard policy allow aaaa.8" in shown
    assert "but it failed" in decisions("show", "aaaa.5").out


def test_whether_the_policy_has_changed_since_is_said(project: Path, decisions: Command) -> None:
    policy = project / "policies" / "gateway.yaml"
    known = "sha256:" + hashlib.sha256(policy.read_bytes()).hexdigest()
    log = project / "runs" / "decisions.jsonl"
    log.write_bytes(decision(4, "/a", at="policies/gateway.yaml:29", policy=known))
    assert "the policy is still that one" in decisions("show", "aaaa.4").out
    policy.write_text("# short\n")
    shown = decisions("show", "aaaa.4").out
    assert "the policy has changed since" in shown and "the file has 1 lines now" in shown
    policy.unlink()
    os.mkfifo(policy)  # must not hang
    assert "is not there any more, or cannot be read" in decisions("show", "aaaa.4").out


def test_no_other_file_is_shown_as_a_policy(project: Path, decisions: Command) -> None:
    (project / ".env").write_text("SECRET=1\n")
    (project / "runs" / "decisions.jsonl").write_bytes(decision(4, "/\x1b[31m", at=".env:1"))
    shown = decisions("show", "aaaa.4").out
    assert "SECRET" not in shown and "\x1b" not in shown


# -- logs as they come ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), ("--csv",), ("--summary",), ("--denied",), ("--since", "2026-01-01")], ids=str)
def test_damage_is_reported_and_never_fatal(log: Path, decisions: Command, args: tuple[str, ...]) -> None:
    good = log.read_bytes()
    damage = [b'{"deny":1}\n', b"\x00\xffdeny\r\n", b"x" * (10 << 20) + b"deny\n", b'{"ts":"deny"']
    log.write_bytes(damage[0] + good[: good.index(b"\n") + 1] + damage[1] + damage[2] + good[good.index(b"\n") + 1 :])
    with log.open("ab") as file:
        file.write(damage[3])
    result = decisions(*args)
    assert result.status == 0
    assert "a.example.org" in result.out
    assert "damaged lines, the first left out: byte 0 of" in result.err


def test_lines_of_other_versions_are_read(log: Path, decisions: Command) -> None:
    newer = decision(9, "/n", minutes=5, verdict="allow", reason="brand-new", new_field={"a": [1]}, rule=None)
    log.write_bytes(log.read_bytes() + newer)
    assert decisions("--host", "a.example.org").paths == "acbn"
    assert "does not know this reason" in decisions("show", "aaaa.9").out


@pytest.mark.parametrize(
    "args", [(), ("--csv",), ("--summary",), ("show", "x.1"), ("--failed",), ("--verify",)], ids=str
)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_pipe_in_its_place_is_one_clear_error(
    project: Path, decisions: Command, make: Callable[[Path], None], args: tuple[str, ...]
) -> None:
    make(project / "runs" / ("outcomes.jsonl" if args == ("--failed",) else "decisions.jsonl"))
    result = decisions(*args)
    assert (result.status, result.out) == (1, "")
    assert "is not an ordinary file" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("args", [("--csv",), ("--summary",)], ids=str)
def test_outcomes_that_cannot_be_read_are_said(
    log: Path, project: Path, decisions: Command, args: tuple[str, ...]
) -> None:
    (project / "runs" / "outcomes.jsonl").unlink()
    (project / "runs" / "outcomes.jsonl").mkdir()
    result = decisions(*args)
    assert result.status == 0 and "a.example.org" in result.out
    assert "what became of the requests is not shown" in result.err


def test_what_was_denied_after_all_is_no_failure(project: Path) -> None:
    outcomes = project / "runs" / "outcomes.jsonl"
    later = "no-rule: judged again before it went"
    outcomes.write_bytes(outcome(1, error="gone") + outcome(2, error=later) + b'"error":"\n' + outcome(3))
    assert list(failures(outcomes)) == [f"{RUN}.1"]
    assert list(failures(outcomes, stamp(1))) == [f"{RUN}.1"], "its clock may have been set back"
    outcomes.write_bytes(b"")
    following = Failures(outcomes)
    rows = [Row(b"", entry) for seq in (1, 2) if (entry := parse(decision(seq, "/"))) is not None]
    assert list(following.expect(rows)) == []
    outcomes.write_bytes(outcome(1, error=later) + outcome(2, error="gone"))
    assert [row.entry.seq for row in following.news()] == [2]
    following.close()
