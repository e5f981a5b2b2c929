"""`impyard gateway` serves this machine only. (That it judges is in tests/gateway.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import cli
from impyard.runner.gateway_cmd import parse_listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7300", ("127.0.0.1", 7300)),
        ("127.8.8.8:1", ("127.8.8.8", 1)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("7301", ("127.0.0.1", 7301)),
        (":7301", ("127.0.0.1", 7301)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_loopback_addresses_are_taken(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text", ["0.0.0.0:7300", "[::]:7300", "192.168.1.2:7300", "203.0.113.1:7300", "[::ffff:192.168.1.2]:7300"]
)
def test_addresses_that_others_reach_are_refused(text: str) -> None:
    with pytest.raises(ImpyardError, match="other machines"):
        parse_listen(text)


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "a.test:1", "::1:1x"]
)
def test_what_is_no_address_is_one_clear_error(text: str) -> None:
    with pytest.raises(ImpyardError, match="--listen"):
        parse_listen(text)


def test_an_address_that_it_cannot_take_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gateway", "--listen", "203.0.113.1:80"]) == 2
    assert "a loopback address" in capsys.readouterr().err


def test_a_missing_policy_is_an_error_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gateway", "--project", str(tmp_path), "--listen", "0"]) == 1
    captured = capsys.readouterr()
    assert "there is no policy" in captured.err
    assert "impyard init" in captured.err
    assert not (tmp_path / "runs").exists()
