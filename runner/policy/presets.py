"""The shipped presets: small policies with placeholders, and what they become with places put in.

A preset is a file of policies/presets/, whose comments say why each line is there; NAME_test.yaml beside it holds
requests with the verdict that it gives. Placeholders are `host: "{npm}"`, an entry that is written once for each place
of that name; `{prefix}` and others in a path; and `{repo}`, the repositories that the user named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import impyard.policies
from impyard.addon.errors import ImpyardError
from impyard.addon.policy import Policy, read_policy
from impyard.addon.request import is_address
from impyard.addon.rules import DEFAULT_PORTS
from impyard.addon.yamlnodes import nearest, short
from impyard.runner.policy.expect import ENDING, Expectation, read_expectations
from impyard.runner.policy.registries import Place, base_of, expression

FOLDER = Path(impyard.policies.__path__[0]) / "presets"
NAMES = (
    *("github", "github-clone", "gitlab", "npm", "pip", "cargo", "go", "apt"),
    *("anthropic", "openai", "openai-codex", "google", "openrouter", "huggingface"),
)
# Where a placeholder has nothing to stand for, the preset does without that entry: it is told, or wanted, elsewhere.
OPTIONAL = frozenset({"go-sums"})

_TOP = "networkPolicies:\n"
_ITEM = re.compile(r"^  - ", re.MULTILINE)
_HOST = re.compile(r'^  - host: "\{([a-z-]+)\}".*$', re.MULTILINE)
_INJECT = re.compile(r"^    inject: ([a-z-]+) # only with --inject: (.*)$", re.MULTILINE)
_PATH_WITH_REPO = re.compile(r"^( +path: )/\{repo\}", re.MULTILINE)
_WORD = re.compile(r"\{([a-z]+)\}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_TESTED = re.compile(r"https://\{([a-z-]+)(:8443|\.)?\}")


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset as shipped. summary: one line. head: the comments of the file. body: the entries' text."""

    name: str
    summary: str
    head: str
    body: str

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names of places that it needs, in their order."""
        return tuple(dict.fromkeys(_HOST.findall(self.body)))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it names itself."""
        return tuple(re.findall(r'^  - host: "?([a-z0-9*][^" {}\n]*)', self.body, re.MULTILINE))

    @property
    def may_inject(self) -> str | None:
        """The credential that goes in with --inject only."""
        found = _INJECT.search(self.body)
        return found[1] if found else None

    @property
    def takes_repos(self) -> bool:
        return "{repo}" in self.body

    @property
    def date(self) -> str:
        """When it was written or last looked at."""
        found = re.search(r"^# Date: (\S+)$", self.head, re.MULTILINE)
        return found[1] if found else ""


def preset(name: str) -> Preset:
    """The preset of that name. Raises ImpyardError when there is none."""
    if name not in NAMES:
        meant = nearest(name, NAMES)
        raise ImpyardError(
            f'there is no preset "{short(name)}"' + (f"; did you mean {meant}?" if meant else ""),
            hint="`impyard policy preset list` shows all of them",
        )
    head, _, body = (FOLDER / f"{name}.yaml").read_text().partition(_TOP)
    return Preset(name, head.partition("\n")[0].removeprefix(f"# {name}: "), head, body)


def entries_text(
    wanted: Preset, places: Mapping[str, Sequence[Place]], *, repos: Sequence[str] = (), inject: bool = False
) -> list[str]:
    """The text of each entry that the preset becomes, comments before it included, its dash in the third column.

    Raises ImpyardError for repositories that are none, and where one credential would go to several registries.
    """
    if inject and sum(len(places.get(name, ())) for name in wanted.placeholders) > 1 and wanted.may_inject:
        raise ImpyardError(
            f"several registries are configured, and one alone is meant to see the credential {wanted.may_inject}",
            hint=f"add them one by one: `impyard policy preset add {wanted.name} --inject --host URL`",
        )
    if inject and any(place.scheme == "http" for name in wanted.placeholders for place in places.get(name, ())):
        raise ImpyardError(
            "the registry is reached over plain http, where a credential would be read by others",
            hint="leave --inject out; or write `inject` with over_http: true into the entry, if you trust that network",
        )
    written = []
    for item in _items(wanted.body):
        item = _with_repos(_injecting(item, inject), repos)
        named = _HOST.search(item)
        if named is None:
            written.append(item)
            continue
        for place in places.get(named[1], ()):
            written.append(_at(item, named, place))
    return written


