"""The tripwire: finds sentinels, and real values of the vault, in what the box sends, and says whose they are.

Plain, percent-encoded in any mix up to twice, and in base64 at any place of a longer text, broken into lines or not.
It must not know where the bytes stand in a request: hosts, headers and mitmproxy are not its business. What is not
found: values cut into pieces, compressed, encrypted, or encoded in any other way.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.needles import Needles, in_base64, spellings
from impyard.addon.vault.percent import PercentCodes, around, decoded
from impyard.addon.vault.sentinels import TAG_LENGTH, Sentinels

SHORTEST = 12  # characters of a real value that is looked for: shorter ones occur by chance, or are words
UNKNOWN = "?"  # for the name of a credential: of a sentinel whose tag does not name any
# Of a longer value its end is looked for: 96 characters do not come about by chance, and tokens end in what is their
# own while many begin alike. What is kept of a stream, and what one place costs, is bounded by it.
_CORE = 96
# How many encoded bytes a byte may take: each of the three characters of its code is a code.
_TWICE = 9
_LINE_ENDS = 256
# Encoders break lines at 57 columns or more: of two windows side by side one is whole.
_WINDOW = 11
_GROUPS = re.compile(rb"(?:[A-Za-z0-9+/_-]{4})+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")

type Kind = Literal["sentinel", "value"]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found where it does not belong: credential is its name, or UNKNOWN."""

    credential: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Form:
    """One way in which something may stand in a text. owners: of a real value. before: None when not in base64."""

    owners: frozenset[str]
    before: int | None


@dataclass(slots=True)
class _Permitted:
    """What may be in a request. bound: credentials. sentinels: those of every credential.

    is_open: set when the end of what was looked at may belong to a sentinel whose tag is still to come.
    """

    bound: Collection[str]
    sentinels: bool
    is_open: bool = False


class Tripwire:
    """Looks for the run's sentinels and for the real values of `real`, each under the name of its credential.

    any_case: also where their letters have another case, as names of hosts and of headers may.
    """

    def __init__(self, sentinels: Sentinels | None, real: Iterable[Credential] = (), *, any_case: bool = False) -> None:
        self._sentinels = sentinels
        self._any_case = any_case
        self._mark = sentinels.mark.encode() if sentinels is not None else b""
        forms: dict[bytes, _Form] = {}
        starts: list[bytes] = []
        if self._mark:
            starts += _add(forms, self._mark, frozenset(), any_case)
        for text, owners in _by_value(real).items():
            for spelling in spellings(text):
                starts += _add(forms, spelling[-_CORE:].encode("utf-8", "surrogatepass"), owners, any_case)
        self._forms = list(forms.values())
        self._whole = Needles(forms)
        self._starts = Needles(starts)
        longest = max(map(len, forms), default=0)
        self._marked = 2 * (len(self._mark) + TAG_LENGTH) * _TWICE  # where mark and tag are, in any encoding
        self.span = longest * _TWICE + _LINE_ENDS
        shortest = min(map(len, starts), default=1)
        self._codes = PercentCodes({byte for form in forms for byte in form}, shortest, self.span)

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def look(self, data: bytes, bound: Collection[str], *, sentinels_pass: bool = False) -> Found | None:
        """The first thing in `data` that may not be in a request to a host with these bindings; None when all may.

        bound: names of the credentials that may. sentinels_pass: every sentinel may.
        """
        return self._look(data, _Permitted(bound, sentinels_pass), ended=True)

    def follow(self, bound: Collection[str], *, sentinels_pass: bool = False) -> Follower:
        """The same for what comes in pieces."""
        return Follower(self, bound, sentinels_pass)

    def _look(self, data: bytes, permitted: _Permitted, *, ended: bool) -> Found | None:
        if not self._forms:
            return None
        if self._any_case:
            data = data.lower()
        if found := self._at_starts(data, permitted, ended):
            return found
        if b"%" not in data:
            return None
        for once, last in self._codes.pieces(data):
            if found := self._at_starts(once, permitted, ended and last):
                return found
            for twice, very_last in self._codes.pieces(once):
                if found := self._at_starts(twice, permitted, ended and last and very_last):
                    return found
        return None

    def _at_starts(self, data: bytes, permitted: _Permitted, ended: bool) -> Found | None:
        """Look thoroughly around whatever looks like the beginning of something. ended: nothing comes after `data`."""
        if not (starts := self._starts.hits(data)):
            return None
        for piece, last in around(data, starts, self.span):
            for text in _readings(piece):
                for number, begin, end in self._whole.every(text):
                    form = self._forms[number]
                    if form.owners:
                        if form.owners.isdisjoint(permitted.bound):
                            return Found(min(form.owners), "value")
                    elif not permitted.sentinels:
                        owner = self._owner(text, begin, end, form, ended and last)
                        permitted.is_open |= owner is None
                        if owner is not None and owner not in permitted.bound:
                            return Found(owner, "sentinel")
        return None

    def _owner(self, text: bytes, begin: int, end: int, form: _Form, ended: bool) -> str | None:
        """Whose sentinel has its mark there; UNKNOWN when nobody's, None while the rest is to come."""
        assert self._sentinels is not None
        if form.before is None and (owner := self._sentinels.owner(text[end : end + TAG_LENGTH].decode("latin-1"))):
            return owner[0]
        rest = decoded(text[begin : begin + self._marked])
        if form.before is None:
            tag = rest[len(self._mark) :][:TAG_LENGTH]
        else:
            # From the next whole group of four on: it lacks the first bytes of the mark.
            characters, lacking = ((0, 0), (2, 2), (1, 1))[form.before]
            tag = _from_base64(_joined(rest)[characters:])[len(self._mark) - lacking :][:TAG_LENGTH]
        if owner := self._sentinels.owner(tag.decode("latin-1")):
            return owner[0]
        return UNKNOWN if ended or len(text) - begin >= self._marked else None


