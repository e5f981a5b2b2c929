"""`impyard vault`: values come in by prompt and pipe alone, and never go out."""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keyring as keyring_package
import pytest
from keyring.backends import fail
from keyrings.alt.file import PlaintextKeyring

from impyard.addon.vault.credential import Credential, Failure, TokenEndpoint
from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.cli import main
from impyard.runner.keys.sources import KEY_VARIABLES, TOOL_VARIABLES

SECRET = "sk-test-4f1c9a7e22d0"


@dataclass
class Shown:
    status: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


Call = Callable[..., Shown]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variables in (KEY_VARIABLES | TOOL_VARIABLES).values():
        for name in variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PI_CODING_AGENT_DIR", raising=False)
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.delenv("IMPYARD_COMMAND", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / ".pi" / "agent").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def vault(home: Path) -> Vault:
    return Vault(default_dir())


@pytest.fixture
def call(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call `impyard vault`, with these bytes on standard input. No value is ever shown."""

    def run(*args: str, stdin: bytes | None = b"") -> Shown:
        given = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", given)
        status = main(["vault", *args])
        shown = Shown(status, *capsys.readouterr())
        assert SECRET not in shown.all
        return shown

    return run


def pi(home: Path, name: str, content: Any) -> None:
    (home / ".pi" / "agent" / f"{name}.json").write_text(json.dumps(content))


# set


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_value_is_taken_from_a_pipe_without_its_line_end(call: Call, vault: Vault, end: str) -> None:
    assert call("set", "github", stdin=(SECRET + end).encode()).status == 0
    assert vault.read().credentials["github"] == Credential("github", "api_key", key=SECRET, source="set")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (SECRET.encode() + b"\n\n", "more than one line"),
        (b"-----BEGIN\n" + SECRET.encode(), "more than one line"),
        (SECRET.encode() + b" ", "space"),
        (SECRET.encode() + b"\x1b[200~", "control characters"),
        ("schlüssel".encode(), "ASCII"),
        (SECRET.encode("utf-16-le"), "control characters"),
        (b"\xff" + SECRET.encode(), "no text"),
        (b"x" * 70_000, "64 KiB"),
        (b"x" * 1_000_000, "no credential"),
        (None, "it is empty"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_the_reason(
    call: Call, vault: Vault, data: bytes | None, why: str
) -> None:
    shown = call("set", "github", stdin=data)
    assert shown.status == 1
    assert why in shown.err
    assert not vault.folder.exists()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("github", SECRET), "never an argument"),
        ((f"GITHUB={SECRET}",), "no name for a credential"),
        (("../github",), "no name for a credential"),
        (("github", "--field", f"a={SECRET}"), "no name for a field"),
        (("github", "--field", "refresh"), "needs `--oauth`"),
        (("github", "--provider", f"A{SECRET}"), "provider's id"),
        (("github", "--oauth", "--field", "x"), "do not go together"),
        (("github", f"--value={SECRET}"), "--value"),
    ],
)
def test_a_wrong_call_is_refused_without_repeating_what_may_be_a_value(
    call: Call, vault: Vault, args: tuple[str, ...], why: str
) -> None:
    shown = call("set", *args, stdin=b"value-1")
    assert shown.status == 2
    assert why in shown.err
    assert not vault.folder.exists()


def test_further_fields_and_a_provider_are_kept_when_the_key_changes(call: Call, vault: Vault) -> None:
    call("set", "registry", "--field", "password", "--provider", "npm", stdin=SECRET.encode())
    call("set", "registry", "--field", "user", stdin=b"ada-of-example")
    call("set", "registry", stdin=b"key-1-of-registry")
    call("set", "registry", "--field", "key", stdin=b"key-2-of-registry")
    assert vault.read().credentials["registry"] == Credential(
        name="registry",
        kind="api_key",
        key="key-2-of-registry",
        fields={"password": SECRET, "user": "ada-of-example"},
        provider="npm",
        source="set",
    )


def test_a_field_on_an_imported_credential_leaves_it_to_its_source(call: Call, vault: Vault) -> None:
    vault.put(Credential("openai", "api_key", key="of-pi", source="pi"))
    call("set", "openai", "--field", "org", stdin=b"org-1")
    assert vault.read().credentials["openai"].source == "pi"
    call("set", "openai", stdin=b"by-hand")
    assert vault.read().credentials["openai"].source == "set"


def test_a_token_of_an_anthropic_subscription_is_a_login(call: Call, vault: Vault) -> None:
    call("set", "anthropic", stdin=b"sk-ant-oat01-aaaa")
    assert vault.read().credentials["anthropic"].kind == "oauth"


def test_a_short_value_is_said_not_to_be_watched(call: Call) -> None:
    assert "not searched" in call("set", "ollama", stdin=b"dummy").err
    assert "not searched" not in call("set", "ollama", stdin=b"long-enough-value").err


def test_a_login_is_read_as_json(call: Call, vault: Vault, home: Path) -> None:
    (home / "ca.pem").touch()
    entry = {
        "access": SECRET,
        "refresh": "refresh-1",
        "expires": 1_800_000_000_000,
        "token_url": "https://auth.example/token",
        "client_id": "c",
        "encoding": "form",
        "ca": str(home / "ca.pem"),
    }
    assert call("set", "proxy", "--oauth", stdin=json.dumps(entry).encode()).status == 0
    assert vault.read().credentials["proxy"] == Credential(
        name="proxy",
        kind="oauth",
        access=SECRET,
        refresh="refresh-1",
        expires=1_800_000_000_000,
        source="set",
        token_endpoint=TokenEndpoint("https://auth.example/token", "form", "c", str(home / "ca.pem")),
    )
    of_pi = {"type": "oauth", "access": SECRET, "refresh": "", "expires": 0, "accountId": "acc"}
    assert call("set", "openai-codex", "--oauth", stdin=json.dumps(of_pi).encode()).status == 0
    assert vault.read().credentials["openai-codex"].account == "acc"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (SECRET, "no JSON object"),
        ([SECRET], "no JSON object"),
        ({"refresh": ""}, "neither"),
        ({"access": SECRET, SECRET: 1}, "other keys"),
        ({"access": [SECRET]}, "no text"),
        ({"access": f"{SECRET}\r\nx: y"}, "more than one line"),
        ({"access": SECRET, "expires": "soon"}, "milliseconds"),
        ({"access": SECRET, "expires": True}, "milliseconds"),
        ({"access": SECRET, "expires": -1}, "milliseconds"),
        ({"access": SECRET, "expires": 1_800_000_000}, "in seconds"),
        ({"access": SECRET, "token_url": "http://auth.example/token"}, "must be https"),
        ({"access": SECRET, "token_url": f"https://u:{SECRET}@auth.example/"}, "no address"),
        ({"access": SECRET, "token_url": "https://[x/"}, "no address"),
        ({"access": SECRET, "token_url": "ftp://localhost/"}, "must be https"),
        ({"access": SECRET, "token_url": "https://auth.example/", "encoding": "xml"}, "neither `json` nor `form`"),
        ({"access": SECRET, "token_url": "https://auth.example/", "ca": "/nonexistent.pem"}, "names no file"),
        ({"access": SECRET, "client_id": "c"}, "belong to a `token_url`"),
    ],
)
def test_a_login_that_cannot_be_used_is_refused_with_the_reason(
    call: Call, vault: Vault, entry: object, why: str
) -> None:
    shown = call("set", "proxy", "--oauth", stdin=json.dumps(entry).encode())
    assert shown.status == 1
    assert why in shown.err
    assert not vault.folder.exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/t", "http://localhost/t", "http://[::1]:9/t"])
def test_a_token_endpoint_on_this_machine_may_be_plain_http(call: Call, url: str) -> None:
    entry = json.dumps({"access": SECRET, "token_url": url})
    assert call("set", "proxy", "--oauth", stdin=entry.encode()).status == 0


# import, list, remove


def test_all_that_is_found_is_imported_and_what_is_not_is_said_why(call: Call, vault: Vault, home: Path) -> None:
    pi(
        home,
        "auth",
        {
            "anthropic": {"type": "oauth", "access": SECRET, "refresh": "refresh-1", "expires": 1},
            "openai": {"type": "api_key", "key": f"!echo {SECRET}; exit 3"},
            "Bad Name\x1b[2J": {"type": "api_key", "key": SECRET},
        },
    )
    os.environ["GH_TOKEN"] = SECRET
    try:
        shown = call("import")
        assert shown.status == 1
        rows = {line.rsplit("  ", 2)[0].split("  ")[0]: line for line in shown.out.splitlines()}
        assert "imported" in rows["anthropic"]
        assert "auth.json" in rows["anthropic"]
        assert "failed" in rows["openai"]
        assert "status 3" in rows["openai"]
        assert "failed" in rows["Bad Name\\x1b[2J"]
        assert "GH_TOKEN" in rows["github"]
        assert set(vault.read().credentials) == {"anthropic", "github"}
        assert "unchanged" in call("import", "github").out
    finally:
        del os.environ["GH_TOKEN"]


def test_what_was_set_or_removed_is_left_alone_unless_it_is_named(call: Call, vault: Vault, home: Path) -> None:
    pi(home, "auth", {name: {"type": "api_key", "key": "of-pi-000000"} for name in ("openai", "groq")})
    call("set", "openai", stdin=b"by-hand-00000")
    call("import")
    call("remove", "groq")
    shown = call("import")
    assert shown.status == 0
    assert "impyard vault import openai" in shown.out
    assert "impyard vault import groq" in shown.out
    assert {name: one.key for name, one in vault.read().credentials.items()} == {"openai": "by-hand-00000"}
    call("import", "openai", "groq")
    assert {one.key for one in vault.read().credentials.values()} == {"of-pi-000000"}
    assert len(vault.read().credentials) == 2


def test_one_broken_file_of_pis_does_not_keep_the_rest_out(call: Call, vault: Vault, home: Path) -> None:
    (home / ".pi" / "agent" / "auth.json").write_text(f'{{"openai": "{SECRET}"')
    pi(home, "models", {"providers": {"mine": {"apiKey": "of-models"}}})
    shown = call("import")
    assert shown.status == 1
    assert "auth.json" in shown.out
    assert set(vault.read().credentials) == {"mine"}
    assert "auth.json" in call("import", "openai").err


def test_nothing_to_import_says_where_it_could_come_from(call: Call) -> None:
    shown = call("import")
    assert shown.status == 1
    assert "impyard vault set NAME" in shown.err


@pytest.mark.parametrize("command", ["import", "remove"])
def test_a_mistyped_name_gets_a_proposal(call: Call, vault: Vault, home: Path, command: str) -> None:
    pi(home, "auth", {"anthropic": {"type": "api_key", "key": "of-pi-000000"}})
    call("import")
    shown = call(command, "antropic")
    assert shown.status == 1
    assert "did you mean `anthropic`?" in shown.err
    assert vault.read().removed == frozenset()


def test_nothing_is_removed_where_one_of_the_names_is_unknown(call: Call, vault: Vault) -> None:
    for name in ("a", "b"):
        vault.put(Credential(name, "api_key", key=SECRET, source="set"))
    shown = call("remove", "a", "b", "nope")
    assert shown.status == 1
    assert "no credential `nope`; nothing was removed" in shown.err and "did you mean" not in shown.err
    assert set(vault.read().credentials) == {"a", "b"}


def test_what_was_removed_is_listed_with_the_command_that_brings_it_back(
    call: Call, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_TOKEN", SECRET)
    for name in ("github", "x", "y"):
        vault.put(Credential(name, "api_key", key=SECRET, source="set"))
    call("remove", "github", "x", "y")
    shown = call("list").err
    assert "removed: github (impyard vault import github brings it back)" in shown
    assert "removed: x, y (impyard vault set NAME brings one back)" in shown


def test_a_provider_that_is_nearly_one_and_a_key_that_is_too_short_are_said(call: Call, vault: Vault) -> None:
    shown = call("set", "work", "--provider", "antropic", stdin=SECRET.encode())
    assert (shown.status, vault.read().credentials) == (2, {})
    assert "did you mean `anthropic`?" in shown.err
    assert "whole key" in call("set", "openai", stdin=b"sk-test-4f1c").err
    assert "whole key" not in call("set", "openai", stdin=SECRET.encode()).err


def test_the_list_has_name_type_source_expiry_and_failure_and_no_value(call: Call, vault: Vault) -> None:
    soon = int(time.time() * 1000) + 3 * 3_600_000 + 60_000
    vault.put(Credential("a", "oauth", access=SECRET, refresh=SECRET, expires=soon, source="pi"))
    vault.put(Credential("b", "oauth", access=SECRET, expires=soon - 10 * 86_400_000, source="set"))
    vault.put(Credential("c", "api_key", key=SECRET, source="env:GH_TOKEN", fields={"user": SECRET}))
    vault.put(
        Credential("d", "oauth", access=SECRET, refresh="r", expires=1, failure=Failure(soon - 11_100_000, "400"))
    )
    rows = [line.split("\t") for line in call("list").out.splitlines()]
    assert rows[0] == ["a", "oauth", "pi's auth.json", "expires in 3 hours, renewed when it is used", ""]
    assert rows[1] == ["b", "oauth", "set by hand", "expired 9 days ago", ""]
    assert rows[2] == ["c", "api_key", "variable GH_TOKEN", "", ""]
    assert rows[3][3:] == [
        "expired",
        "could not be renewed 4 minutes ago (400); `impyard vault set d --oauth` takes another",
    ]
    assert call().out == call("list").out
    found = json.loads(call("list", "--json").out)
    assert [one["name"] for one in found["credentials"]] == ["a", "b", "c", "d"]
    assert found["credentials"][2]["fields"] == ["user"]
    assert found["credentials"][0]["expires"] == soon


def test_an_empty_list_says_what_could_be_imported(call: Call, home: Path) -> None:
    assert "impyard vault set NAME" in call("list").err
    pi(home, "auth", {"openai": {"type": "api_key", "key": SECRET}})
    assert "impyard vault import takes over: openai" in call("list").err
    assert json.loads(call("list", "--json").out)["credentials"] == []


def test_removing_says_where_a_copy_stays(call: Call, vault: Vault, home: Path) -> None:
    pi(home, "auth", {"anthropic": {"type": "oauth", "access": SECRET, "refresh": "r", "expires": 1}})
    call("import")
    shown = call("remove", "anthropic")
    assert "pi keeps its own" in shown.out
    assert vault.read().credentials == {}
    assert "was not in the vault" in call("remove", "demo").out  # before its first use
    assert vault.read().removed == {"anthropic", "demo"}


@pytest.mark.parametrize("args", [("list",), ("import",), ("set", "x"), ("remove", "x")])
def test_a_damaged_or_open_vault_is_an_error_of_every_command(
    call: Call, vault: Vault, home: Path, args: tuple[str, ...]
) -> None:
    pi(home, "auth", {"x": {"type": "api_key", "key": "of-pi-000000"}})
    vault.put(Credential("x", "api_key", key=SECRET))
    (vault.folder / "vault.json").chmod(0o644)
    shown = call(*args, stdin=b"y")
    assert shown.status == 1
    assert "open to other users" in shown.all
    (vault.folder / "vault.json").chmod(0o600)
    (vault.folder / "vault.json").write_text(SECRET)
    shown = call(*args, stdin=b"y")
    assert shown.status == 1
    assert "damaged" in shown.all


def test_a_keyring_is_used_when_the_user_asks_for_it(
    call: Call, vault: Vault, home: Path, ring: PlaintextKeyring
) -> None:
    pi(home, "auth", {"openai": {"type": "api_key", "key": SECRET}})
    assert "into the keyring" in call("import", "--keyring").out
    assert "in the keyring" in call("set", "github", "--keyring", stdin=SECRET.encode()).out
    assert "in the keyring" in call("set", "github", "--field", "user", stdin=b"ada-of-example").out
    assert SECRET not in (vault.folder / "vault.json").read_text()
    assert vault.read().credentials["github"].fields == {"user": "ada-of-example"}
    assert [one["keyring"] for one in json.loads(call("list", "--json").out)["credentials"]] == [True, True]
    assert "in the vault" in call("set", "github", "--no-keyring", stdin=SECRET.encode()).out
    assert SECRET in (vault.folder / "vault.json").read_text()


def test_without_a_keyring_it_is_said_before_a_value_is_asked_for(
    call: Call, vault: Vault, home: Path, ring: PlaintextKeyring
) -> None:
    keyring_package.set_keyring(fail.Keyring())
    pi(home, "auth", {"openai": {"type": "api_key", "key": SECRET}})
    for args in (("set", "github", "--keyring"), ("import", "--keyring")):
        shown = call(*args, stdin=b"")
        assert shown.status == 1
        assert "keyring" in shown.err
    assert not vault.folder.exists()


# At a real terminal, and in a real pipe.


class Terminal:
    """`impyard vault` as a person calls it, with a terminal of its own."""

    def __init__(self, *args: str) -> None:
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "impyard.runner", "vault", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 65536).decode()
                except OSError:  # the other side is closed
                    assert text in self.shown, self.shown

    def type(self, text: str) -> None:
        # Not before the echo is off: what is typed earlier is shown, and thrown away with it.
        deadline = time.monotonic() + 30
        while termios.tcgetattr(self.master)[3] & termios.ECHO:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.write(self.master, text.encode())

    def end(self) -> int:
        status = self.process.wait(30)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.shown += os.read(self.master, 65536).decode()
            except OSError:
                break
        os.close(self.master)
        return status


def test_at_a_terminal_the_value_is_asked_for_and_not_shown(vault: Vault) -> None:
    terminal = Terminal("set", "github")
    terminal.until("The value of github (not shown):")
    terminal.type(f"{SECRET}\n")
    terminal.until("stored github")
    assert terminal.end() == 0
    assert SECRET not in terminal.shown
    assert vault.read().credentials["github"].key == SECRET


def test_a_paste_of_several_lines_is_refused_and_not_cut(vault: Vault) -> None:
    terminal = Terminal("set", "github")
    terminal.until("(not shown):")
    terminal.type(f"{SECRET}\nmore-of-it\n")
    terminal.until("more than one line; nothing is stored")
    assert terminal.end() == 1
    assert SECRET not in terminal.shown and "more-of-it" not in terminal.shown
    assert "< FILE" not in terminal.shown
    assert not vault.folder.exists()


def test_ctrl_c_at_the_prompt_stores_nothing_and_gives_the_terminal_its_echo_back(vault: Vault) -> None:
    terminal = Terminal("set", "github")
    terminal.until("(not shown):")
    terminal.type(f"{SECRET}\x03")
    assert terminal.process.wait(30) == 130
    assert termios.tcgetattr(terminal.master)[3] & termios.ECHO
    terminal.end()
    assert SECRET not in terminal.shown
    assert "Traceback" not in terminal.shown
    assert not vault.folder.exists()


def test_a_line_that_the_terminal_cut_off_is_not_stored(vault: Vault) -> None:
    terminal = Terminal("set", "github")
    terminal.until("(not shown):")
    terminal.type("x" * 5000 + "\n")
    terminal.until("cut off")
    assert terminal.end() == 1
    assert not vault.folder.exists()


def test_a_reader_that_goes_away_is_no_error(vault: Vault) -> None:
    vault.put(Credential("a", "api_key", key=SECRET))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "impyard.runner", "vault", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_two_that_set_at_once_both_are_stored(vault: Vault) -> None:
    command = [sys.executable, "-m", "impyard.runner", "vault", "set", "registry", "--field"]
    running = [
        subprocess.Popen([*command, f"f{n}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for n in range(2)
    ]
    for one in running:
        assert one.stdin is not None
        one.stdin.write(SECRET.encode())
        one.stdin.close()
    assert [one.wait(60) for one in running] == [0, 0]
    assert set(vault.read().credentials["registry"].fields) == {"f0", "f1"}


def test_a_value_shows_in_no_list_of_processes(vault: Vault) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "impyard.runner", "vault", "set", "github"], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(SECRET.encode())
    process.stdin.flush()
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
