"""Numbers as options take them, with one wording for what is none."""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Number(click.ParamType[float]):
    """A number above zero, up to `most`."""

    name = "number"

    def __init__(self, most: float) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number <= self.most:
            self.fail(f"`{value}` is no number above 0 and up to {self.most:g}", param, ctx)
        return number


class Whole(click.ParamType[int]):
    """A whole number of at least `least`, and at most `most`."""

    name = "number"

    def __init__(self, least: int, most: int = 10**12) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not self.least <= int(text) <= self.most:
            self.fail(f"`{value}` is no whole number from {self.least} to {self.most}", param, ctx)
        return int(text)
