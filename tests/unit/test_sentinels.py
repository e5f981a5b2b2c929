"""Sentinels have the shape that clients look at, and nothing of the real value but what is public of it."""

from __future__ import annotations

import base64
import itertools
import json
import re
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.vault.credential import FAR_FUTURE_MS, Credential
from impyard.addon.vault.sentinels import MARK_LENGTH, TAG_LENGTH, Sentinels, mint, public_prefix

LETTERS = string.ascii_letters + string.digits
PREFIXES = [
    *("sk-ant-api03-", "sk-ant-oat01-", "sk-ant-ort01-", "sk-ant-admin01-", "sk-proj-", "sk-svcacct-", "sk-"),
    *("sk-or-v1-", "AIza", "ghp_", "gho_", "ghu_", "ghs_", "github_pat_", "glpat-", "npm_", "gsk_", "xai-", "hf_"),
    *("nvapi-", "pypi-"),
]

secrets_ = st.one_of(
    st.builds(str.__add__, st.sampled_from(PREFIXES), st.text(LETTERS + "-_", min_size=20, max_size=300)),
    st.text("".join(map(chr, range(33, 127))), min_size=1, max_size=300),
    st.text(string.hexdigits[:16], min_size=32, max_size=64),
)


def key(value: str, name: str = "one", **more: str) -> Credential:
    return Credential(name=name, kind="api_key", key=value, fields=more)


def made(value: str) -> str:
    return mint([key(value)]).by_name["one"].key


def jwt(payload: dict[str, object], signature: str = "c2lnbmF0dXJlLW9mLXRoZS1yZWFsLW9uZQ") -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return ".".join((part({"alg": "RS256", "kid": "real-key-id"}), part(payload), signature))


def shared(a: str, b: str) -> int:
    """The length of the longest text that both hold."""
    longest = 0
    for start in range(len(a)):
        while a[start : start + longest + 1] in b and start + longest < len(a):
            longest += 1
    return longest


@given(secrets_)
def test_of_the_real_value_only_the_public_prefix_is_in_it(real: str) -> None:
    sentinel = made(real)
    prefix = public_prefix(real)
    assert sentinel.startswith(prefix)
    if len(real) - len(prefix) >= 12:
        assert shared(sentinel[len(prefix) :], real[len(prefix) :]) < 12


@given(secrets_)
def test_it_goes_wherever_the_real_one_goes(real: str) -> None:
    """No character that a shell, an address, a header or a file with lines would take for more than a letter."""
    assert re.fullmatch(r"[A-Za-z0-9_-]+", made(real))


@given(secrets_)
def test_it_is_about_as_long_as_the_real_one(real: str) -> None:
    prefix = public_prefix(real)
    least = len(prefix) + MARK_LENGTH + TAG_LENGTH + 26
    assert min(len(real), 200) <= len(made(real)) <= max(min(len(real), 200), least + 2)


@given(secrets_)
def test_it_has_the_kinds_of_characters_of_the_real_one(real: str) -> None:
    rest = made(real)[len(public_prefix(real)) + MARK_LENGTH + TAG_LENGTH :]
    for kind in (string.ascii_uppercase, string.digits, "-", "_"):
        if not any(character in real for character in kind):
            assert not any(character in rest for character in kind)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_public_prefix_is_kept(prefix: str) -> None:
    real = prefix + "Q7" * 40
    assert public_prefix(real) == prefix
    assert made(real).startswith(prefix)
    assert "Q7Q7" not in made(real)


@given(st.lists(secrets_, min_size=1, max_size=6, unique=True))
def test_the_mark_is_in_each_and_the_tag_says_whose_it_is(values: list[str]) -> None:
    credentials = [
        Credential(name=f"n{n}", kind="oauth", access=value, refresh=value[::-1], fields={"more": value})
        for n, value in enumerate(values)
    ]
    sentinels = mint(credentials)
    found = [
        (credential.name, field, value)
        for credential in sentinels.by_name.values()
        for field, value in credential.secrets().items()
    ]
    assert len(found) == 3 * len(values)
    for name, field, value in found:
        before, mark, after = value.partition(sentinels.mark)
        assert mark and sentinels.mark not in before + after
        assert sentinels.owner(after) == (name, field)
    for (_, _, a), (_, _, b) in itertools.permutations(found, 2):
        assert a not in b


def test_two_runs_have_nothing_in_common() -> None:
    a, b = (mint([key("sk-" + "x" * 60)]) for _ in range(2))
    assert a.mark != b.mark
    assert shared(a.by_name["one"].key, b.by_name["one"].key) < 14  # "sk-" and what every mark begins with
    assert b.owner(a.by_name["one"].key.partition(a.mark)[2]) is None


def test_what_is_no_sentinel_has_no_owner() -> None:
    sentinels = mint([key("sk-" + "x" * 60)])
    assert sentinels.owner("") is None
    assert sentinels.owner("aaaaaaaaaaaaaaa") is None
    assert Sentinels("impyard0123456789").owner("aaaaaa") is None


