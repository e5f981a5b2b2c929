"""A log in all of its files as one text: those that were rotated, compressed or not yet, and the one of now.

Readers see bytes that are numbered through all files, oldest first. What cannot be read of a rotated file is said, and
reads as damage.
"""

from __future__ import annotations

import os
import re
import resource
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from impyard.addon.errors import ImpyardError
from impyard.addon.logmarks import TORN
from impyard.runner.decisions import packed
from impyard.runner.text import visible

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_STAMP = re.compile(r"[12][0-9]{7}T[0-9]{6}\.[0-9]{3}Z")
_STAMP_FORM = "%Y%m%dT%H%M%S.%f"
# A file holds what was written until its name's time. Clocks are set: by that much, the times in it may be beyond.
SLACK = timedelta(days=1)
_KEPT_OPEN, _KEPT_BLOCKS = 8, 4
_HELD = 256  # rotated files of a log that stay open, the oldest: `rotate --older-than` removes those first
_LONG = 400  # blocks of a megabyte
_LOOKS = 20  # at a folder in which files are being rotated
DAMAGE = b"\0"  # stands for each byte that cannot be read

Say = Callable[[Path, str], None]


class Rotated(NamedTuple):
    """A rotated file by its name. stamp: when it was rotated, as text that sorts by time."""

    stamp: str
    path: Path

    @property
    def is_packed(self) -> bool:
        return self.path.suffix == ".gz"


