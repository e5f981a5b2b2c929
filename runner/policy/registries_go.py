"""Go's module proxies and checksum database."""

from __future__ import annotations

import json
import re
from pathlib import Path

from impyard.runner.policy.registries import Found, Machine, given, missing


def read(machine: Machine, found: Found) -> None:
    """Fill `go` and `go-sums`. Raises ImpyardError when no proxy is found."""
    values = _asked(machine)
    by = "go env"
    if not values.get("GOPROXY"):
        values, by = _files(machine), "the environment"
    proxies = [each.strip() for each in re.split("[,|]", values.get("GOPROXY", ""))]
    given(found, "go", [each for each in proxies if each not in ("", "direct", "off") and not each.startswith("file:")])
    if not found.places.get("go"):
        raise missing("proxy for Go modules", name="go")
    if "direct" in proxies:
        found.notes.append(
            "GOPROXY ends in direct: modules that no proxy has are denied, as the preset has no other host"
        )
    sums = values.get("GOSUMDB", "").split()
    if not sums:
        found.notes.append("GOSUMDB is not known here: the checksum database is asked by the proxy only")
    elif sums[0] != "off":
        given(found, "go-sums", [sums[1] if len(sums) > 1 else sums[0].partition("+")[0]])
    found.notes.insert(0, f"proxies, by {by}: {', '.join(place.url for place in found.places['go'])}")


def _asked(machine: Machine) -> dict[str, str]:
    out, _ = machine.ask("go", "env", "-json", "GOPROXY", "GOSUMDB", GOTOOLCHAIN="local")
    try:
        values = json.loads(out)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _files(machine: Machine) -> dict[str, str]:
    """The same without go: the variables, and the file that `go env -w` writes."""
    config = machine.env.get("XDG_CONFIG_HOME") or str(machine.home / ".config")
    path = Path(machine.env.get("GOENV") or Path(config) / "go" / "env")
    values = {}
    for line in machine.read(path).splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            values[name] = value
    return values | {name: machine.env[name] for name in ("GOPROXY", "GOSUMDB") if machine.env.get(name)}
