"""A gateway process loads neither QUIC nor HTTP/3, cannot come to use them, and does not start when mitmproxy moves."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVE_OUT = "from impyard.addon.withoutquic import LEFT_OUT, leave_out_quic"
MAKE_ONE = """
try:
    http.Http3Server(None)
except RuntimeError as exc:
    assert "Http3Server is left out" in str(exc)
else:
    raise AssertionError
"""


def run(*lines: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as leaving something out holds for a whole process."""
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)


def test_a_gateway_comes_up_without_quic() -> None:
    done = run(
        LEAVE_OUT,
        "leave_out_quic()",
        "import sys, impyard.addon.gateway",
        "from mitmproxy.proxy.layers import http",
        "assert not [name for name in sys.modules if name.startswith('aioquic')]",
        MAKE_ONE,
    )
    assert done.returncode == 0, done.stderr


def test_without_leaving_it_out_it_is_loaded() -> None:
    """The control: else the module could go."""
    done = run("import sys, impyard.addon.gateway", "assert 'aioquic' in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("module", "name"), [("quic", "QuicStreamEvent"), ("http._http3", "Http3Client")])
def test_a_name_that_mitmproxy_wants_and_nobody_knows_stops_the_gateway(module: str, name: str) -> None:
    key = f"mitmproxy.proxy.layers.{module}"
    done = run(
        LEAVE_OUT,
        f"LEFT_OUT[{key!r}] = tuple(each for each in LEFT_OUT[{key!r}] if each != {name!r})",
        "leave_out_quic()",
        "import impyard.addon.gateway",
    )
    assert done.returncode == 1 and f"ImportError: cannot import name '{name}'" in done.stderr


def test_what_is_loaded_already_stays_and_is_the_only_one_of_its_kind() -> None:
    done = run(
        LEAVE_OUT,
        "import mitmproxy.proxy.layers.quic as before",
        "leave_out_quic()",
        "import sys, impyard.addon.gateway",
        "assert sys.modules['mitmproxy.proxy.layers.quic'] is before",
        "from mitmproxy.proxy.layers import http",
        "assert http.Http3Server.__module__ == 'mitmproxy.proxy.layers.http._http3'",
    )
    assert done.returncode == 0, done.stderr
