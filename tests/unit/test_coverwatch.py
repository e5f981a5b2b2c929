"""A secret file that is replaced while it is covered is noticed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from impyard.runner.coverwatch import CoverWatch


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text("S=1")
    return path


def replace(path: Path) -> None:
    draft = path.with_name("draft")
    draft.write_text("S=2")
    draft.replace(path)


def test_a_file_that_is_written_in_place_stays_covered(secret: Path) -> None:
    watch = CoverWatch([secret], lambda path: None)
    secret.write_text("S=2, and longer")
    assert watch.bare_path() is None


def test_a_file_that_is_replaced_is_bare(secret: Path) -> None:
    watch = CoverWatch([secret], lambda path: None)
    replace(secret)
    assert watch.bare_path() == secret


def test_a_file_that_goes_hides_itself_but_what_follows_is_bare(secret: Path) -> None:
    watch = CoverWatch([secret], lambda path: None)
    secret.unlink()
    assert watch.bare_path() is None
    secret.write_text("S=1")
    assert watch.bare_path() == secret


def test_the_thread_tells_once_and_ends(secret: Path) -> None:
    told: list[Path] = []
    heard = threading.Event()

    def tell(path: Path) -> None:
        told.append(path)
        heard.set()

    watch = CoverWatch([secret], tell)
    watch.start()
    replace(secret)
    assert heard.wait(5)
    watch.stop()
    assert told == [secret]


def test_it_can_be_stopped_before_anything_happened_and_without_a_start(secret: Path) -> None:
    started, idle, empty = (CoverWatch(paths, lambda path: None) for paths in ([secret], [secret], []))
    started.start()
    empty.start()
    for watch in (started, idle, empty):
        watch.stop()
    assert not any(thread.name == "covers" for thread in threading.enumerate())
