"""GPUDirect RDMA: the peer memory module, gdrdrv, libgdrapi."""

from __future__ import annotations

import re
from collections.abc import Mapping

from epctl.core.fact import Absent, Fact, value_or
from epctl.core.snapshot.host import KernelModule
from epctl.core.snapshot.rdma import GdrArea
from epctl.probes import sysfs
from epctl.probes.documents import absent_of, flag, member, text
from epctl.probes.modules import modules as modules_of
from epctl.probes.source import Output, Source
from epctl.probes.together import together

PEERMEM = ("nvidia_peermem", "nv_peer_mem")
"""The module of the driver, and the one that stood alone before it."""
MEMORY_PEERS = "/sys/kernel/mm/memory_peers"
_VERSION = re.compile(r"libgdrapi\.so\.(\d{1,4}(?:\.\d{1,4}){0,3})$", re.ASCII)
_FIELD = re.compile(r"^(filename|version|depends):[ \t]*(.*)$", re.M)


Modules = Mapping[str, KernelModule]


def gdr(source: Source) -> GdrArea:
    """What the kernel and the loader show of GPUDirect RDMA. Never raises."""
    infos = together(
        {
            "peermem": lambda: _modinfo(source, "nvidia_peermem"),
            "gdrdrv": lambda: _modinfo(source, "gdrdrv"),
            "libraries": lambda: source.document("libraries"),
            "nodes": lambda: source.document("nodes"),
        }
    )
    modules = _modules(source)
    loaded = _loaded(source, modules, PEERMEM)
    return GdrArea(
        peermem_loaded=loaded,
        peermem_version=_peermem_version(source),
        peermem_installed=True if loaded is True else _installed(infos["peermem"]),
        peermem_users=_users(modules),
        peermem_uses_ib_core=_uses_rdma_stack(source, modules),
        gdrdrv_loaded=_loaded(source, modules, ("gdrdrv",)),
        gdrdrv_version=sysfs.first(
            (sysfs.word(source, "/sys/module/gdrdrv/version"), _info(infos["gdrdrv"], "version"))
        ),
        gdrdrv_depends=_depends(infos["gdrdrv"], modules),
        gdrdrv_node=_node(source, infos["nodes"]),
        libgdrapi_version=_library_version(infos["libraries"]),
    )


def _modules(source: Source) -> Modules | Absent:
    found = modules_of(source)
    return found if isinstance(found, Absent) else {module.name: module for module in found}


def _loaded(source: Source, modules: Modules | Absent, wanted: tuple[str, ...]) -> Fact[bool]:
    """A module stands in /proc/modules; /sys/module tells it where that file is hidden."""
    if not isinstance(modules, Absent):
        return any(name in modules for name in wanted)
    folder = sysfs.names(source, "/sys/module")
    return modules if isinstance(folder, Absent) else any(name in folder for name in wanted)


def _users(modules: Modules | Absent) -> Fact[int]:
    if isinstance(modules, Absent):
        return modules
    return next(
        (modules[name].users for name in PEERMEM if name in modules),
        Absent("not_found", "nvidia_peermem is not loaded"),
    )


def _uses_rdma_stack(source: Source, modules: Modules | Absent) -> Fact[bool]:
    """Peer memory clients register with ib_core; some kernels export that call from ib_uverbs, which needs ib_core in turn."""
    if isinstance(modules, Absent):
        return modules
    stack = [modules[name] for name in ("ib_core", "ib_uverbs") if name in modules]
    if not stack and isinstance(source.entries("/sys/module/ib_core"), tuple):
        return Absent("unsupported", "ib_core is built into the kernel, which keeps no list of its users")
    for module in stack:
        if isinstance(module.used_by, Absent):
            return module.used_by
    return any(name in value_or(module.used_by, ()) for module in stack for name in PEERMEM)


