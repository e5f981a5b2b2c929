"""The limits of a gateway, and that docs/limits.md names each with its number."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.limits import DEFAULTS, KIB, MIB, Limits, limits_of
from impyard.addon.policybeside import AT_ONCE_S, LIMIT_S
from impyard.addon.policysource import AT_ONCE_BYTES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "limits.md"


def shown(name: str, value: float) -> str:
    """A limit as the document writes it."""
    if name.endswith("_s") and not name.endswith("_per_s"):
        return f"{value:g} s"
    if "bytes" in name:
        return f"{value // MIB:g} MiB" if value >= MIB else f"{value // KIB:g} KiB"
    return f"{value:,}".replace(",", " ")


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_each_limit_is_documented_with_its_number(name: str) -> None:
    assert f"`{name}`, {shown(name, getattr(DEFAULTS, name))}" in DOCUMENT.read_text()


def test_how_soon_a_changed_policy_is_in_force_is_documented() -> None:
    text = DOCUMENT.read_text()
    much = f"{AT_ONCE_BYTES // KIB} KiB or {AT_ONCE_S * 1000:g} ms"
    assert f"changed policy of more than {much}, until it is in force | {LIMIT_S:g} s" in text
    assert f"From {LIMIT_S:g} seconds of\nloading" in text


def test_some_may_be_replaced() -> None:
    assert Limits.from_dict({"headers": 3}) == Limits(headers=3)


@pytest.mark.parametrize("given", [{"head": 3}, {"headers": "3"}, {"headers": None}, {"headers": True}])
def test_what_is_no_limit_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ImpyardError, match="no limit"):
        Limits.from_dict(given)


def test_a_client_of_other_peoples_mitmproxy_has_the_defaults() -> None:
    assert limits_of(object()) is DEFAULTS
