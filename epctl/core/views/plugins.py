"""NCCL's network plugins: which one is asked for, which ones are there, and whether they can be loaded."""

from __future__ import annotations

import re

from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import NetPlugin
from epctl.core.views import versions
from epctl.core.views.settings import setting

GIN_PLUGIN, GIN_NCCL, GIN_GDRCOPY = "1.21.0", "2.31.2", "2.5"
"""First aws-ofi-nccl, NCCL and GDRCopy (of library and module the older one) with GIN over EFA, in either mode
(aws-ofi-nccl doc/gin-getting-started.md)."""
DEFAULT = "libnccl-net.so"
"""What NCCL looks for when NCCL_NET_PLUGIN is not set (NCCL user guide)."""
BUILT_IN = ("ib", "socket")
"""Networks inside NCCL; NCCL_NET compares without regard to case."""
_OTHERS = ("hpcx", "sharp", "gib", "fastrak", "spectrum-x")
"""Marks of `libnccl-net.so` files that do not speak libfabric (HPC-X of NGC images, Google's gIB and FasTrak)."""

EFA_INSTANCES = re.compile(r"(p4d|p4de|p5|p5e|p5en|p6-b200|p6-b300|p6e-gb200|p6e-gb300)\.[a-z0-9-]+", re.ASCII)
"""GPU instance types for EP that have EFA (AWS documentation, EFA instance types); DMI tells the type."""
GDA_INSTANCES = re.compile(r"(p5en|p6-b200|p6-b300)\.[a-z0-9-]+", re.ASCII)
"""Instance types with EFA-GDA (aws-ofi-nccl doc/gin-getting-started.md)."""


def found(node: Snapshot) -> tuple[NetPlugin, ...]:
    """Plugins that the loader finds; raises Unreadable."""
    return known(node.software.net_plugins, "NCCL network plugins")


def requested(context: Context) -> tuple[str, ...]:
    """Entries of NCCL_NET_PLUGIN; empty when NCCL looks for its default."""
    text = setting(context, "NCCL_NET_PLUGIN") or ""
    return tuple(part for part in (entry.strip() for entry in text.split(",")) if part)


def answers(plugin: NetPlugin, entry: str) -> bool:
    """Would NCCL_NET_PLUGIN=`entry` load this plugin? NCCL tries the text as a file, then libnccl-net-`entry`.so."""
    base = entry.rsplit("/", 1)[-1]
    return plugin.path == entry or plugin.name in (base, f"libnccl-net-{base}.so")


def is_ofi(plugin: NetPlugin) -> bool:
    """It is aws-ofi-nccl: by its name, or a plain libnccl-net.so outside the folders of other vendors' plugins."""
    if "ofi" in plugin.name:
        return True
    path = plugin.path.lower()
    return plugin.name == DEFAULT and not any(mark in path for mark in _OTHERS)


def obstacles(node: Snapshot, plugin: NetPlugin) -> tuple[str, ...]:
    """Why the loader refuses this plugin; empty when nothing speaks against it. Raises Unreadable."""
    missing = known(plugin.missing, f"libraries that {plugin.name} needs")
    reasons = [f"needs {library}, which the loader does not find" for library in missing]
    wanted = plugin.glibc_needed
    if isinstance(wanted, Absent):
        if wanted.absent != "not_found":  # not_found: it asks for no version
            known(wanted, f"C library version that {plugin.name} needs")
    elif versions.below(known(node.software.glibc_version, "C library version"), wanted):
        reasons.append(f"needs GLIBC_{wanted}, this system has {node.software.glibc_version}")
    return tuple(reasons)
