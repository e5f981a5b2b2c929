"""Lines of an append-only log, from its end or as they come. It knows nothing of what a line says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions.logfiles import Log, Rotated, only, open_file, rotated

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


def from_end(log: Log, size: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
    """The lines of the log's first `size` bytes (default: all of it), last one first, read block by block.

    Lines that lack one of the `needles` may be left out: whole blocks without them are not even split.
    """
    position = log.size if size is None else size
    pieces: list[bytes] = []  # of the line whose beginning is not read yet, last piece first
    ended = False
    while position > 0:
        length = min(BLOCK_BYTES, position)
        block = log.pread(length, position - length)
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
    log: Log,
    count: int,
    wanted: Callable[[Line], bool],
    size: int | None = None,
    needles: Sequence[bytes] = (),
) -> list[Line]:
    """The last `count` lines that are `wanted`, in the file's order; each of those has all the `needles` in it."""
    found: list[Line] = []
    if count > 0:
        for line in from_end(log, size, needles):
            if wanted(line):
                found.append(line)
                if len(found) == count:
                    break
    found.reverse()
    return found


def raw_lines(log: Log, end: int | None = None) -> Iterator[bytes]:
    """Every line of the log's first `end` bytes (default: all of it) with its newline, empty ones too, first one first;
    the last may lack its newline.

    A line longer than `LINE_CAP` is cut to that, its newline kept. `log` stays the caller's.
    """
    for _, piece in blocks(log, 0, log.size if end is None else end):
        yield from lines_of(piece)


def lines_of(piece: bytes) -> Iterator[bytes]:
    """The lines of a piece of `blocks`, each with its newline."""
    if b"\r" not in piece:  # which ends a line for Python, but not in a log
        yield from piece.splitlines(keepends=True)
        return
    *whole, rest = piece.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def forward(log: Log, start: int = 0, size: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
    """The lines of the log's first `size` bytes (default: all of it) from byte `start` on, empty ones left out.

    A line begins at `start`. Lines that lack one of the `needles` may be left out: blocks without them are not split.
    """
    end = log.size if size is None else size
    reader = _Reader(log.pread, start)
    yield from reader.lines(rest=True, end=end, needles=needles)


def blocks(log: Log, start: int, end: int, needles: Sequence[bytes] = ()) -> Iterator[tuple[int, bytes]]:
    """The log from byte `start`, where a line begins, to `end`, in pieces of whole lines, each with its offset.

    The last piece may end in half a line. A line longer than `LINE_CAP` is a piece by itself, cut to that; pieces that
    lack one of the `needles` are left out.
    """
    position, begun, cut = start, b"", 0
    while position < end and (block := log.pread(min(BLOCK_BYTES, end - position), position)):
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


def follow(
    path: Path, start: int, *, log: Log | None = None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Line]:
    """Each line that is appended to the file `path` beyond byte `start`, as soon as it is whole. Never ends by itself.

    A log that does not exist yet is waited for; one that is replaced or cut is read from its new beginning. With `log`,
    which is closed, `start` is a byte of all its files.
    """
    tail = Tail(path, start, log)
    if log is not None:
        log.close()  # it holds files that may be removed meanwhile
    try:
        while True:
            yield from tail.lines()
            sleep(POLL_S)
    finally:
        tail.close()


class Tail:
    """What is appended to `path` beyond byte `start`, read whenever asked. For the rest as `follow`."""

    def __init__(self, path: Path, start: int, log: Log | None = None) -> None:
        self._path = path
        self._reader: _FileReader | None = None
        # Was renamed. Who had it open may have written one more line to it before that was noticed.
        self._before: _FileReader | None = None
        self._stamp = ""  # of the newest file that was rotated before the one that is read
        if log is not None:
            if log.live is not None:
                descriptor, begin = log.live
                self._reader = _FileReader(os.dup(descriptor), max(start - begin, 0))
        elif (log := open_file(path)) is not None:
            with log:
                assert log.live is not None
                self._reader = _FileReader(os.dup(log.live[0]), start)
        self._rotated_since()

    def lines(self) -> Iterator[Line]:
        """The lines that are whole by now and were not given yet."""
        if self._before is not None:
            yield from self._before.lines(rest=True)
            if self._reader is not None and self._reader.position > 0:  # else nobody may have noticed yet
                self._before.close()
                self._before = None
        while True:
            if self._reader is not None:
                yield from self._reader.lines(rest=False)
                if not _is_replaced(self._path, self._reader):
                    return
            opened = open_file(self._path)
            if opened is None:
                return
            with opened:
                assert opened.live is not None
                descriptor = os.dup(opened.live[0])
            before, self._reader = self._reader, _FileReader(descriptor, 0)
            passed = self._rotated_since()
            if passed and before is not None and (passed[0].is_packed or _is_at(passed[0].path, before.descriptor)):
                del passed[0]  # what `before` is called now
            if before is not None:
                if self._before is None and not passed and not os.path.sameopenfile(before.descriptor, descriptor):
                    self._before = before
                else:  # cut, or exchanged more than once since the last look
                    yield from before.lines(rest=True)
                    before.close()
            for each in passed:  # this process stood still for long, as one whose output is not read does
                if (missed := only(each.path)) is not None:
                    with missed:
                        yield from forward(missed)

    def _rotated_since(self) -> list[Rotated]:
        """The files that were rotated between the last call and the file that is read now, oldest first."""
        files = []
        for each in rotated(self._path):
            if self._reader is not None and not each.is_packed and _is_at(each.path, self._reader.descriptor):
                break  # it was rotated again by now
            files.append(each)
        since, self._stamp = self._stamp, files[-1].stamp if files else ""
        return [each for each in files if each.stamp > since]

    def close(self) -> None:
        for reader in (self._reader, self._before):
            if reader is not None:
                reader.close()
        self._reader = self._before = None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _is_replaced(path: Path, reader: _FileReader) -> bool:
    held = os.fstat(reader.descriptor)
    if held.st_size < reader.position:
        return True
    try:
        named = path.stat()
    except OSError:
        return False
    return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)


class _Reader:
    """Reads bytes forward and remembers where it stands; `position` is the next byte to read."""

    def __init__(self, pread: Callable[[int, int], bytes], position: int) -> None:
        self._pread = pread
        self.position = position
        self._begun = b""  # the line whose newline has not come yet, cut at LINE_CAP
        self._cut = 0  # bytes of it that were dropped

    def lines(self, *, rest: bool, end: int | None = None, needles: Sequence[bytes] = ()) -> Iterator[Line]:
        """The lines up to the present end of the file, or to byte `end`, empty ones left out; with `rest` also one
        without newline. Lines that lack one of the `needles` may be left out."""
        while block := self._pread(self._length(end), self.position):
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


class _FileReader(_Reader):
    """The same of a descriptor, which becomes its own."""

    def __init__(self, descriptor: int, position: int) -> None:
        super().__init__(lambda length, offset: os.pread(descriptor, length, offset), position)
        self.descriptor = descriptor

    def close(self) -> None:
        os.close(self.descriptor)
