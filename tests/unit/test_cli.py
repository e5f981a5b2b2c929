"""The command line: what is loaded, how errors are printed, the exit status."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import cli, run_cmd
from impyard.runner.cli import COMMANDS, main


def raise_from_run(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def run() -> None:
        raise error

    monkeypatch.setattr(run_cmd, "run", run)


def impyard(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "impyard.runner", *args],
        input=stdin,
        capture_output=True,
        timeout=60,
        env=env,
        check=False,
    )


def test_help_loads_neither_docker_nor_mitmproxy_nor_rich() -> None:
    code = (
        "import sys\nfrom impyard.runner.cli import main\nmain(['--help'])\n"
        "bad = {'docker', 'mitmproxy', 'rich', 'yaml', 're2', 'cryptography', 'requests'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name, entry in COMMANDS.items():
        assert name.encode() in done.stdout
        assert entry.help.encode() in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_can_be_loaded_and_explains_itself(name: str) -> None:
    command = cli.root.get_command(click.Context(cli.root), name)
    assert isinstance(command, click.Command)
    assert command.get_short_help_str()


def test_an_error_is_one_error_line_and_one_hint_line_and_125_from_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_from_run(monkeypatch, ImpyardError("no such thing", hint="make one"))
    assert main(["run"]) == 125
    assert capsys.readouterr().err == "error: no such thing\nhint: make one\n"


def test_every_fault_of_an_error_gets_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_from_run(monkeypatch, ImpyardError("a:1: first\na:2: second"))
    main(["run"])
    assert capsys.readouterr().err == "error: a:1: first\nerror: a:2: second\n"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interrupt: BaseException
) -> None:
    raise_from_run(monkeypatch, interrupt)
    assert main(["run"]) == 130
    assert "error" not in capsys.readouterr().err


def test_a_bug_shows_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("IMPYARD_DEBUG", raising=False)
    raise_from_run(monkeypatch, ZeroDivisionError("oops"))
    assert main(["run"]) == 125
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "ZeroDivisionError: oops" in err


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["--nonsense"],
        ["run", "--nonsense", "x"],
        ["run", "--ceiling", "0", "x"],
        ["run", "--ceiling", "nan", "x"],
        ["run", "--ceiling", "-1", "x"],
        ["run", "--ceiling", "inf", "x"],
        ["run", "--cpus", "0", "x"],
        ["run", "--memory", "12", "x"],
        ["run", "--memory", "lots", "x"],
        ["run", "--pids", "0", "x"],
        ["run", "--prompt-file", "/nonexistent", "x"],
        ["run", "--privileged", "x"],
        ["run", "-v", "/:/h", "x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_with_one_error_and_one_hint(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert not lines[0].endswith(".")


def test_the_version_is_printed() -> None:
    done = impyard("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"impyard ")


def test_no_command_shows_the_help_on_standard_error() -> None:
    done = impyard()
    assert done.returncode == 2
    assert b"Commands:" in done.stderr


def test_a_reader_that_is_gone_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "impyard.runner", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_a_prompt_may_begin_with_a_dash() -> None:
    command = run_cmd.run
    for args, words in (
        (["- fix this\n- and that"], ["- fix this\n- and that"]),
        (["--json", "-x y"], ["-x y"]),
        (["-x y", "--json"], ["-x y"]),
        (["--", "--json"], ["--json"]),
        (["--", "-x"], ["-x"]),
    ):
        context = command.make_context("run", list(args))
        assert list(context.params["prompt"]) == words


def test_a_value_with_a_space_stays_the_value_of_its_option() -> None:
    context = run_cmd.run.make_context("run", ["--project", "-odd name", "--policy=/a b", "x"])
    assert context.params["project"] == Path("-odd name")
    assert context.params["policies"] == (Path("/a b"),)


def test_the_prompt_is_joined_from_words_and_kept_to_the_byte() -> None:
    assert run_cmd.read_prompt(("write", "4"), None) == b"write 4"
    assert run_cmd.read_prompt((os.fsdecode(b"a\xff"),), None) == b"a\xff"


def test_the_prompt_comes_from_a_file_or_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"--x\n" + b"y" * 1_000_000
    assert run_cmd.read_prompt((), io.BytesIO(data)) == data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run_cmd.read_prompt(("-",), None) == data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run_cmd.read_prompt((), None) == data


def test_an_empty_prompt_or_two_of_them_are_refused() -> None:
    with pytest.raises(ImpyardError, match="empty"):
        run_cmd.read_prompt((" \n",), None)
    with pytest.raises(ImpyardError, match="zero byte"):
        run_cmd.read_prompt((), io.BytesIO(b"a\0b"))
    with pytest.raises(ImpyardError, match="longer than"):
        run_cmd.read_prompt((), io.BytesIO(b"a" * (run_cmd.MAX_PROMPT_BYTES + 1)))
    with pytest.raises(click.UsageError, match="not both"):
        run_cmd.read_prompt(("x",), io.BytesIO(b"y"))


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 * 1024**2), ("4g", 4 * 1024**3), ("1.5G", 1536 * 1024**2), ("64MiB", 64 * 1024**2)]
)
def test_memory_sizes_read_as_people_write_them(text: str, size: int) -> None:
    assert run_cmd.Memory().convert(text, None, None) == size
