"""Paths folded to their shape: what differs from request to request becomes a placeholder. Pure, text in, text out.

A shape is for counting and for eyes. It is no pattern: what a rule may allow is for the policy's tools to judge.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

LONGEST = 100  # characters of a segment; a longer one is data of some kind

_UUID = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])")
_DATE = re.compile(
    r"(?<!\d)(?:19|20)\d\d(?P<dash>-?)(?:0[1-9]|1[0-2])(?P=dash)(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T_ ]\d\d(?::|%3[Aa])?\d\d(?:(?::|%3[Aa])?\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)"
)
# Hexadecimal with digits and letters both: neither a number nor a word such as `facade`. Git's short hashes have seven.
_HASH = re.compile(r"(?i)(?<![0-9a-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,}(?![0-9a-z])")
_LONG_HASH = re.compile(r"(?i)(?<![0-9a-z])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128})(?![0-9a-z])")
# The plain cases: whole segments, or a version before the end of one. Eight digits may be a date.
_QUICK_NUMBER = re.compile(r"(?<=/)[0-9]{1,7}(?=/|\Z)")
_QUICK_PAIR = re.compile(r"/[0-9a-f]{2}(?=(?:/[0-9a-f]{2})?/\{hash\})")
_QUICK_VERSION = re.compile(
    r"(?<=[-_/])[0-9]+\.[0-9]+\.[0-9]+(?=/|\Z|\.(?:tgz|tar|zip|whl|gem|crate|jar|deb|rpm)\b|-py[23]-)"
)
_QUICK_HASH = re.compile(r"(?<=[/:])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12,100}(?=/|\Z)")
# 1.2.3, v1.2.3-rc.1, 7.88.1-10+deb12u5; with two parts only before a file's ending, since `gemini-1.5-pro` is a name.
_SUFFIX = r"(?:(?:[-.]?(?:alpha|beta|rc|dev|post|pre|canary|next|a|b)[-.]?\d*(?:\.\d+)*)|(?:-\d+)?[+~][\w.+~]+?)?"
_VERSION = re.compile(rf"(?i)(?<![0-9a-z.])v?\d+(?:\.\d+){{2,3}}{_SUFFIX}(?![0-9a-z])")
_FILE_VERSION = re.compile(
    rf"(?i)(?<=[-_@])v?\d+\.\d+{_SUFFIX}(?=(?:[-_][\w.-]+)?\."
    r"(?:tar|tgz|zip|whl|gem|crate|jar|deb|rpm|apk|gz|xz|bz2|zst|nupkg|exe|msi|dmg|conda)\b)"
)
_ONLY_VERSION = re.compile(rf"(?i)\d+(?:\.\d+)+{_SUFFIX}")
_API_VERSION = re.compile(r"(?i)v\d+(?:\.\d+)?(?:(?:alpha|beta)\d*)?")
_NUMBER = re.compile(r"-?\d+")
_NUMBER_IN_NAME = re.compile(r"(?<![0-9a-zA-Z.{])\d{3,}(?![0-9a-zA-Z}])")  # `issue-123`, not `utf-8` or `claude-3-5`
_NUMBER_BEFORE_ENDING = re.compile(r"\d+(?=\.[a-zA-Z]\w{0,9}\Z)")
_PAIR = re.compile(r"[0-9a-f]{2}")
_WORD = re.compile(r"[0-9A-Za-z]+")
_TOKEN = re.compile(r"[0-9A-Za-z_=-]+")
_VOWELS = frozenset("aeiouyAEIOUY")


def shape(path: str) -> str:
    """`path` with `{n}` for numbers, `{hash}`, `{id}` (UUIDs, random tokens), `{date}`, `{version}` (of packages; `v1`
    of an API stays) and `{long}` for endless segments. `/repos/a/b/issues/42` becomes `/repos/a/b/issues/{n}`."""
    # These are most of what differs: without them, a path was mostly seen before.
    path = _QUICK_HASH.sub("{hash}", path)
    if "{hash}" in path:
        path = _QUICK_PAIR.sub("/{hash}", path)
    if "." in path:
        path = _QUICK_VERSION.sub("{version}", path)
    return _of_rest(_QUICK_NUMBER.sub("{n}", path))


@lru_cache(maxsize=4096)
def _of_rest(path: str) -> str:
    segments = [_segment(segment) if len(segment) <= LONGEST else "{long}" for segment in path.split("/")]
    # Stores of objects spread them over folders by the first digits of their hash: `/packages/3f/0a/<hash>/`.
    for index in range(len(segments) - 2, 0, -1):
        if segments[index + 1].startswith("{hash}") and (_PAIR.fullmatch(segments[index]) or segments[index] == "{n}"):
            segments[index] = "{hash}"
    return "/".join(segments)


@lru_cache(maxsize=16384)
def _segment(text: str) -> str:
    if text.isdigit():
        return "{date}" if len(text) == 8 and _DATE.fullmatch(text) else _of_digits(text)
    if text.isascii() and not any(map(str.isdigit, text)):
        return "{id}" if _is_random(text) else text
    if _API_VERSION.fullmatch(text):
        return text
    if _NUMBER.fullmatch(text):
        return "{n}"
    if _ONLY_VERSION.fullmatch(text):
        return "{version}"
    text = _UUID.sub("{id}", text)
    text = _LONG_HASH.sub("{hash}", text)
    text = _DATE.sub("{date}", text)
    text = _VERSION.sub("{version}", text)
    text = _FILE_VERSION.sub("{version}", text)
    text = _HASH.sub(_short_hash, text)
    by_word = _WORD.sub(lambda word: "{id}" if _is_random(word[0]) else word[0], text)
    if by_word == text and _TOKEN.fullmatch(text) and _is_random(text):
        return "{id}"
    text = by_word
    text = _NUMBER_BEFORE_ENDING.sub("{n}", text) if text[:1].isdigit() else text
    return _NUMBER_IN_NAME.sub("{n}", text)


def _of_digits(text: str) -> str:
    return "{hash}" if len(text) in (32, 40, 64) else "{n}"


def _short_hash(found: re.Match[str]) -> str:
    """Seven digits and a letter may be a year in a name, as in `dec2024`; more mixed, it is a hash."""
    text = found[0]
    return "{hash}" if len(text) >= 12 or _changes(text) >= 2 else text


def _changes(text: str) -> int:
    """How often letters and digits take turns."""
    return sum(a.isdigit() != b.isdigit() for a, b in pairwise(text))


def _is_random(text: str) -> bool:
    """Whether this looks drawn by lot: letters and digits in turn, or capitals in odd places and hardly a vowel."""
    size = len(text)
    if size < 12 or text.count("-") + text.count("_") > size // 8:
        return False
    changes = _changes(text)
    if changes >= max(3, size // 6):
        return True
    if size < 20:
        return False
    rises = sum(a.islower() and b.isupper() for a, b in pairwise(text))
    vowels = sum(char in _VOWELS for char in text)
    return rises + changes >= size // 6 and rises >= 3 and vowels * 10 < size * 3
