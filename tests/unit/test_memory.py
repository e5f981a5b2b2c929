"""A run for which there is no memory says so before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.memory import NEEDED_BYTES, check_memory

NEEDED_KB = NEEDED_BYTES // 1024


def meminfo(folder: Path, available: int, swap: int) -> Path:
    """A file as the kernel shows it, in kB."""
    path = folder / "meminfo"
    path.write_text(
        f"MemTotal:       24683000 kB\nMemFree:             100 kB\nMemAvailable:   {available:>8} kB\n"
        f"SwapTotal:        900000 kB\nSwapFree:       {swap:>8} kB\n"
    )
    return path


def test_too_little_is_refused_and_says_how_much_there_is(tmp_path: Path) -> None:
    with pytest.raises(ImpyardError, match=r"has 102\.4 MB of memory left, and a run needs some 209\.7 MB") as caught:
        check_memory(meminfo(tmp_path, 60_000, 40_000))
    assert caught.value.hint and "impyard runs" in caught.value.hint


@pytest.mark.parametrize(("available", "swap"), [(NEEDED_KB, 0), (0, NEEDED_KB), (10_000_000, 0)])
def test_enough_in_memory_or_swap_is_enough(tmp_path: Path, available: int, swap: int) -> None:
    check_memory(meminfo(tmp_path, available, swap))


@pytest.mark.parametrize("text", ["", "MemFree: 1 kB\n", "MemAvailable: many kB\n"])
def test_a_kernel_that_does_not_say_refuses_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "meminfo"
    path.write_text(text)
    check_memory(path)
    check_memory(tmp_path / "absent")


def test_this_machine_is_read() -> None:
    check_memory()
