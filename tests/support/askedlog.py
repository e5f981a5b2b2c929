"""A project with a policy, and a log of decisions that the real judge made under it and the real log wrote."""

from __future__ import annotations

from pathlib import Path

from impyard.addon.judge import Decision, denial, judge
from impyard.addon.log import DecisionLog
from impyard.addon.policy import load_policy
from impyard.addon.request import Request
from impyard.runner.policy.asked import asked, sent

RUN = "20261129-120000-ab12"


class AskedProject:
    """`ask` judges a request under the policy of the moment and writes the decision down."""

    def __init__(self, root: Path, policy: str = "networkPolicies: []\n") -> None:
        self.root = root
        self.policy = root / "policies" / "gateway.yaml"
        self.policy.parent.mkdir(parents=True)
        self.policy.write_text(policy)
        (root / "runs" / RUN).mkdir(parents=True)
        self.log = root / "runs" / "decisions.jsonl"
        self._runs: dict[str, DecisionLog] = {}

    def ask(
        self,
        method: str,
        url: str,
        *,
        run: str = RUN,
        reason: str | None = None,
        websocket: bool = False,
        **more: object,
    ) -> str:
        """The id of the decision; `reason` is that of a denial which the judge has no part in."""
        request = sent(asked(method, url, websocket=websocket))
        fields = {name: getattr(request, name) for name in Request.__dataclass_fields__}
        fields |= {"headers": (("Upgrade", "websocket"),)} if websocket else {}
        fields |= more
        request = Request(**fields)
        decision: Decision = denial(reason) if reason else judge(request, load_policy([self.policy], root=self.root))
        log = self._runs.setdefault(run, DecisionLog(self.log, run))
        if not log.seq:
            for _ in range(3):  # as impyard's own checks
                log.write(denial("canary"), sent(asked("GET", "https://x.canary.impyard.invalid/")), "")
        return log.write(decision, request, "").id
