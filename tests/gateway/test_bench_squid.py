"""The proxy that ours is compared with looks into TLS, judges, and writes its lines; else its figures say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import squid
from tests.bench.bed import Bed
from tests.bench.client import HOST, head, open_tls, read_answer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway


def logged(log: Path) -> list[dict[str, Any]]:
    """The whole lines that squid has written."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_squid_judges_and_records_each_request() -> None:
    if not squid.installed():
        pytest.skip(squid.NEEDS)
    with Bed() as bed:
        origin = f"https://{HOST}:{bed.port}"
        with (
            squid.squid([f"^{origin}/small$"], trust=Path(bed.origin_ca), hosts={HOST: "127.0.0.1"}) as running,
            open_tls(squid.way(running, bed.port)) as connection,
        ):
            statuses = []
            for path in ("/small", "/small?x", "/bytes/1"):
                connection.sendall(head(squid.way(running, bed.port), "GET", path))
                statuses.append(read_answer(connection)[0])
                if statuses[-1] != 200:
                    break
            wait_until(
                lambda: sum(bool(line["status"]) for line in logged(running.log)) == 3
            )  # it writes behind answers
            lines = logged(running.log)
    assert statuses == [200, 403]
    assert [(line["method"], line["url"], line["status"]) for line in lines if line["status"]] == [
        ("CONNECT", f"{HOST}:{bed.port}", 200),
        ("GET", f"{origin}/small", 200),
        ("GET", f"{origin}/small?x", 403),
    ]


def test_a_load_goes_through_squid_as_through_the_gateway() -> None:
    if not squid.installed():
        pytest.skip(squid.NEEDS)
    with Bed() as bed, squid.squid_target(bed) as target:
        seen, cpu_s = bed.load(target, 2, 0.3)
    assert seen.errors == 0
    assert seen.per_s > 0
    assert cpu_s > 0


def test_without_squid_the_table_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squid, "HELPERS", ("/nonexistent/helper",))
    assert not squid.installed()
    with pytest.raises(RuntimeError, match="squid-openssl"), squid.squid([], trust=Path("/nonexistent")):
        pass
    assert "squid-openssl" in squid.missing_row("of squid").note
