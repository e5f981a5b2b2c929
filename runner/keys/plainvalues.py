"""Which texts of pi's files are known to be no secret: names of models and settings, a few words. Pure."""

from __future__ import annotations

import re
from typing import Any

_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_WORD = 24  # letters and digits in a row: names have no longer ones, keys do
_MODEL = re.compile(r"[A-Za-z0-9@/][A-Za-z0-9._:/@+-]{0,99}")


def looks_harmless(text: str) -> bool:
    """No key by its look, and no word as long as keys are."""
    if any(len(word) > _LONGEST_WORD for word in _SEPARATORS.split(text)):
        return False
    from impyard.addon import redact  # it loads RE2, which most runs have no need of this early

    return redact.is_clean((text,))


def is_model(value: Any) -> bool:
    """Whether it reads like the name of a model or provider, and like no key."""
    return isinstance(value, str) and bool(_MODEL.fullmatch(value)) and looks_harmless(value)


def is_title(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 100 and value.isprintable() and looks_harmless(value)
