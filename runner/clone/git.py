"""git for runs with a clone, in two ways that must not be mixed up.

`Project` asks the caller's own repository, with the caller's own settings: as if they had typed it, but without hooks.
`Scratch` works on what a box left: in a repository made for the one command, with no settings but those here, so that
nothing in it can name a program. The repository in a box's workspace is never given to git.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.batch import Batch, GitFailed

GIT_LIMIT_S = 600.0
SCRATCH = "impyard-scratch-"
STALE_S = 60.0  # until then it may be one that is not locked yet
BIG_FILE = "32m"  # git shows no text difference of a larger one
# As the bytes are: what is in the box is what is in git's objects, so that no filter is ever needed.
RAW_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
LS_TREE = ("ls-tree", "-r", "-l", "-z", "--full-tree")
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "advice.addEmbeddedRepo=false")
_NOBODY = {"NAME": "impyard", "EMAIL": "impyard@localhost"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a tree: git's `mode` ("100644", "100755", "120000" for a link, "160000" for a submodule) and the `id`
    of its content. `size` in bytes, where it was asked for."""

    mode: str
    id: str
    size: int = -1

    def same(self, other: Entry | None) -> bool:
        return other is not None and (self.mode, self.id) == (other.mode, other.id)


Tree = dict[bytes, Entry]  # by path, relative to the project


def _run(
    command: Sequence[str | bytes | Path],
    env: Mapping[str, str],
    cwd: Path,
    stdin: bytes,
    doing: str,
    fine: Sequence[int] = (0,),
    out: int | IO[bytes] = subprocess.PIPE,
) -> tuple[int, bytes]:
    try:
        done = subprocess.run(
            list(command),
            env=dict(env),
            cwd=cwd,
            input=stdin,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            timeout=GIT_LIMIT_S,
        )
    except FileNotFoundError as exc:
        raise ImpyardError("git is not installed on this machine", hint="install git, or leave --clone away") from exc
    except subprocess.TimeoutExpired as exc:
        raise GitFailed(f"it does not end in {GIT_LIMIT_S:.0f} s", doing) from exc
    if done.returncode not in fine:
        raise GitFailed(done.stderr.decode("utf-8", "replace"), doing)
    return done.returncode, done.stdout or b""


