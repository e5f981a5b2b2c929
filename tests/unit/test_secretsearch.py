"""Secrets in ordinary files are found by their shape; where and what kind is said, never what."""

from __future__ import annotations

from pathlib import Path

import pytest

from impyard.runner.secretfiles.search import search

# Made up, in the shapes that their issuers document; in parts, so that no scanner takes this file for a find.
HEX, WORD = "0123456789abcdef" * 4, "Zq3vT7xW9kLmN2pR4sYb" * 5
SECRETS = {
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "Anthropic key": "sk-ant-" + "api03-" + WORD[:90],
    "OpenRouter key": "sk-or-" + "v1-" + HEX,
    "OpenAI key": "sk-proj-" + WORD[:20] + "T3Blbk" + "FJ" + WORD[:20],
    "GitHub token": "ghp_" + WORD[:36],
    "GitLab token": "glpat-" + WORD[:20],
    "npm token": "npm_" + WORD[:36],
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmc" + WORD[:60],
    "Hugging Face token": "hf_" + WORD[:34],
    "AWS key": "AKIA" + "Z3Q7XW9KLMN2PR4S",
    "Google key": "AIza" + WORD[:35],
    "Slack token": "xoxb-" + "123456789012-123456789012-" + WORD[:24],
    "Stripe key": "sk_live_" + WORD[:24],
    "SendGrid key": "SG." + WORD[:22] + "." + WORD[:43],
    "Twilio key": "SK" + HEX[:32],
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9Zq3." + "eyJzdWIiOiIxMjM0NTY3ODkw." + WORD[:40],
    "password in a URL": "postgres://app:" + WORD[:16] + "@db.test/main",
    "password or key": 'DB_PASSWORD = "' + WORD[:20] + '"',
}
HARMLESS = [
    "https://user:password@example.com/",
    "https://${USER}:${PASSWORD}@db.test/",
    "http://localhost:8080/a@b",
    'password = "correct horse battery"',
    'password = "' + "x" * 40 + '"',
    'secret = os.environ["SECRET_OF_THE_APPLICATION_1"]',
    'token = "your-token-goes-here-1234567890"',
    'apiKey: "{{ .Values.apiKey.of.release.1 }}"',
    "AKIAIOSFODNN7EXAMPLE",
    "sha256-" + HEX,
    "-----BEGIN CERTIFICATE-----",
]


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_found_with_its_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "code.py").write_text(f"first\nvalue = '{SECRETS[kind]}'\n# {SECRETS[kind]}\n")
    found = search(tmp_path, ())
    assert {(spot.path, spot.line) for spot in found.spots if spot.kind == kind} == {
        (tmp_path / "code.py", 2),
        (tmp_path / "code.py", 3),
    }


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_is_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "code.py").write_text(text)
    assert search(tmp_path, ()).spots == []


def test_only_what_a_box_would_see_is_looked_through(tmp_path: Path) -> None:
    secret = SECRETS["GitHub token"]
    names = ["kept.txt", "runs/x", "node_modules/a/x", ".git/objects/aa", "binary", "long", "seen", ".git/logs/HEAD"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            ("\0" if name == "binary" else "") + secret + " " * (2**20 if name == "long" else 0)
        )
    (tmp_path / "link").symlink_to("seen")
    found = search(tmp_path, [tmp_path / "kept.txt"])
    assert {str(spot.path.relative_to(tmp_path)) for spot in found.spots} == {"seen", ".git/logs/HEAD"}
    assert found.complete
