"""A secret file that is replaced while it is covered is noticed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from impyard.runner.secretfiles.coverwatch import CoverWatch


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


def test_a_file_that_is_removed_and_made_anew_at_once_is_bare(secret: Path) -> None:
    """Many file systems give it the number that the old one had."""
    for _ in range(20):
        watch = CoverWatch([secret], lambda path: None)
        secret.unlink()
        secret.write_text("S=2")
        assert watch.bare_path() == secret
        watch.stop()


def test_more_files_than_a_process_commonly_holds_are_watched_and_let_go(tmp_path: Path) -> None:
    """Also beside descriptors that no listing shows: a number for each thread that waits in accept(2)."""
    for number in range(1200):
        (tmp_path / f".env.{number}").touch()
    done = own_process(
        "import os, socket, threading, time\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "for _ in range(200):\n"
        "    threading.Thread(target=listener.accept, daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        f"watch = CoverWatch(list(Path({str(tmp_path)!r}).iterdir()), print)\n"
        "print(watch.bare_path(), len(os.listdir('/proc/self/fd')) - before)\n"
        "watch.stop()\n"
        "print(len(os.listdir('/proc/self/fd')) - before)\n"
    )
    assert (done.returncode, done.stdout) == (0, "None 1200\n0\n"), done


@pytest.mark.parametrize("hidden", [0, 150])
def test_more_files_than_a_process_may_hold_are_an_error(hidden: int) -> None:
    """Those that no listing shows count with the others, when they come to be opened."""
    done = own_process(
        "import socket, threading, time\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "CoverWatch([Path('/etc/hostname')] * 44, print).stop(); print('held', flush=True)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        f"for _ in range({hidden}):\n"
        "    threading.Thread(target=listener.accept, daemon=True).start()\n"
        "time.sleep(0.2)\n"
        f"CoverWatch([Path('/etc/hostname')] * {250 - hidden // 2}, print)\n"
    )
    assert (done.returncode, done.stdout) == (1, "held\n"), done
    assert f"{250 - hidden // 2} files must be kept from the box, and this process may hold 300" in done.stderr


def own_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose limits and descriptors are its own."""
    code = (
        "import resource; from pathlib import Path; from impyard.runner.secretfiles.coverwatch import CoverWatch\n"
        + code
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


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
