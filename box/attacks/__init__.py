"""Attempts to get something past a judging proxy, as data, and what is right for each.

Three places use them: the tests, `impyard prove --deep` in a box of its own, and `impyard prove --deep --proxy` against
any other proxy. Standard library alone, since they also run in the box.

The set-up: `ok.test` allows GET under /public/, POST exactly /v1/messages, POST /limited with at most `LIMIT` bytes,
GET /search with ?repo=ok, and git's fetch under /repo.git/; `ws.test` allows a WebSocket on /ws with at most `LIMIT`
bytes; `evil.test` is in no rule. One counting origin stands for all three.
"""
