"""What a run goes on with: session and workspace of another, whatever a box made of them; and when it is refused."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.sentinels import mint
from impyard.addon.vault.tripwire import Tripwire
from impyard.runner import cli, leftovers, resumed, run_cmd, run_options
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.resume_cmd import resume
from impyard.runner.resumed import find_workspace, model_of, read_session, write_session
from tests.support.fuzz import examples

RUN, NEXT = "20261130-101500-1a2b", "20261130-111500-3c4d"
HEADER = {"type": "session", "version": 3, "id": RUN, "timestamp": "2026-11-30T10:15:02.120Z", "cwd": "/elsewhere"}
ENTRY = {"type": "message", "id": "aaaa0001", "parentId": None, "message": {"role": "user", "content": "hello"}}
NAME = f"2026-11-30T10-15-02-120Z_{RUN}.jsonl"
OTHER = "2026-11-30T10-17-02-120Z_019ad2f0-0000-7000-8000-000000000000.jsonl"


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def entries_of(folder: Path, *, newest: bool) -> bytes:
    return b"".join(read_session(folder, RUN, newest=newest).entries())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "session").mkdir()
    return tmp_path / "session"


def test_the_session_goes_on_under_a_header_of_the_new_run(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).write_bytes(lines(HEADER, ENTRY, ENTRY))
    session = read_session(folder, RUN, newest=False)
    file = write_session(session, NEXT, tmp_path, tmp_path)
    assert file == tmp_path / f"2026-11-30T10-15-02-120Z_{NEXT}.jsonl" and file.stat().st_mode & 0o777 == 0o600
    header, *entries = map(json.loads, file.read_bytes().splitlines())
    assert header == {**HEADER, "id": NEXT, "cwd": str(tmp_path)} and entries == [ENTRY, ENTRY]


def test_half_a_line_at_the_end_is_left_out(folder: Path) -> None:
    (folder / NAME).write_bytes(lines(HEADER, ENTRY) + b'{"type":"mess')
    assert entries_of(folder, newest=False) == lines(ENTRY)


def test_the_runs_own_session_is_taken_and_the_newest_where_a_person_may_have_begun_another(folder: Path) -> None:
    """A pi that the agent started by itself leaves its session there too."""
    (folder / NAME).write_bytes(lines(HEADER, ENTRY))
    (folder / OTHER).write_bytes(lines(HEADER, ENTRY, ENTRY))
    os.utime(folder / NAME, ns=(0, 0))
    assert entries_of(folder, newest=False) == lines(ENTRY)
    assert entries_of(folder, newest=True) == lines(ENTRY, ENTRY)


def a_link(folder: Path, outside: Path) -> None:
    (folder / NAME).symlink_to(outside)


def a_fifo(folder: Path, _outside: Path) -> None:
    os.mkfifo(folder / NAME)


def a_folder(folder: Path, _outside: Path) -> None:
    (folder / NAME).mkdir()


def a_linked_folder(folder: Path, outside: Path) -> None:
    folder.rmdir()
    folder.symlink_to(outside.parent / "other")


def no_folder(folder: Path, _outside: Path) -> None:
    folder.rmdir()


def nothing(_folder: Path, _outside: Path) -> None:
    """An empty folder."""


def content(data: bytes) -> Callable[[Path, Path], None]:
    def write(folder: Path, _outside: Path) -> None:
        (folder / NAME).write_bytes(data)

    return write


HOSTILE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a link to a session elsewhere": (a_link, "has no session"),
    "a fifo, which would keep its reader": (a_fifo, "has no session"),
    "a folder": (a_folder, "has no session"),
    "a link in the folder's place": (a_linked_folder, "has no session"),
    "no folder": (no_folder, "has no session"),
    "nothing": (nothing, "has no session"),
    "an empty file": (content(b""), "does not begin as pi's"),
    "binary": (content(os.urandom(5000)), "does not begin as pi's"),
    "no header": (content(lines(ENTRY)), "does not begin as pi's"),
    "a deep header": (content(b"[" * 30_000 + b"\n"), "cannot be used"),
    "a long header": (content(b'{"type":"session","version":3,"x":"' + b"x" * 70_000 + b'"}\n'), "does not begin"),
    "a version that is no number": (content(lines({**HEADER, "version": "3"}, ENTRY)), "does not begin"),
    "nothing said": (content(lines(HEADER)), "nothing was said"),
    "too long": (content(lines(HEADER, ENTRY, ENTRY, ENTRY)), "longer than"),
}


@pytest.mark.parametrize(("make", "said"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_session_is_refused_and_never_followed(
    make: Callable[[Path, Path], None], said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    for outside in (tmp_path / "secret", tmp_path / "other" / NAME):
        outside.write_bytes(lines(HEADER, ENTRY))
    if said == "longer than":
        monkeypatch.setattr(resumed, "MAX_SESSION_BYTES", 200)
    make(folder, tmp_path / "secret")
    with pytest.raises(ImpyardError, match=said) as caught:
        read_session(folder, RUN, newest=False)
    assert caught.value.hint and RUN in caught.value.hint


@given(st.binary(max_size=200), st.booleans())
@examples(60)
def test_whatever_is_in_it_is_a_session_or_refused(data: bytes, with_header: bool) -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write((lines(HEADER) if with_header else b"") + data)
        try:
            session = resumed._parse(file.fileno())
        except (ValueError, RecursionError):
            return
        entries = b"".join(session.entries())
    whole = data if with_header else data.partition(b"\n")[2]
    assert entries == whole[: whole.rfind(b"\n") + 1] and entries.strip()


def test_a_long_session_is_not_held_in_memory(folder: Path, tmp_path: Path) -> None:
    """Nor is half a line at its end, be it as long."""
    entries = lines({"x": "y" * 3_000_000}) * 4
    (folder / NAME).write_bytes(lines(HEADER) + entries + b"z" * 5_000_000)
    tracemalloc.start()
    try:
        file = write_session(read_session(folder, RUN, newest=False), NEXT, tmp_path, tmp_path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.read_bytes().partition(b"\n")[2] == entries and most < 4_000_000


def test_a_session_that_is_cut_meanwhile_is_an_error(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).write_bytes(lines(HEADER, ENTRY, ENTRY))
    session = read_session(folder, RUN, newest=False)
    os.truncate(folder / NAME, len(lines(HEADER, ENTRY)))
    with pytest.raises(OSError, match="cut meanwhile"):
        write_session(session, NEXT, tmp_path, tmp_path)


def test_a_made_up_time_is_not_put_into_a_file_name(folder: Path) -> None:
    (folder / NAME).write_bytes(lines({**HEADER, "timestamp": "../../../etc/x"}, ENTRY))
    file = write_session(read_session(folder, RUN, newest=False), NEXT, folder, folder)
    assert file.parent == folder and file.name.endswith(f"_{NEXT}.jsonl")


def test_the_workspace_is_the_runs_own_or_the_one_it_went_on_in(tmp_path: Path) -> None:
    own = tmp_path / "runs" / RUN / "workspace"
    own.mkdir(parents=True)
    receipt = {"project": str(tmp_path), "workspace": str(own)}
    assert find_workspace(tmp_path, receipt) == (own, True)
    assert find_workspace(tmp_path, {**receipt, "workspace": "/srv/clone"}) == (Path("/srv/clone"), False)
    moved = {"project": "/old", "workspace": f"/old/runs/{RUN}/workspace"}
    assert find_workspace(tmp_path, moved) == (own, True), "a project that was moved"
    for odd in (f"{tmp_path}/runs", f"{tmp_path}/runs/x/workspace", f"{tmp_path}/runs/{RUN}/session", ""):
        assert find_workspace(tmp_path, {**receipt, "workspace": odd})[1] is False


def test_a_workspace_that_is_gone_or_a_link_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "runs" / RUN / "workspace"
    receipt = {"project": str(tmp_path), "workspace": str(own)}
    with pytest.raises(ImpyardError, match="not there any more"):
        find_workspace(tmp_path, receipt)
    own.parent.mkdir(parents=True)
    own.symlink_to("/etc")
    with pytest.raises(ImpyardError, match="not there any more"):
        find_workspace(tmp_path, receipt)


def test_the_model_is_the_same_unless_it_was_the_providers_default() -> None:
    assert model_of({"model": "anthropic/claude-x"}) == "anthropic/claude-x"
    assert model_of({"model": "anthropic (its default model)"}) is None
    assert model_of({"model": None}) is None and model_of({}) is None


def test_sentinels_of_the_run_before_trip_nothing_and_those_of_this_run_do() -> None:
    """What the agent printed of them stands in the session, and goes to the model."""
    keys = [Credential("github", "api_key", key="ghp_" + "q8Zt2Kd83hs0Qp1LmW4x" * 2)]
    before, after = mint(keys), mint(keys)
    wire = Tripwire(after)
    assert before.mark != after.mark
    assert wire.look(f"GH_TOKEN={before.by_name['github'].key}".encode(), ()) is None
    assert wire.look(f"GH_TOKEN={after.by_name['github'].key}".encode(), ()) is not None


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def given_to(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command would start a run with."""
    taken: list[dict[str, Any]] = []

    def carry_out(prompt: bytes, **options: Any) -> int:
        taken.append({"prompt": prompt, **options})
        return 0

    monkeypatch.setattr("impyard.runner.resume_cmd.carry_out", carry_out)
    return taken


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").touch()
    return tmp_path.resolve()


