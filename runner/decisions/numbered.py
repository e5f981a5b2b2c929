"""The lines of a log by their numbers, to say where one of them is. Memory stays flat but for eight bytes a line of one
run and some for each block of the log."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from impyard.addon.decisions import is_of_run, may_be_of_run
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import Log


class Numbered:
    """The lines of a log, or of a run, numbered from 1; where each of them stands is found again when it is asked for,
    as a log may have many millions."""

    def __init__(self, log: Log | None, run: str | None) -> None:
        self._log, self._run = log, run
        self.count = 0
        # Of each piece of the log: its first line's number there, and its first byte; and of each file its first line.
        self._first, self._offset = array("Q"), array("Q")
        self._files: list[tuple[int, Path]] = []
        self._own = array("Q")  # of a run: the number in the log of each of its lines

    def lines(self) -> Iterator[bytes]:
        if self._log is None:
            return
        number = 1
        bounds = [*self._log.bounds(), (Path(), self._log.size)]
        for (path, begin), (_, end) in itertools.pairwise(bounds):
            self._files.append((number, path))
            for offset, piece in logread.blocks(self._log, begin, end):
                self._first.append(number)
                self._offset.append(offset)
                if self._run is not None and not may_be_of_run(piece, self._run):
                    number += piece.count(b"\n") + (not piece.endswith(b"\n"))
                    continue
                for line in logread.lines_of(piece):
                    if self._run is None or is_of_run(line, self._run):
                        self.count += 1
                        if self._run is not None:
                            self._own.append(number)
                        yield line
                    number += 1

    def place(self, line: int) -> tuple[str, int, int]:
        """A line's file, its number there, and its first byte in the file's text; nothing for line 0."""
        if not line or self._log is None:
            return "", 0, 0
        number = self._own[line - 1] if self._run is not None else line
        at = bisect_right(self._first, number) - 1
        offset = self._offset[at]
        end = self._offset[at + 1] if at + 1 < len(self._offset) else self._log.size
        _, piece = next(logread.blocks(self._log, offset, end))
        offset += sum(len(text) for text in itertools.islice(logread.lines_of(piece), number - self._first[at]))
        first, path = self._files[bisect_right(self._files, number, key=lambda each: each[0]) - 1]
        return path.name, number - first + 1, self._log.place(offset)[1]
