"""What the gateway itself answers: refusals and failures that an agent can read. No mitmproxy, no I/O.

The wording matters. pi tries again when an error's text holds the number of such a status, as a word of its own, or a
phrase of an outage. A refusal is final, so what the policy contributes to its text is left out when it reads like that,
and line numbers are written as `L6`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from impyard.addon.judge import Decision

REFUSAL = "Access denied by egress policy"
FINAL = "This is policy, not an outage: the same request will be denied again."
TROUBLE = "The gateway denies everything that it cannot judge and record. A person has to mend it."
_TROUBLES = ("policy-broken", "log-unwritable", "judge-error")

# What pi 1.6.0 takes for a passing failure, as far as a rule's name or path could hold it.
_RETRIED = re.compile(
    r"(?<![a-z0-9])(?:429|500|502|503|504|520|524)(?![a-z0-9])|rate.?limit|too many requests|overloaded|unavailable|"
    r"(?:server|internal|network|connection).?error|connection.?(?:refused|lost|closed)|time.?out|timed out|terminated|"
    r"ended without|upstream.?(?:connect|request)|retry|websocket.?(?:closed|error)|getaddrinfo|ENOTFOUND|ECONN|EPIPE",
    re.IGNORECASE,
)

_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}

# What messages of the network stack say in brackets: numbers of errors, and addresses; and addresses without.
_ADDRESSES = re.compile(
    r"\([^()]*\)|\[[^\[\]]*\]|[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+)?|[0-9a-f]*:[0-9a-f:]*:[0-9a-f.]*", re.I
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer made by the gateway: status, headers and body, ready for either HTTP version."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def phrase(self) -> str:
        """The words of an HTTP/1 status line. Python's clients and wget show nothing else."""
        if self.status == 403:
            return f"Denied by egress policy ({self.headers['x-impyard-reason']})"
        return _PHRASES.get(self.status, "Refused")


def denial(
    decision: Decision, decision_id: str | None, *, user_agent: str = "", proof: str = "", status: int = 0
) -> Answer:
    """The answer to a denied request: status 403, or 400 where the request itself is malformed, unless one is given.

    `decision_id` is None when the denial could not be recorded. `proof` answers a canary.
    """
    hint = decision.hint if decision.hint and not _RETRIED.search(decision.hint) else decision.reason
    sentence = f"{REFUSAL}: {hint}"
    nearest = decision.nearest
    body: dict[str, Any] = {
        "error": sentence,
        "message": sentence,
        "reason": decision.reason,
        "rule": None if decision.rule is None or _RETRIED.search(decision.rule) else decision.rule,
        "at": _line(decision.at),
        "nearest": {"at": _line(nearest.at), "failed": nearest.failed} if nearest else None,
        "hint": TROUBLE if decision.reason in _TROUBLES else FINAL,
    }
    headers = {"x-impyard-verdict": "deny", "x-impyard-reason": decision.reason, "cache-control": "no-store"}
    if decision_id:
        headers["x-impyard-decision"] = decision_id
    if proof:
        headers["x-impyard-canary"] = proof
    status = status or (400 if decision.reason == "malformed" else 403)
    return _answer(status, headers, body, plain=user_agent.startswith("git/"))


def upstream_failure(message: str, *, host: str, decision_id: str | None) -> Answer:
    """The answer when an allowed request got no usable answer from its origin: status 502.

    `message` comes from the network stack; it goes to the agent without addresses, which may be of the inside, and
    capped.
    """
    message = " ".join(_ADDRESSES.sub("", message).split())
    sentence = f"The request was allowed, but {host} could not be reached or gave no usable answer: {message[:300]}"
    body = {"error": sentence, "message": sentence, "reason": "upstream", "host": host, "decision": decision_id}
    headers = {"x-impyard-verdict": "allow", "x-impyard-reason": "upstream", "cache-control": "no-store"}
    return _answer(502, headers, body)


def busy(message: str) -> Answer:
    """The answer when the run asks for more at once than it may: status 503. It passes, so the agent may ask again."""
    sentence = f"The gateway of this run is busy: {message}. This is not policy: send the request again in a moment."
    body = {"error": sentence, "message": sentence, "reason": "busy"}
    headers = {"x-impyard-verdict": "deny", "x-impyard-reason": "busy", "cache-control": "no-store", "retry-after": "1"}
    return _answer(503, headers, body)


def overtaken(message: str) -> Answer:
    """The answer to an allowed request that was held back until it would be allowed in another way only: status 503."""
    sentence = f"The request was held back, and things have changed: {message}. Send it again: it will be judged anew."
    body = {"error": sentence, "message": sentence, "reason": "busy"}
    headers = {"x-impyard-verdict": "deny", "x-impyard-reason": "busy", "cache-control": "no-store", "retry-after": "1"}
    return _answer(503, headers, body)


def too_large(*, decision_id: str | None) -> Answer:
    """The answer to an upload that grew over its rule's `max_body`: status 413."""
    sentence = f"{REFUSAL}: the request body is larger than its rule's max_body"
    body = {"error": sentence, "message": sentence, "reason": "body-limit", "decision": decision_id}
    return _answer(413, {"x-impyard-verdict": "deny", "x-impyard-reason": "body-limit"}, body)


def protocol_error(status: int, message: str) -> Answer:
    """The answer to a request that breaks HTTP itself; `message` is the parser's, capped."""
    sentence = f"The request is not valid HTTP: {message[:300]}"
    body = {"error": sentence, "message": sentence, "reason": "malformed"}
    return _answer(status, {"x-impyard-verdict": "deny", "x-impyard-reason": "malformed"}, body)


def raw_http1(answer: Answer) -> bytes:
    """The answer as HTTP/1.1 bytes that also end the connection, for requests too broken to have a flow."""
    head = [f"HTTP/1.1 {answer.status} {answer.phrase}", "connection: close"]
    head += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*head, "", ""]).encode("ascii", "replace") + answer.body


def _line(at: str | None) -> str | None:
    """`file:6` as `file:L6`: a number that stands alone could be one of those that pi retries.

    A file outside of the project is named without its folder: the box learns nothing of the host's.
    """
    if at is None:
        return None
    file, _, line = at.rpartition(":") if at.rpartition(":")[2].isdigit() else (at, "", "")
    name = PurePath(file).name if file.startswith("/") else file
    if _RETRIED.search(name):
        name = "policy"
    return f"{name}:L{line}" if line else name


def _answer(status: int, headers: dict[str, str], body: dict[str, Any], *, plain: bool = False) -> Answer:
    # git shows a text/plain body to its user and swallows a JSON one.
    content = body["error"] + "\n" if plain else json.dumps(body, ensure_ascii=True) + "\n"
    kind = "text/plain; charset=utf-8" if plain else "application/json"
    data = content.encode("utf-8", "backslashreplace")
    return Answer(status, {"content-type": kind, "content-length": str(len(data)), **headers}, data)
