"""npm's registries: that of the configuration, and those of scopes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from impyard.runner.policy.registries import Found, Machine, given, missing

_LINE = re.compile(r"\s*([^;#=\s][^=]*?)\s*=\s*(.*?)\s*")
_VARIABLE = re.compile(r"\$\{([^}]+)\}")


def read(machine: Machine, found: Found) -> None:
    """Fill `npm`. Raises ImpyardError when there is none."""
    values = _asked(machine)
    by = "npm config"
    if "registry" not in values:  # npm is not there, or keeps an address with a password to itself
        files, by = _files(machine), ".npmrc"
        values = {**files, **values}
    addresses = [values["registry"]] if "registry" in values else []
    if not addresses:
        raise missing("npm registry", name="npm")
    scopes = sorted((name, value) for name, value in values.items() if name.startswith("@") and ":registry" in name)
    addresses += [value for _, value in scopes]
    given(found, "npm", addresses)
    told = ", ".join(place.url for place in found.places["npm"])
    found.notes.insert(0, f"registries, by {by}: {told}")


def _asked(machine: Machine) -> dict[str, str]:
    """What npm says that it would use: it knows its default, and all the files."""
    out, _ = machine.ask("npm", "config", "list", "--json", npm_config_update_notifier="false")
    try:
        values = json.loads(out)
    except ValueError:
        return {}
    wanted = {} if not isinstance(values, dict) else values
    return {
        name: value
        for name, value in wanted.items()
        if isinstance(value, str) and "://" in value and (name == "registry" or name.endswith(":registry"))
    }


def _files(machine: Machine) -> dict[str, str]:
    """What stands in the environment and in .npmrc, the project's before the user's."""
    user = machine.lower_env("npm_config_userconfig")
    everybody = machine.lower_env("npm_config_globalconfig")
    paths = [Path(everybody)] if everybody else []
    paths += [Path(user) if user else machine.home / ".npmrc", machine.root / ".npmrc"]
    values: dict[str, str] = {}
    for path in paths:
        for line in machine.read(path).splitlines():
            if (said := _LINE.fullmatch(line)) and (said[1] == "registry" or said[1].endswith(":registry")):
                text = said[2].strip("\"'")
                values[said[1]] = _VARIABLE.sub(lambda name: machine.env.get(name[1], name[0]), text)
    if registry := machine.lower_env("npm_config_registry"):
        values["registry"] = registry
    return values
