"""What is said beside suggested rules: warnings, and what to do about denials that no rule should mend. Text alone."""

from __future__ import annotations

import re

READING = ("GET", "HEAD", "OPTIONS")
_FETCH = "/git-upload-pack"  # git's own word for sending a fetch to the client

# Words in a host's name, or the beginning of a path, that tell of a place to leave data at.
_TAKES_UPLOADS = re.compile(
    r"(?:^|[.-])(?:gists?|\w*paste\w*|\w*bin|hastebin|storage|s3|blob|buckets?|files?|uploads?|transfer|drive|dropbox"
    r"|registry|npm|packages|webhooks?|hooks|discord|slack|telegram|requestcatcher|ngrok|sentry|share"
    r"|0x0|ix|sprunge|termbin|imgur|pages|docs|forms|mail|smtp|git|github|gitlab|bitbucket|codeberg|huggingface"
    r"|openai|anthropic|googleapis|googleusercontent|amazonaws|windows|cloudflarestorage|digitaloceanspaces)(?:[.-]|\d|$)"
)
_UPLOAD_PATH = re.compile(
    r"(?i)/(?:\w*upload\w*|files?|gists?|pastes?|attachments?|blobs?|media|import|commit|webhooks?)\b"
)

# What to do about each denial that no rule mends, or that none should be made for.
ADVICE = {
    "rule": "a rule of the policy denies it: `impyard policy allow ID --over-deny` puts an exception below that rule",
    "ambiguous-path": "servers may read the path in several ways; have it asked for in its plain form",
    "host-mismatch": "no rule can allow it: address, Host header and TLS name must agree",
    "private-address": "write `upstream` into the entry of the host: nothing private is reachable otherwise",
    "not-http": "no rule can allow it: only plain HTTP is forwarded",
    "upgrade": "no rule can allow it: no other protocol is forwarded",
    "body-limit": "raise `max_body` of the rule, where that is meant",
    "malformed": "no rule can allow it: the request itself is broken, as one with raw bytes in its path is",
    "secret-in-request": "no rule should: bind the credential to the host by `inject` there, or find out who sent it",
    "credential-unavailable": "store the credential anew: `impyard vault list` shows what there is",
    "too-large": "no rule can allow it: the request has to be smaller",
    "too-slow": "no rule can allow it: the request has to come faster",
    "busy": "no rule is missing: fewer requests at once would pass",
    "policy-broken": "mend the policy: `impyard policy check` shows where",
    "log-unwritable": "make room for the log of decisions",
    "judge-error": "no rule can allow what cannot be judged",
    "loop": "the gateway's upstream proxy leads back to it: mend `upstream_proxy`",
    "canary": "a check of impyard's own: no rule can allow it",
    "cut": "the log has only a part of it, or a part is redacted: write the rule by hand",
    "method": "no rule is written for such a method: write it by hand",
    "private-name": "a name of a private network: write the entry by hand, with `upstream`",
    "otherwise": "a rule for just this request does not allow it; `impyard policy explain METHOD URL` says why",
    "many": "more rules than anybody reads: narrow it down with --run or --since, or write a pattern by hand",
}


def warnings(host: str, methods: tuple[str, ...], path: str, query: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """What a person should know before allowing this; empty for what only reads. path: an expression."""
    if dict(query).get("service") == "git-receive-pack" or path.endswith("/git-receive-pack"):
        return ("git uses this to push: with it, the box can send data out",)
    if is_fetch(methods, path):
        return ()
    writing = [method for method in methods if method not in READING]
    if not writing:
        return ()
    if takes_uploads(host, path):
        return (f"{' and '.join(writing)} to a host that takes uploads: the box can leave data there",)
    return (f"{' and '.join(writing)} can change things there, and carry data out",)


def is_fetch(methods: tuple[str, ...], path: str) -> bool:
    """Whether this is how git asks for what it fetches, which is a POST that changes nothing."""
    return path.endswith(_FETCH) and methods == ("POST",)


def takes_uploads(host: str, path: str) -> bool:
    """Whether a host, by its name or this path, looks like one where data can be left for others to fetch."""
    return bool(_TAKES_UPLOADS.search(host) or _UPLOAD_PATH.search(path.replace("\\", "")))
