"""What credentials cost: putting one on, and looking for all of them in what is sent and masking them in the answer."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from impyard.addon.vault.credential import FAR_FUTURE_MS, Credential
from tests.bench.bed import Bed
from tests.bench.kept_connections import compare, rows
from tests.bench.plan import Plan
from tests.bench.table import Row

AT_LEAST = 0.95
BODY_BYTES = 100_000
_SHAPES = {
    "anthropic": ("sk-ant-api03-", 95),
    "openai": ("sk-proj-", 150),
    "google": ("AIza", 35),
    "openrouter": ("sk-or-v1-", 64),
    "github": ("ghp_", 36),
    "gitlab": ("glpat-", 20),
    "npm": ("npm_", 36),
    "groq": ("gsk_", 52),
}
OTHERS = """\
  - host: api.github.test
    inject: github
    policies: [{action: ALLOW, method: GET, path: /repos/.*}]
  - host: registry.npm.test
    inject: npm
    policies: [{action: ALLOW, method: GET, path: /.*}]
"""


def measure(plan: Plan) -> Iterator[Row]:
    """Two gateways of which one has a vault of ten credentials with twelve values, three of them bound.

    The body is a prompt with source code in it, as agents send it.
    """
    with Bed() as bed:
        body = bed.folder / "prompt.json"
        body.write_bytes(prompt(BODY_BYTES))
        with (
            bed.gateway("without") as without,
            bed.gateway("with", inject="anthropic", more=OTHERS, credentials=credentials()) as keyed,
        ):
            assert keyed.gateway is not None
            stand_in = keyed.gateway.sentinel("anthropic").key
            headers = f"content-type: application/json\r\nx-api-key: {stand_in}\r\n"
            targets = [replace(target, body=body, headers=headers) for target in (keyed, without)]
            ours, theirs = compare(bed, targets, plan, 1)
            for line in keyed.gateway.decisions()[-1:]:
                if line.get("injected") != ["x-api-key"]:
                    raise RuntimeError(f"nothing was injected: {line}")
        yield from rows("100 kB, credentials and tripwire", "the judge without them", AT_LEAST, ours, theirs, "keys")


def prompt(size: int) -> bytes:
    """A model's request of that many bytes."""
    sources = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))) * 10
    empty = len(json.dumps({"messages": [{"role": "user", "content": ""}]}))
    found = sources[: size - empty]
    while (excess := len(json.dumps(found)) - 2 + empty - size) > 0:
        found = found[: len(found) - max(1, excess // 2)]
    return json.dumps({"messages": [{"role": "user", "content": found + " " * -excess}]}).encode()


def credentials() -> list[Credential]:
    """Ten of the usual lengths: eight keys, and two logins with two values each."""
    noise = random.Random(1)

    def text(length: int) -> str:
        return "".join(noise.choices(string.ascii_letters + string.digits, k=length))

    keys = [Credential(name, "api_key", key=prefix + text(length)) for name, (prefix, length) in _SHAPES.items()]
    token = f"eyJhbGciOiJSUzI1NiJ9.{text(1200)}.{text(342)}"
    return [
        *keys,
        Credential("openai-codex", "oauth", access=token, refresh=f"rt_{text(60)}", expires=FAR_FUTURE_MS),
        Credential("login", "oauth", access=f"sk-ant-oat01-{text(95)}", refresh=f"sk-ant-ort01-{text(95)}"),
    ]
