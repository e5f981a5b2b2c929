"""What Node compiled when the image was built is linked into the folder where Node looks for this user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.box.codecache import lay_out


def test_files_are_linked_under_the_number_of_the_user(tmp_path: Path) -> None:
    made, used = tmp_path / "made", tmp_path / "used"
    (made / "v24.1.0-x64-0a1b2c3d-65534").mkdir(parents=True)
    (made / "v24.1.0-x64-0a1b2c3d-65534" / "0011").write_text("compiled")
    lay_out(str(made), str(used))
    [folder] = used.iterdir()
    assert folder.name == f"v24.1.0-x64-0a1b2c3d-{os.getuid()}"
    assert (folder / "0011").is_symlink() and (folder / "0011").read_text() == "compiled"
    (folder / "0022").write_text("of the user's own programs")


def test_an_image_without_any_is_an_error_to_pass_over(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        lay_out(str(tmp_path / "none"), str(tmp_path / "used"))
    assert not (tmp_path / "used").exists()
