"""The tripwire: what it finds, in which spellings, and what it leaves alone."""

from __future__ import annotations

import base64
import itertools
import os
import random
import time
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.percent import decoded
from impyard.addon.vault.sentinels import Sentinels
from impyard.addon.vault.tripwire import UNKNOWN, Found, Kind, Tripwire
from tests.support.fuzz import examples

MARK = "impyardq7k2m9x4tb"
SENTINEL = f"ghp_{MARK}a1b2c3Zm0Qk2"
KEY = "sk-ant-api03-T4x9wKzQ7mB2-fa_Lr8"
JWT = (
    "eyJhbGciOiJSUzI1NiJ9." + base64.urlsafe_b64encode(bytes(range(200))).decode().rstrip("=") + ".sIg" + "q0R_9-" * 60
)
ODD = "p@ss/word+with=signs~?>é"
ROOT = Path(__file__).resolve().parents[2]


TAGS = Sentinels(MARK, tags={"a1b2c3": ("github", "key"), "d4e5f6": ("npm", "key")})
REAL = [
    Credential("anthropic", "api_key", key=KEY),
    Credential("codex", "oauth", access=JWT, refresh="rt_" + "Kd83hs0Qp1" * 4),
    Credential("odd", "api_key", key=ODD),
    Credential("short", "api_key", key="elevenchars"),
    Credential("proxy", "api_key", fields={"auth": "Bearer 8hA0dj2KJw9s"}),
]
TRIPWIRE = Tripwire(TAGS, REAL)
SECRETS = {"github": SENTINEL, "anthropic": KEY, "codex": JWT, "odd": ODD}


def kind(name: str) -> Kind:
    return "sentinel" if name == "github" else "value"


def every_code(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def some_codes(text: str) -> str:
    return "".join(every_code(letter).upper() if at % 3 else letter for at, letter in enumerate(text))


def wrapped(before: int, end: str, width: int = 76, altchars: bytes = b"+/") -> Callable[[str], str]:
    def encode(text: str) -> str:
        whole = base64.b64encode(b"#" * before + text.encode() + b"!" * 90, altchars).decode()
        return end.join(whole[at : at + width] for at in range(0, len(whole), width))

    return encode


WAYS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent-encoded": every_code,
    "partly percent-encoded": some_codes,
    "percent-encoded twice": lambda text: every_code(every_code(text)),
    "partly percent-encoded twice": lambda text: some_codes(every_code(text)),
    "percent-encoded behind percent signs": lambda text: "%%%" + every_code(text),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64 in a query": lambda text: base64.b64encode(text.encode()).decode().replace("=", "%3D").replace("+", "%2B"),
    "basic authentication": lambda text: "Basic " + base64.b64encode(f"user:{text}".encode()).decode(),
    "base64, all percent-encoded": lambda text: every_code(base64.b64encode(text.encode()).decode()),
}
for shift in range(3):
    WAYS[f"base64 behind {shift}"] = wrapped(shift, "", 10**6)
    WAYS[f"url-safe base64 behind {shift}"] = wrapped(shift, "", 10**6, altchars=b"-_")
for shift in (*range(3), 50, 60, 64, 70, 75):
    WAYS[f"wrapped base64 behind {shift}"] = wrapped(shift, "\r\n")
WAYS["wrapped base64 in JSON"] = wrapped(40, "\\n", 64)
WAYS["wrapped base64 in a form"] = lambda text: wrapped(40, "%0D%0A", 60)(text).replace("+", "%2B").replace("/", "%2F")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_however_it_is_encoded(name: str, way: str) -> None:
    data = ("some text before it, 100% plain " * 9 + WAYS[way](SECRETS[name]) + ' and "after"').encode()

    assert TRIPWIRE.look(data, ()) == Found(name, kind(name))
    assert TRIPWIRE.look(data, {name}) is None
    assert TRIPWIRE.look(data, {"npm"}) == Found(name, kind(name))
    assert Tripwire(None, []).look(data, ()) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_is_found_in_the_pieces_of_a_stream(way: str) -> None:
    for name, secret in SECRETS.items():
        data = ("x" * 9 + WAYS[way](secret) + "y" * 9).encode()
        for size in (1 if name == "github" else 13, 64):
            assert in_pieces(TRIPWIRE, data, size, ()) == Found(name, kind(name))
            assert in_pieces(TRIPWIRE, data, size, {name}) is None


