"""Tests against the real engine: see tests/support/boxes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boxes import (  # noqa: F401 - fixtures
    MakeProject,
    box_image,
    make_project,
    needs_root,
    ordinary_container,
    ordinary_user,
    project,
    skip,
    this_user,
)

BUILD_LIMIT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test may have to wait for the image to be built."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_LIMIT_S))
            return


@pytest.fixture(scope="session", autouse=True)
def _image_is_there(box_image: str) -> None:  # noqa: F811
    """Also for tests that name no fixture."""
