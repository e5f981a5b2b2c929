"""What holds for every unit test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring as keyring_package
import pytest
from hypothesis import settings
from keyrings.alt.file import PlaintextKeyring

# A busy machine is no fault of the code: only the tests' own time limit counts.
settings.register_profile("impyard", deadline=None)
settings.load_profile("impyard")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[PlaintextKeyring]:
    """The system's keyring, while a test lasts: one in a file of the test's."""
    before = keyring_package.get_keyring()
    ring = PlaintextKeyring()
    ring.file_path = str(tmp_path / "keyring.cfg")
    keyring_package.set_keyring(ring)
    yield ring
    keyring_package.set_keyring(before)