class Project:
    """The caller's repository. `root` is the project, `top` the folder of the checkout, `prefix` the way from there to
    the project ("" or "sub/"). `head` is the commit that is checked out, `branch` its branch; both may be missing.
    `objects` holds the objects, `git_folders` are the folders that make up the repository, `form` is "sha1" or
    "sha256". Raises ImpyardError where there is no checkout."""

    def __init__(self, root: Path) -> None:
        self.root = self.top = root
        if not any(os.path.lexists(folder / ".git") for folder in (root, *root.parents)):
            raise ImpyardError(
                f"--clone needs a git repository, and {root} is none",
                hint="`git init` and a first commit make one; or leave --clone away",
            )
        facts = self.git(
            "rev-parse",
            *("--show-toplevel", "--show-prefix", "--absolute-git-dir", "--git-common-dir", "--show-object-format"),
            doing=f"work in {root}",
        ).split(b"\n")
        top, prefix, own, common, self.form = map(os.fsdecode, facts[:5])
        self.top, self.prefix = Path(top), prefix
        self.git_folders = tuple({Path(own).resolve(), (root / common).resolve()})
        self.common = (root / common).resolve()
        self.objects = self.common / "objects"
        self.head = self._try("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        self.branch = self._try("symbolic-ref", "--quiet", "--short", "HEAD")

    def git(
        self,
        *words: str | bytes,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        doing: str,
        fine: Sequence[int] = (0,),
        at_top: bool = False,
    ) -> bytes:
        """git's answer, in the project or `at_top`. `doing` completes "git cannot …"."""
        return self.ask(*words, stdin=stdin, env=env, doing=doing, fine=fine, at_top=at_top)[1]

    def ask(
        self,
        *words: str | bytes,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        doing: str,
        fine: Sequence[int] = (0,),
        at_top: bool = False,
    ) -> tuple[int, bytes]:
        """The exit status, one of `fine`, and the answer."""
        folder = self.top if at_top else self.root
        return _run(["git", *_QUIET, *words], {**_quiet_environment(), **(env or {})}, folder, stdin, doing, fine)

    def start(self, *words: str | bytes, stdin: int, others: Sequence[Path]) -> subprocess.Popen[bytes]:
        """git as a process, at the top, for many answers; it reads objects from the folders `others` too. Its own words
        are thrown away."""
        return subprocess.Popen(
            ["git", *_QUIET, *words],
            env={**_quiet_environment(), "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_folders(others)},
            cwd=self.top,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def plain(self, *words: str, env: Mapping[str, str], doing: str) -> bytes:
        """git's answer at the top, with these variables and none of our settings."""
        return _run(["git", *words], {**_environment(), **env}, self.top, b"", doing)[1]

    def tree(self, commit: str | None) -> Tree:
        """The project's files in a commit."""
        if commit is None:
            return {}
        name = f"{commit}:{self.prefix}" if self.prefix else f"{commit}^{{tree}}"
        if self.prefix and self._try("rev-parse", "--quiet", "--verify", name) is None:
            return {}
        return parsed_tree(self.git(*LS_TREE, name, doing=f"read commit {commit[:12]}"))

    def index(self) -> tuple[Tree, set[bytes], set[bytes]]:
        """The project's files as they are staged; those that a merge has left open; and those that a sparse checkout
        has no files for."""
        staged, is_open, sparse = Tree(), set[bytes](), set[bytes]()
        for line in self.git("ls-files", "--stage", "-t", "-z", doing="read the index").split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            tag, mode, item, stage = facts.decode("ascii").split()
            if tag == "S":
                sparse.add(path)
            if stage == "0":
                staged[path] = Entry(mode, item)
            else:
                is_open.add(path)
        return staged, is_open, sparse

    def setting(self, name: str, kind: str = "") -> str | None:
        """One of the caller's settings, by git's own reading."""
        words = ["git", "config", *([f"--type={kind}"] if kind else []), "--get", name]
        status, out = _run(words, _environment(), self.root, b"", f"read {name}", (0, 1))
        return os.fsdecode(out.rstrip(b"\n")) if status == 0 else None

    def _try(self, *words: str) -> str | None:
        status, out = self.ask(*words, doing="answer", fine=(0, 1, 128))
        return os.fsdecode(out.rstrip(b"\n")) if status == 0 else None


class Scratch(AbstractContextManager["Scratch"]):
    """A repository for the time of a `with`, which reads objects from the folders `others` too. `form` as in Project.

    Its settings are these lines and nothing else: neither the machine's nor the caller's count in it.
    """

    def __init__(self, form: str, others: Sequence[Path]) -> None:
        self.form = form
        self.others = others
        self._number = 0

    def __enter__(self) -> Scratch:
        _remove_stale()
        self._base = tempfile.mkdtemp(prefix=SCRATCH)
        self._hold = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._hold, fcntl.LOCK_EX)
        self.folder = Path(self._base) / "git"
        self.work = Path(self._base) / "work"
        for part in ("objects/info", "objects/pack", "refs/heads", "info", "hooks"):
            (self.folder / part).mkdir(parents=True)
        self.work.mkdir()
        write_repository(self.folder, self.form)
        self._batch = Batch(self.start)
        return self

    def __exit__(self, *_: object) -> None:
        self._batch.__exit__()
        shutil.rmtree(self._base, ignore_errors=True)
        os.close(self._hold)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def hidden(self) -> str:
        """The id that stands for nothing."""
        return "0" * (64 if self.form == "sha256" else 40)

    def new_index(self) -> Path:
        """A path for an index."""
        self._number += 1
        return self.folder / f"index-{self._number}"

    def env(self, index: Path | None = None, work: Path | None = None) -> dict[str, str]:
        """All that git gets of the environment."""
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder / "nowhere"),
            "XDG_CONFIG_HOME": str(self.folder / "nowhere"),
            "LC_ALL": "C",
            "GIT_DIR": str(self.folder),
            "GIT_WORK_TREE": str(work or self.work),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_PAGER": "cat",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_folders(self.others),
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _NOBODY.items()},
        }
        if index is not None:
            found["GIT_INDEX_FILE"] = str(index)
        return found

    def git(
        self,
        *words: str | bytes | Path,
        stdin: bytes = b"",
        index: Path | None = None,
        work: Path | None = None,
        more: Mapping[str, str] | None = None,
        doing: str = "read what the run left",
        fine: Sequence[int] = (0,),
    ) -> bytes:
        """git's answer."""
        return self.ask(*words, stdin=stdin, index=index, work=work, more=more, doing=doing, fine=fine)[1]

    def ask(
        self,
        *words: str | bytes | Path,
        stdin: bytes = b"",
        index: Path | None = None,
        work: Path | None = None,
        more: Mapping[str, str] | None = None,
        doing: str = "read what the run left",
        fine: Sequence[int] = (0,),
    ) -> tuple[int, bytes]:
        """The exit status, one of `fine`, and the answer."""
        env = {**self.env(index, work), **(more or {})}
        return _run(["git", *words], env, work or self.work, stdin, doing, fine)

    def start(
        self, *words: str | bytes, stdin: int = subprocess.DEVNULL, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """git as a process, for an answer that is read as it comes. Its own words are thrown away."""
        return subprocess.Popen(
            ["git", *words],
            env={**self.env(), **(more or {})},
            cwd=self.work,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def id_of(self, data: bytes) -> str:
        """The id of a file with this content."""
        return blob_id(data, self.form)

    def put(self, data: bytes) -> str:
        """Store a file's content; its id."""
        name = self.id_of(data)
        path = self.objects / name[:2] / name[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            draft = path.with_name(f"new-{secrets.token_hex(4)}")
            draft.write_bytes(zlib.compress(b"blob %d\0" % len(data) + data, 1))
            draft.rename(path)
        return name

    def content(self, name: str) -> bytes:
        with suppress(FileNotFoundError):  # one that `put` has stored: no process for it
            return zlib.decompress((self.objects / name[:2] / name[2:]).read_bytes()).partition(b"\0")[2]
        return self._batch.content(name)

    def tree(self, name: str) -> Tree:
        """The files of a tree."""
        return parsed_tree(self.git(*LS_TREE, name))

    def write_tree(self, start: str | None, changes: Mapping[bytes, Entry | None]) -> str:
        """The tree `start` with these changes (None: gone); its id."""
        index = self.new_index()
        self.git("read-tree", *([start] if start else ["--empty"]), index=index)
        self.change_index(index, changes)
        return self.git("write-tree", index=index).decode().strip()

    def change_index(self, index: Path, changes: Mapping[bytes, Entry | None]) -> None:
        gone = [b"0 %s\t%s\0" % (self.hidden.encode(), path) for path, entry in changes.items() if entry is None]
        new = [f"{entry.mode} {entry.id}\t".encode() + path + b"\0" for path, entry in changes.items() if entry]
        self.git("update-index", "-z", "--replace", "--index-info", stdin=b"".join((*gone, *new)), index=index)


def _remove_stale() -> None:
    """Remove what killed commands of this user left: nobody holds it any more."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for entry in found:
            if not entry.name.startswith(SCRATCH):
                continue
            with suppress(OSError):
                handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    status = os.fstat(handle)
                    if status.st_uid == os.geteuid() and time.time() - status.st_mtime > STALE_S:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(handle)


def _quiet_environment() -> dict[str, str]:
    own = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_LITERAL_PATHSPECS": "0", "LC_ALL": "C"}
    return _environment() | own


def _environment() -> dict[str, str]:
    """The caller's, without what would lead git to another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def write_repository(folder: Path, form: str, *, branch: str = "none", settings: str = "") -> None:
    """Write what makes `folder`, with its inner folders, a repository."""
    version, extension = ("1", f"[extensions]\n\tobjectformat = {form}\n") if form != "sha1" else ("0", "")
    (folder / "HEAD").write_text(f"ref: refs/heads/{branch}\n", "utf-8", "surrogateescape")
    (folder / "config").write_text(
        f"[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = false\n"
        "\tlogallrefupdates = true\n\tsymlinks = true\n\tprotectHFS = true\n\tprotectNTFS = true\n"
        f"\tbigFileThreshold = {BIG_FILE}\n{extension}[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n{settings}"
    )
    (folder / "info" / "attributes").write_text(RAW_ATTRIBUTES)


def parsed_tree(listing: bytes) -> Tree:
    """What `git` says with the words of LS_TREE."""
    found: Tree = {}
    for line in listing.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, _, item, size = facts.decode("ascii").split()
        found[path] = Entry(mode, item, int(size) if size.isdigit() else -1)
    return found


def quoted_folders(folders: Sequence[Path]) -> str:
    """For GIT_ALTERNATE_OBJECT_DIRECTORIES (git(1)), whatever the names hold."""
    return ":".join('"' + str(folder).replace("\\", "\\\\").replace('"', '\\"') + '"' for folder in folders)


def blob_id(data: bytes, form: str) -> str:
    """git's id for a file with this content."""
    kind = hashlib.sha256 if form == "sha256" else hashlib.sha1
    return kind(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
