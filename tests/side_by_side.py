"""The whole suite in four processes side by side, and then what must be alone: `python -m tests.side_by_side`.

Most tests wait: for a container, a timer, a connection. Each part's output comes whole, when the part has ended; the
last line adds up pytest's own closing lines, and the status is 1 when any part fails. Words are handed on to pytest.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Every test is in just one of them, by its marks, and those that are marked lie in these folders: see their test.
FOLDERS = {"box": ("tests/box", "tests/attacks"), "gateway": ("tests/gateway", "tests/attacks")}
BESIDE = {
    "boxes": ("box and not waits and not alone", FOLDERS["box"]),
    "boxes that wait": ("box and waits and not alone", FOLDERS["box"]),
    "gateways": ("gateway and not box and not alone", FOLDERS["gateway"]),
    "the rest": ("not gateway and not box and not alone", ("tests",)),
}
# pytest's closing line, as in "2 failed, 10 passed, 3 deselected, 1 error in 4.20s (0:00:04)".
CLOSING = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+|no tests ran) in [\d.]+s")
NO_TESTS = 5  # pytest's status: words may have left nothing of a part


def main(words: Sequence[str]) -> int:
    """Run all parts; the status."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed = False
    try:
        for parts in (BESIDE, {"alone": ("alone", alone())}):
            for name, status, output in run(parts, words):
                print(f"--- {name}\n{output.rstrip()}", flush=True)
                failed |= status not in (0, NO_TESTS)
                total += counts(output, status)
    except KeyboardInterrupt:  # the parts have had it too
        return 130
    print(closing_line(total, time.monotonic() - began), flush=True)
    return 1 if failed or not total["passed"] else 0


def alone() -> Sequence[str]:
    """The files that have tests of that mark: to look for them in all would take longer than they do."""
    files = (ROOT / "tests").rglob("test_*.py")
    return [str(path.relative_to(ROOT)) for path in sorted(files) if "mark.alone" in path.read_text()]


def run(parts: Mapping[str, tuple[str, Sequence[str]]], words: Sequence[str]) -> list[tuple[str, int, str]]:
    """Run parts (marks and files, by name) at once; each one's name, status and output. `words` may name files."""
    with contextlib.ExitStack() as stack:
        begun = []
        for name, (marks, files) in parts.items():
            output = stack.enter_context(tempfile.TemporaryFile())
            command = [sys.executable, "-m", "pytest", "-q", "-m", marks, *words]
            if not any(Path(word).exists() for word in words):
                command += files
            begun.append((name, output, subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)))
            stack.callback(_end, begun[-1][2])
        ended = []
        for name, output, process in begun:
            status = process.wait()
            output.seek(0)
            ended.append((name, status, output.read().decode("utf-8", "replace")))
        return ended


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing goes on when this ends, by Ctrl-C say."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()


def counts(output: str, status: int) -> Counter[str]:
    """How many tests ended how, by a part's closing line; without one, or when it belies the status, an error."""
    found: Counter[str] = Counter()
    for line in reversed(output.splitlines()):
        if match := CLOSING.match(line):
            for one in re.finditer(r"(\d+) ([a-z]+)", match[1]):
                found[re.sub(r"(error|warning)s$", r"\1", one[2])] += int(one[1])
            break
    del found["deselected"]
    if status not in (0, NO_TESTS) and not found["failed"] and not found["error"]:
        found["error"] += 1
    return found


def closing_line(total: Mapping[str, int], seconds: float) -> str:
    """As pytest would close if all had been one."""
    order = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
    names = [name for name in order if total.get(name)] + sorted(set(total) - set(order))
    said = ", ".join(_several(total[name], name) for name in names) or "no tests ran"
    return f"{said} in {seconds:.2f}s ({int(seconds) // 60} min {int(seconds) % 60} s)"


def _several(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count > 1 and name in ('warning', 'error') else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