def _peermem_version(source: Source) -> Fact[str]:
    """The two places where NCCL looks, and that of the older module."""
    places = ["/sys/module/nvidia_peermem/version"]
    peers = sysfs.names(source, MEMORY_PEERS)
    if isinstance(peers, tuple):
        places += [f"{MEMORY_PEERS}/{name}/version" for name in peers if name.startswith("nv_mem")]
    return sysfs.first(sysfs.word(source, place) for place in (*places, "/sys/module/nv_peer_mem/version"))


def _modinfo(source: Source, module: str) -> str | Absent:
    """Text of modinfo. A module that is not found tells something only where this kernel's modules are at hand: a container has
    none of them."""
    found = source.run("modinfo", module)
    if isinstance(found, Absent):
        return found
    if found.code == 0 and found.stdout.strip():
        return found.stdout[:65536].decode("utf-8", "replace")
    return _missing(source, found, module)


def _missing(source: Source, found: Output, module: str) -> Absent:
    line = found.raw[:200].decode("utf-8", "replace").strip().split("\n")[0]
    if "not found" not in line:
        return Absent("failed", f"modinfo {module} ended with code {found.code}", line)
    kernel = sysfs.word(source, "/proc/sys/kernel/osrelease")
    if isinstance(kernel, str) and isinstance(source.entries(f"/lib/modules/{kernel}"), tuple):
        return Absent("not_found", f"there is no module {module} for kernel {kernel}", line)
    return Absent("unsupported", "the modules of the running kernel are not at hand (container)", line)


def _info(found: str | Absent, key: str) -> Fact[str]:
    if isinstance(found, Absent):
        return found
    value = next((match[2].strip() for match in _FIELD.finditer(found) if match[1] == key), None)
    return value[:400] if value else Absent("not_found", f"modinfo prints no {key}")


def _installed(found: str | Absent) -> Fact[bool]:
    if isinstance(found, Absent):
        return False if found.absent == "not_found" else found
    name = _info(found, "filename")
    return True if isinstance(name, str) else Absent("unparsable", "modinfo names no file", found[:80].split("\n")[0])


def _depends(found: str | Absent, modules: Modules | Absent) -> Fact[tuple[str, ...]]:
    """Modules that gdrdrv needs: of its file, else of the loaded one (the modules that list it among their users)."""
    if isinstance(found, str) and isinstance(_info(found, "filename"), str):
        value = _info(found, "depends")
        return tuple(name for name in re.split(r"[,\s]+", value) if name) if isinstance(value, str) else ()
    if not isinstance(modules, Absent) and "gdrdrv" in modules:
        uncounted = next((module.used_by for module in modules.values() if isinstance(module.used_by, Absent)), None)
        return uncounted or tuple(name for name, module in modules.items() if "gdrdrv" in value_or(module.used_by, ()))
    return (
        found if isinstance(found, Absent) else Absent("unparsable", "modinfo names no file", found[:80].split("\n")[0])
    )


def _node(source: Source, document: object) -> Fact[bool]:
    """/dev/gdrdrv is there and may be read and written."""
    failed = absent_of(document)
    if failed is None and isinstance(document, dict):
        refused = absent_of(document.get("/dev", {}))
        return _access(document) if refused is None else refused
    listed = sysfs.names(source, "/dev")
    if isinstance(listed, tuple) and "gdrdrv" not in listed:
        return False
    return failed or Absent("unparsable", "the document of device files is no object")


def _access(document: dict[str, object]) -> Fact[bool]:
    return flag(document["/dev/gdrdrv"], "rw") if "/dev/gdrdrv" in document else False


def _library_version(document: object) -> Fact[str]:
    """Version in the name of the file that libgdrapi.so.2 leads to: libgdrapi.so.2.5."""
    path = text(member(member(document, "libraries"), "libgdrapi"), "real_path")
    if isinstance(path, Absent):
        return path
    found = _VERSION.search(path)
    return found.group(1) if found else Absent("unparsable", "libgdrapi's file name holds no version", path[-80:])
