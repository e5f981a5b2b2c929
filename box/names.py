"""Names in the box: every name gets an address of its own, and the address leads back to the name.

Pure: bytes and text in, bytes and text out, no sockets. No question ever leaves the box; that a name is asked for says
nothing about whether the judge will let anybody reach it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable

# 127.64.0.0/10: loopback, yet far from the 127.0.0.1 on which programs in the box serve each other.
FIRST_ADDRESS = 0x7F400001  # 127.64.0.1
LAST_ADDRESS = 0x7F7FFFFE  # 127.127.255.254
TTL_S = 60
MAX_NAME = 253  # RFC 1035, 2.3.4, without the last dot
MAX_LABEL = 63

NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 1, 2, 3, 4
TYPE_A, TYPE_AAAA, CLASS_IN = 1, 28, 1
_HEADER = struct.Struct(">HHHHHH")
_LABEL = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


class Malformed(ValueError):
    """A question that cannot be read; the asker gets a format error."""


def answer(query: bytes, address_of: Callable[[str], str | None]) -> bytes | None:
    """The answer to one DNS message, or None for what deserves none (too short to have an id, or itself an answer).

    A: the address that `address_of` gives for the name (lower case, no last dot), or a server failure when it gives
    None. AAAA: no data, so that clients use the A. Other types and classes: not implemented. A name that no host can
    have: no such name. RFC 1035, 4.1.
    """
    if len(query) < _HEADER.size:
        return None
    ident, flags, questions, _answers, _authorities, _additions = _HEADER.unpack_from(query)
    if flags & 0x8000:
        return None
    if (flags >> 11) & 0xF:
        return _reply(ident, flags, NOT_IMPLEMENTED)
    if questions != 1:
        return _reply(ident, flags, FORMAT_ERROR)
    try:
        labels, end = _labels(query, _HEADER.size)
        kind, group = struct.unpack_from(">HH", query, end)
    except (Malformed, struct.error):
        return _reply(ident, flags, FORMAT_ERROR)
    question = query[_HEADER.size : end + 4]
    if group != CLASS_IN or kind not in (TYPE_A, TYPE_AAAA):
        return _reply(ident, flags, NOT_IMPLEMENTED, question)
    name = host_name(labels)
    if name is None:
        return _reply(ident, flags, NO_SUCH_NAME, question)
    if kind == TYPE_AAAA:
        return _reply(ident, flags, NO_ERROR, question)
    address = "127.0.0.1" if is_local(name) else address_of(name)
    if address is None:
        return _reply(ident, flags, SERVER_FAILURE, question)
    # 0xC00C: a pointer to the name in the question.
    packed = bytes(map(int, address.split(".")))
    record = struct.pack(">HHHLH4s", 0xC00C, TYPE_A, CLASS_IN, TTL_S, 4, packed)
    return _reply(ident, flags, NO_ERROR, question, record)


def host_name(labels: list[bytes]) -> str | None:
    """Labels as a host name, or None when they are none: the result is safe to write into a CONNECT line."""
    lowered = [label.lower() for label in labels]
    if not lowered or any(not label or not _LABEL.issuperset(label) for label in lowered):
        return None
    name = b".".join(lowered).decode("ascii")
    return name if len(name) <= MAX_NAME else None


def is_local(name: str) -> bool:
    """Whether a name means the box itself (RFC 6761, 6.3)."""
    return name == "localhost" or name.endswith(".localhost")


def _labels(query: bytes, offset: int) -> tuple[list[bytes], int]:
    """The labels of the name at `offset` and the offset behind it. Pointers have no place in a question."""
    labels: list[bytes] = []
    total = 0
    while True:
        if offset >= len(query):
            raise Malformed("the name ends with the message")
        length = query[offset]
        offset += 1
        if length == 0:
            return labels, offset
        total += length + 1
        if length > MAX_LABEL or total > MAX_NAME + 1 or offset + length > len(query):
            raise Malformed("a label is too long")
        labels.append(query[offset : offset + length])
        offset += length


def _reply(ident: int, flags: int, code: int, question: bytes = b"", record: bytes = b"") -> bytes:
    # Answer, same opcode and recursion-desired bit, recursion available.
    flags = 0x8080 | (flags & 0x7900) | code
    return _HEADER.pack(ident, flags, bool(question), bool(record), 0, 0) + question + record


def dotted(number: int) -> str:
    """An IPv4 address in its usual form. (The module ipaddress costs 10 ms of every start.)"""
    return ".".join(map(str, number.to_bytes(4, "big")))


class AddressBook:
    """Which address stands for which name: at most `limit` names, the one unused for longest goes first.

    An address is given to another name only after all others of the range were used, so a client that kept an old one
    finds it closed, never somebody else's.
    """

    def __init__(self, limit: int, first: int = FIRST_ADDRESS, last: int = LAST_ADDRESS) -> None:
        if not 0 < limit < last - first + 1:
            raise ValueError(f"limit {limit} does not fit the range")
        self._limit = limit
        self._first, self._last, self._next = first, last, first
        self._addresses: OrderedDict[str, str] = OrderedDict()
        self._names: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def find(self, name: str) -> str | None:
        """The address of a name that has one; the name counts as used now."""
        address = self._addresses.get(name)
        if address is not None:
            self._addresses.move_to_end(name)
        return address

    def name_of(self, address: str) -> str | None:
        """The name behind an address."""
        return self._names.get(address)

    def add(self, name: str) -> tuple[str, str | None]:
        """Give a new name an address. Returns it, and the address that was taken from another name, if any."""
        dropped = None
        if len(self._addresses) >= self._limit:
            _old, dropped = self._addresses.popitem(last=False)
            del self._names[dropped]
        while (address := dotted(self._next)) in self._names or address == dropped:
            self._advance()
        self._advance()
        self._addresses[name] = address
        self._names[address] = name
        return address, dropped

    def remove(self, name: str) -> None:
        """Forget a name, such as one whose address could not be listened on."""
        self._names.pop(self._addresses.pop(name, ""), None)

    def _advance(self) -> None:
        self._next = self._first if self._next >= self._last else self._next + 1
