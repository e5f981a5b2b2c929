"""The load of new connections, in a process of its own: `python -m tests.bench.new_load JSON` prints what it saw.

Closed loop: each of its threads connects, asks the proxy for a tunnel, shakes hands without an earlier session, sends
one request, reads the answer, and closes. A warm-up is not counted.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict

from tests.bench.client import Way, client_context, head, open_tls, read_answer
from tests.bench.load import PATH, WARM_UP_S, Seen, Tally


def run(way: Way, threads: int, seconds: float) -> Seen:
    """Connect with `threads` connections at a time for `seconds` after the warm-up, which is never longer."""
    context, request = client_context(way), head(way, "GET", PATH)
    begin = time.perf_counter() + min(WARM_UP_S, seconds)
    tallies = [Tally(begin) for _ in range(threads)]

    def work(tally: Tally) -> None:
        while not tally.errors and (start := time.perf_counter()) < begin + seconds:
            try:
                with open_tls(way, context=context) as connection:
                    connection.sendall(request)
                    status, _ = read_answer(connection)
                if status != 200:
                    raise OSError(f"status {status}")
            except (OSError, ValueError) as exc:
                tally.errors.append(str(exc))
                return
            tally.count(start, time.perf_counter())

    workers = [threading.Thread(target=work, args=(tally,)) for tally in tallies]
    for worker in workers:
        worker.start()
    time.sleep(max(0.0, begin - time.perf_counter()))
    cpu = time.process_time()
    time.sleep(max(0.0, begin + seconds - time.perf_counter()))
    used = time.process_time() - cpu
    for worker in workers:
        worker.join()
    return Seen.of(tallies, seconds, used)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(asdict(run(Way(**order["way"]), order["connections"], order["seconds"]))))
