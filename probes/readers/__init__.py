"""One module per tool, each with `COMMAND`, a `Facts` struct and `read(raw: bytes) -> Reading[Facts]`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.reading import Reading

TOOLS: dict[str, str] = {
    "nvlink_status": "nvidia-smi nvlink -s",
    "nvlink_caps": "nvidia-smi nvlink -c",
    "nvlink_errors": "nvidia-smi nvlink -e",
    "topo": "nvidia-smi topo -m",
    "ibstat": "ibstat",
    "ibv_devinfo": "ibv_devinfo -v",
    "rdma_link": "rdma link",
    "show_gids": "show_gids",
    "sysfs_ib": "grep -r . /sys/class/infiniband",
    "ibnetdiscover": "ibnetdiscover",
    "lspci": "lspci -vv",
    "mlxconfig": "mlxconfig -d DEVICE q",
    "fi_info": "fi_info -p efa",
    "nccl_topo_xml": "NCCL_TOPO_DUMP_FILE",
    "nccl_log": "NCCL_DEBUG=INFO",
}
"""Tool name → the command that prints the text (or the variable that makes a program write it)."""


def read(tool: str, raw: bytes) -> Reading[Any]:
    """What the reader of `tool` (a key of TOOLS) sees in `raw`."""
    reading: Reading[Any] = import_module(f"epctl.probes.readers.{tool}").read(raw)
    return reading