class Follower:
    """Looks at what comes in pieces, as if it were whole."""

    def __init__(self, tripwire: Tripwire, bound: Collection[str], sentinels_pass: bool) -> None:
        self.tripwire = tripwire  # may be replaced by one that looks for more
        self._permitted = _Permitted(bound, sentinels_pass)
        self._tail = b""

    def feed(self, chunk: bytes) -> Found | None:
        """What `chunk` completes that may not pass; None when it may go on."""
        self._permitted.is_open = False
        return self._look(chunk, ended=False)

    def end(self) -> Found | None:
        """What may not pass now that nothing follows."""
        return self._look(b"", ended=True) if self._permitted.is_open else None

    def _look(self, chunk: bytes, *, ended: bool) -> Found | None:
        data = self._tail + chunk
        self._tail = data[-2 * self.tripwire.span :]
        return self.tripwire._look(data, self._permitted, ended=ended)


def _by_value(real: Iterable[Credential]) -> dict[str, frozenset[str]]:
    """The values that are looked for, with the names of the credentials that have them.

    A value is allowed wherever one is that holds it.
    """
    found: dict[str, set[str]] = {}
    for credential in real:
        for value in credential.secrets().values():
            words = value.split()
            # "Bearer …": the second word is the secret.
            for text in {value.strip(), *(words[1:] if len(words) == 2 else ())}:
                if len(text) >= SHORTEST:
                    found.setdefault(text, set()).add(credential.name)
    return {
        text: frozenset(name for other, names in found.items() if text in other for name in names) for text in found
    }


def _add(forms: dict[bytes, _Form], value: bytes, owners: frozenset[str], any_case: bool) -> Iterator[bytes]:
    """Note the forms of a value; what is searched for to find any of them."""
    for before, form in [(None, value), *in_base64(value)]:
        form = form.lower() if any_case else form
        known = forms.get(form)
        forms[form] = _Form(owners | known.owners, known.before) if known else _Form(owners, before)
        if before is None:
            yield form
        else:
            length = min(_WINDOW, len(form) // 2)
            yield form[-2 * length : -length]
            yield form[-length:]


def _readings(piece: bytes) -> Iterator[bytes]:
    """A piece as it is, and without percent codes and line ends."""
    for _ in range(3):
        yield piece
        if (joined := _joined(piece)) != piece:
            yield joined
        if b"%" not in piece:
            return
        piece = decoded(piece)


def _joined(text: bytes) -> bytes:
    """`text` without line ends, also those of JSON's strings, and without blanks."""
    if b"\\" in text:
        text = text.replace(b"\\r", b"").replace(b"\\n", b"").replace(b"\\t", b"")
    return text.translate(None, b" \t\r\n")


def _from_base64(text: bytes) -> bytes:
    """What the whole groups at the beginning of a base64 text stand for."""
    groups = _GROUPS.match(text)
    return base64.b64decode(groups[0].translate(_TO_STANDARD)) if groups else b""
