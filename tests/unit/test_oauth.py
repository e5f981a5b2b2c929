"""Which request renews a login, and what its answer means."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from impyard.addon.vault.credential import Credential, TokenEndpoint
from impyard.addon.vault.oauth import (
    CODEX_CLAIM,
    CannotRenew,
    Refused,
    Renewed,
    codex_account,
    is_usable,
    read_answer,
    request_for,
)

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
REFRESH = "old-refresh-token-0123456789"


def login(name: str, **more: Any) -> Credential:
    return Credential(name, "oauth", access="old-access", refresh=REFRESH, expires=NOW_MS - 1, **more)


def read(credential: Credential, content: object, status: int = 200, **more: Any) -> Renewed | Refused:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_answer(credential, status, body, now_ms=NOW_MS, **more)


def jwt(claims: object) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{middle}.c2ln"


CODEX_JWT = jwt({CODEX_CLAIM: {"chatgpt_account_id": "acct-7"}, "name": "ÿÿÿ???"})


FORM = "application/x-www-form-urlencoded"
AS_PI = [
    (
        "anthropic",
        "https://platform.claude.com/v1/oauth/token",
        "application/json",
        b'{"grant_type": "refresh_token", "client_id": "9d1c250a-e61b-44d9-88ed-5944d1962f5e", "refresh_token": "%s"}',
    ),
    (
        "openai-codex",
        "https://auth.openai.com/oauth/token",
        FORM,
        b"grant_type=refresh_token&client_id=app_EMoamEEZ73f0CkXaXp7hrann&refresh_token=%s",
    ),
    (
        "openai",
        "https://auth.openai.com/api/accounts/oauth/token",
        FORM,
        b"grant_type=refresh_token&client_id=issued-5&refresh_token=%s&resource=https%%3A%%2F%%2Fapi.openai.com%%2Fv1",
    ),
    (
        "xai",
        "https://auth.x.ai/oauth2/token",
        FORM,
        b"grant_type=refresh_token&client_id=b1a00492-073a-47ea-816f-4c329264a828&refresh_token=%s",
    ),
    (
        "kimi-coding",
        "https://auth.kimi.com/api/oauth/token",
        FORM,
        b"grant_type=refresh_token&client_id=17e5f671-d194-4dfb-9706-5516cb48c098&refresh_token=%s",
    ),
]


@pytest.mark.parametrize(("name", "url", "kind", "body"), AS_PI, ids=[case[0] for case in AS_PI])
def test_a_login_is_renewed_with_the_request_that_pi_makes(name: str, url: str, kind: str, body: bytes) -> None:
    request = request_for(login(name, extra={"clientId": "issued-5"}))
    assert (request.method, request.url, dict(request.headers)["content-type"]) == ("POST", url, kind)
    assert request.body == body % REFRESH.encode()


def test_copilots_token_is_fetched_with_the_github_token() -> None:
    request = request_for(login("github-copilot"))
    assert (request.method, request.url) == ("GET", "https://api.github.com/copilot_internal/v2/token")
    assert dict(request.headers)["authorization"] == f"Bearer {REFRESH}"
    assert request.body == b""


@pytest.mark.parametrize("named", ["company.ghe.com", "https://company.ghe.com/path", " company.ghe.com "])
def test_copilot_of_an_enterprise_is_asked_there(named: str) -> None:
    request = request_for(login("github-copilot", extra={"enterpriseUrl": named}))
    assert request.url == "https://api.company.ghe.com/copilot_internal/v2/token"


@pytest.mark.parametrize(
    "named",
    ["evil.test:8443@127.0.0.1", "a b.test", "127.0.0.1", "[::1]", "https://[", "a\r\nb.test", "x", "a..b.test"],
)
def test_an_enterprise_that_is_no_name_is_asked_nothing(named: str) -> None:
    with pytest.raises(CannotRenew, match="enterpriseUrl"):
        request_for(login("github-copilot", extra={"enterpriseUrl": named}))


def test_a_credential_of_another_name_is_renewed_as_its_provider_is() -> None:
    assert request_for(login("work", provider="xai")).url == "https://auth.x.ai/oauth2/token"


def test_an_endpoint_of_its_own_replaces_that_of_the_provider() -> None:
    own = TokenEndpoint("https://login.example.test/t", "form", "my-client", "/etc/ca.pem")
    request = request_for(login("anthropic", token_endpoint=own))
    assert (request.url, request.ca) == ("https://login.example.test/t", "/etc/ca.pem")
    assert request.body == f"grant_type=refresh_token&client_id=my-client&refresh_token={REFRESH}".encode()


def test_an_unknown_provider_with_an_endpoint_is_renewed_by_the_book() -> None:
    request = request_for(login("intranet", token_endpoint=TokenEndpoint("https://login.example.test/t")))
    assert json.loads(request.body) == {"grant_type": "refresh_token", "refresh_token": REFRESH}


@pytest.mark.parametrize(
    ("credential", "why"),
    [
        (login("intranet"), "does not know how"),
        (login("openai"), "client id"),
        (login("openai", extra={"clientId": " "}), "client id"),
        (Credential("openrouter", "oauth", access="sk-or-1"), "no refresh token"),
        (Credential("xai", "oauth", refresh="a\r\nx: y"), "damaged"),
    ],
)
def test_what_cannot_be_renewed_says_why(credential: Credential, why: str) -> None:
    with pytest.raises(CannotRenew, match=why):
        request_for(credential)


@pytest.mark.parametrize(
    ("name", "early_s"), [("anthropic", 300), ("openai", 180), ("xai", 300), ("kimi-coding", 0), ("intranet", 0)]
)
def test_new_tokens_end_as_early_as_pi_notes_it(name: str, early_s: int) -> None:
    answer = {
        "access_token": "new",
        "refresh_token": "next",
        "expires_in": 3600,
        "scope": "a chatgpt.tokens.use.direct",
    }
    got = read(login(name), answer)
    assert isinstance(got, Renewed)
    assert (got.access, got.refresh, got.expires) == ("new", "next", NOW_MS + HOUR_MS - early_s * 1000)


def test_an_answer_without_a_refresh_token_keeps_the_old_one() -> None:
    for absent in ({}, {"refresh_token": None}, {"refresh_token": ""}):
        got = read(login("kimi-coding"), {"access_token": "new", "expires_in": 3600, **absent})
        assert isinstance(got, Renewed)
        assert got.refresh == ""


def test_xai_may_leave_out_for_how_long_its_token_is_good() -> None:
    got = read(login("xai"), {"access_token": "new"})
    assert isinstance(got, Renewed)
    assert got.expires == NOW_MS + HOUR_MS - 300_000


NO_LIFE: list[Any] = [None, "3600", True, 0, -1, -3600, 60, 30.5, 1e300, 10**30, [3600], {"s": 3600}]


@pytest.mark.parametrize("life", NO_LIFE, ids=repr)
def test_a_token_of_unknown_or_absurd_life_is_not_used(life: object) -> None:
    got = read(login("kimi-coding"), {"access_token": "new", "refresh_token": "next", "expires_in": life})
    assert isinstance(got, Refused)
    assert got.refresh == "next"  # the old one may be spent all the same
    assert "new" not in got.what and "next" not in got.what


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_life_that_json_does_not_have_is_garbage(word: bytes) -> None:
    got = read(login("kimi-coding"), b'{"access_token": "new", "expires_in": %s}' % word)
    assert isinstance(got, Refused)


def test_a_short_life_is_not_spent_on_pis_margin() -> None:
    got = read(login("anthropic"), {"access_token": "new", "expires_in": 400})
    assert isinstance(got, Renewed)
    assert got.expires == NOW_MS + 200_000


UNFIT: list[Any] = [
    "a\r\nx-evil: 1",
    "a\nb",
    "a\0b",
    "tab\there",
    "nbsp\u00a0",
    "ä",
    "\U0001f511",
    " x",
    "x y",
    "a" * 16385,
    5,
    ["a"],
]


@pytest.mark.parametrize("token", UNFIT, ids=lambda token: repr(token)[:20])
def test_an_access_token_that_is_not_fit_for_a_header_is_refused(token: object) -> None:
    got = read(login("xai"), {"access_token": token, "refresh_token": "next", "expires_in": 3600})
    assert isinstance(got, Refused)
    assert "not fit for a header" in got.what
    assert got.refresh == "next"


@pytest.mark.parametrize("token", [token for token in UNFIT if token], ids=lambda token: repr(token)[:20])
def test_a_refresh_token_that_cannot_be_one_is_not_kept(token: object) -> None:
    got = read(login("xai"), {"access_token": "new", "refresh_token": token, "expires_in": 3600})
    assert isinstance(got, Refused)
    assert got.refresh == ""


GARBAGE = [
    b"",
    b"OK",
    b"<html>Log in</html>",
    b"[]",
    b'"text"',
    b"null",
    b"{",
    b"\xff\xfe{}",
    b"[" * 60_000,
    b'{"a":' * 9_000,
]


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: repr(body[:12]))
def test_an_answer_that_is_no_object_is_refused(body: bytes) -> None:
    got = read(login("anthropic"), body)
    assert got == Refused("the token endpoint's answer is not JSON")


def test_codex_tokens_name_the_account() -> None:
    answer = {"access_token": CODEX_JWT, "refresh_token": "next", "expires_in": 3600}
    got = read(login("openai-codex", account="acct-6"), answer)
    assert isinstance(got, Renewed)
    assert got.account == "acct-7"


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b",
        "a.b.c.d",
        "a.!!.c",
        jwt([]),
        jwt({CODEX_CLAIM: "acct"}),
        jwt({CODEX_CLAIM: {"chatgpt_account_id": ""}}),
        jwt({CODEX_CLAIM: {"chatgpt_account_id": "a\r\nx: y"}}),
        jwt({CODEX_CLAIM: {"chatgpt_account_id": 7}}),
    ],
)
def test_a_codex_token_without_an_account_is_refused(token: str) -> None:
    assert codex_account(token) == ""
    got = read(login("openai-codex"), {"access_token": token, "refresh_token": "next", "expires_in": 3600})
    assert got == Refused("the new access token names no account", refresh="next")


@pytest.mark.parametrize("scope", [None, 5, "", "openid", "chatgpt.tokens.use.directly"])
def test_an_openai_login_without_its_scope_is_refused(scope: object) -> None:
    got = read(login("openai"), {"access_token": "new", "expires_in": 3600, "scope": scope})
    assert isinstance(got, Refused)


def test_an_openai_logins_scopes_are_kept() -> None:
    got = read(
        login("openai"), {"access_token": "new", "expires_in": 3600, "scope": "openid chatgpt.tokens.use.direct"}
    )
    assert isinstance(got, Renewed)
    assert got.extra == {"scopes": ["openid", "chatgpt.tokens.use.direct"]}


def test_a_copilot_token_ends_by_its_servers_clock() -> None:
    answer = {"token": "tid=1;exp=2;proxy-ep=proxy.x.test", "expires_at": NOW_MS / 1000 + 7200 + 1800}
    ahead = read(login("github-copilot"), answer, server_ms=NOW_MS + 2 * HOUR_MS)
    assert isinstance(ahead, Renewed)
    assert (ahead.refresh, ahead.expires) == ("", NOW_MS + 1_500_000)
    without = read(login("github-copilot"), answer)
    assert isinstance(without, Renewed)
    assert without.expires == NOW_MS + 2 * HOUR_MS + 1_500_000


@pytest.mark.parametrize("end", [None, "soon", 0, NOW_MS / 1000 - 1, NOW_MS / 1000 + 59, NOW_MS, 1e18])
def test_a_copilot_token_of_no_use_is_refused(end: object) -> None:
    assert isinstance(read(login("github-copilot"), {"token": "tid=1", "expires_at": end}), Refused)


def test_a_copilot_answer_cannot_replace_the_github_token() -> None:
    got = read(
        login("github-copilot"), {"token": "t", "expires_at": NOW_MS / 1000 + 1800, "refresh_token": "gho_other"}
    )
    assert isinstance(got, Renewed)
    assert got.refresh == ""


@pytest.mark.parametrize(
    ("status", "content", "what", "final"),
    [
        (400, {"error": "invalid_grant"}, "400 invalid_grant", True),
        (401, {"error": {"code": "refresh_token_reused", "message": "no"}}, "401 refresh_token_reused", True),
        (400, {"error": "invalid_client"}, "400 invalid_client", False),
        (500, {"error": "invalid_grant"}, "500 invalid_grant", False),  # of a server that is out of order
        (429, {"error": {"type": "rate_limit_error"}}, "429 rate_limit_error", False),
        (302, b"", "302", False),
        (503, b"<html>", "503", False),
        (400, {"error": "Refresh token " + REFRESH}, "400", False),
        (400, {"error": REFRESH}, "400", False),
        (400, {"error": "a" * 41}, "400", False),
        (400, {"error": "invalid_grant\r\nx"}, "400", False),
        (400, {"error": ["invalid_grant"]}, "400", False),
        (400, ["invalid_grant"], "400", False),
    ],
)
def test_a_refusal_tells_status_and_plain_code_alone(status: int, content: object, what: str, final: bool) -> None:
    assert read(login("xai"), content, status) == Refused(f"the token endpoint answered {what}", final)


def test_a_code_that_is_a_secret_is_not_told() -> None:
    credential = Credential("xai", "oauth", refresh="plain_looking_token")
    for error in ("plain_looking_token", "looking_token", "my_plain_looking_token"):
        got = read(credential, {"error": error}, 400)
        assert got == Refused("the token endpoint answered 400")


@pytest.mark.parametrize(
    ("credential", "usable"),
    [
        (Credential("x", "api_key", key="k"), True),
        (Credential("x", "api_key", fields={"a": "b"}), True),
        (Credential("x", "api_key"), False),
        (Credential("x", "oauth", access="a"), True),
        (Credential("x", "oauth", access="a", expires=NOW_MS + 60_001), True),
        (Credential("x", "oauth", access="a", expires=NOW_MS + 60_000), False),
        (Credential("x", "oauth", access="a", expires=NOW_MS - 1), False),
        (Credential("x", "oauth", refresh="r", expires=NOW_MS + HOUR_MS), False),
    ],
)
def test_what_is_usable_is_good_for_more_than_a_minute(credential: Credential, usable: bool) -> None:
    assert is_usable(credential, NOW_MS) is usable


def test_no_value_shows_when_requests_and_answers_are_printed() -> None:
    shown = [repr(request_for(login(name))) for name in ("xai", "github-copilot")]
    answer = {"access_token": "new-access", "refresh_token": "new-refresh", "expires_in": 3600}
    shown += [repr(read(login("xai"), answer)), repr(read(login("xai"), {**answer, "expires_in": -1}))]
    for text in shown:
        assert not any(value in text for value in (REFRESH, "new-access", "new-refresh")), text
