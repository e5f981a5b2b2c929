"""The ways in which origins read one request. A request is forwarded only if every one of them is allowed.

Servers, frameworks and the proxies before them decode, normalise and cut a target in different orders, so no single
normal form is right for all. Each `_Step` below is something that a widely used server does; `readings` gives the
closure of a path under all of them, in any order. Nothing here knows rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import product
from urllib.parse import unquote_to_bytes

# A legal path needs one to four readings; a path made of tricks is refused instead of being followed for long.
MAX_READINGS = 64
# Only odd paths are held to this; it bounds the work per request to some milliseconds.
MAX_ODD_PATH = 8192
# Decoding twice happens where a proxy decodes before the origin does; a third time is only met in attacks.
MAX_DECODINGS = 2

_ODD = re.compile(r"[%\\;]|//|/\.{1,2}(?:/|$)")
_BAD_CODE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CODE = re.compile(r"%[0-9A-Fa-f]{2}")
_CODE_BUT_SLASH = re.compile(r"%(?!2[Ff])[0-9A-Fa-f]{2}")
_SLASH_CODE = re.compile(r"(%2[Ff])")
_UNRESERVED_CODE = re.compile(r"%(?:2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SLASHES = re.compile(r"//+")
_PARAMETERS = re.compile(r";[^/]*")
_CUT = re.compile(r"[;?#]")

_LOOK_ALIKES = str.maketrans("\u2044\u2215\u29f8\u2216\u29f5\u29f9", "///\\\\\\")

_Step = Callable[[str], str]


class Ambiguous(ValueError):
    """A path that no origin should be asked to read. Its text is a reason for people, without the path."""


def readings(path: str) -> tuple[str, ...]:
    """Each distinct way an origin may read `path`, the path as sent first.

    `path` is printable ASCII and starts with "/". Raises Ambiguous for invalid percent codes, decoded control bytes or
    invalid UTF-8, an ascent above the root, more than two levels of encoding, and paths with too many readings.
    """
    if not _ODD.search(path):
        return (path,)
    if len(path) > MAX_ODD_PATH:
        raise Ambiguous("the path is too long to be read in every way")
    if _BAD_CODE.search(path):
        raise Ambiguous("the path has an invalid percent code")
    depth = {path: 0}  # reading -> how often it was decoded, the fewest
    queue = [path]
    for reading in queue:  # grows while it is walked
        for step, decodes in _STEPS:
            found = step(reading)
            level = depth[reading] + decodes
            if found == reading or depth.get(found, level + 1) <= level:
                continue
            if level > MAX_DECODINGS:
                raise Ambiguous("the path is encoded more than twice")
            if len(depth) >= MAX_READINGS:
                raise Ambiguous("the path can be read in too many ways")
            depth[found] = level
            queue.append(found)
    return tuple(depth)


def _decode(path: str) -> str:
    return _text(unquote_to_bytes(path)) if _CODE.search(path) else path


def _decode_but_slash(path: str) -> str:
    """Servers that route on segments decode them one by one, so that an encoded slash stays inside its segment."""
    if not _CODE_BUT_SLASH.search(path):
        return path
    pieces = _SLASH_CODE.split(path)
    return _text(b"".join(p.encode() if _SLASH_CODE.fullmatch(p) else unquote_to_bytes(p) for p in pieces))


def _decode_unreserved(path: str) -> str:
    """RFC 3986 6.2.2.2, and URL parsers that take %2e for a dot without decoding anything else."""
    return _UNRESERVED_CODE.sub(lambda code: chr(int(code[0][1:], 16)), path)


def _backslash_is_slash(path: str) -> str:
    return path.replace("\\", "/")


def _without_parameters(path: str) -> str:
    """Java servers drop `;name=value` from each segment before they look for dot segments."""
    return _PARAMETERS.sub("", path)


def _cut(path: str) -> str:
    """Servers that decode before they split take a decoded "?" or "#" for a delimiter; some cut all after ";"."""
    found = _CUT.search(path)
    return path[: found.start()] or "/" if found else path


def _collapse(path: str) -> str:
    return _SLASHES.sub("/", path)


def _without_authority(path: str) -> str:
    """RFC 3986 4.2: who resolves the target as a reference takes "//name/x" for the path "/x" of another host."""
    return "/" + path[2:].partition("/")[2] if path.startswith("//") else path


def _without_loose_authority(path: str) -> str:
    """The URL standard does the same behind any number of slashes."""
    return "/" + path.lstrip("/").partition("/")[2] if path.startswith("//") else path


def _fold(path: str) -> str:
    """Compatibility forms of dots and slashes (full width, leaders) become ASCII where names are normalised.

    So do look-alikes of slashes, where text is converted to an older character set by "best fit".
    """
    return path if path.isascii() else unicodedata.normalize("NFKC", path).translate(_LOOK_ALIKES)


def _resolve_dots(path: str) -> str:
    """RFC 3986 5.2.4. Raises Ambiguous above the root, where the RFC and servers differ."""
    segments = path.split("/")[1:]
    if not any(segment in (".", "..") for segment in segments):
        return path
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            if not kept:
                raise Ambiguous("the path climbs above the root")
            kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Ambiguous("the path does not decode to text") from None
    if _CONTROL.search(text):
        raise Ambiguous("the path hides control bytes")
    return text


# (step, whether it takes off one level of percent-encoding)
_STEPS: tuple[tuple[_Step, int], ...] = (
    (_decode, 1),
    (_decode_but_slash, 1),
    (_decode_unreserved, 0),
    (_backslash_is_slash, 0),
    (_without_parameters, 0),
    (_cut, 0),
    (_collapse, 0),
    (_without_authority, 0),
    (_without_loose_authority, 0),
    (_fold, 0),
    (_resolve_dots, 0),
)


# --- the query ---------------------------------------------------------------------------------------------------

MAX_FIELDS = 1000  # more than any form has; bounds the work of a rule that looks at the query

_FIELD_ENDS = (re.compile("&"), re.compile("[&;]"))  # the URL standard's separator, and the older one of some servers


class Query:
    """The fields of one query under every common way of splitting and decoding it. Parsed when first asked for."""

    __slots__ = ("_names", "_values", "raw")

    def __init__(self, raw: str) -> None:
        self.raw = raw
        self._names: set[str] = set()
        self._values: dict[str, set[str]] | None = None

    def has(self, key: str) -> bool:
        """Whether the key is there in this very spelling, after decoding once, wherever servers split the query.

        Raises Ambiguous as `values`.
        """
        self._parse()
        return key in self._names

    def values(self, key: str) -> set[str]:
        """Every value that some server would take for the key's.

        Counts other spellings of the key that frameworks take for the same: another case, `key[]`, `key[x]`, doubly
        encoded. Raises Ambiguous for a query of more than 1000 fields.
        """
        return self._parse().get(_folded(key), set())

    def _parse(self) -> dict[str, set[str]]:
        if self._values is not None:
            return self._values
        found: dict[str, set[str]] = {}
        certain: list[set[str]] = []
        for ends in _FIELD_ENDS:
            certain.append(set())
            fields = ends.split(self.raw)
            if len(fields) > MAX_FIELDS:
                raise Ambiguous("the query has too many fields")
            for field in fields:
                name, _, value = field.partition("=")
                names, values = _decodings(name), _decodings(value)
                certain[-1].add(names[0])
                for each in names:
                    found.setdefault(_folded(each), set()).update(values)
        self._names = set.intersection(*certain)
        self._values = found
        return found


def _decodings(text: str) -> list[str]:
    """`text` decoded once as a form field, then the other ways: with "+" kept, and decoded twice."""
    if "%" not in text and "+" not in text:
        return [text]
    once = [_lenient(text.replace("+", " ")), _lenient(text)]
    return once + [_lenient(each) for each in once if "%" in each]


def _lenient(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")


def _folded(key: str) -> str:
    """PHP and Rails take `key[...]` for `key`, PHP also " " and "." for "_"; ASP.NET ignores case."""
    return key.strip().partition("[")[0].replace(" ", "_").replace(".", "_").lower()


# --- what headers turn the request into ---------------------------------------------------------------------------


def _spellings(*names: str) -> frozenset[str]:
    """The names, each "-" also as "_": behind CGI-like interfaces both arrive as the same variable."""
    return frozenset("".join(c) for name in names for c in product(*("-_" if char == "-" else char for char in name)))


_METHOD_HEADERS = _spellings("x-http-method-override", "x-http-method", "x-method-override")
_TARGET_HEADERS = _spellings("x-original-url", "x-rewrite-url")
OVERRIDES = _METHOD_HEADERS | _TARGET_HEADERS


def overrides(headers: tuple[tuple[str, str], ...]) -> tuple[list[str], list[str]]:
    """The methods and the targets that headers ask an origin's framework to use instead of the request line's.

    Methods in upper case, as frameworks read them.
    """
    methods: list[str] = []
    targets: list[str] = []
    if not OVERRIDES.isdisjoint([name.lower() for name, _ in headers]):
        for name, value in headers:
            if name.lower() in _METHOD_HEADERS:
                methods.append(value.strip().upper())
            elif name.lower() in _TARGET_HEADERS:
                targets.append(value.strip())
    return methods, targets
