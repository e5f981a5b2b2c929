"""Why a request is denied or allowed: the closed list of reasons, and what an agent is told about each.

Text alone; README's table is made of it (tests/unit/test_readme.py).
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    "rule": "a rule of the policy decided; `rule` and `at` name it",
    "no-rule": "the policy names the host, but no rule matches the request",
    "unlisted-host": "no entry of the policy is about the host",
    "ambiguous-path": "an origin may read the path in several ways, and not every one of them is allowed",
    "host-mismatch": "the connection, the Host header and the TLS name do not name the same host and port",
    "private-address": "the host has an address that is not public, and its entry names no upstream",
    "not-http": "the bytes are not HTTP, or would open a tunnel that nobody could judge",
    "websocket": "the request asks for a WebSocket, and the rule that would allow it does not say `websocket: true`",
    "upgrade": "the request asks for a switch to another protocol",
    "body-limit": "the body is larger than the `max_body` of the rule that would allow it",
    "malformed": "the request breaks the rules of HTTP in its method, target or host",
    "secret-in-request": "the request holds a credential or its stand-in, and the policy does not bind it to that host",
    "credential-unavailable": "the credential that the policy injects is missing, has expired or cannot be read",
    "too-large": "the request has a longer URL, a larger head or more headers than any request may have",
    "too-slow": "a request's head, or the TLS handshake before it, did not come to an end in time",
    "busy": "the run asks for more at once than it may; passing: the request may be sent again",
    "policy-broken": "the policy is missing or has a fault; nothing is allowed until it is mended",
    "log-unwritable": "the decision could not be written down, so nothing may be forwarded",
    "judge-error": "the judge failed on the request; what cannot be judged is denied",
    "loop": "the request came back to this gateway through an upstream proxy",
    "canary": "a test by the runner that the gateway denies; no policy can allow it",
    "upstream": "only in answers, not in decisions: allowed, but the origin could not be reached or failed",
}

DECIDED = tuple(name for name in REASONS if name != "upstream")  # those that a decision may have

# Read by agents inside a refusal. pi asks again when an error has a status number in it or words such as those of an
# outage, so hints have neither digits nor such words (tests/unit/test_judge.py keeps it so).
HINTS: dict[str, str] = {
    "rule": "a rule of the policy denies it; asking again will not change that",
    "no-rule": "the policy has no rule for it; asking again will not change that",
    "unlisted-host": "the policy does not name this host; asking again will not change that",
    "ambiguous-path": "send the path in its plain form: no encoded slashes or dots, no dot segments, no empty segments",
    "host-mismatch": "name the same host in the address, the Host header and the TLS handshake",
    "not-http": "only plain HTTP requests are forwarded, no tunnels",
    "websocket": "use plain HTTP requests; the policy allows no WebSocket here",
    "upgrade": "use plain HTTP requests; a switch to another protocol is never forwarded",
    "body-limit": "the policy allows only smaller bodies here",
    "malformed": "send a well-formed HTTP request",
    "secret-in-request": "it holds a credential, or what stands in for one, that this host must not see; leave it out",
    "credential-unavailable": "the gateway has no usable credential for this host; a person must store it anew",
    "too-large": "send a shorter URL, and fewer or shorter headers",
    "too-slow": "send the whole head of a request at once",
    "busy": "this run asks for more at once than it may; send fewer requests at a time",
    "policy-broken": "the policy has a fault that a person must mend; until then everything is denied",
    "judge-error": "the gateway could not judge this request, so it is denied",
    "loop": "the gateway's upstream proxy leads back to the gateway; a person must mend that",
    "canary": "this name exists only to be denied",
}
