"""Decisions as lines of `runs/decisions.jsonl`, and the check that such lines are whole. Text in, text out.

Each line is one JSON object in ASCII, so that no byte of a request can act on a terminal or break a line. `prev` chains
the lines of a run: it is the hash of the run's line before.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from impyard.addon import redact
from impyard.addon.judge import Decision, Secret
from impyard.addon.request import Request

GENESIS = "sha256:" + "0" * 64  # what the first line of a run names as the line before it

MAX_LINE = 32 << 10  # with its newline
MOST_FAULTS = 100_000
MAX_PATH = MAX_QUERY = 4 << 10
MAX_VALUE = 1 << 10
MAX_HEADERS = 64
MAX_NAME = 128
_MARGIN = 256  # is looked at behind each cut, so that a key that is cut there is still seen to be one
_SMALL = 256  # what is left of each long field when the line as a whole is too long

_encode = msgspec.json.Encoder().encode


def encode_decision(
    *,
    ts: str,
    id: str,
    run: str,
    seq: int,
    decision: Decision,
    request: Request,
    policy_hash: str,
    prev: str,
) -> bytes:
    """The line for a decision, newline included: ASCII, at most MAX_LINE bytes, secrets redacted, long fields cut.

    ts: RFC 3339 in UTC with milliseconds. A cut field ends with "…(N bytes)", N being its whole length.
    """
    nearest = decision.nearest
    path, query = _short(request.path, MAX_PATH), _short(request.query, MAX_QUERY)
    named = [_short(text, MAX_NAME) for text in (request.method, request.scheme, request.host, request.http)]
    headers = request.headers[:MAX_HEADERS]
    named += [_short(name, MAX_NAME) for name, _ in headers]
    # What is secret by its name is redacted whatever it looks like; mostly it looks like a key, and nothing else does.
    values = [
        _short(value, MAX_VALUE)
        for name, value in headers
        if len(name) > MAX_NAME or not redact.is_secret(name.lower())  # as `_headers` sees it
    ]
    clean = redact.is_clean([path, query, *named, *values])
    fields: dict[str, Any] = {
        "ts": ts,
        "id": id,
        "run": run,
        "seq": seq,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
        "rule": decision.rule and _cut(decision.rule, MAX_VALUE),
        "at": decision.at and _cut(decision.at, MAX_VALUE),
        "nearest": nearest and {"at": _cut(nearest.at, MAX_VALUE), "failed": nearest.failed},
        "policy": policy_hash,
        **asked_for(request, clean=clean),
        "query": _cut(redact.query(query, clean=clean), MAX_QUERY, len(request.query)),
        "http": _named(request.http, clean),
        "headers": _headers(request.headers, clean),
        "body_bytes": request.body_bytes,
        "prev": prev,
    }
    if decision.times != 1:
        fields["times"] = decision.times
    if decision.upstream is not None:
        fields["upstream"] = str(decision.upstream)
    if decision.led_by is not None:
        fields["redirected_by"] = decision.led_by
    # Short by themselves, so that they stay whole where the line is cut: names are bounded where policies are read.
    if decision.inject is not None:
        fields["credential"] = decision.inject.credential
    if decision.injected:
        fields["injected"] = list(decision.injected)
    if decision.secret is not None:
        fields["secret"] = told_of(decision.secret)
    if decision.follows is not None:
        fields["follows"] = decision.follows
    line = _line(fields)
    if len(line) > MAX_LINE:
        size = len(line)
        for name in ("rule", "at", "method", "host", "path", "query"):
            if fields[name] is not None:
                fields[name] = _cut(fields[name], _SMALL)
        fields["nearest"] = None
        fields["headers"] = {"…": f"({len(request.headers)} headers, line of {size} bytes)"}
        line = _line(fields)
    return line


def asked_for(request: Request, *, clean: bool = False) -> dict[str, Any]:
    """What a request asked for, as it may be shown: method, scheme, host, port and path, redacted and cut.

    clean: the redactor was asked about all of it already.
    """
    path = _short(request.path, MAX_PATH)
    return {
        "method": _named(request.method, clean),
        "scheme": _named(request.scheme, clean),
        "host": _cut(redact.host(_short(request.host, MAX_NAME * 2), clean=clean), MAX_NAME * 2, len(request.host)),
        "port": request.port,
        "path": _cut(redact.value(path, clean=clean), MAX_PATH, len(request.path)),
    }


def encode_outcome(
    *,
    ts: str,
    id: str,
    run: str,
    status: int | None,
    up: int,
    down: int,
    ms: float,
    error: str | None,
    redirect: str | None = None,
) -> bytes:
    """The line of `runs/outcomes.jsonl` for what came of a forwarded request; newline included, ASCII.

    status: the upstream's, None when it gave none. up, down: body bytes. ms: from the decision to the end.
    redirect: the other host that the answer led to.
    """
    fields = {
        "ts": ts,
        "id": id,
        "run": run,
        "status": status,
        "bytes_up": up,
        "bytes_down": down,
        "ms": round(ms, 1),
        "error": error and _cut(redact.value(error), MAX_VALUE),
    }
    if redirect is not None:
        fields["redirect"] = redirect
    return _line(fields)


def line_hash(line: bytes) -> str:
    """ "sha256:<hex>" of a line without its newline."""
    return "sha256:" + hashlib.sha256(line.removesuffix(b"\n")).hexdigest()


class LineFault(NamedTuple):
    """What is wrong with a line: its number from 1 (0: with the log as a whole), and what, for people."""

    line: int
    what: str


@dataclass(slots=True)
class _Chain:
    """How far the lines of one run were followed. suspect: a line that the next one does not name by its hash."""

    line: int
    seq: int
    hash: str
    suspect: int = 0


def verify(
    lines: Iterable[bytes],
    *,
    receipts: Mapping[str, tuple[int, str]] | None = None,
    before: Mapping[str, tuple[int, str]] | None = None,
) -> list[LineFault]:
    """The faults of a decision log; empty when every run's chain is whole.

    Finds lines that are torn, no JSON or not a decision, edited, removed, reordered or repeated, in line order; behind
    those, ends that are missing. The end of a run can only be checked against its receipt: `receipts` maps a run's id
    to its last `seq` and last line hash; `before` is the same for lines before these, known to be
    gone. Of very many faults, the first MOST_FAULTS count.
    """
    faults: list[LineFault] = []
    ends: list[LineFault] = []  # of a half-written last line, that one is to be named first
    chains: dict[str, _Chain] = {run: _Chain(0, seq, last) for run, (seq, last) in (before or {}).items()}
    for number, line in enumerate(lines, 1):
        if len(faults) >= MOST_FAULTS:
            break
        if not line.endswith(b"\n"):
            faults.append(LineFault(number, "torn: the line has no end"))
            line += b"\n"
        entry = _link(line)
        if entry is None:
            faults.append(LineFault(number, "not a decision: torn or overwritten"))
            continue
        run, seq, prev = entry
        chain = chains.get(run)
        own = line_hash(line)
        if chain is None:
            if seq != 1:
                faults.append(LineFault(number, f"lines before it are missing: run {run} begins with seq {seq}"))
            elif prev != GENESIS:
                faults.append(LineFault(number, "edited: the first line of a run names a line before it"))
            chains[run] = _Chain(number, seq, own)
            continue
        if chain.suspect:  # does this line vouch for the one that disowned the suspect?
            blamed = chain.suspect if prev == chain.hash else chain.line
            faults.append(LineFault(blamed, "edited: the lines around it do not agree with it"))
        suspect = 0
        if seq > chain.seq + 1:
            lacks = "1 line" if seq == chain.seq + 2 else f"{seq - chain.seq - 1} lines"
            faults.append(LineFault(number, f"{lacks} of run {run} missing before it"))
        elif seq <= chain.seq:
            faults.append(LineFault(number, f"out of order or repeated: seq {seq} comes after {chain.seq}"))
        elif prev != chain.hash and not chain.suspect:
            suspect = chain.line
        chains[run] = _Chain(number, seq, own, suspect)
    for run, chain in chains.items():
        receipt = (receipts or {}).get(run)
        if chain.suspect:
            blamed = chain.suspect if receipt in (None, (chain.seq, chain.hash)) else chain.line
            faults.append(LineFault(blamed, "edited: the line after it does not agree with it"))
        elif receipt and receipt[0] > chain.seq:
            ends.append(
                LineFault(chain.line, f"the end of run {run} is missing: its receipt counts {receipt[0]} lines")
            )
        elif receipt and receipt != (chain.seq, chain.hash):
            faults.append(LineFault(chain.line, f"edited: not the last line that the receipt of run {run} names"))
    for run, (seq, _) in (receipts or {}).items():
        if seq and run not in chains:
            ends.append(LineFault(0, f"no line of run {run}: its receipt counts {seq}"))
    return sorted(faults) + sorted(ends)


def is_of_run(line: bytes, run: str) -> bool:
    """Whether a line is of a run whose id begins with `run`. Of one that is no decision, whether it says so itself:
    what a request held cannot pose as that, since quotes in it are escaped."""
    if not may_be_of_run(line, run):
        return False
    link = _link(line)
    if link is not None:
        return link[0].startswith(run)
    return any(name + _in_json(run) in line for name in (b'"run":"', b'"id":"'))


def may_be_of_run(lines: bytes, run: str) -> bool:
    """Whether `is_of_run` may hold of one of these lines: for most of a long log it does not, and this is fast."""
    return _in_json(run) in lines


@functools.lru_cache(1)
def _in_json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


class _Link(msgspec.Struct):
    run: str
    seq: int
    prev: str
    verdict: msgspec.Raw


_decode_link = msgspec.json.Decoder(_Link).decode


def _link(line: bytes) -> tuple[str, int, str] | None:
    """A line's run, its number there, and the hash that it names; None for what is no decision."""
    if line.isascii():  # as the judge writes it
        try:
            link = _decode_link(line)
            return link.run, link.seq, link.prev
        except (msgspec.MsgspecError, RecursionError):  # it also takes less than json does
            pass
    try:
        entry = json.loads(line)
        run, seq, prev = entry["run"], entry["seq"], entry["prev"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(run, str) and isinstance(seq, int) and isinstance(prev, str) and "verdict" in entry:
        return run, seq, prev
    return None


def _headers(headers: tuple[tuple[str, str], ...], clean: bool) -> dict[str, str]:
    """Headers by lower-case name, values of one name joined as HTTP joins them, redacted and cut."""
    found: dict[str, str] = {}
    for name, value in headers[:MAX_HEADERS]:
        name = name.lower() if clean and len(name) <= MAX_NAME else _named(name, clean).lower()
        if redact.is_secret(name):
            value = redact.REDACTED
        elif not clean or len(value) > MAX_VALUE or "=" in value or "//" in value or "%" in value:
            value = _cut(redact.value(_short(value, MAX_VALUE), clean=clean), MAX_VALUE, len(value))
        found[name] = f"{found[name]}, {value}" if name in found else value
    if len(headers) > MAX_HEADERS:
        found["…"] = f"({len(headers) - MAX_HEADERS} more)"
    return found


def told_of(secret: Secret) -> dict[str, str]:
    """What was found in a request, as it may be shown."""
    where, _, name = secret.where.partition(" ")
    name = _named(name, clean=False)  # of a header, and so the box's own words
    return {"credential": secret.credential, "kind": secret.kind, "where": f"{where} {name}" if name else where}


def _named(text: str, clean: bool) -> str:
    """A short field, such as a method or the name of a header."""
    return _cut(text if clean else redact.text(_short(text, MAX_NAME)), MAX_NAME, len(text))


def _short(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size + _MARGIN]


def _cut(text: str, size: int, whole: int | None = None) -> str:
    """`text` in at most `size` characters; when cut (or cut before, from `whole`), with a mark that says so."""
    whole = len(text) if whole is None else whole
    if len(text) <= size and whole <= size:
        return text
    mark = f"…({whole} bytes)"
    return text[: max(0, size - len(mark))] + mark


def _line(fields: Mapping[str, Any]) -> bytes:
    """`fields` as one line of ASCII JSON without control characters, DEL included."""
    try:
        line = _encode(fields)
        if line.isascii() and b"\x7f" not in line:
            return line + b"\n"
    except (UnicodeEncodeError, msgspec.MsgspecError):  # lone surrogates: json escapes them
        pass
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode("ascii") + b"\n"
