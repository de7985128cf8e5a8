"""Installed builds of DeepEP, read from their files. Standard library alone, Python 3.8 or later."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH113, PTH118, PTH120, PTH123, PTH207

from __future__ import annotations

import glob
import os
import re
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _loader
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _loader

MODULES = {
    "deep-ep": "deep_ep",
    "deepinfer-ep": "deep_ep",
    "sgl-deep-ep": "deep_ep",
    "sgl-deep-ep-v25": "deep_ep_v25",
}
"""Canonical names of distributions of DeepEP, and the modules they bring."""
MAX_EXTENSIONS = 32
_MAX_SCANNED_BYTES = 256 << 20
_MAGIC = struct.pack("<I", 0xCAFEBEEF)
"""NCCL_API_MAGIC of nccl.h: initialisers of NCCL's structs put the version of the headers behind it."""
_VERSION = re.compile(r"^\s*__version__\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.M)
_TORCH = re.compile(r"torch[-_.]?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", re.I)


def describe(
    loader: _loader.Loader, name: str, version: str, folder: str, extensions: list[str], nccl: str, besides: list[str]
) -> dict[str, Any]:
    """One installation. `folder`: of the package, `nccl`: path of the libnccl in use, `besides`: folders whose libraries
    PyTorch has loaded already when the package is imported."""
    files = extensions or _extensions(folder)
    found: dict[str, Any] = {
        "distribution": name,
        "version": version,
        "path": folder or {"error": "not_found", "detail": "the package's folder is not known"},
        "nccl_built": {"error": "not_found", "detail": "its build does not tell"},
        "torch_built": {"error": "not_found", "detail": "its build does not tell"},
        "release": release(folder) or {"error": "not_found", "detail": "its files do not tell"},
        "warp_get": _asks_for_warp_get(folder),
    }
    named = _TORCH.search(version)
    if named:
        found["torch_built"] = named.group(1)
    if not files:
        none = {"error": "not_found", "detail": "no compiled module was found"}
        return {**found, "undefined_nccl_symbols": none, "needed_missing": none}
    parsed = [(path, _loader.load(path, ("nccl", "pnccl"))) for path in files[:MAX_EXTENSIONS]]
    broken = next((one.error for _, one in parsed if one.error), "")
    if broken:
        wrong = {"error": "unparsable", "detail": broken}
        return {**found, "undefined_nccl_symbols": wrong, "needed_missing": wrong}
    built = {told for path, _ in parsed for told in [built_against(path)] if told}
    if len(built) == 1:
        found["nccl_built"] = built.pop()
    lacking = {name for path, one in parsed for name in _loader.missing(loader, path, one, besides)}
    return {
        **found,
        "needed_missing": sorted(lacking),
        "undefined_nccl_symbols": _undefined([one for _, one in parsed], nccl),
    }


def release(folder: str) -> str:
    """Release of DeepEP in a package's folder: `__version__`, else 1 for the first generation, which tells none."""
    found = _VERSION.search(_read(os.path.join(folder, "__init__.py"))) if folder else None
    if found:
        return found.group(1)
    return "1" if folder and os.path.isfile(os.path.join(folder, "buffer.py")) else ""


def _asks_for_warp_get(folder: str) -> Any:  # noqa: ANN401 - JSON
    """The kernels stand as sources in the package, for the JIT compiler; the first generation has no Engram."""
    if not folder:
        return {"error": "not_found", "detail": "the package's folder is not known"}
    pattern = os.path.join(glob.escape(folder), "include", "**", "*engram*.cuh")
    return any("ncclGinOptFlagsWarpGet" in _read(path) for path in glob.glob(pattern, recursive=True))


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as stream:
            return stream.read(1 << 20)
    except OSError:
        return ""


def _extensions(folder: str) -> list[str]:
    """Compiled modules of a package, and the ones that older versions put beside it."""
    if not folder:
        return []
    inside = glob.glob(os.path.join(glob.escape(folder), "**", "*.so"), recursive=True)
    return sorted([*inside, *glob.glob(os.path.join(glob.escape(os.path.dirname(folder)), "deep_ep_cpp*.so"))])


def _undefined(parsed: list[Any], nccl: str) -> Any:  # noqa: ANN401 - JSON
    """nccl* symbols that are asked for and that the libnccl in use lacks."""
    wanted = {name for one in parsed for name in one.undefined}
    own = {name for one in parsed for name in one.exported}
    if not wanted - own:
        return []
    if not nccl:
        return {"error": "not_found", "detail": "no libnccl to compare with"}
    library = _loader.load(nccl, ("nccl", "pnccl"))
    if library.error:
        return {"error": "unparsable", "detail": library.error}
    return sorted(wanted - own - set(library.exported))


def built_against(path: str) -> str:
    """NCCL version of the headers that a library was compiled with: the number behind NCCL_API_MAGIC in its initialisers.
    '' when there is none, or more than one."""
    try:
        with open(path, "rb") as stream:
            raw = stream.read(_MAX_SCANNED_BYTES)
    except OSError:
        return ""
    codes: set[int] = set()
    at = raw.find(_MAGIC)
    while at >= 0 and len(codes) < 8:
        behind = raw[at + 4 : at + 8]
        code = struct.unpack("<I", behind)[0] if len(behind) == 4 else 0
        if 20900 <= code < 40000 and code % 100 < 50:
            codes.add(code)
        at = raw.find(_MAGIC, at + 4)
    if len(codes) != 1:
        return ""
    code = codes.pop()
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
