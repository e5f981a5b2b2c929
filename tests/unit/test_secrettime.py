"""What an agent leaves in a file does not make the owner's next run hang: each look takes time in proportion to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impyard.runner import gitsettings
from impyard.runner.secretfiles import clean as secretclean
from impyard.runner.secretfiles import kinds as secretkinds
from impyard.runner.secretfiles.scan import MAX_CLEANED_BYTES, scan
from impyard.runner.secretfiles.search import search

# Parts of what the expressions look for, whose repetition is what a search that goes back would be lost in.
PARTS = [
    "x",
    "a-",
    "a.",
    " ",
    "\t",
    "\n",
    " \n",
    "\\",
    "\\\n",
    '"',
    '"\\',
    "'",
    "[",
    "#",
    ":",
    "/",
    "@",
    "=",
    "- ",
    "key",
    "key=",
    "auth",
]
PARTS += [
    "a://",
    "a://b ",
    "a:b@",
    "password",
    "password=",
    "token: ",
    "helper=",
    "store --file= ",
    "extraheader",
    "path=",
]
PARTS += [
    "_authToken ",
    "_auth=x",
    "npmAuthToken:",
    "key=PRIVATE KE",
    "-----BEGIN ",
    "A ",
    "PrivateKey",
    "hookspath = ",
]
PARTS += [
    "worktreeconfig",
    "sk-AKIA0123456789ABCDEF-",
    "eyJ" + "a" * 17 + ".",
    "secret='",
    "BUNDLE_A__",
    "abcd ",
    "1,",
    "{",
    '{"a":',
]
HEADS = [
    "",
    "[core]\n",
    "[core]\na=",
    "[core]\nextraheader=",
    "PRIVATE KEY AGE-SECRET Key kind: Config ",
    "GITCRYPTKEY ",
]
SIZE = 256 * 1024
BOUND = 1.5  # seconds of the processor, for one look at that much. Going back: minutes


def looks() -> dict[str, Callable[[bytes], object]]:
    """All that is done with a file's content, by the name of the function."""
    tables = [secretkinds._NAMES, secretkinds._ENDINGS, *secretkinds._FOLDERS.values()]
    kinds = [kind for table in tables for kind in table.values()]
    texts: list[Callable[[str], object]] = [kind.clean for kind in kinds if kind.clean is not None]
    texts += [secretclean.git_stores, gitsettings.named_paths, gitsettings.has_worktree_settings]
    found: dict[str, Callable[[bytes], object]] = {kind.look.__name__: kind.look for kind in kinds if kind.look}
    return found | {act.__name__: partial(as_text, act) for act in texts}


def as_text(act: Callable[[str], object], data: bytes) -> object:
    return act(data.decode("utf-8", "surrogateescape"))


LOOKS = looks()


def spent(act: Callable[[bytes], object], data: bytes) -> float:
    began = time.process_time()
    act(data)
    return time.process_time() - began


def content(head: str, part: str, size: int) -> bytes:
    return (head + part * (size // len(part))).encode()


@pytest.mark.parametrize("name", LOOKS)
def test_each_look_takes_no_longer_than_its_files_are(name: str) -> None:
    """Four times the size; what goes back takes sixteen times as long, and this stops at the first such part."""
    for head in HEADS:
        for part in PARTS:
            first = max(0.001, spent(LOOKS[name], content(head, part, 2048)))
            data = content(head, part, 8192)
            # Thrice, for a machine that was busy with something else.
            assert any(spent(LOOKS[name], data) < 8 * first for _ in range(3)), (head, part)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(HEADS), st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("".join))
def test_a_repeated_part_of_what_is_looked_for_is_looked_through_in_time(head: str, part: str) -> None:
    data = content(head, part, SIZE)
    for name, look in LOOKS.items():
        assert spent(look, data) < BOUND, name


@pytest.mark.parametrize("part", ["sk-AKIA0123456789ABCDEF-", "eyJ" + "a" * 17 + ".", "AKIAZ3Q7XW9KLMN2PR4S\n"])
def test_doctor_looks_through_a_file_of_finds_in_time(tmp_path: Path, part: str) -> None:
    (tmp_path / "a.txt").write_bytes(content("", part, 1024 * 1024))
    assert spent(lambda _: search(tmp_path, ()), b"") < BOUND


def test_settings_that_are_longer_than_what_is_looked_at_are_covered(tmp_path: Path) -> None:
    for name in (".npmrc", "config"):
        (tmp_path / name).write_bytes(b"x" * MAX_CLEANED_BYTES)
        assert spent(lambda _: scan([tmp_path]), b"") < BOUND
    assert scan([tmp_path]) == []
    (tmp_path / ".npmrc").write_bytes(b"x" * (MAX_CLEANED_BYTES + 1))
    assert [item.how for item in scan([tmp_path])] == ["covered"]
