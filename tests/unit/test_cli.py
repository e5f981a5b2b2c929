"""The command line: what is loaded, how errors are printed, the exit status."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import impyard as package
from impyard.addon.errors import ImpyardError
from impyard.runner import cli, run_cmd
from impyard.runner.cli import COMMANDS, main
from impyard.runner.run_options import Memory

ROOT = Path(str(package.__file__)).parent.parent


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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--with-history"], "say what is in a clone"),
        (["--with-changes"], "say what is in a clone"),
        (["--clone", "--workspace", "apart"], "both say where the agent works"),
        (["--model", "dmeo"], "did you mean `demo`?"),
        (["--model", "antropic/claude"], "did you mean `anthropic`?"),
        (["-i"], "-i needs a terminal"),
        (["--project", "nowhere"], "does not exist"),
    ],
)
def test_what_is_wrong_in_the_command_line_of_a_run_is_wrong_usage(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project" / "policies").mkdir(parents=True)
    (tmp_path / "project" / "policies" / "gateway.yaml").touch()
    (tmp_path / "project" / "apart").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PI_CODING_AGENT_DIR", str(tmp_path / "pi"))
    model = [] if "--model" in args else ["--model", "demo"]
    status = main(["run", *model, *args, "x"])
    assert status == (125 if "--project" in args else 2), "a folder that is not there is nothing of the command's form"
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and said in first and second.startswith("hint: ")


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


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("runs stop", "impyard runs stop"),
        ("runs --project . prune", "impyard runs prune"),
        ("decisions --verify --follow", "impyard decisions"),
        ("run --modle x", "impyard run"),
        ("runs lst", "impyard runs"),
        ("runz", "impyard"),
    ],
)
def test_the_hint_names_the_command_that_was_called(args: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args.split()) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"hint: see `{named} --help`"


def test_a_slip_of_the_pen_gets_a_proposal(capsys: pytest.CaptureFixture[str]) -> None:
    for args, meant in (("decision", "decisions"), ("dcotor", "doctor"), ("rusn", "runs")):
        assert main(args.split()) == 2
        assert f"did you mean '{meant}'?" in capsys.readouterr().err
    assert main(["quite-another"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["--version", "-V", "version"])
def test_the_version_is_printed(asked: str) -> None:
    done = impyard(asked)
    assert done.returncode == 0
    assert done.stdout.startswith(b"impyard ")


@pytest.mark.parametrize("command", ["", "run", "runs", "runs prune", "policy preset"])
def test_help_is_a_word_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    wanted = capsys.readouterr().out
    ways = [["help", *command.split()]]
    if command in ("", "runs", "policy preset"):
        ways.append([*command.split(), "help"])
    for way in ways:
        assert main(way) == 0
        assert capsys.readouterr().out == wanted


def test_no_command_shows_the_help_on_standard_error() -> None:
    done = impyard()
    assert done.returncode == 2
    assert b"Commands:" in done.stderr


@pytest.fixture(params=["buffered", "unbuffered"])
def shell(request: pytest.FixtureRequest) -> Callable[[str], tuple[int, str]]:
    """Runs a shell line in which `impyard` is the command; its exit status and what came on standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if request.param == "unbuffered":
        environment["PYTHONUNBUFFERED"] = "1"

    def call(line: str) -> tuple[int, str]:
        script = f'impyard() {{ "{sys.executable}" -m impyard.runner "$@"; }}\nset -o pipefail\n{line}'
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        return done.returncode, done.stderr

    return call


Shell = Callable[[str], tuple[int, str]]


@pytest.mark.parametrize("command", ["--help", "--version", "runs --help", "doctor"])
def test_a_reader_that_is_gone_ends_a_command_without_a_word(shell: Shell, command: str) -> None:
    assert shell(f"impyard {command} | true") == (cli.READER_GONE, "")


@pytest.mark.parametrize("command", ["--help", "--version", "runs --help", "doctor"])
def test_a_full_disk_behind_standard_output_is_a_plain_error(shell: Shell, command: str) -> None:
    status, err = shell(f"impyard {command} >/dev/full")
    assert status == 1
    assert err.startswith("error: cannot write to standard output: no space left on device\nhint: ")
    assert err.count("\n") == 2


@pytest.mark.parametrize(("command", "status"), [("--help", 1), ("runs", 1), ("run x", 125)])
def test_a_closed_standard_output_is_a_plain_error(shell: Shell, command: str, status: int) -> None:
    found, err = shell(f"impyard {command} >&-")
    assert found == status
    assert err.splitlines()[0] == "error: standard output is closed"
    assert err.count("\n") == 2


