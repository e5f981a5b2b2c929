"""`impyard policy`: the group. Each of its commands has a module of its own."""

from __future__ import annotations

import click

from impyard.runner.lazygroup import Entry, LazyGroup

COMMANDS: dict[str, Entry] = {
    "check": Entry("impyard.runner.policy_check:check", "Find faults in a policy, and what was hardly meant."),
    "explain": Entry("impyard.runner.policy_explain:explain", "Say what would be decided on a request, and why."),
    "test": Entry("impyard.runner.policy_test_cmd:test", "Judge the expectations beside the policy."),
    "suggest": Entry(
        "impyard.runner.policy_suggest_cmd:suggest", "Suggest the rules that would allow what was denied."
    ),
    "allow": Entry("impyard.runner.policy_allow_cmd:allow", "Allow just what a denied request asked for."),
    "deny": Entry("impyard.runner.policy_allow_cmd:deny", "Deny just what an allowed request asked for."),
    "replay": Entry(
        "impyard.runner.policy_replay_cmd:replay", "Judge recorded decisions again under an edited policy."
    ),
    "preset": Entry("impyard.runner.policy_preset_cmd:preset", "Ready entries for services and registries."),
    "schema": Entry("impyard.runner.policy_schema:schema", "Print the JSON Schema that editors check a policy with."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def policy() -> None:
    """Check, explain, test and change the policy of a project.

    \b
    impyard policy check          whether it can be used, and means what it says
    impyard policy check --help   each command has examples
    """
