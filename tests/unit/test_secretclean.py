"""Settings without their secrets: what is taken out, and that the programs read the rest as before."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from impyard.runner.secretfiles.clean import git_settings, git_stores, npm_settings, urls, yarn_settings

TOKEN = "ghp_0123456789abcdefABCDEF0123456789abcd"
HALF = TOKEN[: len(TOKEN) // 2], TOKEN[len(TOKEN) // 2 :]
REMOTE = '[remote "o"]\n\tfetch = +refs/heads/*:refs/remotes/o/*\n\turl = '
# Settings of git with the token in one value; what git reads in its place ("" is an empty value).
SETTINGS = {
    f"{REMOTE}https://x:{TOKEN}@github.com/a/b.git\n": "https://github.com/a/b.git",
    f"{REMOTE}https://{TOKEN}@github.com/a/b\n": "https://github.com/a/b",
    f"{REMOTE}https://{TOKEN}:x-oauth-basic@github.com/a/b": "https://github.com/a/b",
    f"{REMOTE}https://:{TOKEN}@github.com/a/b": "https://github.com/a/b",
    f"{REMOTE}https://me@corp.test:{TOKEN}@github.com/a": "https://github.com/a",
    f"{REMOTE}ssh://git:{TOKEN}@h.test:22/a ; why\n": "ssh://git@h.test:22/a",
    f'{REMOTE}"https://x:{TOKEN}@github.com/a b" # why\n': "https://github.com/a b",
    f'{REMOTE}htt"ps://x:{TOKEN}@git"hub.com/a\n': "https://github.com/a",
    f'{REMOTE}HTTPS://x:"in two {TOKEN}"@github.com/a\n': "HTTPS://github.com/a",
    f"{REMOTE}https://x:{HALF[0]}\\\n{HALF[1]}@github.com/a\n": "https://github.com/a",
    f"{REMOTE}https:/\\\n/x:{TOKEN}@github.com/a\n\tpushurl = git@github.com:a/b\n": "https://github.com/a",
    f'{REMOTE}https://x:{TOKEN}@github.com/a\\\\b\\"c\n': 'https://github.com/a\\b"c',
    f'[remote "o"] url = https://x:{TOKEN}@github.com/a\n\tfetch = x\n': "https://github.com/a",
    f"{REMOTE.replace(chr(10), chr(13) + chr(10))}https://x:{TOKEN}@github.com/a\r\n\tmirror\r\n": "https://github.com/a",
    f'[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic {TOKEN}\n': "",
    f'[http]\n\textraHeader = "Authorization: \\\n bearer {TOKEN}"\n[core]\n\tbare = false\n': "",
    f"[http]\n\textraHeader = PRIVATE-TOKEN: {TOKEN}\n\textraHeader = Accept: a/b\n": "",
    f"[http]\n\tproxy = http://u:{TOKEN}@proxy.test:8080\n\tsslVerify\n": "http://proxy.test:8080",
    f'[credential]\n\thelper = "!f() {{ echo username=x; echo password={TOKEN}; }}; f"\n\thelper = cache\n': "",
    f"[github]\n\ttoken = {TOKEN}\n[core]\n\taskPass = /bin/ask\n": "",
    f'[user]\n\tname = "{chr(0xE9)} \\t"\n\temail = a@b.test\n[sendemail]\n\tsmtpPass = {TOKEN}\n': "",
}


def read(text: str, folder: Path) -> list[str]:
    """What git reads, `key\\nvalue` each."""
    file = folder / "settings"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = subprocess.run(
        ["git", "config", "--no-includes", "--list", "-z", "--file", file], capture_output=True, check=True, cwd=folder
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("text", SETTINGS)
def test_git_reads_the_same_without_the_secret(tmp_path: Path, text: str) -> None:
    clean = git_settings(text)
    assert clean is not None and TOKEN not in clean and HALF[1] not in clean
    before, after = read(text, tmp_path), read(clean, tmp_path)
    assert any(TOKEN in setting for setting in before), "the control: git reads the token"
    (secret,) = (Counter(before) - Counter(after)).elements()
    (instead,) = (Counter(after) - Counter(before)).elements()
    assert instead == f"{secret.partition(chr(10))[0]}\n{SETTINGS[text]}"


@pytest.mark.parametrize(
    "text",
    [
        f"[core]\n# url = https://a:{TOKEN}@h.test/\n",
        f"[core]\n#\textraheader = AUTHORIZATION: basic {TOKEN}\n",
        f'[url "https://oauth2:{TOKEN}@gitlab.com/"]\n\tinsteadOf = https://gitlab.com/\n',
        f'[credential "https://a:{TOKEN}@h.test"]\n\tusername = b\n',
    ],
)
def test_comments_and_headings_of_git_are_cleaned_too(tmp_path: Path, text: str) -> None:
    clean = git_settings(text)
    assert clean is not None and TOKEN not in clean
    assert len(read(clean, tmp_path)) == len(read(text, tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        f"{REMOTE}https://alice@bitbucket.org/a/b\n",
        f"{REMOTE}ssh://git@github.com/a/b\n\tpushurl = git@github.com:a/b\n",
        "[core]\n\tbare = false\n\taskPass = /bin/ask\n[user]\n\tsigningKey = ~/.ssh/id_ed25519.pub\n",
        "[http]\n\textraHeader = Accept: text/plain\n[credential]\n\thelper = store --file=.git/logins\n",
        f"a file of another program: https://x:{TOKEN}@h.test/",
        "",
    ],
)
def test_settings_without_a_secret_stay_as_they_are(text: str) -> None:
    assert git_settings(text) == text


def test_the_stores_of_passwords_are_named() -> None:
    text = "[credential]\n\thelper = store --file=.git/a\n\thelper = \"store --file '/x/b'\"\n\thelper = store\n"
    assert git_stores(text) == [".git/a", "/x/b"]


def test_npm_keeps_its_registries_and_loses_its_tokens() -> None:
    lines = [
        "registry=https://r.test/",
        "@acme:registry = https://npm.acme.test/",
        "//npm.acme.test/:_authToken=${NPM_TOKEN}",
        "always_auth=true",
    ]
    secret = [f"//r.test/:_authToken={TOKEN}", f"_auth = {TOKEN}", f'//r.test/:_password="{TOKEN}"']
    secret += [f'"//r.test/:_authToken" "{TOKEN}"', f'key="-----BEGIN PRIVATE KEY-----\\n{TOKEN}"']
    secret += [f"proxy=http://u:{TOKEN}@proxy.test:8080/"]
    clean = npm_settings("\n".join(lines + secret))
    assert clean is not None and TOKEN not in clean
    kept = [line for line in clean.splitlines() if not line.startswith(";")]
    assert kept == [*lines, "proxy=http://proxy.test:8080/"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"nodeLinker: pnp\nnpmAuthToken: {TOKEN}\nx: 1\n", 'nodeLinker: pnp\nnpmAuthToken: ""\nx: 1\n'),
        (f'npmScopes:\n  a:\n    npmAuthIdent: "{TOKEN}"\n', 'npmScopes:\n  a:\n    npmAuthIdent: ""\n'),
        (f"npmRegistries: {{ //r.test: {{ npmAuthToken: {TOKEN} }} }}\n", None),
        ("npmAuthToken: ${NPM_TOKEN}\n", "npmAuthToken: ${NPM_TOKEN}\n"),
        (f"npmAuthToken: >-\n  {TOKEN}\n", None),
        (f"npmAuthToken:\n  {TOKEN}\n", None),
    ],
)
def test_yarn_keeps_all_but_its_tokens(text: str, clean: str | None) -> None:
    found = yarn_settings(text)
    assert found is None or TOKEN not in found
    assert clean is None or found == clean


def test_pip_keeps_its_index_without_the_user() -> None:
    text = f"[global]\nindex-url = https://u:{TOKEN}@r.test/simple\nextra-index-url = https://more.test/simple\n"
    clean = "[global]\nindex-url = https://r.test/simple\nextra-index-url = https://more.test/simple\n"
    assert urls(text) == clean
