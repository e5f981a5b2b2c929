"""Secrets in ordinary files: source, text, settings. The box sees them, as a project does not work without its files.

For `impyard doctor --secrets`: each file is read, which is too slow before every run. A finding says where and of which
kind, never what. Only shapes that the issuers of tokens document are looked for, and long literals that are assigned to
a name like `password`; a measure of randomness would find every hash.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import re2

from impyard.runner.secretfiles.clean import linear
from impyard.runner.secretfiles.kinds import PACKAGES

MAX_FILE_BYTES = 1024 * 1024  # longer ones are data
MAX_FILES = 200_000
# In one file. Each may be looked for to the file's end, so that a file of nothing else would take forever.
MAX_HITS = 100
# What is in git's objects is compressed, and was committed; a file of them is not for reading.
UNREAD = frozenset({"objects", "lfs", "index"})

_KINDS = {
    "private key": r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|AGE-SECRET-KEY-1[A-Z0-9]{50}",
    "Anthropic key": r"\bsk-ant-[a-z0-9]+-[A-Za-z0-9_-]{24,}",
    "OpenRouter key": r"\bsk-or-v1-[0-9a-f]{48,}",
    "OpenAI key": r"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]*[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9_-]{20,}",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{50,}",
    "GitLab token": r"\bgl(?:pat|ptt|dt|rt|cbt|ft|soat|imt|agent)-[A-Za-z0-9_.-]{20,}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36,}",
    "PyPI token": r"\bpypi-AgE[A-Za-z0-9_-]{50,}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{34,}",
    "AWS key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
    "Google key": r"\bAIza[A-Za-z0-9_-]{35}",
    "Google OAuth secret": r"\bGOCSPX-[A-Za-z0-9_-]{20,}|\bya29\.[A-Za-z0-9_-]{30,}",
    "Azure storage key": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}|\bxapp-[0-9]-[A-Za-z0-9-]{20,}",
    "Slack web hook": r"hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{16,}",
    "Discord web hook": r"discord(?:app)?\.com/api/webhooks/[0-9]{15,}/[A-Za-z0-9_-]{50,}",
    "Telegram token": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b",
    "Stripe key": r"\b[rs]k_live_[A-Za-z0-9]{20,}",
    "Square token": r"\bEAAA[A-Za-z0-9_-]{60}|\bsq0[a-z]{3}-[A-Za-z0-9_-]{22,}",
    "SendGrid key": r"\bSG\.[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{40,46}",
    "Mailchimp key": r"\b[0-9a-f]{32}-us[0-9]{1,2}\b",
    "Twilio key": r"\bSK[0-9a-f]{32}\b",
    "DigitalOcean token": r"\bdo[opr]_v1_[0-9a-f]{64}",
    "Vault token": r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}",
    "Docker token": r"\bdckr_[a-z]+_[A-Za-z0-9_-]{20,}",
    "Shopify token": r"\bshp(?:at|ca|pa|ss)_[0-9a-f]{32}",
    "Databricks token": r"\bdapi[0-9a-f]{32}\b",
    "Linear key": r"\blin_api_[A-Za-z0-9]{32,}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{20,}",
    "password in a URL": r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'`<>{}$]*:[^\s/:@\"'`<>{}$*]{8,}@[A-Za-z0-9.\[-]+",
    "password or key": r"(?i:password|passwd|secret|api_?key|access_?key|auth_?token|private_?key)[\"']?\s{0,4}"
    r"(?:=>?|:=?)\s{0,4}[\"'][^\s\"'<>{}$()/%:]{16,256}[\"']",
}
# In linear time, and in one pass: RE2, as for the policy.
_SEARCH = "|".join(f"({pattern})" for pattern in _KINDS.values())
_NAMES = tuple(_KINDS)
_PLACEHOLDER = linear(
    rb"(?i)example|placeholder|changeme|change_me|your[_-]|xxxx|dummy|\*\*\*|\.\.\.|redacted|:(?:pass(?:word|wd)?|secret)@"
)
_NEED_DIGIT = {"password or key"}
_DIGIT, _LETTER = linear(rb"[0-9][^=:]*\z"), linear(rb"[A-Za-z][^=:]*\z")


class Spot(NamedTuple):
    """Where a secret stands, and of which kind. `line` counts from 1."""

    path: Path
    line: int
    kind: str


class Search(NamedTuple):
    """`spots` in order; `files` were read; not `complete`: there are more than are looked at."""

    spots: list[Spot]
    files: int
    complete: bool


def search(root: Path, kept: Collection[Path]) -> Search:
    """The secrets in the files below `root`, but for `kept`, which the box does not see, runs/ and installed packages.
    Folders and files that cannot be read are passed over."""
    pattern = linear(_SEARCH.encode())
    spots: list[Spot] = []
    count = 0
    complete = True
    for path in _files(root, {str(path) for path in kept}):
        if count >= MAX_FILES:
            complete = False
            break
        count += 1
        matches = list(itertools.islice(pattern.finditer(data := _text(path)), MAX_HITS + 1))
        complete = complete and len(matches) <= MAX_HITS
        spots += [Spot(Path(path), line, kind) for kind, line in _hits(matches[:MAX_HITS], data)]
    return Search(sorted(set(spots)), count, complete)


def _hits(matches: Iterable[re2._Match], data: bytes) -> Iterator[tuple[str, int]]:
    """Each find's kind and line."""
    line, end = 1, 0
    for found in matches:
        kind = _NAMES[found.lastindex - 1]
        text = found[0]
        line += data.count(b"\n", end, found.start())
        end = found.start()
        if _PLACEHOLDER.search(text) or (kind != "private key" and len(set(text)) < 10):
            continue
        if kind in _NEED_DIGIT and not (_DIGIT.search(text) and _LETTER.search(text)):
            continue  # a word, not a password
        yield kind, line


def _files(root: Path, kept: Collection[str]) -> Iterator[str]:
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        in_git = ".git" in folder.split("/")
        try:
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.path in kept or (in_git and entry.name in UNREAD):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path != f"{root}/runs" and entry.name.lower() not in PACKAGES:
                            pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path
        except OSError:
            continue


def _text(path: str) -> bytes:
    """A file's content; nothing of one that is long, no text, or unreadable."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                return b""
            data = file.read(MAX_FILE_BYTES)
    except OSError:
        return b""
    return b"" if b"\0" in data[:8192] else data