def add_run(root: Path, run: str = RUN, **changes: Any) -> RunPaths:
    paths = RunPaths(root, run)
    for folder in (paths.workspace, paths.session):
        folder.mkdir(parents=True)
    (paths.session / f"2026-11-30T10-15-02-120Z_{run}.jsonl").write_bytes(lines(HEADER, ENTRY))
    facts = {
        "run": run,
        "project": str(root),
        "workspace": str(paths.workspace),
        "model": "demo/demo",
        "started": datetime.now(UTC).isoformat(),
        "impyard": "1",
        "runner_pid": 0,
        "runner_start": "1",
        "runner_space": leftovers.this_process()["space"],
        "ceiling_s": 60.0,
        "exit_reason": "finished",
        "policy": {"files": ["policies/gateway.yaml", f"runs/{run}/demo-policy.yaml"]},
        **changes,
    }
    Receipt(**facts).write(paths.receipt)
    return paths


def test_a_run_is_gone_on_with_as_it_was(project: Path, given_to: list[dict[str, Any]]) -> None:
    paths = add_run(project, image={"id": "x", "name": "mine"})
    assert cli.main(["runs", "--project", str(project), "resume", "last", "and", "a test", "--ceiling", "5"]) == 0
    [options] = given_to
    assert (options["prompt"], options["model"], options["image"]) == (b"and a test", "demo/demo", "mine")
    assert (options["workspace"], options["ceiling"], options["project"]) == (paths.workspace, 5.0, project), (
        "as it was named"
    )
    found = options["resumed"]
    assert (found.run, found.is_own, found.policies) == (RUN, True, ("policies/gateway.yaml",))
    assert cli.main(["runs", "resume", RUN, "--project", str(project), "--model", "a/b", "- more"]) == 0
    assert (given_to[1]["model"], given_to[1]["prompt"]) == ("a/b", b"- more")


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"exit_reason": "running", "runner": "me"}, "still running", f"impyard runs stop {RUN}"),
        ({"workspace": "/gone/runs/x"}, None, None),
        ({"damaged": True}, "cannot read the receipt", "impyard runs list"),
        ({"pruned": True}, "there is no run", "impyard runs list"),
        ({"unsaid": True}, "has no session", f"impyard runs show {RUN}"),
    ],
    ids=str,
)
def test_what_cannot_be_gone_on_with_is_refused_with_the_next_command(
    changes: dict[str, Any],
    said: str | None,
    hint: str | None,
    project: Path,
    given_to: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("impyard.runner.engine.boxes", lambda _run=None: [])
    if not changes.get("pruned"):
        me = leftovers.this_process()
        if changes.pop("runner", None):
            changes = {**changes, "runner_pid": int(me["pid"]), "runner_start": me["start"]}
        plain = {key: value for key, value in changes.items() if key not in ("damaged", "unsaid")}
        paths = add_run(project, **plain)
        if changes.get("damaged"):
            paths.receipt.write_bytes(b"{")
            os.utime(paths.folder, (0, 0))
        if changes.get("unsaid"):
            next(paths.session.iterdir()).unlink()
    status = cli.main(["runs", "resume", RUN, "more", "--project", str(project)])
    if said is None:
        assert status == 0 and given_to[0]["resumed"].is_own is False, "run.py checks it as it does --workspace"
        return
    err = capsys.readouterr().err
    assert status == 125 and given_to == [] and said in err and hint is not None and hint in err


def test_all_options_of_run_are_there_but_those_that_say_where_it_works() -> None:
    def names(command: Any) -> set[str]:
        return {name for param in command.params for name in param.opts if name.startswith("-")}

    missing = names(run_cmd.run) - names(resume)
    assert "--workspace" in missing and {"--ceiling", "--policy", "--json", "-i", "--learn"} <= names(resume)
    assert all(name.startswith(("--workspace", "--clone", "--with-")) for name in missing)


def test_a_prompt_is_needed_but_for_the_terminal_ui(project: Path, given_to: list[dict[str, Any]]) -> None:
    add_run(project)
    none = CliRunner().invoke(resume, [RUN, "--project", str(project)], input="")
    assert none.exit_code == 2 and "impyard runs resume last" in none.output
    assert CliRunner().invoke(resume, [RUN, "--project", str(project), "-i"], standalone_mode=False).return_value == 0
    assert (given_to[0]["prompt"], given_to[0]["interactive"]) == (b"", True)


def test_with_the_ui_neither_events_nor_a_prompt_that_no_argument_holds() -> None:
    for prompt, as_json, said in ((b"", True, "give one of them"), (b"x" * run_options.MAX_TYPED, False, "terminal")):
        with pytest.raises(Exception, match=said):
            run_options.carry_out(prompt, as_json=as_json, ceiling=None, interactive=True)
