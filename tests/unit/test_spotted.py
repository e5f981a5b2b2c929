"""What the tripwire found, as it is counted and said."""

from __future__ import annotations

from typing import Any

from impyard.runner.spotted import MAX_KINDS, Spotted, record_text, secret_text
from impyard.runner.text import unstarred


def event(**more: Any) -> dict[str, Any]:
    secret = {"credential": "github", "kind": "sentinel", "where": "header x-foo", **more}
    return {"event": "denied", "method": "POST", "host": "example.com", "path": "/x", "secret": secret}


def test_what_was_found_is_said_with_the_credential_and_the_place() -> None:
    spotted = Spotted()
    spotted.see(event())
    (record,) = spotted.records()
    assert record_text(record) == "1 request held the stand-in of github: POST example.com/x (header x-foo)"
    spotted.see(event())
    assert record_text(spotted.records()[0]).startswith("2 requests held the stand-in of github")
    assert secret_text(event(kind="value", where="body")["secret"]) == "the real value of github in the body"


def test_a_denial_for_another_reason_is_not_counted() -> None:
    spotted = Spotted()
    spotted.see({"event": "denied", "method": "GET", "host": "example.com", "reason": "no-rule"})
    assert (spotted.requests, spotted.records()) == (0, [])


def test_what_the_box_made_up_neither_grows_without_end_nor_commands_a_terminal() -> None:
    spotted = Spotted()
    for number in range(MAX_KINDS + 50):
        spotted.see(event(where=f"header x-{number}\x1b[31m"))
    assert spotted.requests == MAX_KINDS + 50
    assert len(spotted.records()) == MAX_KINDS
    assert "\x1b" not in record_text(spotted.records()[0])


def test_a_long_row_of_stars_that_a_masked_value_left_is_shown_as_three() -> None:
    spotted = Spotted()
    spotted.see({**event(where=f"header x-{'*' * 40}"), "path": f"/a/{'*' * 108}/b"})
    assert record_text(spotted.records()[0]).endswith("POST example.com/a/***/b (header x-***)")
    assert unstarred("/glob/********") == "/glob/********"
