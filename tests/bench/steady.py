"""One client that asks without a pause, in a process of its own: `python -m tests.bench.steady JSON` prints each delay.

What holds a proxy up for a moment is seen as one late answer.
"""

from __future__ import annotations

import json
import sys
import time

from tests.bench.client import Way, client_context, head, open_tls, read_answer
from tests.bench.load import PATH


def run(way: Way, seconds: float, *, anew: bool) -> list[float]:
    """The delay of every answer in ms, in their order. anew: a connection for each, which counts too.

    Raises OSError when an answer is not the one that was asked for.
    """
    request, context = head(way, "GET", PATH), client_context(way)
    delays: list[float] = []
    connection = open_tls(way, context=context)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        if anew:
            connection.close()
            connection = open_tls(way, context=context)
        connection.sendall(request)
        status, _ = read_answer(connection)
        delays.append((time.perf_counter() - began) * 1000)
        if status != 200:
            raise OSError(f"status {status}")
    connection.close()
    return delays


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(run(Way(**order["way"]), order["seconds"], anew=order["anew"])))
