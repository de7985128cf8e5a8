"""The NCCL that device code is compiled against and the one that will be loaded, read from files: nothing is loaded here."""

from __future__ import annotations

import glob
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.standalone import communication, loader
from epctl.core.standalone.communication import NCCL

ROOT = "EPCTL_NCCL_ROOT"
SONAME = NCCL.sonames[0]
_PACKAGE = ("nvidia", "nccl")
"""Where the packages nvidia-nccl-cu12 and -cu13 put NCCL, below a folder of sys.path."""


class Library(Struct, frozen=True):
    """A libnccl on this machine."""

    path: str
    """Real path."""
    version: str
    """2.32.3; '' when the file does not tell."""
    origin: str
    """loaded, EPCTL_NCCL_ROOT, package, torch, LD_PRELOAD, LD_LIBRARY_PATH or system."""


class Headers(Struct, frozen=True):
    """Folder with nccl.h."""

    include: str
    version: str
    origin: str


class Nccl(Struct, frozen=True):
    """NCCL as a build and a process will meet it."""

    library: Library
    headers: Headers
    torch: Library | None = None
    """The one that PyTorch loads by itself; with `in_torch` it is a part of libtorch_cuda. None without PyTorch."""
    in_torch: bool = False
    loaded: tuple[Library, ...] = ()
    """Those mapped into this process already, those of LD_PRELOAD first: their symbols win over all that came later."""
    preloaded: tuple[str, ...] = ()
    """Paths of LD_PRELOAD."""


def find(search: loader.Loader | None = None) -> Nccl:
    """The library that will be loaded and its headers. Order: EPCTL_NCCL_ROOT, what is loaded already, the nvidia-nccl package, PyTorch's
    copy, LD_PRELOAD, LD_LIBRARY_PATH, the system. Raises EpctlError when one of both is missing."""
    search = live_loader() if search is None else search
    preloaded = tuple(os.path.realpath(path) for path in search.preload)
    mapped = sorted(_real(communication.mapped(NCCL.pattern)), key=lambda path: path not in preloaded)
    loaded = tuple(_library(path, "loaded") for path in mapped)
    torch, in_torch = _of_torch(search)
    named = _named(search)
    candidates = [*named, *loaded, *_packaged(), *([torch] if torch is not None and not in_torch else [])]
    library = next(iter((*candidates, *_on_path(search))), None)
    if library is None:
        raise EpctlError(
            f"there is no {SONAME}",
            f"{ROOT}, the package nvidia-nccl-cu13, PyTorch, LD_LIBRARY_PATH and the system have none",
            f"pip install 'nvidia-nccl-cu13>=2.32.3', or set {ROOT} to a folder with include/ and lib/",
            exit_code=4,
        )
    return Nccl(library, _headers(library), torch, in_torch, loaded, preloaded)


def live_loader() -> loader.Loader:
    """The dynamic loader of this process."""
    for argv in loader.LDCONFIG:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=4, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            continue
        return loader.Loader(dict(os.environ), loader.cached(done.stdout.decode("utf-8", "replace")))
    return loader.Loader(dict(os.environ), [])


def _library(path: str, origin: str) -> Library:
    told = communication.version(NCCL, path)
    return Library(os.path.realpath(path), told if isinstance(told, str) else "", origin)


def _real(paths: list[str]) -> list[str]:
    """The first of several names of one file."""
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _named(search: loader.Loader) -> list[Library]:
    """EPCTL_NCCL_ROOT: who sets it means it, so that a folder without a library is an error."""
    root = os.environ.get(ROOT, "")
    if not root:
        return []
    for folder in ("lib", "lib64"):
        found = search.find(os.path.join(root, folder, SONAME))  # noqa: PTH118
        if found:
            return [_library(found, ROOT)]
    raise EpctlError(
        f"{ROOT} has no NCCL",
        f"{root}/lib/{SONAME} does not exist",
        f"set {ROOT} to a folder with include/nccl.h and lib/{SONAME}, or unset it",
    )


def _packaged() -> list[Library]:
    return [_library(str(path), "package") for path in _below_sites(*_PACKAGE, "lib", SONAME)]


def _below_sites(*parts: str) -> Iterator[Path]:
    """Files of that place below the folders of sys.path, in its order."""
    for site in dict.fromkeys(filter(None, sys.path)):
        path = Path(site, *parts)
        if path.exists():
            yield path


def _of_torch(search: loader.Loader) -> tuple[Library | None, bool]:
    """(what PyTorch loads, whether it is linked into PyTorch). PyTorch is not imported for it."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        return None, False
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(glob.glob(f"{glob.escape(folder)}/lib/libtorch_cuda.so")):  # noqa: PTH207
            return _needed_by(search, path)
    return None, False


def _needed_by(search: loader.Loader, path: str) -> tuple[Library | None, bool]:
    parsed = loader.load(path)
    if parsed.error:
        return None, False
    wanted = next((name for name in parsed.needed if name.startswith("libnccl.so")), "")
    if wanted:
        found = loader.resolve(search, path, wanted, parsed)
        return (_library(found, "torch") if found else None), False
    told = loader.search(path, NCCL.version, NCCL.hint)
    return (Library(os.path.realpath(path), told, "torch"), True) if told else (None, False)


def _on_path(search: loader.Loader) -> Iterator[Library]:
    found = search.find(SONAME)
    if not found:
        return
    folder = str(Path(found).parent)
    if found in search.preload:
        origin = "LD_PRELOAD"
    else:
        origin = "LD_LIBRARY_PATH" if folder in [entry.rstrip("/") for entry in search.folders] else "system"
    yield _library(found, origin)


def _headers(library: Library) -> Headers:
    """Headers that belong to the library, else the next best; their version is compared afterwards."""
    places = [(place, f"beside {library.origin}") for place in communication.include_folders(library.path)]
    root = os.environ.get(ROOT, "")
    if root:
        places.insert(0, (os.path.join(root, "include"), ROOT))  # noqa: PTH118
    places += [(str(path), "package") for path in _below_sites(*_PACKAGE, "include")]
    places += [(folder, "CPATH") for folder in os.environ.get("CPATH", "").split(":") if folder]
    places += [("/usr/local/include", "system"), ("/usr/include", "system")]
    for place, origin in places:
        version = communication.header_version(NCCL, place)
        if version:
            return Headers(os.path.realpath(place), version, origin)
    raise EpctlError(
        "there are no NCCL headers",
        f"{library.path} has no nccl.h beside it, and neither the package nvidia-nccl-cu13 nor /usr/include has one",
        f"install NCCL's headers of version {library.version or 'that library'} (libnccl-dev, nvidia-nccl-cu13), or set {ROOT}",
        exit_code=4,
    )
