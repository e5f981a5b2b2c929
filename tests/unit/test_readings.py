"""Every way in which an origin may read a target."""

from __future__ import annotations

import posixpath
import re
import time
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.readings import MAX_READINGS, Ambiguous, Query, overrides, readings


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a",
        "/a/",
        "/a.b/..c/d..",
        "/.well-known/x",
        "/...",
        "/@scope/name",
        "/a:b,c!$&'()*+=~-_|^",
        "/" + "a" * 60_000,
    ],
)
def test_a_plain_path_has_one_reading(path: str) -> None:
    assert readings(path) == (path,)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/@scope%2fname", {"/@scope%2fname", "/@scope/name"}),
        ("/a%20b", {"/a%20b", "/a b"}),
        ("/caf%C3%A9", {"/caf%C3%A9", "/café"}),
        ("/a//b", {"/a//b", "/a/b"}),
        ("/a/./b", {"/a/./b", "/a/b"}),
        ("/a/b/..", {"/a/b/..", "/a/"}),
        ("/a\\b", {"/a\\b", "/a/b"}),
        ("/a;x=1/b", {"/a;x=1/b", "/a/b", "/a"}),
        ("/%7euser", {"/%7euser", "/~user"}),
        ("/x%3fy", {"/x%3fy", "/x?y", "/x"}),
        ("//h/x", {"//h/x", "/h/x", "/x"}),
    ],
)
def test_odd_paths_have_exactly_these_readings(path: str, found: set[str]) -> None:
    assert set(readings(path)) == found
    assert readings(path)[0] == path


@pytest.mark.parametrize(
    ("path", "reading"),
    [
        ("/pub/%2e%2e/secret", "/secret"),
        ("/pub/%252e%252e/secret", "/secret"),
        ("/pub/..;/secret", "/secret"),
        ("/pub/..;x=y/secret", "/secret"),
        ("/pub/..%3b/secret", "/secret"),
        ("/pub//../secret", "/secret"),
        ("/pub//../secret", "/pub/secret"),
        ("/pub/x/..%2f..%2fsecret", "/secret"),
        ("/pub/x/..%5c..%5csecret", "/secret"),
        ("/pub%2fx/%2e%2e/secret", "/secret"),
        ("/pub%2fx/%2e%2e/secret", "/pub/secret"),
        ("/pub/%2e%2e/se%20cret", "/se%20cret"),
        ("/pub/%EF%BC%8E%EF%BC%8E/secret", "/secret"),
        ("/pub/%E2%80%A5/secret", "/secret"),
        ("/\\evil.test/secret", "/secret"),
        ("/%2fevil.test/secret", "/secret"),
        ("/secret;/../pub", "/secret"),
        ("/secret%23/../pub", "/secret"),
    ],
)
def test_a_hidden_reading_is_found(path: str, reading: str) -> None:
    assert reading in readings(path)


@pytest.mark.parametrize(
    "path",
    [
        "/..",
        "/../x",
        "/a/../../x",
        "/%2e%2e",
        "/a%2f..%2f..%2fx",
        "/a//../../x",
        "/%",
        "/%2",
        "/%zz",
        "/%u002e",
        "/%00",
        "/%0a",
        "/%1b",
        "/%7f",
        "/%c2%9b",
        "/%2500",
        "/%ff",
        "/%c0%ae",
        "/%ed%a0%80",
        "/%25252e",
        "/" + "%2f" * 3000,
    ],
)
def test_a_path_that_cannot_be_read_safely_is_ambiguous(path: str) -> None:
    with pytest.raises(Ambiguous):
        readings(path)


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "/",
        "/",
        "..",
        ".",
        "%2e",
        "%2E",
        "%2f",
        "%5c",
        "%252e",
        "%252f",
        "\\",
        ";",
        ";x=1",
        "%3b",
        "%3f",
        "%23",
        "%20",
    ]
)
PATHS = st.lists(PIECES, max_size=14).map(lambda pieces: "/" + "".join(pieces))


def nginx(path: str) -> str:
    """Decode, merge slashes, resolve dots."""
    return posixpath.normpath(re.sub("/+", "/", unquote(path)))


def java(path: str) -> str:
    """Drop parameters, decode, resolve dots."""
    return posixpath.normpath(re.sub("//+", "/", unquote(re.sub(";[^/]*", "", path))))


def browser_like(path: str) -> str:
    """Resolve dots, also as %2e, and leave the rest encoded; backslashes are slashes."""
    return urlsplit(urljoin("http://x/", re.sub("%2e", ".", path.replace("\\", "/"), flags=re.I))).path.split(";")[0]


def proxied(path: str) -> str:
    """A proxy that decodes and resolves, before an origin that does so again."""
    return nginx(nginx(path))


@given(PATHS)
@pytest.mark.parametrize("origin", [nginx, java, browser_like, proxied])
def test_what_known_origins_make_of_a_path_is_among_its_readings(origin: object, path: str) -> None:
    assert callable(origin)
    try:
        found = readings(path)
    except Ambiguous:
        return
    read = origin(path).rstrip("/") or "/"
    if "?" in read or "#" in read or not read.isprintable():
        return
    assert read in {reading.rstrip("/") or "/" for reading in found} | {
        re.sub("//+", "/", r).rstrip("/") or "/" for r in found
    }


@given(st.text(alphabet=[chr(c) for c in range(0x21, 0x7F) if chr(c) not in "?#"], max_size=60).map("/".__add__))
def test_readings_of_any_legal_path_are_paths_or_the_path_is_ambiguous(path: str) -> None:
    try:
        found = readings(path)
    except Ambiguous:
        return
    assert found[0] == path
    assert len(found) == len(set(found)) <= MAX_READINGS
    assert all(reading.startswith("/") for reading in found)


def test_the_worst_path_is_given_up_soon() -> None:
    worst = "/" + "a%2fb;c//d\\e%20/./x/../%EF%BC%8E%5c%3b" * 200
    began = time.process_time()
    with pytest.raises(Ambiguous):
        readings(worst)
    assert time.process_time() - began < 0.25


def test_a_query_gives_every_value_of_a_key() -> None:
    query = Query("a=1&a=2;a=3&b=x%20y&b=x+y&c&=d&A=4&a[]=5&a%5B0%5D=6&%61=7&%2561=8")
    assert query.values("a") >= {"1", "2", "3", "4", "5", "6", "7", "8", "2;a=3"}
    assert query.values("b") == {"x y", "x+y"}
    assert query.values("c") == {""}
    assert query.values("nothing") == set()
    assert query.has("a") and not query.has("A[]")


def test_a_key_is_there_only_in_its_own_spelling() -> None:
    assert not Query("a[]=1&A=1&%2561=1").has("a")
    assert Query("%61=1").has("a")


def test_a_query_of_very_many_fields_is_not_searched() -> None:
    with pytest.raises(Ambiguous):
        Query("&" * 2000).values("a")


@given(st.text(max_size=200))
def test_no_query_breaks_its_reading(raw: str) -> None:
    assert isinstance(Query(raw).values("a"), set)


def test_headers_that_change_the_request_are_found_in_any_spelling() -> None:
    headers = (("X-HTTP-Method-Override", " delete "), ("x_original-url", "/x"), ("X-Other", "PUT"))
    assert overrides(headers) == (["DELETE"], ["/x"])
