"""`inject` and `sentinels` of a policy: what they come to, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from impyard.addon.errors import PolicyError
from impyard.addon.policy import Policy, load_policy, read_policy
from impyard.addon.policyinject import looks_secret
from impyard.addon.rules import Inject
from impyard.addon.vault.templates import READY
from impyard.runner.boxspec import agent_environment
from tests.unit.test_boxspec import box

POLICIES = Path(__file__).parents[2] / "policies"
RULES = "policies: [{action: ALLOW, method: GET, path: /}]"


def read(*entries: str) -> Policy:
    text = "networkPolicies:\n" + "".join(f"  - {{{entry}, {RULES}}}\n" for entry in entries)
    return read_policy([(Path("/p/gateway.yaml"), text.encode())], root=Path("/p"))


def inject(entry: str) -> Inject:
    found = read(entry).entries[0].inject
    assert found is not None
    return found


def faults(*entries: str) -> str:
    with pytest.raises(PolicyError) as caught:
        read(*entries)
    return str(caught.value)


def names(injected: Inject, kind: str, *present: str) -> list[str]:
    variant = injected.variant(kind, present)
    return [] if variant is None else [name for name, _ in variant.headers]


def test_a_name_takes_the_ready_template() -> None:
    found = inject("host: API.Anthropic.com, inject: anthropic")
    assert (found.credential, found.at, found.over_http) == ("anthropic", "gateway.yaml:2", False)
    assert names(found, "api_key") == ["x-api-key"]
    assert names(found, "oauth") == ["authorization"]
    assert found.owned == {"x-api-key", "authorization"}


def test_a_ready_template_serves_a_credential_of_another_name() -> None:
    found = inject("host: api.github.com, inject: {credential: work, template: github}")
    assert found.credential == "work"
    assert found.env == ("GH_TOKEN", "GITHUB_TOKEN")


def test_one_name_does_for_both_hosts_of_github() -> None:
    policy = read("host: api.github.com, inject: github", "host: github.com, inject: github")
    values = {"key": "k"}
    api, git = (entry.variants[0].headers[0][1].render(values) for _, entry in policy.injects)
    assert api == "Bearer k" and git.startswith("Basic ")


def test_headers_are_taken_as_they_are_written() -> None:
    found = inject('host: a.test, inject: {credential: c, headers: {X-Key: "{key}", cookie: "s={key}", x-team: blue}}')
    assert found.owned == {"x-key", "cookie", "x-team"}
    assert names(found, "oauth") == names(found, "api_key") == ["x-key", "cookie", "x-team"]
    assert not found.env and not found.files


def test_env_and_files_replace_those_of_the_template() -> None:
    found = inject(
        'host: a.test, inject: {credential: npm, env: MINE, files: {.npmrc: "//{host}/x/:_authToken={key}"}}'
    )
    assert found.env == ("MINE",)
    assert found.files == ((".npmrc", "//{host}/x/:_authToken={key}"),)
    assert inject("host: a.test, inject: {credential: npm, env: [], files: {}}").files == ()
    assert inject("host: a.test, inject: npm").files == READY["npm"].files


def test_the_variant_is_that_of_which_the_request_has_all_headers() -> None:
    found = inject("host: openrouter.ai, inject: openrouter")
    assert names(found, "api_key") == ["authorization"]
    assert names(found, "api_key", "accept", "x-api-key") == ["x-api-key"]
    assert names(found, "api_key", "x-api-key", "authorization") == ["authorization"]


def test_a_kind_that_no_variant_fits_gets_none() -> None:
    assert names(inject("host: chatgpt.com, inject: openai-codex"), "api_key", "authorization") == []


# --- plain http ---------------------------------------------------------------------------------------------------

PLAIN = [
    "host: a.test, scheme: http",
    "host: a.test, port: 80",
    "host: a.test, scheme: [https, http]",
    "host: a.test, upstream: 'http://127.0.0.1:1'",
    "host: a.test, scheme: http, upstream_proxy: 'http://proxy.test:3128'",
]
ENCRYPTED = [
    "host: a.test",
    "host: a.test, upstream: 'https://127.0.0.1:1'",
    "host: a.test, scheme: http, upstream: 'https://127.0.0.1:1'",
    "host: a.test, upstream_proxy: 'http://proxy.test:3128'",
]


@pytest.mark.parametrize("entry", PLAIN)
def test_plain_http_has_to_be_said(entry: str) -> None:
    assert "inject would go over plain http" in faults(f"{entry}, inject: npm")
    assert "inject would go over plain http" in faults(f"{entry}, inject: {{credential: npm, over_http: false}}")
    assert inject(f"{entry}, inject: {{credential: npm, over_http: true}}").over_http


@pytest.mark.parametrize("entry", ENCRYPTED)
def test_control_an_encrypted_leg_needs_no_word(entry: str) -> None:
    assert not inject(f"{entry}, inject: npm").over_http


# --- hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["*", "*.example.org"])
def test_many_hosts_get_no_credential(host: str) -> None:
    assert "inject needs one host" in faults(f'host: "{host}", inject: npm')


def test_a_host_is_bound_to_all_credentials_of_its_entries() -> None:
    policy = read(
        "host: a.test, inject: npm",
        "host: a.test, port: 8443, inject: github",
        'host: "*.test"',
        "host: b.test, inject: {credential: x, template: npm, env: [], files: {}}",
    )
    assert policy.bound_to("a.test") == {"npm", "github"}
    assert policy.bound_to("b.test") == {"x"}
    assert policy.bound_to("c.test") == frozenset()
    assert [found.credential for _, found in policy.injects] == ["npm", "github", "x"]


def test_sentinels_pass_to_hosts_that_say_so() -> None:
    policy = read("host: a.test, sentinels: pass", "host: b.test", "host: a.test, port: 8443")
    assert policy.sentinels_pass("a.test") and not policy.sentinels_pass("b.test")
    assert [entry.sentinels_pass for entry in policy.entries] == [True, False, False]
    assert not read("host: a.test").sentinels_pass("a.test")


# --- what is put into the box -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(agent_environment(box())))
def test_no_variable_of_the_box_can_be_replaced(name: str) -> None:
    assert f'env "{name}"' in faults(f"host: a.test, inject: {{credential: npm, env: [{name}]}}")


@pytest.mark.parametrize("name", ["GH_TOKEN", "NODE_AUTH_TOKEN", "CARGO_REGISTRY_TOKEN", "HF_TOKEN", "AWS_SECRET"])
def test_control_variables_of_tools_can_be_set(name: str) -> None:
    assert inject(f"host: a.test, inject: {{credential: npm, env: [{name}, {name}]}}").env == (name,)


def test_one_variable_holds_one_credential() -> None:
    first = "host: a.test, inject: {credential: one, template: npm}"
    assert 'env "NPM_TOKEN" holds credential "one" already' in faults(
        first, "host: b.test, inject: {credential: two, template: npm}"
    )
    read(first, "host: b.test, inject: {credential: one, template: npm}")
    read(first, "host: b.test, inject: {credential: two, template: npm, env: []}")


def test_two_files_of_a_policy_do_not_take_the_same_variable(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        files.append(tmp_path / f"{name}.yaml")
        entry = f"host: {name}.test, inject: {{credential: {name}, template: npm}}"
        files[-1].write_text(f"networkPolicies: [{{{entry}, {RULES}}}]")
        load_policy(files[-1:])
    with pytest.raises(PolicyError, match='"NPM_TOKEN" holds credential "one"'):
        load_policy(files)


# --- secrets by mistake -------------------------------------------------------------------------------------------

KEYS = [
    "sk-ant-api03-notarealkey00000000000",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "glpat-abcdefghij0123456789",
    "d41d8cd98f00b204e9800998ecf8427e",
    "123e4567-e89b-12d3-a456-426614174000",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "entry",
    [
        "inject: KEY",
        "inject: {credential: KEY}",
        "inject: {credential: c, template: KEY}",
        "inject: {credential: c, headers: {x-key: KEY}}",
        'inject: {credential: c, headers: {x-key: "Bearer KEY", x-a: "{key}"}}',
        'inject: {credential: c, headers: {x-key: "{b64:u:KEY}{key}"}}',
        'inject: {credential: c, headers: {x-a: "{key}"}, files: {.npmrc: "//{host}/:_authToken=KEY {key}"}}',
        'inject: {credential: c, headers: {x-a: "{key"}, files: {.npmrc: "KEY {key"}}',
    ],
)
def test_a_key_in_a_policy_is_a_fault_that_does_not_show_it(entry: str, key: str) -> None:
    message = faults(f"host: a.test, {entry.replace('KEY', key)}")
    assert key not in message
    assert "a policy holds no secrets" in message or "unknown braces" in message


@pytest.mark.parametrize(
    "text",
    ["Bearer ", "//npm.example.org/:_authToken=", "x-access-token:", "/api/v4/projects/1234567/packages/npm/"],
)
def test_control_what_templates_are_made_of_is_no_key(text: str) -> None:
    assert not looks_secret(text)


# --- what ships ---------------------------------------------------------------------------------------------------


def test_a_policy_without_inject_loads_unchanged() -> None:
    entry = read("host: a.test").entries[0]
    assert entry.inject is None and not entry.sentinels_pass


def test_the_examples_of_the_readme_load() -> None:
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```", (POLICIES.parent / "README.md").read_text())
    with_inject = [block for block in blocks if "inject:" in block and "policies:" in block]
    assert with_inject
    for block in with_inject:
        assert read_policy([(Path("README.md"), f"networkPolicies:\n{block}".encode())]).injects