def rotated(log: Path) -> list[Rotated]:
    """The rotated files of a log, oldest first: of one that is there both plain and compressed, the plain one, as its
    compression was not finished. Raises OSError."""
    found: dict[str, Rotated] = {}
    try:
        names = os.listdir(log.parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    begin = f"{log.stem}-"
    for name in sorted(names):  # plain before .gz
        if name.startswith(begin) and (each := rotated_name(log, name)) is not None:
            found.setdefault(each.stamp, each)
    return [found[stamp] for stamp in sorted(found)]


def rotated_name(log: Path, name: str) -> Rotated | None:
    """What a file of this name is, if it is a rotated file of the log."""
    stem = name.removesuffix(".gz")
    stamp = stem.removeprefix(f"{log.stem}-").removesuffix(log.suffix)
    if not (name.startswith(f"{log.stem}-") and stem.endswith(log.suffix) and _STAMP.fullmatch(stamp)):
        return None
    try:
        time_of(stamp)
    except ValueError:  # digits that are no time
        return None
    return Rotated(stamp, log.with_name(name))


def stamp_of(time: datetime) -> str:
    return time.astimezone(UTC).strftime(_STAMP_FORM)[:-3] + "Z"


def time_of(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


class _Part:
    """One file. size: of its text; of the file that is written to, that at the time of asking. held: open, if it is."""

    def __init__(self, path: Path, identity: tuple[int, int], size: int | None, index: packed.Index | None) -> None:
        self.path, self.identity, self.index = path, identity, index
        self.size = size
        self.held: int | None = None
        self.torn = b""  # is added to a file that ends within a line


class Log:
    """A log that is open for reading; offsets count through all its files. To be closed.

    Of a log that is written to, what comes meanwhile is read too, as long as it is not rotated.
    """

    def __init__(self, path: Path, parts: list[_Part], live: int | None, say: Say) -> None:
        self._path, self._parts, self._live, self._say = path, parts, live, say
        self._sizes = {part.path: part.size for part in parts}
        self._bases: list[int] = []
        base = 0
        for part in parts:
            self._bases.append(base)
            base += (part.size or 0) + len(part.torn)
        self._open: OrderedDict[int, int] = OrderedDict()  # descriptors of rotated files, by the part's number
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._unpacked_blocks = 0
        self.on_long: Callable[[], None] | None = None  # is called once, when reading has taken about a second

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        _let_go(self._parts)
        if self._live is not None:
            os.close(self._live)
            self._live = None
        self._blocks.clear()

    @property
    def size(self) -> int:
        if not self._parts:
            return 0
        part = self._parts[-1]
        if part.size is None and self._live is not None:
            return self._bases[-1] + os.fstat(self._live).st_size
        return self._bases[-1] + (part.size or 0) + len(part.torn)

    @property
    def live(self) -> tuple[int, int] | None:
        """A descriptor of the file that is written to, which stays the log's, and where it begins; None without one."""
        return None if self._live is None else (self._live, self._bases[-1])

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes there: less than `length` at the end of the log only."""
        found = b""
        number = max(bisect_right(self._bases, offset) - 1, 0)
        while length > 0 and number < len(self._parts):
            data = self._piece(number, length, offset - self._bases[number])
            if not data:
                number += 1  # an empty file, or the end
                continue
            found = found + data if found else data
            offset, length = offset + len(data), length - len(data)
            if number + 1 < len(self._parts) and offset >= self._bases[number + 1]:
                number += 1
        return found

    def place(self, offset: int) -> tuple[Path, int]:
        """The file that holds this byte, and which of its text it is there."""
        number = max(bisect_right(self._bases, offset) - 1, 0)
        return self._parts[number].path, offset - self._bases[number]

    def bounds(self) -> Iterator[tuple[Path, int]]:
        """The files, and where each begins."""
        return ((part.path, base) for part, base in zip(self._parts, self._bases, strict=True))

    def text_size(self, path: Path) -> int | None:
        """The bytes of a rotated file's text; None for a file that is not read."""
        return self._sizes.get(path)

    def written_until(self, ts: str) -> int:
        """A byte before which all lines of the time `ts` or older stand, where the names of files tell."""
        for number, part in enumerate(self._parts):
            kind = rotated_name(self._path, part.path.name)
            if kind is not None and text_of(time_of(kind.stamp) - SLACK) > ts:
                return self._bases[number] + (part.size or 0) + len(part.torn)
        return self.size

    def _piece(self, number: int, length: int, offset: int) -> bytes:
        """Bytes of one part, one at least unless there are none."""
        part = self._parts[number]
        if part.size is None:
            assert self._live is not None
            return os.pread(self._live, length, offset)
        if offset >= part.size:
            return part.torn[offset - part.size :][:length]
        descriptor = self._descriptor(number)
        part = self._parts[number]
        assert part.size is not None
        if part.index is None:
            data = b"" if descriptor is None else os.pread(descriptor, min(length, part.size - offset), offset)
            return data or _damage(offset, min(offset + length, part.size), part.size)
        block, begin = divmod(offset, part.index.block_bytes)
        key = (number, block)
        text = self._blocks.pop(key, None)
        if text is None:
            text = self._unpacked(part, part.index, block, descriptor)
        self._blocks[key] = text
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return text[begin : begin + length]

    def _unpacked(self, part: _Part, index: packed.Index, block: int, descriptor: int | None) -> bytes:
        """A block of a packed file; one that cannot be read is damage from its first byte to its last."""
        self._unpacked_blocks += 1
        if self._unpacked_blocks == _LONG and self.on_long is not None:
            self.on_long()
        if descriptor is not None:
            try:
                return packed.read_block(descriptor, index, block)
            except packed.Damaged as exc:
                self._say(part.path, str(exc))
            except OSError as exc:
                self._say(part.path, f"it cannot be read: {(exc.strerror or str(exc)).lower()}")
        begin = block * index.block_bytes
        return _damage(begin, min(begin + index.block_bytes, index.size), index.size)

    def _descriptor(self, number: int) -> int | None:
        """The rotated file, opened; None when it is not what it was, and that is said."""
        if (found := self._open.get(number)) is not None:
            self._open.move_to_end(number)
            return found
        part = self._parts[number]
        if part.held is not None:
            return part.held
        try:
            try:
                descriptor = os.open(part.path, _FLAGS | os.O_NOFOLLOW)
            except FileNotFoundError:
                if part.index is not None:
                    raise
                # It was compressed meanwhile, and is the same text.
                again = _rotated_part(Rotated("", part.path.with_name(f"{part.path.name}.gz")), self._say, hold=False)
                if again is None or again.size != (part.size or 0) + len(part.torn):
                    raise
                part = self._parts[number] = again
                descriptor = os.open(part.path, _FLAGS | os.O_NOFOLLOW)
        except OSError as exc:
            self._say(part.path, f"it cannot be read: {(exc.strerror or str(exc)).lower()}")
            return None
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != part.identity:
            os.close(descriptor)
            self._say(part.path, "it was replaced while it was read; try again")
            return None
        self._open[number] = descriptor
        if len(self._open) > _KEPT_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


def open_log(path: Path, *, since: str | None = None, until: str | None = None, say: Say | None = None) -> Log | None:
    """All of a log, or None when there is none. What is removed while it is open is read all the same.

    since, until: rotated files that cannot hold lines of these times are left out, by their names. say: is told what
    is wrong with a rotated file; by default it is a warning. Raises ImpyardError when the file of now cannot be read.
    """
    say = say or _warn
    faults: list[tuple[Path, str]] = []
    parts: list[_Part | None] = []
    live: int | None = None
    most = _most_held()
    try:
        for _ in range(_LOOKS):
            faults.clear()
            live = _open_live(path)
            every = rotated(path)
            wanted = _of_times(every, since, until)
            for number, each in enumerate(wanted):
                parts.append(_rotated_part(each, lambda *fault: faults.append(fault), hold=number < most))
            if live is None:
                live_part = None
            else:
                status = os.fstat(live)
                live_part = _Part(path, (status.st_dev, status.st_ino), None, None)
            # While we looked, a file may have been rotated or compressed: then it could be missed, or read twice.
            if (
                _identity(path) == (live_part and live_part.identity)
                and _of_times(rotated(path), since, until) == wanted
            ):
                break
            _dropped(parts, live)
            live = None
        else:
            raise ImpyardError(f"the files of {path} are exchanged all the time", hint="try again")
    except BaseException as exc:
        _dropped(parts, live)
        if isinstance(exc, OSError):
            raise ImpyardError(f"cannot read {path.parent}: {exc.strerror}", hint="check its owner and mode") from exc
        raise
    for fault in faults:
        say(*fault)
    doubled = [part for part in parts if part is not None and live_part and part.identity == live_part.identity]
    _let_go(doubled)
    usable = [part for part in parts if part is not None and part not in doubled]
    if live_part is not None:
        usable.append(live_part)
    if not usable and not every:
        return None
    return Log(path, usable, live, say)


def _damage(begin: int, end: int, size: int) -> bytes:
    """What stands for these bytes of a file of `size`: its last line ends with it, not in the file behind it."""
    return DAMAGE * (end - begin) if end < size else DAMAGE * (end - begin - 1) + b"\n"


def _most_held() -> int:
    """How many files of a log may stay open, of which a command reads some at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HELD if soft == resource.RLIM_INFINITY else min(soft // 8, _HELD)


def _dropped(parts: list[_Part | None], live: int | None) -> None:
    """Close what was opened in vain."""
    _let_go([part for part in parts if part is not None])
    parts.clear()
    if live is not None:
        os.close(live)


def _let_go(parts: Iterable[_Part]) -> None:
    for part in parts:
        if part.held is not None:
            os.close(part.held)
            part.held = None


def open_file(path: Path) -> Log | None:
    """One file that is never rotated, for reading as a log, or None when there is no such file. Raises ImpyardError."""
    descriptor = _open_live(path)
    return None if descriptor is None else of_descriptor(path, descriptor)


def of_descriptor(path: Path, descriptor: int) -> Log:
    """The same of a file that is open, whose descriptor becomes the log's."""
    status = os.fstat(descriptor)
    return Log(path, [_Part(path, (status.st_dev, status.st_ino), None, None)], descriptor, _warn)


def _open_live(path: Path) -> int | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ImpyardError(f"cannot read {path}: {exc.strerror}", hint="check its owner and mode") from exc
    # A named pipe or a folder in the log's place would hang or fail in odd ways later.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ImpyardError(f"{path} is not an ordinary file", hint="move it away; the log is written anew")
    return descriptor


def _rotated_part(each: Rotated, say: Say, *, hold: bool) -> _Part | None:
    """A rotated file, looked at. Those that are not held are closed again: there may be more of them than a process may
    have open."""
    try:
        descriptor = os.open(each.path, _FLAGS | os.O_NOFOLLOW)
    except OSError as exc:
        reason = "it is a link" if each.path.is_symlink() else (exc.strerror or str(exc)).lower()
        say(each.path, f"it cannot be read: {reason}")
        return None
    part: _Part | None = None
    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode):
            say(each.path, "it is not an ordinary file")
        elif each.is_packed:
            index = packed.read_index(descriptor)
            part = _Part(each.path, identity, index.size, index)
        else:
            part = _Part(each.path, identity, status.st_size, None)
            # Its request was denied: a line that lacks only its end must not read as a decision.
            part.torn = TORN if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n" else b""
        if part is not None and hold:
            part.held = descriptor
        return part
    except packed.Damaged as exc:
        say(each.path, str(exc))
        return None
    finally:
        if part is None or part.held is None:
            os.close(descriptor)


def _of_times(files: list[Rotated], since: str | None, until: str | None) -> list[Rotated]:
    """The files that may hold lines of these times: each holds what was written between its name's time and that of
    the one before."""
    found = []
    before = ""
    for each in files:
        written = time_of(each.stamp)
        if until is not None and before >= until:
            break
        if since is None or text_of(written + SLACK) >= since:
            found.append(each)
        before = text_of(written - SLACK)
    return found


def text_of(time: datetime) -> str:
    """A time as the log writes it."""
    return time.isoformat(timespec="milliseconds")[:-6] + "Z"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _warn(path: Path, what: str) -> None:
    import click  # the rest is also for those who print nothing

    context = click.get_current_context(silent=True)
    said = context.meta.setdefault(f"{__name__}.said", set()) if context else set()
    if (path, what) in said:  # one command may open a log several times
        return
    said.add((path, what))
    click.echo(f"warning: {visible(str(path))}: {what}", err=True)


def only(path: Path) -> Log | None:
    """A rotated file by itself; None when it cannot be read, and that is said."""
    part = _rotated_part(Rotated("", path), _warn, hold=True)
    return None if part is None else Log(path, [part], None, _warn)
