"""Lines of an append-only log, from its end or as they come. It knows nothing of what a line says."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.errors import ImpyardError

BLOCK_BYTES = 256 * 1024
# The writer caps a line at 32 KiB; what is longer is damage, and must not be read into memory whole.
LINE_CAP = 1024 * 1024
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its newline.

    `offset` is its first byte in the file; `ended` is False when its newline is missing, so that it may be half a
    line; `text` is cut at `LINE_CAP` bytes.
    """

    offset: int
    text: bytes
    ended: bool = True


def open_log(path: Path) -> int | None:
    """A descriptor for reading `path`, or None when there is no such file. Raises ImpyardError for any other fault."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ImpyardError(f"cannot read {path}: {exc.strerror}", hint="check its owner and mode") from exc
    # A named pipe or a folder in the log's place would hang or fail in odd ways later.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ImpyardError(f"{path} is not an ordinary file", hint="move it away; the log is written anew")
    return descriptor


def from_end(descriptor: int, size: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
    """The lines of the file's first `size` bytes (default: all of it), last one first, read block by block.

    Lines that lack one of the `needles` may be left out: whole blocks without them are not even split.
    """
    position = os.fstat(descriptor).st_size if size is None else size
    pieces: list[bytes] = []  # of the line whose beginning is not read yet, last piece first
    ended = False
    while position > 0:
        length = min(BLOCK_BYTES, position)
        block = os.pread(descriptor, length, position - length)
        if len(block) < length:
            raise ImpyardError("the log was cut while it was read", hint="try again")
        position -= length
        end = length
        barren = not all(needle in block for needle in needles)
        while (newline := block.rfind(b"\n", 0, end)) >= 0:
            pieces.append(block[newline + 1 : end])
            if text := b"".join(reversed(pieces)):
                yield Line(position + newline + 1, text[:LINE_CAP], ended)
            pieces, ended, end = [], True, newline
            if barren:
                end = block.find(b"\n")
        pieces.append(block[:end])
        if len(pieces) * BLOCK_BYTES > 2 * LINE_CAP:  # an endless line: its beginning is read last, so keep the last
            del pieces[: -LINE_CAP // BLOCK_BYTES]
    if text := b"".join(reversed(pieces)):
        yield Line(0, text[:LINE_CAP], ended)


def last(
    descriptor: int,
    count: int,
    wanted: Callable[[Line], bool],
    size: int | None = None,
    needles: Sequence[bytes] = (),
) -> list[Line]:
    """The last `count` lines that are `wanted`, in the file's order; each of those has all the `needles` in it."""
    found: list[Line] = []
    if count > 0:
        for line in from_end(descriptor, size, needles):
            if wanted(line):
                found.append(line)
                if len(found) == count:
                    break
    found.reverse()
    return found


def raw_lines(descriptor: int) -> Iterator[bytes]:
    """Every line of the file with its newline, empty ones too, first one first; the last may lack its newline.

    A line longer than `LINE_CAP` is cut to that, its newline kept. `descriptor` stays the caller's.
    """
    return (line for _, line in placed_lines(descriptor))


