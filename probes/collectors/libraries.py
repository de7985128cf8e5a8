"""Collector: user-space RDMA and GDRCopy libraries as the loader finds them, and the providers of libibverbs.

Document: {"libraries": {"libibverbs": {"path", "real_path", "soname", "versions", "symbols", "needed"} or {"error"}},
"providers": {"mlx5": path}}. Libraries are read as files, nothing of them is loaded.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from typing import Any

LIBRARIES = {
    "libibverbs": "libibverbs.so.1",
    "libmlx5": "libmlx5.so.1",
    "libefa": "libefa.so.1",
    "librdmacm": "librdmacm.so.1",
    "libfabric": "libfabric.so.1",
    "libgdrapi": "libgdrapi.so.2",
}
SYMBOLS = (
    "efadv_create_comp_cntr",
    "efadv_query_qp_wqs",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr_iova2",
    "mlx5dv_devx_alloc_uar",
    "mlx5dv_get_data_direct_sysfs_path",
    "mlx5dv_reg_dmabuf_mr",
)
DEFAULT_FOLDERS = (
    "/lib64",
    "/usr/lib64",
    f"/lib/{os.uname().machine}-linux-gnu",
    f"/usr/lib/{os.uname().machine}-linux-gnu",
    "/lib",
    "/usr/lib",
)
EXTRA_FOLDERS = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib")
"""Not on the loader's path by themselves; consumers that are linked with a run path find libfabric here."""
_CACHED = re.compile(r"\s*(\S+) \(([^)]*)\) => (/\S.*)")
_PROVIDER = re.compile(r"lib(.+)-rdmav\d+\.so$")


def collect() -> dict[str, Any]:
    """The document."""
    elf = _elf()
    cache = _cache()
    libraries = {name: _library(elf, soname, cache) for name, soname in LIBRARIES.items()}
    return {"libraries": libraries, "providers": _providers(libraries["libibverbs"])}


def _elf() -> Any:  # noqa: ANN401 - a module
    """epctl's ELF reader: the package need not be importable here."""
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _shared  # type: ignore[import-not-found]  # noqa: F401
    from standalone import elf  # type: ignore[import-not-found]

    return elf


def _cache() -> dict[str, list[str]]:
    """soname → paths in the loader's cache, those of this architecture first. Empty where there is no ldconfig (musl)."""
    for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            done = subprocess.run([tool, "-p"], capture_output=True, timeout=4, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            continue
        found: dict[str, list[str]] = {}
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            if (entry := _CACHED.fullmatch(line)) is not None and "64" in entry[2]:
                found.setdefault(entry[1], []).append(entry[3])
        return found
    return {}


def _library(elf: Any, soname: str, cache: dict[str, list[str]]) -> dict[str, Any]:  # noqa: ANN401
    """Facts of the first file that the loader would take: LD_LIBRARY_PATH, its cache, its default folders."""
    folders = [folder for folder in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if folder.startswith("/")]
    paths = [f"{folder}/{soname}" for folder in folders] + cache.get(soname, [])
    paths += [f"{folder}/{soname}" for folder in (*DEFAULT_FOLDERS, *EXTRA_FOLDERS)]
    trouble = ""
    for path in dict.fromkeys(paths):
        if not os.path.exists(path):  # noqa: PTH110
            continue
        facts = elf.load(path, elf.any_of(SYMBOLS))
        if facts.error or facts.bits != 64:
            trouble = trouble or f"{path}: {facts.error or 'not a 64-bit library'}"
            continue
        return {
            "path": path,
            "real_path": os.path.realpath(path),
            "soname": facts.soname,
            "versions": list(facts.versions),
            "symbols": sorted(facts.exported),
            "needed": list(facts.needed),
        }
    if trouble:
        return {"error": "unparsable", "detail": trouble}
    return {"error": "not_found", "detail": f"the loader finds no {soname}"}


def _providers(libibverbs: dict[str, Any]) -> dict[str, str]:
    """Provider → its library. libibverbs looks in the folder `libibverbs` beside itself, then where the loader looks."""
    own = os.path.dirname(libibverbs.get("real_path", ""))  # noqa: PTH120
    folders = dict.fromkeys((own, *DEFAULT_FOLDERS) if own else DEFAULT_FOLDERS)
    found: dict[str, str] = {}
    for folder in folders:
        for path in (*glob.glob(f"{folder}/libibverbs/lib*-rdmav*.so"), *glob.glob(f"{folder}/lib*-rdmav*.so")):  # noqa: PTH207
            if (name := _PROVIDER.match(os.path.basename(path))) is not None:  # noqa: PTH119
                found.setdefault(name[1], path)
    return found


if __name__ == "__main__":
    json.dump(collect(), sys.stdout)
