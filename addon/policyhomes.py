"""What entries of a policy put into the box for its tools: variables and files that hold a sentinel.

Neither may be one that the box itself uses, or that changes which code programs load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from impyard.addon.vault.templates import Template
from impyard.addon.yamlnodes import Node, Nodes, Scalar, Sequence_, short

MAX_NAMES = 16
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NAMED = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TERM TMPDIR TMP TEMP PWD OLDPWD HOSTNAME IFS ENV MAIL TZ EDITOR VISUAL PAGER
MANPAGER LESS LESSOPEN LESSCLOSE BROWSER CDPATH PROMPT_COMMAND PS4 GCONV_PATH LOCPATH NLSPATH HOSTALIASES RES_OPTIONS
CLASSPATH JDK_JAVA_OPTIONS RUSTC RUSTFLAGS CC CXX MAKEFLAGS MAKEFILES GOFLAGS GOPROXY NO_UPDATE_NOTIFIER OPENSSL_CONF
OPENSSL_MODULES GEM_HOME GEM_PATH BUNDLE_GEMFILE COMPOSER_HOME CARGO_HOME RUSTUP_HOME
"""
_OWN = frozenset(_NAMED.split())
_BEGINNINGS = """
LD_ DYLD_ LC_ XDG_ BASH_ GIT_ PI_ IMPYARD_ PIP_ UV_ NPM_CONFIG_ NODE_ DENO_ BUN_ ELECTRON_ PYTHON PERL RUBY LUA_ PHP
JAVA_ _JAVA_ MAVEN_ GRADLE_ SSH_ CARGO_HTTP_ CARGO_BUILD_ GLIBC_ MALLOC_ ZDOTDIR READLINE
"""
_BEGUN = tuple(_BEGINNINGS.split())
_HOLDS = re.compile(r"PROXY|(?:^|_)SSL_|(?:^|_)CA(?:$|_|CERT|INFO|BUNDLE|PATH|FILE)|CERT")
_KEPT = frozenset({"NODE_AUTH_TOKEN"})  # npm's, in what actions/setup-node writes; Node itself knows nothing of it

_PART = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_MAX_DEPTH = 5
AGENT_FOLDER = "agent"  # in HOME: pi's own settings and credentials


class _ReadTemplate(Protocol):
    def __call__(self, nodes: Nodes, node: Node, what: str, *, secret: bool, lines: bool) -> Template | None: ...


def read_env(nodes: Nodes, node: Node) -> tuple[str, ...]:
    """The variables that `env` lists; what must not be one is a fault of `nodes`."""
    items = nodes.sequence(node, "env") if isinstance(node, Sequence_) else [node]
    found: list[str] = []
    for item in items:
        name = item.value if isinstance(item, Scalar) else ""
        upper = name.upper()
        if not _VARIABLE.fullmatch(name):
            nodes.fault(item, "env must be names of variables, as in [GH_TOKEN]")
        elif upper not in _KEPT and (upper in _OWN or upper.startswith(_BEGUN) or _HOLDS.search(upper)):
            nodes.fault(item, f'env "{name}": the box uses it itself, or it changes what programs load')
        elif name not in found:
            found.append(name)
    if len(items) > MAX_NAMES:
        nodes.fault(node, f"env: more than {MAX_NAMES} names")
    return tuple(found)


def read_files(nodes: Nodes, node: Node, read: _ReadTemplate) -> tuple[tuple[str, str], ...]:
    """The files that `files` maps to what they hold; what must not be one is a fault of `nodes`."""
    found: list[tuple[str, str]] = []
    for path, value in nodes.mapping(node, "files", None).items():
        shown = f'file "{short(path)}"'
        if why := _not_a_file(path):
            nodes.fault(value, f"{shown}: {why}")
            shown = "file"
        template = read(nodes, value, shown, secret=True, lines=True)
        if template is not None and not why:
            found.append((path, str(value.value)))
    if len(found) > MAX_NAMES:
        nodes.fault(node, f"files: more than {MAX_NAMES}")
    return tuple(found)


def _not_a_file(path: str) -> str | None:
    parts = path.split("/")
    if not all(_PART.fullmatch(part) and part.strip(".") for part in parts) or len(parts) > _MAX_DEPTH:
        return 'write a plain path inside of the box\'s HOME, as in ".npmrc" or ".config/tool/token"'
    if parts[0].lower() == AGENT_FOLDER:
        return "that folder is pi's own"
    return None


class Homes:
    """What the entries of one policy put into the box, so that no two of them want the same place."""

    def __init__(self) -> None:
        self._env: dict[str, str] = {}
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(
        self, nodes: Nodes, node: Node, credential: str, env: Iterable[str], files: Iterable[tuple[str, str]]
    ) -> None:
        """Notes what an entry puts into the box; a place that is taken otherwise is a fault of `nodes`.

        A file may be named by several entries: it gets the lines of all.
        """
        for name in env:
            other = self._env.setdefault(name, credential)
            if other != credential:
                nodes.fault(node, f'env "{name}" holds credential "{other}" already: give this entry an env of its own')
        for path, _ in files:
            parts = path.split("/")
            folders = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
            if path in self._folders or folders & self._files:
                nodes.fault(node, f'file "{path}" and another cannot both be: one is the folder of the other')
            self._files.add(path)
            self._folders |= folders
