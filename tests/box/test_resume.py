"""`runs resume`: pi goes on with a session in a fresh box, in the same workspace, with the model's whole history."""

from __future__ import annotations

import pytest

from tests.support.model import MODEL, Model
from tests.support.project import Project

pytestmark = pytest.mark.box

TOKEN = "ghp_" + "q8Zt2Kd83hs0Qp1LmW4x" * 2
HUB = "  - host: hub.test\n    inject: github\n    policies:\n      - {action: ALLOW, method: GET, path: /.*}\n"


def test_the_session_goes_on_in_a_fresh_box(project: Project) -> None:
    model = Model()
    try:
        # The first run may tell the model its own sentinels; the second, in which those of the first come, may none.
        project.policy.write_text(
            model.policy().replace("    policies:", "    sentinels: pass\n    policies:", 1) + HUB
        )
        env = {"PI_CODING_AGENT_DIR": str(model.register(project.base / "home"))}
        assert project.impyard("vault", "set", "github", stdin=TOKEN.encode()).code == 0
        first = project.impyard("run", "--model", MODEL, "run: echo $GH_TOKEN | tee -a tokens", env=env)
        project.policy.write_text(model.policy() + HUB)
        second = project.impyard("runs", "resume", "last", "run: echo $GH_TOKEN >> tokens", env=env)
    finally:
        model.close()
    assert (first.code, second.code) == (0, 0), second
    assert first.run is not None and second.run is not None and first.run != second.run
    assert second.receipt["resumes"] == first.run.name and second.receipt["model"] == first.receipt["model"]
    assert second.receipt["workspace"] == str(first.run / "workspace") and not (second.run / "workspace").exists()
    assert [file["path"] for file in second.receipt["files"]] == ["tokens"]
    before, after = (first.run / "workspace" / "tokens").read_text().split()
    assert before.startswith("ghp_") and after.startswith("ghp_") and before != after, "sentinels are minted anew"
    assert before.encode() in model.bodies[-1], "the model sees all that was said"
    assert second.receipt["decisions"]["denied"] == 0, "a sentinel of the run before trips nothing"
    [session] = (second.run / "session").iterdir()
    assert session.name.endswith(f"_{second.run.name}.jsonl")
    assert len(list((first.run / "session").iterdir())) == 1, "the session of before is as it was"
