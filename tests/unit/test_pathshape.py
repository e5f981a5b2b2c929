"""Which paths count as one, and which stay apart."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.runner.decisions.pathshape import shape


@pytest.mark.parametrize(
    "path, folded",
    [
        ("/", "/"),
        ("", ""),
        ("*", "*"),
        ("/v1/messages", "/v1/messages"),
        ("/v1beta/models/gemini-1.5-pro:generateContent", "/v1beta/models/gemini-1.5-pro:generateContent"),
        ("/v1.41/containers/json", "/v1.41/containers/json"),
        ("/repos/a/b/issues/42", "/repos/a/b/issues/{n}"),
        ("/repos/a/b/issues/42/comments/", "/repos/a/b/issues/{n}/comments/"),
        ("/jobs/issue-1234", "/jobs/issue-{n}"),
        ("/wiki/utf-8/base64/python3", "/wiki/utf-8/base64/python3"),
        ("/img/12.png", "/img/{n}.png"),
        ("/b/550e8400-e29b-41d4-a716-446655440000/x", "/b/{id}/x"),
        ("/b/obj-550E8400-E29B-41D4-A716-446655440000.json", "/b/obj-{id}.json"),
        ("/commit/3f2a9bc", "/commit/{hash}"),
        ("/commit/da39a3ee5e6b4b0d3255bfef95601890afd80709", "/commit/{hash}"),
        ("/blobs/sha256:" + "ab" * 32, "/blobs/sha256:{hash}"),
        ("/facade/deadbeef/decade", "/facade/deadbeef/decade"),
        ("/objects/3f/" + "0a" * 19, "/objects/{hash}/{hash}"),
        ("/p/e4/37/" + "1f" * 30 + "/r-2.31.0.tar.gz", "/p/{hash}/{hash}/{hash}/r-{version}.tar.gz"),
        ("/logs/2026-11-29/x", "/logs/{date}/x"),
        ("/logs/20261129", "/logs/{date}"),
        ("/logs/2026-11-29T17:03:12Z.txt", "/logs/{date}.txt"),
        ("/logs/20269929", "/logs/{n}"),
        ("/x/-/x-4.17.21.tgz", "/x/-/x-{version}.tgz"),
        ("/requests-2.31.0-py3-none-any.whl", "/requests-{version}-py3-none-any.whl"),
        ("/x-1.0-py3-none-any.whl", "/x-{version}-py3-none-any.whl"),
        ("/pool/c/curl_7.88.1-10+deb12u5_amd64.deb", "/pool/c/curl_{version}_amd64.deb"),
        ("/crates/serde/1.0.193/download", "/crates/serde/{version}/download"),
        ("/m/@v/v1.2.3-rc.1.info", "/m/@v/{version}.info"),
        ("/o/r/releases/download/v1.2.3/tool.tar.gz", "/o/r/releases/download/{version}/tool.tar.gz"),
        ("/v1/batches/msgbatch_01HkcTjaV5uDC8jWR4ZsDV8d", "/v1/batches/msgbatch_{id}"),
        ("/t/AKq3Zx9LmP0sTf7RbY2w", "/t/{id}"),
        ("/t/AbC1-dEf2_Gh3iJk4LmN5", "/t/{id}"),
        ("/docs/MyLongComponentNameInCamelCase", "/docs/MyLongComponentNameInCamelCase"),
        ("/how-to-install-python3-on-ubuntu-22-04", "/how-to-install-python3-on-ubuntu-22-04"),
        ("/o/some-long-name-with-words/git-upload-pack", "/o/some-long-name-with-words/git-upload-pack"),
        ("/a//b/../%2e/1", "/a//b/../%2e/{n}"),
        ("/d/" + "x" * 101, "/d/{long}"),
        ("/ü/١٢٣", "/ü/{n}"),
    ],
)  # fmt: skip
def test_what_differs_from_request_to_request_is_folded(path: str, folded: str) -> None:
    assert shape(path) == folded


@given(st.text(max_size=300))
def test_any_text_has_a_shape_with_as_many_segments(path: str) -> None:
    assert shape(path).count("/") == path.count("/")


@given(st.text(string.ascii_lowercase + "/", max_size=60))
def test_plain_words_stay(path: str) -> None:
    assert shape(path) == path or "{id}" in shape(path) or "{long}" in shape(path)


def test_a_hostile_path_takes_no_time() -> None:
    hostile = [
        "/" + unit * (4096 // len(unit)) for unit in ("1.", "1-", "a1", "a-1.", "0-0", "2026-11-29", "1/", "%3A")
    ]
    begun = time.process_time()
    for path in hostile:
        shape(path)
        shape("/" + path[1:90])
    assert time.process_time() - begun < 0.5
