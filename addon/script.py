"""The judge inside a mitmproxy of your own: `mitmdump -s addon/script.py --set impyard_policy=policies/gateway.yaml`.

Weaker than the gateway: mitmproxy's other add-ons stay loaded, and what it accepts besides HTTP proxying is up to its
own options. The hooks are the same, and they fail closed in the same way.
"""

from __future__ import annotations

import os
from pathlib import Path

from mitmproxy import ctx, exceptions
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client

from impyard.addon.errors import PolicyError
from impyard.addon.hooks import JudgeAddon
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.policysource import PolicySource
from impyard.addon.record import Record


class ScriptJudge(JudgeAddon):
    """The judge with its settings taken from mitmproxy's options."""

    name = "impyard"

    def __init__(self) -> None:
        """Nothing is known before `configure`; until then every hook fails, and so denies."""

    def load(self, loader: Loader) -> None:
        """Add our options."""
        loader.add_option("impyard_policy", str, "policies/gateway.yaml", "The policy file of the judge.")
        loader.add_option("impyard_runs", str, "runs", "The folder of decisions.jsonl and outcomes.jsonl.")

    def configure(self, updated: set[str]) -> None:
        """Set up, and set what the judge relies on. Raises OptionsError, which ends mitmproxy at its start."""
        if updated.isdisjoint(("impyard_policy", "impyard_runs")):
            return
        policy = Path(ctx.options.impyard_policy).absolute()
        runs = Path(ctx.options.impyard_runs).absolute()
        source = PolicySource((policy,), policy.parent.parent)
        if isinstance(fault := source.current(), PolicyError):
            raise exceptions.OptionsError(fault.message)
        runs.mkdir(parents=True, exist_ok=True)
        run = f"mitmproxy-{os.getpid()}"
        decisions, outcomes = DecisionLog(runs / "decisions.jsonl", run), OutcomeLog(runs / "outcomes.jsonl", run)
        super().__init__(source, Record(decisions, outcomes, lambda event: None))
        ctx.options.update(
            rawtcp=False,
            connection_strategy="lazy",
            upstream_cert=False,
            stream_large_bodies=None,
            validate_inbound_headers=True,
        )

    def drop(self, client: Client) -> None:
        """Close a client's connection from outside of its layers."""
        connection = ctx.master.addons.get("proxyserver").connections.get(client.id)
        io = connection.transports.get(client) if connection is not None else None
        if io is not None and io.handler is not None:
            io.handler.cancel("dropped by the judge")


class Installer:
    """Puts the judge into mitmproxy itself, once.

    mitmproxy watches the file of a script: when it changes it drops the script's add-ons, and goes on without them if
    the new ones do not load. The judge that began stays until mitmproxy ends.
    """

    name = "impyard-installer"

    def load(self, loader: Loader) -> None:
        """Add the judge, unless it is there."""
        addons = ctx.master.addons
        if addons.get(ScriptJudge.name) is None:
            # First: mitmproxy's own add-ons would answer some hooks before it.
            addons.chain = [addons.register(ScriptJudge()), *addons.chain]

    def configure(self, updated: set[str]) -> None:
        """Hand on what was set before the judge was there. Raises OptionsError as the judge does."""
        judge = ctx.master.addons.get(ScriptJudge.name)
        if not hasattr(judge, "record"):
            judge.configure(updated)


addons = [Installer()]
