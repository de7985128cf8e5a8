"""Shell lines that install something on this node or set options of its NVIDIA driver. They depend on the distribution, on the
CUDA that PyTorch is built for, and on whether this is a container; where they cannot be told, there are none."""

from __future__ import annotations

import re
import shlex
from typing import Literal

from epctl.core.context import Context
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import regkeys, versions

Family = Literal["deb", "rpm", ""]
_DEB = re.compile(r"\b(ubuntu|debian|dgx os)\b", re.I)
_RPM = re.compile(r"\b(red hat enterprise|rocky|almalinux|centos|oracle linux|amazon linux|fedora)\b", re.I)
_READ_ONLY = re.compile(r"\b(coreos|bottlerocket|flatcar|talos)\b", re.I)
"""Host systems without a package manager."""
_ONLY_YUM = re.compile(r"\bamazon linux (release )?2\b|\b(centos|red hat enterprise) linux.* 7\b", re.I)
CUDA_MAJOR = "CUDA_MAJOR"
"""Stands in a command for a number that nothing on the node tells."""
_WHEEL = re.compile(r"nvidia-(?:nccl|nvshmem)-cu(\d{2})", re.ASCII)
IMEX_FILE = "/etc/modprobe.d/zz-epctl-imex.conf"
OPTIONS_FILE = "/etc/modprobe.d/zz-epctl-nvidia.conf"
"""modprobe reads its files in the order of their names and the driver takes the last value, hence the name."""


def family(node: Snapshot) -> Family:
    """Kind of packages of this operating system (of the image, in a container); '' when its name is not known here."""
    name = value_or(node.host.os, "")
    if _READ_ONLY.search(name):
        return ""
    return "deb" if _DEB.search(name) else "rpm" if _RPM.search(name) else ""


def _inside(node: Snapshot) -> bool:
    return value_or(node.host.container, "none") != "none"


def packages(node: Snapshot, *, deb: str = "", rpm: str = "") -> tuple[str, ...]:
    """The line that installs packages. It asks before it changes others (no -y). Images have neither sudo nor apt's lists."""
    kind = family(node)
    inside = _inside(node)
    sudo = "" if inside else "sudo "
    if kind == "deb" and deb:
        return (f"apt-get update && apt-get install {deb}",) if inside else (f"{sudo}apt-get install {deb}",)
    if kind == "rpm" and rpm:
        tool = "yum" if _ONLY_YUM.search(value_or(node.host.os, "")) else "dnf"
        return (f"{sudo}{tool} install {rpm}",)
    return ()


def python(node: Snapshot) -> str:
    """The interpreter that was looked at, as a word of a shell line; `python` where it is not known."""
    path = value_or(node.software.python_executable, "")
    return shlex.quote(path) if path.startswith("/") and path.isprintable() else "python"


def torch_cuda_major(context: Context) -> str:
    """`13`: the CUDA major of PyTorch, else of NVIDIA wheels that are installed, else of nvcc, else a placeholder."""
    software = context.node.software
    found = _major(value_or(software.torch_cuda, ""))
    if found is None and isinstance(software.distributions, tuple):
        hits = (_WHEEL.fullmatch(entry.name) for entry in software.distributions)
        found = next((int(hit.group(1)) for hit in hits if hit is not None), None)
    if found is None:
        found = _major(value_or(software.toolchain.nvcc_version, ""))
    return CUDA_MAJOR if found is None else str(found)


def _major(text: str) -> int | None:
    return versions.major(text) if text else None


def driver_options(node: Snapshot, *options: str, **dwords: str) -> tuple[str, ...]:
    """Lines that set `options` (`NVreg_X=1`) and registry dwords of the NVIDIA driver beside those in force, from the next load
    of the driver on. First a look at who sets options now: a second value of one name replaces the first."""
    params = node.gpu.driver.params
    in_force = "" if isinstance(params, Absent) else next((e.value for e in params if e.name == "RegistryDwords"), "")
    merged = regkeys.merged(in_force, **dwords)
    look = "grep -rn NVreg_ /etc/modprobe.d /lib/modprobe.d /proc/cmdline"
    if isinstance(params, Absent) or not merged:  # others' dwords would be lost
        return (look,)
    line = " ".join(("options nvidia", *options, f'NVreg_RegistryDwords="{merged}"'))
    return (look, f"echo '{line}' | sudo tee {OPTIONS_FILE}", *_initramfs(node))


def module_option(node: Snapshot, option: str, file: str) -> tuple[str, ...]:
    """Lines that set one `option` of the NVIDIA driver that is no list, in a file of its own: modprobe puts those of all its files
    together. It holds from the next load of the driver on."""
    look = "grep -rn NVreg_ /etc/modprobe.d /lib/modprobe.d /proc/cmdline"
    return (look, f"echo 'options nvidia {option}' | sudo tee {file}", *_initramfs(node))


def _initramfs(node: Snapshot) -> tuple[str, ...]:
    """Nothing in a container, where the distribution of the host is not known."""
    if _inside(node):
        return ()
    lines = {"deb": ("sudo update-initramfs -u -k all",), "rpm": ("sudo dracut -f",)}
    return lines.get(family(node), ())
