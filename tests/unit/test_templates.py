"""Templates: what they make of values, what they refuse, and that the ready ones are what services want."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.request import canonical_host
from impyard.addon.vault.templates import BY_HOST, READY, Template, ready_for

VALUES = {"key": "k-1", "access": "a-1", "account_id": "u-1", "host": "h.test"}


def test_fields_get_their_values() -> None:
    template = Template.parse("Bearer {access} for {account_id}")
    assert template.render(VALUES) == "Bearer a-1 for u-1"
    assert template.fields == {"access", "account_id"}


def test_b64_encodes_what_it_holds() -> None:
    rendered = Template.parse("Basic {b64:x-access-token:{key}}").render(VALUES)
    assert base64.b64decode(rendered.removeprefix("Basic ")) == b"x-access-token:k-1"


def test_what_was_taken_of_the_values_is_told_without_the_rest() -> None:
    template = Template.parse("Key {key} {b64:me:{access}} {b64:nobody}")
    assert template.taken(VALUES) == ["k-1", base64.b64encode(b"me:a-1").decode()]


def test_text_without_fields_stays() -> None:
    assert Template.parse("plain").render({}) == "plain"


def test_a_missing_value_is_named_and_nothing_is_rendered() -> None:
    with pytest.raises(KeyError, match="account_id"):
        Template.parse("{key} {account_id}").render({"key": "k"})


@pytest.mark.parametrize("value", ["k\r\nx-other: 1", "k\n", "\x00", "\x7f", "\x85"])
def test_a_value_cannot_begin_another_header(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        Template.parse("{key}").render({"key": value})
    assert str(caught.value) == "the value of key holds control characters"


def test_braces_of_a_value_are_no_fields() -> None:
    assert Template.parse("{key}").render({"key": "{access}"}) == "{access}"


def test_a_file_may_have_lines_and_a_header_may_not() -> None:
    assert Template.parse("a {key}\n\tb\n", lines=True).render(VALUES) == "a k-1\n\tb\n"
    for text in ("a {key}\nb", "a\r{key}", "{key}\x00"):
        with pytest.raises(ValueError, match="control characters"):
            Template.parse(text)
    with pytest.raises(ValueError, match="control characters"):
        Template.parse("a\r\n{key}", lines=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x" * 2049, "longer than 2048"),
        ("ä{key}", "plain ASCII"),
        ("{key", "unknown braces at character 1"),
        ("a {}", "unknown braces at character 3"),
        ("{ key }", "unknown braces"),
        ("{key!r}", "unknown braces"),
        ("{key.x}", "unknown braces"),
        ("{{key}}", "unknown braces"),
        ("key}", 'a "}" without its "{" at character 4'),
        ("{B64:{key}}", "unknown braces"),
        ("{b64:{key}", "at character 1 has no"),
        ("{b64:", "at character 1 has no"),
        ("{b64:}", "b64 of nothing"),
        ("{b64:{b64:{key}}}", "b64 inside of b64 at character 6"),
        ("{refresh}", "never into a request"),
        ("{b64:{refresh}}", "never into a request"),
    ],
)
def test_what_is_no_template_is_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Template.parse(text)


PIECES = st.sampled_from(["{", "}", "b64:", "key", "access", "{key}", "{b64:u:{key}}", "Bearer ", "\n", " ", "ä", "x"])


@given(st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=30), st.booleans())
def test_any_text_renders_without_braces_or_is_refused_with_words(text: str, lines: bool) -> None:
    try:
        template = Template.parse(text, lines=lines)
    except ValueError as exc:
        assert str(exc).isprintable() and len(str(exc)) < 120
        return
    rendered = template.render(dict.fromkeys(template.fields, "value"))
    assert not {"{", "}"} & set(rendered)
    assert lines or (rendered.isprintable() and rendered.isascii())
    assert "value" in rendered or "dmFsdWU" in rendered or not template.fields or "b64" in text


def test_a_refusal_repeats_nothing_of_the_text() -> None:
    for text in (
        "{sk-not-to-be-shown!}",
        "not-to-be-shown}",
        "{b64:not-to-be-shown",
        "not-to-be-shown\n",
        "ä not-to-be",
    ):
        with pytest.raises(ValueError) as caught:
            Template.parse(text)
        assert "not-to-be" not in str(caught.value)


def test_a_template_shows_no_text_in_its_repr() -> None:
    assert "not-to-be-shown" not in repr(Template.parse("not-to-be-shown {key}"))


# --- the ready ones -----------------------------------------------------------------------------------------------


def headers(name: str, host: str, kind: str = "api_key", variant: int = 0) -> dict[str, str]:
    ready = ready_for(name, host)
    assert ready is not None
    fitting = [variant for variant in ready.variants if variant.kind in (None, kind)]
    return {name: template.render(VALUES) for name, template in fitting[variant].headers}


def test_keys_and_logins_go_where_pi_puts_them() -> None:
    assert headers("anthropic", "api.anthropic.com") == {"x-api-key": "k-1"}
    assert headers("anthropic", "api.anthropic.com", "oauth") == {"authorization": "Bearer a-1"}
    codex = {"authorization": "Bearer a-1", "chatgpt-account-id": "u-1"}
    assert headers("openai-codex", "chatgpt.com", "oauth") == codex
    assert headers("google", "generativelanguage.googleapis.com") == {"x-goog-api-key": "k-1"}
    assert headers("openrouter", "openrouter.ai") == {"authorization": "Bearer k-1"}
    assert headers("openrouter", "openrouter.ai", variant=1) == {"x-api-key": "k-1"}
    assert headers("minimax", "api.minimax.io") == {"x-api-key": "k-1"}
    for name in ("openai", "xai", "groq", "kimi-coding", "github-copilot"):
        assert headers(name, "x.test") == {"authorization": "Bearer k-1"}
        assert headers(name, "x.test", "oauth") == {"authorization": "Bearer a-1"}


def test_github_takes_a_token_in_two_ways_by_host() -> None:
    assert headers("github", "api.github.com") == {"authorization": "Bearer k-1"}
    basic = base64.b64encode(b"x-access-token:k-1").decode()
    assert headers("github", "github.com") == {"authorization": f"Basic {basic}"}
    assert READY["github"].env == ("GH_TOKEN", "GITHUB_TOKEN")


def test_gitlab_gets_what_its_api_and_git_want_on_one_host() -> None:
    basic = base64.b64encode(b"oauth2:k-1").decode()
    assert headers("gitlab", "gitlab.com") == {"private-token": "k-1", "authorization": f"Basic {basic}"}


def test_npm_finds_its_token_in_npmrc() -> None:
    ((path, text),) = READY["npm"].files
    assert path == ".npmrc"
    assert Template.parse(text, lines=True).render(VALUES) == "//h.test/:_authToken=k-1"


def test_an_unknown_name_is_no_template() -> None:
    assert ready_for("githab", "github.com") is None


@pytest.mark.parametrize("name", READY)
def test_each_ready_template_is_whole(name: str) -> None:
    ready = READY[name]
    assert ready.variants
    for variant in ready.variants:
        names = [name for name, _ in variant.headers]
        assert names and names == [name.lower() for name in names] and len(set(names)) == len(names)
        assert any(template.fields for _, template in variant.headers)
        assert all(template.fields <= set(VALUES) - {"host"} for _, template in variant.headers)
        field = {"oauth": "access", "api_key": "key", None: "key"}[variant.kind]
        assert any(field in template.fields for _, template in variant.headers)


def test_templates_by_host_exist() -> None:
    for (name, host), other in BY_HOST.items():
        assert name in READY and other in READY and canonical_host(host) == host
