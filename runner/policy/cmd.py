"""`impyard policy`: the group. Each of its commands has a module of its own."""

from __future__ import annotations

import click

from impyard.runner.lazygroup import Entry, LazyGroup

COMMANDS: dict[str, Entry] = {
    "check": Entry("impyard.runner.policy.check_cmd:check", "Find faults in a policy, and what was hardly meant."),
    "explain": Entry("impyard.runner.policy.explain_cmd:explain", "Say what would be decided on a request, and why."),
    "test": Entry("impyard.runner.policy.test_cmd:test", "Judge the expectations beside the policy."),
    "suggest": Entry(
        "impyard.runner.policy.suggest_cmd:suggest", "Suggest the rules that would allow what was denied."
    ),
    "allow": Entry("impyard.runner.policy.allow_cmd:allow", "Allow just what a denied request asked for."),
    "deny": Entry("impyard.runner.policy.allow_cmd:deny", "Deny just what an allowed request asked for."),
    "replay": Entry(
        "impyard.runner.policy.replay_cmd:replay", "Judge recorded decisions again under an edited policy."
    ),
    "preset": Entry("impyard.runner.policy.preset_cmd:preset", "Ready entries for services and registries."),
    "schema": Entry("impyard.runner.policy.schema_cmd:schema", "Print the JSON Schema for editors."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def policy() -> None:
    """Check, explain, test and change the policy of a project.

    \b
    impyard policy check          whether it can be used, and means what it says
    impyard policy check --help   each command has examples
    """
