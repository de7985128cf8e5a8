"""Compiled files on disk, shared by all processes of a user (or of a cluster), each made once.

DIR/v1/NAME-KEY/manifest.json, files     an entry: it appears by one rename, whole
DIR/v1/.tmp/NAME-KEY.XXXX/               being built; removed by whoever next takes the lock of that entry
DIR/v1/.locks/NAME-KEY                   held while building; gone afterwards
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from epctl.native import locks, private
from epctl.native.cache_entry import Build, Entry, Manifest, load, make, stem_of
from epctl.native.cache_key import Inputs

VARIABLE = "EPCTL_CACHE_DIR"
LAYOUT = "v1"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}")
_CANNOT_WRITE = frozenset(
    getattr(errno, name)
    for name in "EROFS EACCES EPERM ENOSPC EDQUOT ENOTDIR ENOENT ESTALE EIO ELOOP ENAMETOOLONG EMLINK EFBIG ENOTSUP".split()  # noqa: SIM905
)
_FULL = "No space left on device"
_NEEDED_BYTES = 1 << 20
"""A compiler that fails with less than this free in the cache's folder is run again elsewhere."""


def default_folder() -> Path | None:
    """EPCTL_CACHE_DIR, else epctl below XDG_CACHE_HOME or ~/.cache; None for a user without a home."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111 - Path.expanduser raises for unknown users
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):  # the specification wants relative ones to be ignored
        return Path(xdg, "epctl")
    try:
        return Path.home() / ".cache" / "epctl"
    except RuntimeError:
        return None


class Cache:
    """The cache in one folder."""

    def __init__(self, folder: Path | None = None, lock_limit_s: float = locks.LIMIT_S) -> None:
        folder = default_folder() if folder is None else folder
        self.folder = folder
        self.lock_limit_s = lock_limit_s

    def get(self, name: str, inputs: Inputs, build: Build) -> Entry:
        """The entry for `inputs`, made by `build(folder)` where there is none that is whole. A cache that cannot be written, or is
        full, costs only that the files live in a private folder until this process ends. Raises what `build` raises, and EpctlError
        when another process keeps the lock."""
        if not _NAME.fullmatch(name):
            raise ValueError(name)
        if self.folder is None:
            return private.get(name, inputs, build, f"there is no home folder for a cache (set {VARIABLE})")
        root = self.folder / LAYOUT
        stem = stem_of(name, inputs)
        found = load(root / stem, inputs)
        if found is not None:
            return found
        try:
            return self._made(root, stem, name, inputs, build)
        except _Unwritable as error:
            return private.get(name, inputs, build, f"the cache {self.folder} cannot be used ({error})")

    def _made(self, root: Path, stem: str, name: str, inputs: Inputs, build: Build) -> Entry:
        with contextlib.ExitStack() as stack:
            with _writing(root):
                for folder in (root, root / ".tmp", root / ".locks"):
                    folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locks.held(root / ".locks" / stem, f"the build of {name}", self.lock_limit_s))
                sweep(root, stem)
            found = load(root / stem, inputs)
            if found is not None:
                return found
            with _writing(root):
                temporary = Path(tempfile.mkdtemp(prefix=f"{stem}.", dir=root / ".tmp"))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            manifest = _run(root, temporary, name, inputs, build)
            with _writing(root):
                return _published(root, temporary / "out", stem, manifest)

    def like(self, name: str, inputs: Inputs) -> Entry | None:
        """A whole entry that was made from `inputs` with compilers of any version, the newest of several: for a node that has no
        compiler, and a cache that was filled elsewhere."""
        found = [
            entry
            for entry in self.entries()
            if entry.manifest.name == name and replace(entry.manifest.inputs, compilers=inputs.compilers) == inputs
        ]
        return max(found, key=lambda entry: entry.manifest.made_s, default=None)

    def entries(self) -> list[Entry]:
        """All entries that are whole, by name."""
        return [entry for path in self._folders() if (entry := load(path)) is not None]

    def broken(self) -> list[Path]:
        """Folders of entries that are not whole; each is made anew when it is next asked for."""
        return [path for path in self._folders() if load(path) is None]

    def _folders(self) -> list[Path]:
        if self.folder is None:
            return []
        try:
            return sorted(path for path in (self.folder / LAYOUT).iterdir() if not path.name.startswith("."))
        except OSError:
            return []


class _Unwritable(Exception):  # noqa: N818 - handled here, never shown
    """The cache's folder does not take what is written."""


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Errors of the file system in the block are about the cache's folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise _Unwritable(f"{error.strerror or error}: {error.filename or root}") from error


def _run(root: Path, temporary: Path, name: str, inputs: Inputs, build: Build) -> Manifest:
    """Runs the build. A compiler says in words that the disk is full, and some only fail."""
    try:
        (temporary / "out").mkdir()
        return make(temporary / "out", name, inputs, build)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _Unwritable(f"{error.strerror}: {root}") from error
        raise
    except Exception as error:
        if _FULL in f"{error}" or _free_bytes(root) < _NEEDED_BYTES:
            raise _Unwritable(f"{_FULL}: {root}") from error
        raise


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _published(root: Path, made: Path, stem: str, manifest: Manifest) -> Entry:
    target = root / stem
    for _ in range(2):
        try:
            made.rename(target)
            return Entry(target, manifest, built=True)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        found = load(target, manifest.inputs)
        if found is not None:  # locks are advisory: another host was faster
            return found
        _set_aside(target, made.parent / "broken")
    made.rename(target)
    return Entry(target, manifest, built=True)


def _set_aside(broken: Path, place: Path) -> None:
    """Moved first, so that nobody sees half of it; it goes with the temporary folder."""
    if broken.is_dir() and not broken.is_symlink():
        broken.rename(place)
        shutil.rmtree(place, ignore_errors=True)
    else:
        broken.unlink()


def sweep(root: Path, mine: str) -> None:
    """Removes what builders left that were killed: of the entry `mine`, whose lock the caller holds, and of those nobody locks."""
    left: dict[str, list[Path]] = {}
    for path in (root / ".tmp").iterdir():
        left.setdefault(path.name.partition(".")[0], []).append(path)
    for path in (root / ".locks").iterdir():
        left.setdefault(path.name.partition(".")[0], [])
    for stem, paths in left.items():
        if stem == mine:
            _remove(paths)
            continue
        with contextlib.suppress(locks.Busy, OSError):
            lock = locks.acquire(root / ".locks" / stem)
            _remove(paths)
            lock.release()


def _remove(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
