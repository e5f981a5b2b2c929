"""pi starts from what Node compiled when the image was built, which nothing in a box can change."""

from __future__ import annotations

import re

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.box

MADE = "/opt/pi/compile-cache"
# Node says of each module whether it took what was compiled before (NODE_DEBUG_NATIVE, Node's documentation).
LOOK = """
count() { echo "$1 $(NODE_DEBUG_NATIVE=COMPILE_CACHE pi --help 2>&1 | grep -c "$2")"; }
count taken 'was accepted'
count refused 'was rejected'
export NODE_COMPILE_CACHE=/tmp/another
count control 'was accepted'
touch $MADE/new 2>/dev/null && echo wrote-into-it
for file in $MADE/*/*; do { echo x >> "$file"; } 2>/dev/null && echo wrote-into-it; done
echo over
"""


def test_pi_takes_what_was_compiled_before_and_cannot_change_it(project: Project) -> None:
    result = project.demo(project.script("look.sh", LOOK.replace("$MADE", MADE)), args=["--json"])
    assert result.code == 0 and "over" in result.out, result
    found = {name: int(count) for name, count in re.findall(r"(taken|refused|control) (\d+)", result.out)}
    assert found["taken"] > 10 and found["refused"] == 0 and found["control"] == 0
    assert "wrote-into-it" not in result.out
