"""Asking a registry itself for one page, which only `--look` does: everything else here reads this machine's files."""

from __future__ import annotations

import base64
import urllib.error
import urllib.parse
import urllib.request

from impyard.addon.errors import ImpyardError
from impyard.runner.policy.registries import place_of

_LIMIT_S = 20
_MAX_PAGE = 8 << 20


def page(address: str, path: str) -> tuple[str, str]:
    """The text at `path` below the address of a registry, and the URL that it came from in the end.

    A user and password in the address are sent to that address, and nowhere after a redirect. Raises ImpyardError.
    """
    place = place_of(address)
    request = urllib.request.Request(place.url + path, headers={"User-Agent": "impyard", "Accept": "text/html, */*"})
    parts = urllib.parse.urlsplit(address.removeprefix("sparse+"))
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:
            return answer.read(_MAX_PAGE).decode("utf-8", "replace"), answer.geturl()
    except (urllib.error.URLError, OSError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise ImpyardError(
            f"{place.url}{path} cannot be read: {str(reason).lower()}", hint="name the place instead: --files URL"
        ) from exc
