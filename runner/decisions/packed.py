"""Rotated logs, compressed: read at any place without the rest, and still what `zcat` and `zgrep` take.

A file is gzip members (RFC 1952, section 2.2), each a block of the text; then two empty members, in whose extra fields
(section 2.3.1.1) the sizes of the blocks stand, and how many there are. What these say is checked before it is used: a
file may be cut, changed, or made to fill the memory of who reads it.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_BYTES = 1 << 20
MOST_BLOCK_BYTES = 16 << 20
LEVEL = 3  # twice as fast as the usual 6, for files that are 14 % larger
_MOST_BLOCKS = 16_000  # whose sizes fit an extra field
_HEAD = b"\x1f\x8b\x08\x04" + bytes(4) + b"\x00\xff"  # deflate, with an extra field, no time, no system
_EMPTY = b"\x03\x00" + bytes(8)  # nothing, its checksum and its length
_INDEX, _END = b"im", b"iM"
_TAIL = struct.Struct("<IQII")  # bytes of a block, of the text, blocks, bytes of the index
_TAIL_BYTES = len(_HEAD) + 2 + 4 + _TAIL.size + len(_EMPTY)


class Damaged(Exception):
    """A file that is not as it was packed; says why."""


@dataclass(frozen=True, slots=True)
class Index:
    """size: bytes of the text. starts: where each block begins in the file, and where the last one ends."""

    block_bytes: int
    size: int
    starts: array[int]


def pack(source: int, size: int, target: int) -> None:
    """Write the first `size` bytes of `source` to `target`, compressed. Raises OSError."""
    block_bytes = max(BLOCK_BYTES, -(-size // _MOST_BLOCKS))
    if block_bytes > MOST_BLOCK_BYTES:
        raise OSError("it is too large to be compressed")
    sizes = array("I")
    for offset in range(0, size, block_bytes):
        block = zlib.compress(_exactly(source, min(block_bytes, size - offset), offset), LEVEL, zlib.MAX_WBITS | 16)
        sizes.append(len(block))
        _write(target, block)
    index = _member(_INDEX, _little(sizes).tobytes())
    _write(target, index + _member(_END, _TAIL.pack(block_bytes, size, len(sizes), len(index))))


def read_index(descriptor: int) -> Index:
    """The index of a packed file. Raises Damaged, and OSError."""
    whole = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _TAIL_BYTES, max(whole - _TAIL_BYTES, 0))
    block_bytes, size, count, length = (
        _TAIL.unpack(tail[16 : 16 + _TAIL.size]) if len(tail) == _TAIL_BYTES else (0,) * 4
    )
    sane = 0 < block_bytes <= MOST_BLOCK_BYTES and count <= _MOST_BLOCKS and count == -(-size // block_bytes)
    if not sane or tail != _member(_END, tail[16 : 16 + _TAIL.size]):
        raise Damaged("its end is missing, or it was not compressed by impyard")
    data = os.pread(descriptor, length, max(whole - _TAIL_BYTES - length, 0)) if length < 1 << 17 else b""
    starts, at = array("Q"), 0
    sizes = array("I", data[16 : 16 + 4 * count] if len(data) >= 16 + 4 * count else b"")
    if data != _member(_INDEX, sizes.tobytes()):
        raise Damaged("its index was changed")
    for each in _little(sizes):
        if each > block_bytes + (block_bytes >> 8) + 100:  # more than what cannot be compressed becomes
            raise Damaged("its index was changed")
        starts.append(at)
        at += each
    starts.append(at)
    if len(starts) != count + 1 or at + length + _TAIL_BYTES != whole:
        raise Damaged("parts of it are missing")
    return Index(block_bytes, size, starts)


def read_block(descriptor: int, index: Index, number: int) -> bytes:
    """One block of the text. Raises Damaged, naming the byte of the file, and OSError."""
    start, end = index.starts[number], index.starts[number + 1]
    length = min(index.block_bytes, index.size - number * index.block_bytes)
    unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        # Not a byte more than there should be is made of it, whatever it would become.
        text = unpacked.decompress(os.pread(descriptor, end - start, start), length + 1)
    except zlib.error:
        text = b""
    if len(text) != length or not unpacked.eof or unpacked.unused_data:
        raise Damaged(f"what stands at byte {start} was changed")
    return text


def blocks(descriptor: int, index: Index) -> Iterator[bytes]:
    """All of the text. Raises as `read_block`."""
    return (read_block(descriptor, index, number) for number in range(len(index.starts) - 1))


def _member(name: bytes, data: bytes) -> bytes:
    """An empty gzip member with `data` in its extra field."""
    return _HEAD + struct.pack("<H2sH", len(data) + 4, name, len(data)) + data + _EMPTY


def _little(sizes: array[int]) -> array[int]:
    """The sizes as they stand in the file, or back."""
    if struct.pack("=H", 1) == struct.pack(">H", 1):
        sizes.byteswap()
    return sizes


def _exactly(descriptor: int, length: int, offset: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    if len(data) != length:
        raise OSError("it became shorter meanwhile")
    return data


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