@pytest.mark.parametrize("error", ["2>&-", "2>/dev/full"])
def test_without_standard_error_a_command_does_its_work(shell: Shell, error: str, tmp_path: Path) -> None:
    assert shell(f"cd '{tmp_path}' && PYTHONPATH='{ROOT}' impyard init {error} >out") == (0, "")
    assert "next:" in (tmp_path / "out").read_text()
    assert shell(f"cd '{tmp_path}' && PYTHONPATH='{ROOT}' impyard runs show {error} >out") == (1, "")


def test_a_closed_standard_input_is_an_empty_one(shell: Shell) -> None:
    status, err = shell("impyard run <&-")
    assert status == 2
    assert "the prompt is empty" in err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_a_fault_of_another_file_or_pipe_is_not_taken_for_one_of_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError
) -> None:
    monkeypatch.delenv("IMPYARD_DEBUG", raising=False)
    raise_from_run(monkeypatch, error)
    assert main(["run"]) == 125
    assert f"internal error: {type(error).__name__}" in capsys.readouterr().err


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
    with pytest.raises(click.UsageError, match="empty"):
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
    assert Memory().convert(text, None, None) == size


BARE = re.compile(r"(?<![`\w./'-])impyard (?:" + "|".join(cli.COMMANDS) + r")\b")


def test_a_command_in_a_text_is_in_backticks_or_made_by_command_line() -> None:
    """Else it is not what can be typed here, as with bin/impyard."""
    assert BARE.search("see: impyard run") and not BARE.search("see `impyard run`")
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n    " not in node.value:
                is_example = any(node.value in example for example in cli.EXAMPLES)
                assert is_example or not BARE.search(node.value), (path, node.lineno)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["runs", "show", "nope"], "`bin/impyard runs list` shows the runs"),
        (["run", "--nonsense"], "see `bin/impyard run --help`"),
        (["run", ""], "for example: `bin/impyard run "),
        (["init"], "bin/impyard doctor"),
        (["init"], "'write 4 to answer.txt'  see it work"),
        (["doctor"], "mend: bin/impyard init"),
        (["run", "--model", "demo", "x"], "`bin/impyard init` writes"),
    ],
    ids=str,
)
def test_a_command_is_named_as_it_can_be_typed(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPYARD_COMMAND", "bin/impyard")
    cli.main(args)
    printed = "".join(capsys.readouterr())
    assert said in printed and not re.search(r"(?<!bin/)impyard (?:run|init|doctor)\b", printed)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--pids", "x", "p"], "'--pids': `x` is no whole number from 32 to 1000000"),
        (["run", "--pids", "1", "p"], "'--pids': `1` is no whole number from 32 to 1000000"),
        (["run", "--pids", "\u0664\u0664", "p"], "is no whole number"),
        (["run", "--cpus", "0", "p"], "'--cpus': `0` is no number above 0 and up to 4096"),
        (["runs", "list", "-n", "0"], "'-n': `0` is no whole number from 1 to"),
        (["decisions", "-n", "1.5"], "'-n': `1.5` is no whole number from 0 to"),
        (["decisions", "-n", "9" * 5000], "is no whole number from 0 to"),
        (["runs", "prune", "--older-than", "-1"], "'--older-than': `-1` is no age; such are 90d"),
        (["runs", "prune", "--older-than", "nan"], "'--older-than': `nan` is no age; such are 90d"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_is_no_number_is_said_in_plain_words(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("error: ") and said in error and "range" not in error


def test_no_command_leaves_a_core_dump_which_could_hold_a_key() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20));"
        "from impyard.runner.__main__ import main; sys.argv[1:] = ['--version']; main();"
        "print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "(0, 1048576)"


def test_a_missing_choice_is_asked_for_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: missing argument '{bash|zsh|fish}': choose from bash, zsh, fish",
        "hint: see `impyard completion --help`",
    ]


@pytest.mark.parametrize(
    ("typed", "proposal"),
    [
        ("rotate", "; did you mean `impyard decisions rotate`?"),
        ("show", "; did you mean `impyard decisions show` or `impyard runs show` or `impyard image show`?"),
        ("reprot", "; did you mean 'report'?"),
        ("frobnicate", ""),
    ],
)
def test_a_command_of_a_group_is_found_where_it_is(
    typed: str, proposal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    assert " ".join(capsys.readouterr().err.split()).startswith(
        f"error: no such command '{typed}'{proposal} hint: see `impyard --help`"
    )
