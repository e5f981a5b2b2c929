"""Allowed requests that came to nothing, for people: of which host, why, and what in the policy mends it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_ERRNO = re.compile(r"\[Errno (\d{1,4})\]")
# What is wrong with an origin's certificate is said by OpenSSL, in the words of X509_verify_cert_error_string(3).
_UNKNOWN = ("issuer certificate", "self-signed", "self signed", "unable to verify")
_MENDS = {
    _UNKNOWN: "name its authority in the policy: `upstream_ca: FILE`, "
    "beside `upstream: https://{host}` if it has no other",
    ("hostname mismatch",): "its certificate is for another name: `upstream: https://THAT-NAME` in the policy",
}


def error_words(error: str) -> str:
    """An outcome's error. asyncio's words, "[Errno 111] Connect call failed ('127.0.0.1', 9)", say less than the number
    does."""
    number = _ERRNO.match(error)
    return os.strerror(int(number[1])).lower() if number else error


def failure_text(failure: Mapping[str, Any]) -> str:
    """One kind of failure from a receipt's `traffic`: `a.test (3): connection refused`."""
    host, error = str(failure.get("host")), error_words(str(failure.get("error")))
    mend = next((text for words, text in _MENDS.items() if any(word in error for word in words)), "")
    more = f"; {mend.format(host=host)}" if mend else ""
    return f"{host} ({failure.get('count')}): {error[:1].lower()}{error[1:]}{more}"


def failures_of(traffic: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The kinds of failure that a receipt's `traffic` names, the most frequent first; none in older receipts."""
    found = traffic.get("failed")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
