"""Real credentials of a test, which nothing of a run may show, and the search for them."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
from pathlib import Path
from urllib.parse import quote

from impyard.addon.vault.store import Vault
from tests.support.project import Project, Result

# Written so that neither this nor a prompt with it holds what it looks for.
_LOOK = "-e 'ghp_R[e]al' -e 'npm_R[e]al' -e 'sk-d[e]mo-'"
_WHOLE = "(ghp|npm)_R[e]al[0-9a-zA-Z]+|sk-d[e]mo-[0-9a-f]{40}"

# A runner with a fault: what it writes into the box is the real key, and one of its variables has a real token.
PLANT = """
import os
from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.keys import handover, standins
from impyard.runner.cli import main

kept = lambda name: Vault(default_dir()).read().credentials[name]
write, tools = handover.write_agent_folder, standins.for_tools
handover.write_agent_folder = lambda agent, stand_in, home: write(agent, kept("demo"), home)
standins.for_tools = lambda *given: ({**tools(*given)[0], "PLANTED": kept("github").key}, tools(*given)[1])
raise SystemExit(main())
"""


class Keys:
    """A token for GitHub and one for npm in the environment of the runs, and the demo model's key."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.github, self.npm = (f"{prefix}_Real{secrets.token_hex(16)}" for prefix in ("ghp", "npm"))
        self.environ = {"GH_TOKEN": self.github, "NPM_TOKEN": self.npm}
        self._met: set[str] = set()

    @property
    def demo(self) -> str:
        """That of the account, whatever the vault has."""
        return (self.project.data / "vault" / "demo-account").read_text().strip()

    @property
    def basic(self) -> str:
        """What git has to bring."""
        return "Basic " + base64.b64encode(f"x-access-token:{self.github}".encode()).decode()

    @property
    def vault(self) -> Vault:
        return Vault(self.project.data / "vault")

    def values(self) -> list[str]:
        """Every secret: those that the vault has had when this was asked for, and those that it was made from."""
        kept = self.vault.read().credentials.values()
        found = {value for each in kept for value in each.secrets().values()}
        self._met |= found | {self.demo, self.github, self.npm}
        return sorted(self._met)

    def in_text(self, text: str | bytes) -> list[str]:
        """The secrets that a text shows, plain, percent-encoded, or in base64 at any offset."""
        data = text.encode() if isinstance(text, str) else text
        return [value for value in self.values() if any(form in data for form in _forms(value))]

    def under(self, folder: Path, *results: Result) -> list[str]:
        """Where a secret shows in the files of a folder and in what commands printed."""
        found = [f"output of {result}" for result in results if self.in_text(result.out + result.err)]
        for where, _, names in os.walk(folder):
            for path in (Path(where) / name for name in names):
                if path.is_file() and not path.is_symlink() and self.in_text(path.read_bytes()):
                    found.append(str(path))
        return found


def _forms(value: str) -> list[bytes]:
    forms = [value.encode(), quote(value, safe="").encode()]
    for before in range(3):
        coded = base64.b64encode(bytes(before) + value.encode())
        forms.append(coded[(8 * before + 5) // 6 : (before + len(value)) * 8 // 6])
    return forms


def search_script() -> str:
    """Shell commands that look for real values in all that the box can read, processes too, and write them to `found`.

    /usr and /opt are the image's, which is built before there is a vault.
    """
    return (
        f"(LC_ALL=C grep -rlas {_LOOK} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=opt;"
        " ls /proc/[0-9]*/environ /proc/[0-9]*/cmdline) 2>/dev/null | while read -r file; do"
        f" tr '\\0' '\\n' 2>/dev/null < \"$file\" | grep -oaE '{_WHOLE}'; done | sort -u > $PWD/found.new;"
        " mv found.new found\n"
    )


def git_repository(folder: Path) -> Path:
    """A bare repository with one commit, as a plain web server serves it."""
    work, bare = folder / "work", folder / "repo.git"
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@a.test", "-C", str(work))
    subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
    (work / "README").write_text("behind a token\n")
    subprocess.run([*git, "add", "README"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)
    return bare