def test_each_has_enough_that_cannot_be_guessed() -> None:
    """After mark and tag at least 26 characters of at least 26 kinds, of which none is foreseen: 120 bits, and the
    36 kinds of each of the sixteen before that."""
    first, second = mint([key("abcdefghijkl"), key("abcdefghijkl", "two")]).by_name.values()
    assert len(first.key) >= MARK_LENGTH + TAG_LENGTH + 26
    assert shared(first.key[MARK_LENGTH + TAG_LENGTH :], second.key[MARK_LENGTH + TAG_LENGTH :]) < 8


def test_random_that_is_none_gives_no_sentinels() -> None:
    with pytest.raises(RuntimeError):
        mint([key("a" * 20), key("b" * 20, "two")], lambda count: bytes(count))


def test_a_token_keeps_its_form_and_names_a_made_up_account() -> None:
    account = "11111111-2222-3333-4444-555555555555"
    real = jwt(
        {"email": "ada@example.invalid", "https://api.openai.com/auth": {"chatgpt_account_id": account, "plan": "pro"}}
    )
    credential = Credential(
        name="openai-codex", kind="oauth", access=real, refresh="rt_abcdefgh12345678", account=account
    )
    sentinels = mint([credential])
    stand_in = sentinels.by_name["openai-codex"]
    head, payload, signature = stand_in.access.split(".")
    assert not set(payload) & set("-_+/=")
    claims = json.loads(base64.b64decode(payload + "=" * (-len(payload) % 4)))
    made_up = claims["https://api.openai.com/auth"]["chatgpt_account_id"]
    assert made_up == stand_in.account != account
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made_up)
    assert claims["exp"] * 1000 == FAR_FUTURE_MS == stand_in.expires
    assert signature.startswith(sentinels.mark)
    assert "ada@example" not in str(claims) and "pro" not in str(claims)
    assert json.loads(base64.b64decode(head + "=="))["typ"] == "JWT"


@given(st.text(), st.text(LETTERS, min_size=1))
def test_the_payload_of_any_token_is_in_both_alphabets(text: str, signature: str) -> None:
    payload = made(jwt({"sub": text}, signature)).split(".")[1]
    assert not set(payload) & set("-_+/=")
    assert "https://api.openai.com/auth" not in json.loads(base64.b64decode(payload + "=" * (-len(payload) % 4)))


@pytest.mark.parametrize("body", ["e30", "AAAA", "bm90IGpzb24", "W10", "eyJhIjoxfQ=="])
def test_a_token_whose_payload_is_something_else_is_still_replaced(body: str) -> None:
    assert made(f"eyJhbGciOiJub25lIn0.{body}.sig").count(".") == 2


def test_copilots_token_leads_to_the_same_place() -> None:
    real = (
        "tid=0a1b2c3d4e5f;exp=1795971844;sku=free;proxy-ep=proxy.individual.githubcopilot.com;st=dotcom;8kp=1:deadbeef"
    )
    sentinels = mint([Credential(name="github-copilot", kind="oauth", access=real, refresh="ghu_" + "a1" * 18)])
    found = sentinels.by_name["github-copilot"]
    fields = dict(part.split("=", 1) for part in found.access.split(";"))
    assert fields["proxy-ep"] == "proxy.individual.githubcopilot.com"
    assert fields["tid"].startswith(sentinels.mark)
    assert int(fields["exp"]) * 1000 == FAR_FUTURE_MS
    assert "0a1b2c3d4e5f" not in found.access and "deadbeef" not in found.access
    assert found.refresh.startswith("ghu_")


@pytest.mark.parametrize("place", ["x", "proxy.a.test/evil", "proxy a.test", "", "-"])
def test_only_a_host_name_is_taken_over_from_copilots_token(place: str) -> None:
    assert "proxy-ep" not in made(f"tid=0a1b2c3d4e5f;proxy-ep={place};8kp=1:deadbeef")


def test_what_pi_keeps_with_a_login_comes_along_without_secrets() -> None:
    real = "ghu_" + "a1" * 18
    extra = {"enterpriseUrl": "ghe.test", "availableModelIds": ["m1"], "note": f"token {real}"}
    credential = Credential(name="github-copilot", kind="oauth", access="tid=1", refresh=real, extra=extra, source="pi")
    stand_in = mint([credential]).by_name["github-copilot"]
    assert stand_in.extra == {"enterpriseUrl": "ghe.test", "availableModelIds": ["m1"]}
    assert (stand_in.source, stand_in.pi_file, stand_in.failure) == ("", "", None)


def test_an_empty_field_stays_empty() -> None:
    stand_in = mint([Credential(name="c", kind="oauth", access="sk-ant-oat01-" + "x" * 80)]).by_name["c"]
    assert (stand_in.key, stand_in.refresh, stand_in.account) == ("", "", "")
    assert stand_in.access.startswith("sk-ant-oat01-")


def test_they_come_through_json_as_they_are() -> None:
    sentinels = mint([key("sk-" + "x" * 60, extra_header="v" * 30)])
    text = msgspec.json.encode(sentinels.by_name)
    assert msgspec.json.decode(text, type=dict[str, Credential]) == sentinels.by_name
    assert sentinels.by_name["one"].fields["extra_header"] in text.decode()


def test_no_credentials_no_sentinels_but_a_mark() -> None:
    assert mint([]).by_name == {}
    assert re.fullmatch(r"impyard[a-z0-9]{10}", mint([]).mark)