def placed_lines(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """`raw_lines`, each with its first byte in the file."""
    with open(descriptor, "rb", closefd=False) as file:
        offset = 0
        while line := file.readline(LINE_CAP):
            size, rest = len(line), line
            while not rest.endswith(b"\n") and (rest := file.readline(LINE_CAP)):
                size += len(rest)
            yield offset, line if size == len(line) or not rest else line + b"\n"
            offset += size


def forward(descriptor: int, start: int = 0, size: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
    """The lines of the file's first `size` bytes (default: all of it) from byte `start` on, empty ones left out.

    A line begins at `start`. Lines that lack one of the `needles` may be left out: blocks without them are not split.
    """
    end = os.fstat(descriptor).st_size if size is None else size
    reader = _Reader(descriptor, start)
    yield from reader.lines(rest=True, end=end, needles=needles)


def blocks(descriptor: int, start: int, end: int, needles: Sequence[bytes] = ()) -> Iterator[tuple[int, bytes]]:
    """The file from byte `start`, where a line begins, to `end`, in pieces of whole lines, each with its offset.

    The last piece may end in half a line. A line longer than `LINE_CAP` is a piece by itself, cut to that; pieces that
    lack one of the `needles` are left out.
    """
    position, begun, cut = start, b"", 0
    while position < end and (block := os.pread(descriptor, min(BLOCK_BYTES, end - position), position)):
        offset = position - len(begun) - cut
        position += len(block)
        first = block.find(b"\n")
        if cut or len(begun) + (len(block) if first < 0 else first) > LINE_CAP:
            kept = (begun + block[: None if first < 0 else first])[:LINE_CAP]
            if first < 0:
                cut += len(begun) + len(block) - len(kept)
                begun = kept
                continue
            if all(needle in kept for needle in needles):
                yield offset, kept + b"\n"
            begun, cut, block = b"", 0, block[first + 1 :]
            offset = position - len(block)
        newline = block.rfind(b"\n") + 1
        piece, begun = begun + block[:newline], block[newline:] if newline else begun + block
        if newline and all(needle in piece for needle in needles):
            yield offset, piece
    if begun and all(needle in begun for needle in needles):
        yield position - len(begun) - cut, begun


def follow(path: Path, start: int, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Line]:
    """Each line that is appended to `path` beyond byte `start`, as soon as it is whole. Never ends by itself.

    A log that does not exist yet is waited for; one that is replaced or cut is read from its new beginning.
    """
    tail = Tail(path, start)
    try:
        while True:
            yield from tail.lines()
            sleep(POLL_S)
    finally:
        tail.close()


class Tail:
    """What is appended to `path` beyond byte `start`, read whenever asked. For the rest as `follow`."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        descriptor = open_log(path)
        self._reader = _Reader(descriptor, start) if descriptor is not None else None

    def lines(self) -> Iterator[Line]:
        """The lines that are whole by now and were not given yet."""
        while True:
            if self._reader is not None:
                yield from self._reader.lines(rest=False)
                if not _is_replaced(self._path, self._reader):
                    return
            opened = open_log(self._path)
            if opened is None:
                return
            if self._reader is not None:
                yield from self._reader.lines(rest=True)
                os.close(self._reader.descriptor)
            self._reader = _Reader(opened, 0)

    def close(self) -> None:
        if self._reader is not None:
            os.close(self._reader.descriptor)
            self._reader = None


def _is_replaced(path: Path, reader: _Reader) -> bool:
    held = os.fstat(reader.descriptor)
    if held.st_size < reader.position:
        return True
    try:
        named = path.stat()
    except OSError:
        return False
    return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)


class _Reader:
    """Reads a descriptor forward and remembers where it stands; `position` is the next byte to read."""

    def __init__(self, descriptor: int, position: int) -> None:
        self.descriptor = descriptor
        self.position = position
        self._begun = b""  # the line whose newline has not come yet, cut at LINE_CAP
        self._cut = 0  # bytes of it that were dropped

    def lines(self, *, rest: bool, end: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
        """The lines up to the present end of the file, or to byte `end`, empty ones left out; with `rest` also one
        without newline. Lines that lack one of the `needles` may be left out."""
        while block := os.pread(self.descriptor, self._length(end), self.position):
            offset = self.position - len(self._begun) - self._cut
            self.position += len(block)
            if needles and (newline := block.rfind(b"\n")) >= 0:
                data = self._begun + block[:newline]  # all lines that end in this block
                if not all(needle in data for needle in needles):
                    self._begun, self._cut = block[newline + 1 :], 0
                    continue
            *whole, begun = (self._begun + block).split(b"\n")
            for text in whole:
                if text:
                    yield Line(offset, text[:LINE_CAP])
                offset += len(text) + self._cut + 1
                self._cut = 0
            self._begun = begun[:LINE_CAP]
            self._cut += len(begun) - len(self._begun)
        if rest and self._begun:
            yield Line(self.position - len(self._begun) - self._cut, self._begun, ended=False)
            self._begun, self._cut = b"", 0

    def _length(self, end: int | None) -> int:
        return BLOCK_BYTES if end is None else max(min(BLOCK_BYTES, end - self.position), 0)
