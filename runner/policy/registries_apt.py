"""apt's sources, in both of their forms: sources.list(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from impyard.runner.policy.registries import Found, Machine, Place, missing, place_of

_LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)")
SUITES, FLAT = "(dists|pool)/.+", ".+"


def read(machine: Machine, found: Found) -> None:
    """Fill `apt`. Raises ImpyardError when there is no source."""
    apt = machine.etc / "apt"
    parts = apt / "sources.list.d"
    sources = list(_lines(machine.read(apt / "sources.list")))
    for path in sorted(parts.glob("*.list")):
        sources += _lines(machine.read(path))
    for path in sorted(parts.glob("*.sources")):
        sources += _stanzas(machine.read(path))
    wide: dict[Place, bool] = {}
    for uri, suite in sources:
        if not uri.startswith(("http://", "https://")):
            kind = uri.partition(":")[0]
            note = f"a source of the kind {kind!r} is left out: the preset knows http and https"
            if note not in found.notes:
                found.notes.append(note)
            continue
        place = place_of(uri, found.notes)
        wide[place] = wide.get(place, False) or suite.endswith("/")
    for place, flat in wide.items():
        found.add("apt", within(place, flat=flat))
    if not found.places.get("apt"):
        raise missing("source of apt", name="apt")
    found.notes.insert(0, f"sources of this machine: {', '.join(place.url for place in found.places['apt'])}")


def within(place: Place, *, flat: bool = False) -> Place:
    """The place, with what of it apt asks for. flat: a repository without suites."""
    return Place(place.scheme, place.host, place.port, place.prefix, (("within", FLAT if flat else SUITES),))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each line of the older form."""
    for line in text.splitlines():
        if found := _LINE.match(line.partition("#")[0]):
            yield found[1], found[2]


def _stanzas(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each stanza of deb822: `Field: value`, continued by lines that begin with a blank."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without", "disable"):
            continue
        suites = fields.get("suites", "").split() or [""]
        for uri in fields.get("uris", "").split():
            for suite in suites:
                yield uri, suite