def in_pieces(tripwire: Tripwire, data: bytes, size: int, bound: Collection[str]) -> Found | None:
    follower = tripwire.follow(bound)
    found = [follower.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return next(filter(None, [*found, follower.end()]), None)


@pytest.mark.parametrize("way", ["plain", "partly percent-encoded", "base64 behind 1", "wrapped base64 behind 64"])
@pytest.mark.parametrize("name", ["github", "anthropic"])
def test_a_secret_is_found_cut_at_any_offset(name: str, way: str) -> None:
    data = b"a" * 20 + WAYS[way](SECRETS[name]).encode() + b"z" * 20
    for cut in range(len(data)):
        follower = TRIPWIRE.follow(())
        found = [follower.feed(data[:cut]), follower.feed(data[cut:]), follower.end()]
        assert any(each == Found(name, kind(name)) for each in found)


def test_it_is_told_before_the_last_byte_of_a_value_goes_on() -> None:
    follower = TRIPWIRE.follow(())
    told = [follower.feed(bytes([byte])) for byte in KEY.encode()]

    assert told == [None] * (len(KEY) - 1) + [Found("anthropic", "value")]


def test_a_mark_whose_tag_is_nobodys_is_found() -> None:
    for text in (MARK, MARK + "zzzzzz", MARK + "a1b2", base64.b64encode(b"<" + MARK.encode() + b">").decode()):
        assert TRIPWIRE.look(text.encode(), {"github"}) == Found(UNKNOWN, "sentinel")
        assert in_pieces(TRIPWIRE, text.encode(), 1, {"github"}) == Found(UNKNOWN, "sentinel")


def test_sentinels_pass_where_the_policy_says_so_but_values_do_not() -> None:
    text = f"{SENTINEL} {MARK} {base64.b64encode(SENTINEL.encode()).decode()}"

    assert TRIPWIRE.look(text.encode(), (), sentinels_pass=True) is None
    assert TRIPWIRE.look(f"{text} {KEY}".encode(), (), sentinels_pass=True) == Found("anthropic", "value")


def test_what_is_bound_does_not_hide_what_is_not() -> None:
    both = f"{SENTINEL}{MARK}d4e5f6 {KEY}{KEY}".encode()

    assert TRIPWIRE.look(both, {"github", "anthropic"}) == Found("npm", "sentinel")
    assert TRIPWIRE.look(both, {"github", "npm"}) == Found("anthropic", "value")
    assert TRIPWIRE.look(both, {"github", "npm", "anthropic"}) is None


def test_a_value_that_two_credentials_have_is_allowed_where_one_of_them_is() -> None:
    tripwire = Tripwire(None, [Credential("one", "api_key", key=KEY), Credential("two", "api_key", key=f"x {KEY} y")])

    assert tripwire.look(KEY.encode(), {"one"}) is None
    assert tripwire.look(f"x {KEY} y".encode(), {"two"}) is None
    assert tripwire.look(KEY.encode(), {"three"}) == Found("one", "value")


def test_the_end_of_a_long_value_is_enough() -> None:
    assert TRIPWIRE.look(JWT[-100:].encode(), ()) == Found("codex", "value")
    assert TRIPWIRE.look(JWT[:100].encode(), ()) is None


def test_the_word_behind_a_scheme_is_a_value_of_its_own() -> None:
    assert TRIPWIRE.look(b"x-key: 8hA0dj2KJw9s", ()) == Found("proxy", "value")


def test_a_value_of_fewer_than_twelve_characters_is_not_looked_for() -> None:
    assert TRIPWIRE.look(b"elevenchars", ()) is None


def test_another_case_is_found_where_case_is_lost() -> None:
    tripwire = Tripwire(None, REAL, any_case=True)

    assert tripwire.look(KEY.lower().encode() + b".example.com", ()) == Found("anthropic", "value")
    assert TRIPWIRE.look(KEY.lower().encode(), ()) is None


@pytest.mark.parametrize("text", ["impyard", "impyardq7k2m9x4t", "sk-ant-api03-T4x9wKzQ7mB2-fa_Lr", "%69mpyard%%%"])
def test_what_only_resembles_a_secret_passes(text: str) -> None:
    for way in WAYS.values():
        assert TRIPWIRE.look(way(text).encode(), ()) is None


def test_the_sources_of_this_project_pass() -> None:
    sources = b"\n".join(path.read_bytes() for path in sorted(ROOT.glob("addon/*.py")))

    assert b"impyard" in sources
    for data in (sources, base64.encodebytes(sources), every_code(sources.decode()).encode()):
        assert TRIPWIRE.look(data, ()) is None


def test_a_hundred_megabytes_of_noise_pass() -> None:
    for number in range(5):
        noise = random.Random(number).randbytes(10 << 20)
        assert TRIPWIRE.look(noise, ()) is None
        assert TRIPWIRE.look(base64.b64encode(noise), ()) is None


@pytest.mark.parametrize(
    "data",
    [
        b"%" * 10**6,
        b"%41" * 333_333,
        b"%2541" * 200_000,
        MARK[:11].encode() * 90_000,
        SENTINEL.encode() * 30_000,
        base64.b64encode(b"impyard") * 100_000,
        b"a\n" * 500_000,
        KEY[:-1].encode() * 30_000,
    ],
    ids=["signs", "codes", "codes of codes", "beginnings", "sentinels", "base64", "lines", "keys"],
)
def test_a_hostile_body_costs_little_more_than_another(data: bytes) -> None:
    started = time.process_time()
    TRIPWIRE.look(data, {"github"})

    assert time.process_time() - started < 1


def test_single_bytes_cost_the_same_however_many_came_before() -> None:
    for unit in (b"x", b"%61", MARK[:11].encode()):
        follower = TRIPWIRE.follow(())
        started = time.process_time()
        for byte in itertools.islice(itertools.cycle(unit), 3000):
            follower.feed(bytes([byte]))
        assert time.process_time() - started < 2


PARTS = st.sampled_from(
    [
        *[
            part.encode()
            for part in (SENTINEL, KEY, MARK, every_code(KEY), some_codes(MARK + "d4e5f6"), "%", "%2", "%25")
        ],
        *[base64.b64encode(b"?" * before + SENTINEL.encode()) for before in range(3)],
        *[wrapped(before, "\n")(KEY).encode() for before in (0, 60)],
        *[KEY[:20].encode(), KEY[20:].encode(), b"\n", b" ", b"x" * 700, b"%41" * 200, os.urandom(50)],
    ]
)


@examples(150)
@given(
    st.lists(PARTS, max_size=6).map(b"".join),
    st.lists(st.integers(0, 3000)),
    st.sets(st.sampled_from(["github", "anthropic"])),
)
def test_any_chunking_gives_the_same_answer_as_the_whole(data: bytes, cuts: list[int], bound: set[str]) -> None:
    follower = TRIPWIRE.follow(bound)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    found = [follower.feed(data[begin:end]) for begin, end in itertools.pairwise(edges)]

    assert any([*found, follower.end()]) == (TRIPWIRE.look(data, bound) is not None)


@examples(300)
@given(st.sampled_from(sorted(WAYS)), st.sampled_from(sorted(SECRETS)), st.integers(0), st.data())
def test_a_secret_in_noise_is_found_in_every_spelling_and_any_split(
    way: str, name: str, seed: int, drawn: st.DataObject
) -> None:
    noise, secret = random.Random(seed), WAYS[way](SECRETS[name]).encode()
    # Noise has percent codes of its own; the line keeps it from being read as a part of the secret.
    data = noise.randbytes(noise.randrange(20_000)) + b"\0" + secret + b"\0" + noise.randbytes(noise.randrange(20_000))
    around = data.index(secret)
    near = st.integers(max(0, around - 50), around + len(secret) + 50)
    cuts = drawn.draw(st.lists(near | st.integers(0, len(data)), max_size=8))
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]

    for bound, expected in (((), Found(name, kind(name))), ((name,), None)):
        follower = TRIPWIRE.follow(bound)
        told = [follower.feed(data[begin:end]) for begin, end in itertools.pairwise(edges)]
        assert next(filter(None, [*told, follower.end()]), None) == expected


@examples(200)
@given(
    st.lists(
        st.sampled_from([b"%", b"4", b"1", b"a", b"%41", b"%3D", b"%zz", b"\r", b"\n", b"=", b"=41", b" ", b"\t", b"_"])
    ).map(b"".join)
)
def test_codes_are_undone_as_servers_do(data: bytes) -> None:
    assert decoded(data) == unquote_to_bytes(data)
