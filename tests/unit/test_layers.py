"""What may know what: the core loads nothing of mitmproxy, Docker or the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = [
    "errors",
    "request",
    "readings",
    "vault.templates",
    "paths",
    "rules",
    "yamlnodes",
    "policyroutes",
    "policyfile",
    "policy",
    "policybeside",
    "policysource",
    "judge",
    "redact",
    "decisions",
    "newfile",
    "whose",
    "log",
    "vault.credential",
    "vault.sentinels",
    "vault.needles",
    "vault.percent",
    "vault.tripwire",
    "vault.masking",
    "secretwatch",
    "vault.store",
]
HEAVY = ("mitmproxy", "docker", "click", "rich", "requests", "asyncio", "ssl", "impyard.runner", "impyard.certs")


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, impyard.addon.{module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_what_makes_and_places_rules_loads_no_command_line() -> None:
    heavy = tuple(name for name in HEAVY if name != "impyard.runner")
    code = f"import sys, impyard.runner.policy.suggest; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_the_check_sees_what_is_loaded() -> None:
    code = f"import sys, click; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "click" in out


def imports(path: Path) -> set[str]:
    return set(re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE))


def test_the_gateway_side_never_imports_the_runner() -> None:
    for path in (ROOT / "addon").rglob("*.py"):
        assert not any(name.startswith("impyard.runner") for name in imports(path)), path


def test_the_judge_has_no_clock_socket_or_file() -> None:
    for module in ("request", "readings", "vault.templates", "rules", "reasons", "judge", "redact", "decisions"):
        found = imports(ROOT / "addon" / f"{module.replace('.', '/')}.py")
        assert not found & {"os", "time", "datetime", "socket", "random", "logging", "secrets", "io"}, module


@pytest.mark.parametrize("path", sorted((ROOT / "addon").glob("*.py")), ids=lambda path: path.name)
def test_no_module_hides_one_of_the_standard_library(path: Path) -> None:
    assert path.stem.startswith("__") or path.stem not in sys.stdlib_module_names
