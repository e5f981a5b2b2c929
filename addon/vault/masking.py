"""Masking: real values in what an origin answers become as many "*".

It must not know what an answer is or which credential was injected. Masked is a value as it stands, as JSON, scripts
and HTML escape it, percent-encoded as a whole, and in base64. Other encodings of it are not seen, nor is a value that
is cut into pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from impyard.addon.vault.needles import Needles, in_base64, spellings

SHORTEST = 6  # characters of a value that is masked: shorter ones are words, or stand in any text by chance


class Mask:
    """Masks all of `values`, which are UTF-8."""

    def __init__(self, values: Iterable[bytes]) -> None:
        forms = {form for value in values if len(value) >= SHORTEST for form in _forms(value)}
        self._needles = Needles(forms) if forms else None
        self._forms = sorted(forms)
        self._shorter = {form[:length] for form in forms for length in (1, 2)}

    @functools.cached_property
    def _threes(self) -> set[bytes]:
        """What an end must look like that could be a beginning, for a quick no; made for the first stream."""
        return {form[at : at + 3] for form in self._forms for at in range(len(form) - 2)}

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._forms)

    def whole(self, data: bytes) -> bytes:
        """`data` with every value masked, those that overlap too; of the same length."""
        return _covered(data, self.spans(data))

    def stream(self) -> MaskStream:
        """The same for what comes in pieces."""
        return MaskStream(self)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """From where to where the values in `data` reach."""
        if self._needles is None or not self._needles.hits(data):
            return []
        return [(begin, end) for _, begin, end in self._needles.every(data)]

    def open_end(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a value that goes on behind it."""
        if data[-3:] not in self._threes and data[-2:] not in self._shorter and data[-1:] not in self._shorter:
            return 0
        return max(_overlap(data, form) for form in self._forms)


class MaskStream:
    """Masks a stream, and holds back of it only what could be the beginning of a value."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""
        self._reach = 0  # so much of what is held belongs to a value whose beginning has gone on

    def feed(self, chunk: bytes) -> bytes:
        """What may go on once `chunk` has come; may be nothing."""
        held = self._held + chunk if self._held else chunk
        settled = len(held) - self._mask.open_end(held)
        spans = self._mask.spans(held)
        if self._reach:
            spans.append((0, self._reach))
        self._reach = max(0, max((end for begin, end in spans if begin < settled), default=0) - settled)
        self._held = held[settled:]
        return _covered(held, spans)[:settled]

    def end(self) -> bytes:
        """What was held back, as nothing follows it."""
        held, reach = self._held, self._reach
        self._held, self._reach = b"", 0
        return _covered(held, [(0, reach), *self._mask.spans(held)])


def _covered(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    if not spans:
        return data
    masked = bytearray(data)
    for begin, end in spans:
        masked[begin:end] = b"*" * (end - begin)
    return bytes(masked)


def _overlap(data: bytes, form: bytes) -> int:
    """The length of the longest beginning of `form`, not all of it, that `data` ends with."""
    limit = min(len(form) - 1, len(data))
    last = data[-3:]
    at = form.rfind(last, 0, limit) if len(last) == 3 else -1
    while at >= 0:
        if data.endswith(form[: at + 3]):
            return at + 3
        at = form.rfind(last, 0, at + 2)
    return next((length for length in (2, 1) if length <= limit and data.endswith(form[:length])), 0)


def _forms(value: bytes) -> Iterable[bytes]:
    yield value
    for _, encoded in in_base64(value):
        yield encoded
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    for spelling in spellings(text):
        yield spelling.encode()
    for encoded_text in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield encoded_text.encode()
        yield _lower_codes(encoded_text).encode()


def _lower_codes(encoded: str) -> str:
    """The same with small letters in the percent codes."""
    first, *rest = encoded.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])