def document(wanted: Preset, entries: Sequence[str]) -> str:
    """The entries as a policy of their own, with the preset's comments."""
    return wanted.head + _TOP + "".join(entries)


def as_policy(wanted: Preset, entries: Sequence[str]) -> Policy:
    """The same, read by the judge's reader. Raises PolicyError."""
    file = Path(f"presets/{wanted.name}.yaml")
    return read_policy([(file, document(wanted, entries).encode())])


def expectations(wanted: Preset, places: Mapping[str, Sequence[Place]]) -> tuple[Expectation, ...]:
    """What the preset's own test expects, for all of the places: those that the judge meets with the preset alone."""
    path = FOLDER / f"{wanted.name}{ENDING}"
    lines = [each for line in path.read_text().splitlines() for each in _at_places(line, places)]
    return read_expectations(path, "\n".join([*lines, ""]).encode(), path.name).expectations


def _at_places(line: str, places: Mapping[str, Sequence[Place]]) -> list[str]:
    """A line of a test for each place; `{npm:8443}` is its host at another port, `{npm.}` with a trailing dot."""
    named = _TESTED.search(line)
    if named is None:
        return [line]
    found = []
    for place in places.get(named[1], ()):
        host, odd = f"[{place.host}]" if ":" in place.host else place.host, named[2] or ""
        if odd == "." and is_address(place.host):
            continue  # only a name may end so
        port = "" if place.port == DEFAULT_PORTS[place.scheme] or odd == ":8443" else f":{place.port}"
        url = f"{place.scheme}://{host}{odd}{port}/{place.prefix}"
        found.append(line[: named.start()] + url + line[named.end() :])
    return found


def _items(body: str) -> list[str]:
    """The entries' texts: comments and blank lines before one belong to it."""
    starts = []
    for found in _ITEM.finditer(body):
        lines = body[: found.start()].split("\n")[:-1]
        while lines and (not lines[-1].strip() or re.match(r"  #", lines[-1])):
            lines.pop()
        starts.append(len("\n".join([*lines, ""])))
    return [body[start:end] for start, end in zip(starts, [*starts[1:], len(body)], strict=True)]


def _at(item: str, named: re.Match[str], place: Place) -> str:
    """The entry for one place."""
    host = f'"{place.host}"' if ":" in place.host else place.host
    lines = [f"  - host: {host}"]
    if place.scheme != "https" or place.port == DEFAULT_PORTS["http"]:  # a port of 80 alone stands for http
        lines.append(f"    scheme: {place.scheme}")
    if place.port != DEFAULT_PORTS[place.scheme]:
        lines.append(f"    port: {place.port}")
    words = {"prefix": expression(place.prefix), "base": expression(base_of(place.prefix)), **dict(place.words)}
    text = item[: named.start()] + "\n".join(lines) + item[named.end() :]
    return re.sub(
        r"^( +path: )(.*)$",
        lambda line: line[1] + _WORD.sub(lambda word: words.get(word[1], word[0]), line[2]),
        text,
        flags=re.MULTILINE,
    )


def _injecting(item: str, inject: bool) -> str:
    """The entry with its optional `inject`, or with it in a comment."""
    return _INJECT.sub(r"    inject: \1 # \2" if inject else r"    # inject: \1 # \2", item)


def _with_repos(item: str, repos: Sequence[str]) -> str:
    """The entry for the named repositories, in any case as the server takes it; for all where none is named."""
    if not repos:
        return _PATH_WITH_REPO.sub(r"\1/[^/]+/[^/]+", item)
    for repo in repos:
        if not _REPO.fullmatch(repo) or repo.endswith("/..") or repo.endswith("/."):
            raise ImpyardError(f'"{short(repo)}" is no repository', hint="write it as OWNER/NAME")
    names = [expression(repo.removesuffix(".git")) for repo in dict.fromkeys(repos)]
    one = names[0] if len(names) == 1 else f"({'|'.join(names)})"
    return _PATH_WITH_REPO.sub(lambda found: f"{found[1]}/(?i:{one})(\\.git)?", item)
