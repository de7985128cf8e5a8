"""Copies of NCCL and NVSHMEM that an interpreter may meet, and NCCL's network plugins, read from their files.

Standard library alone, Python 3.8 or later.
"""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH112, PTH113, PTH116, PTH118, PTH119, PTH120, PTH123, PTH207

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.core.standalone.communication import NCCL, NVSHMEM, Kind, headers, include_folders, mapped, version
    from epctl.probes.collectors import _loader
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _loader
    from standalone.communication import NCCL, NVSHMEM, Kind, headers, include_folders, mapped, version

MAX_HASHED_BYTES = 2 << 30
"""All files that are hashed to tell copies of one size apart, together."""
MAX_LIBRARIES = 200


_OFI = re.compile(rb"aws-ofi-nccl[ /-]v?(\d{1,3}\.\d{1,3}\.\d{1,3})")
_GET = re.compile(r"\bvoid\s+get\s*\(")
_WARP_GET = re.compile(r"\bncclGinOptFlagsWarpGet\s*=")
_GENK = b"NCCL_SYM_GENK_ENABLE"


def libraries(kind: Kind, loader: _loader.Loader, packaged: list[str]) -> list[dict[str, Any]]:
    """Every copy: mapped into this process, in a distribution (`packaged`), on the loader's path, below a root variable."""
    found: list[dict[str, Any]] = [_entry(kind, "loaded", path) for path in mapped(kind.pattern)]
    found += [_entry(kind, "package", path) for path in packaged]
    on_path = _distinct([*loader.every(kind.pattern), *_beside_python(kind)])
    winner = os.path.realpath(next(filter(None, map(loader.find, kind.sonames)), on_path[0] if on_path else ""))
    found += [{**_entry(kind, "loader", path), "first": os.path.realpath(path) == winner} for path in on_path]
    for variable in kind.roots:
        root = os.environ.get(variable, "")
        for folder in ("lib", "lib64") if root else ():
            found += [_entry(kind, "root", path) for path in _files(os.path.join(root, folder), kind.pattern)]
    unique = {(entry["origin"], entry["path"]): entry for entry in reversed(found)}
    kept = [entry for entry in found if unique.get((entry["origin"], entry["path"])) is entry][:MAX_LIBRARIES]
    _hash_twins(kept)
    return kept


def _distinct(paths: list[str]) -> list[str]:
    """The first of several names of one file."""
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _beside_python(kind: Kind) -> list[str]:
    """Conda's interpreter carries a run path to its own lib folder."""
    conda = os.environ.get("CONDA_PREFIX", "")
    return _files(os.path.join(conda, "lib"), kind.pattern) if conda and sys.prefix.startswith(conda) else []


def _files(folder: str, pattern: str) -> list[str]:
    return [path for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))) if os.path.isfile(path)]


def _entry(kind: Kind, origin: str, path: str) -> dict[str, Any]:
    return {"origin": origin, "path": path, "real_path": os.path.realpath(path), "version": version(kind, path)}


def _hash_twins(entries: list[dict[str, Any]]) -> None:
    """SHA-256 of files that have the size of another one: they may be two copies of one library."""
    by_size: dict[int, set[str]] = {}
    for entry in entries:
        with contextlib.suppress(OSError):
            by_size.setdefault(os.stat(entry["real_path"]).st_size, set()).add(entry["real_path"])
    left = MAX_HASHED_BYTES
    sums: dict[str, Any] = {}
    for size, paths in by_size.items():
        for path in sorted(paths) if len(paths) > 1 else ():
            left -= size
            sums[path] = _sha256(path) if left >= 0 else {"error": "not_read", "detail": "too many large copies"}
    for entry in entries:
        if entry["real_path"] in sums:
            entry["sha256"] = sums[entry["real_path"]]


def _sha256(path: str) -> Any:  # noqa: ANN401 - JSON
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while True:
                chunk = stream.read(1 << 22)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)
    except OSError as error:
        return {"error": "failed", "detail": str(error)}


def roots() -> list[dict[str, Any]]:
    """Folders that a variable names as the root of NCCL or NVSHMEM."""
    found: list[dict[str, Any]] = []
    for kind in (NCCL, NVSHMEM):
        for variable in kind.roots:
            root = os.environ.get(variable, "")
            if root:
                include = os.path.join(root, "include")
                found.append(
                    {
                        "variable": variable,
                        "path": root,
                        "has_include": os.path.isfile(os.path.join(include, kind.header)),
                        "has_lib": bool(_files(os.path.join(root, "lib"), kind.pattern)),
                        "has_device_headers": os.path.isdir(os.path.join(include, f"{kind.name}_device")),
                    }
                )
    return found


