"""Which hosts the answers of allowed requests led to, so that a denial can say where its host is from. No mitmproxy."""

from __future__ import annotations

from collections import OrderedDict
from urllib.parse import urlsplit

from impyard.addon.request import split_authority

MAX_HOSTS = 256


class Redirects:
    """The last MAX_HOSTS other hosts that origins named in a Location, each with the decision that it came from."""

    def __init__(self) -> None:
        self._led: OrderedDict[str, str] = OrderedDict()

    def note(self, location: str, asked: str, decision_id: str | None) -> str | None:
        """Keep where an answer about the host `asked` leads; the canonical host if it is another one, else None."""
        try:
            host = split_authority(urlsplit(location).netloc.rpartition("@")[2])[0]
        except ValueError:
            return None
        if host == asked or decision_id is None:
            return None
        self._led[host] = decision_id
        self._led.move_to_end(host)
        if len(self._led) > MAX_HOSTS:
            self._led.popitem(last=False)
        return host

    def led_by(self, host: str) -> str | None:
        """The decision whose answer led to a host, if it did."""
        return self._led.get(host)
