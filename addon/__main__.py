"""The gateway process of one run: `python -m impyard.addon --lifeline FD`. The runner starts it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import signal
import sys

from impyard.addon import messages


def main() -> int:
    """Serve until the runner ends the lifeline; the process's exit status."""
    if len(sys.argv) != 3 or sys.argv[1] != "--lifeline" or not sys.argv[2].isdigit():
        print("usage: python -m impyard.addon --lifeline FD", file=sys.stderr)
        return 2
    # The terminal's Ctrl-C reaches the whole group; the runner decides when the gateway ends, by the lifeline.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory_private()
    messages.to_stderr()
    gc.disable()  # a run waits for the next line, which makes many objects and no garbage
    from impyard.addon.withoutquic import leave_out_quic

    leave_out_quic()
    from impyard.addon.gateway import serve

    gc.freeze()  # nor need they be looked at ever again
    gc.enable()
    return asyncio.run(serve(int(sys.argv[2])))


def keep_memory_private() -> None:
    """Leave no core dump of this process, which holds credentials, and let no other process of its user read it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        # A program that the kernel hands dumps to is not bound by the limit (core(5)): PR_SET_DUMPABLE is 4.
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