def effective(loader: _loader.Loader, torch_folder: str, copies: list[dict[str, Any]]) -> dict[str, Any]:
    """The NCCL that PyTorch (or else this interpreter) would use: {path, version, headers}."""
    for entry in copies:
        if entry["origin"] == "loaded":
            return _effective(entry["path"])
    library = next(iter(_files(os.path.join(torch_folder, "lib"), "libtorch_cuda.so")), "") if torch_folder else ""
    if library:
        parsed = _loader.load(library)
        wanted = next((soname for soname in parsed.needed if soname.startswith("libnccl.so")), "")
        if not wanted and not parsed.error:
            return _linked_in(library)
        path = _loader.resolve(loader, library, wanted, parsed) if wanted else ""
        if path:
            return _effective(path)
    order = ("package", "loader") if not loader.folders and not loader.preload else ("loader", "package")
    for origin in order:
        for entry in copies:
            if entry["origin"] == origin and entry.get("first", True):
                return _effective(entry["path"])
    none = {"error": "not_found", "detail": "no libnccl"}
    return dict.fromkeys(("path", "version", "headers", "gin_get", "gin_warp_get", "genk"), none)


def _effective(path: str) -> dict[str, Any]:
    beside = headers(NCCL, path) or headers(NCCL, os.path.realpath(path))
    return {
        "path": os.path.realpath(path),
        "version": version(NCCL, path),
        "headers": beside or {"error": "not_found", "detail": "no nccl.h beside the library"},
        **_device_api(path),
        "genk": _knows_genk(path),
    }


def _device_api(path: str) -> dict[str, Any]:
    """What the device headers beside a libnccl define: GIN's get, and its flag for a whole warp."""
    for place in (*include_folders(path), *include_folders(os.path.realpath(path))):
        folder = os.path.join(place, "nccl_device")
        text = "".join(map(_read, (os.path.join(folder, "gin.h"), os.path.join(folder, "gin", "gin_device_common.h"))))
        if text:
            return {"gin_get": bool(_GET.search(text)), "gin_warp_get": bool(_WARP_GET.search(text))}
    none = {"error": "not_found", "detail": "no nccl_device/gin.h beside the library"}
    return {"gin_get": none, "gin_warp_get": none}


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as stream:
            return stream.read(1 << 20)
    except OSError:
        return ""


def _knows_genk(path: str) -> Any:  # noqa: ANN401 - JSON
    if not _loader.load(path).error:
        return bool(_loader.search(path, re.compile(b"(" + _GENK + rb")\0"), _GENK))
    return {"error": "unparsable", "detail": "the file is no library"}


def _linked_in(library: str) -> dict[str, Any]:
    told = _loader.search(library, NCCL.version, NCCL.hint)
    none = {"error": "not_found", "detail": "NCCL is a part of libtorch_cuda"}
    return {
        "path": os.path.realpath(library),
        "version": told or {"error": "not_found", "detail": "PyTorch has no NCCL"},
        "headers": none,
        "gin_get": none,
        "gin_warp_get": none,
        "genk": _knows_genk(library),
    }


def plugins(loader: _loader.Loader) -> list[dict[str, Any]]:
    """Network plugins on the loader's path, and one that NCCL_NET_PLUGIN gives by its path."""
    paths = loader.every("libnccl-net*.so*")
    named = os.environ.get("NCCL_NET_PLUGIN", "")
    if named.startswith("/") and os.path.isfile(named):
        paths.insert(0, named)
    first_by_name: dict[str, str] = {}
    for path in paths:
        first_by_name.setdefault(os.path.basename(path), path)
    return [_plugin(loader, name, path) for name, path in sorted(first_by_name.items())][:MAX_LIBRARIES]


def _plugin(loader: _loader.Loader, name: str, path: str) -> dict[str, Any]:
    parsed = _loader.load(path)
    if parsed.error:
        wrong = {"error": "unparsable", "detail": parsed.error}
        return {"name": name, "path": path, "version": wrong, "missing": wrong, "glibc_needed": wrong}
    told = _loader.search(path, _OFI, b"aws-ofi-nccl")
    return {
        "name": name,
        "path": path,
        "version": told or {"error": "not_found", "detail": "the plugin does not tell its version"},
        "missing": _loader.missing(loader, path, parsed, []),
        "glibc_needed": parsed.glibc_needed or {"error": "not_found", "detail": "it asks for no version of glibc"},
    }
