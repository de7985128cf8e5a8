"""The operating system of a machine: /proc, /sys, DMI, limits of the process, firewall."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from epctl.core.fact import Absent
from epctl.probes.source import Output
from tests.samples.parts import Part

DMI = "/sys/class/dmi/id"
HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"
ALL_CAPABILITIES = 0x1FFFFFFFFFF
"""CapEff of root outside of containers, Linux 5.9 to 6.x: 41 capabilities."""
_DEVICES = """Character devices:
  1 mem
  4 tty
  5 /dev/tty
  5 /dev/console
 10 misc
 13 input
 29 fb
 89 i2c
128 ptm
136 pts
{special}
Block devices:
  7 loop
  8 sd
  9 md
253 device-mapper
259 blkext
"""


class System(Struct, frozen=True):
    """What the parts of this module tell. `modules`: lines of /proc/modules as (name, users, used by)."""

    hostname: str
    os: str
    kernel: str
    cmdline: str
    cpu: str
    """Text of one processor's block in /proc/cpuinfo, without its number."""
    num_cpus: int
    memory_kb: int
    vendor: str
    product: str
    bios_date: str
    modules: tuple[tuple[str, int, tuple[str, ...]], ...]
    character_devices: tuple[str, ...] = ()
    machine: str = "x86_64"
    virtualization: str = "none"
    numa_nodes: str = "0-1"
    numa_balancing: int = 0
    ptrace_scope: int = 0
    huge_pages: int = 0
    uid: int = 0
    memlock: int = -1
    nofile: int = 1048576
    uptime_s: int = 1209632
    compiled: str = "#81-Ubuntu SMP PREEMPT_DYNAMIC"
    files: dict[str, str] = {}


def system(told: System) -> Part:
    """The part of one system; root (or the user `uid`) looks at it, outside of containers."""
    return Part(
        files={**_proc(told), **_sys(told), **told.files},
        folders={f"/lib/modules/{told.kernel}": ("build", "kernel", "modules.dep", "updates")},
        commands={
            ("systemd-detect-virt", "--vm"): _virt(told.virtualization),
            ("systemd-detect-virt", "--container"): _virt("none"),
            ("nft", "list", "chains"): "" if told.uid == 0 else _REFUSED,
        },
        documents={"process": _process(told)},
    )


_REFUSED = Output(b"", b"Operation not permitted (you must be root)\n", 1)


def _virt(word: str) -> Output:
    return Output(f"{word}\n".encode(), code=1 if word == "none" else 0)


def _proc(told: System) -> dict[str, str | bytes | Absent]:
    modules = "".join(
        f"{name} {16384 + 4096 * users} {users} {','.join((*used_by, '')) or '-'} Live 0x0000000000000000\n"
        for name, users, used_by in told.modules
    )
    special = "".join(f"{line}\n" for line in told.character_devices)
    return {
        "/etc/os-release": f'PRETTY_NAME="{told.os}"\nNAME="{told.os.split()[0]}"\nID={told.os.split()[0].lower()}\n',
        "/proc/version": f"Linux version {told.kernel} (buildd@lcy02) (gcc 13.3.0) {told.compiled}\n",
        "/proc/cmdline": told.cmdline + "\n",
        "/proc/cpuinfo": f"processor\t: 0\n{told.cpu}\n",
        "/proc/devices": _DEVICES.format(special=special),
        "/proc/meminfo": _meminfo(told),
        "/proc/modules": modules,
        "/proc/uptime": f"{told.uptime_s}.41 {told.uptime_s * told.num_cpus * 9 // 10}.07\n",
        "/proc/self/status": f"Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nUid:\t{told.uid}\t{told.uid}\t{told.uid}\t{told.uid}\n",
        "/proc/sys/fs/file-max": "9223372036854775807\n",
        "/proc/sys/kernel/arch": told.machine + "\n",
        "/proc/sys/kernel/numa_balancing": f"{told.numa_balancing}\n",
        "/proc/sys/kernel/osrelease": told.kernel + "\n",
        "/proc/sys/kernel/yama/ptrace_scope": f"{told.ptrace_scope}\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    }


def _meminfo(told: System) -> str:
    taken = told.huge_pages * 2048
    return (
        f"MemTotal:       {told.memory_kb} kB\nMemFree:        {told.memory_kb * 9 // 10 - taken} kB\n"
        f"MemAvailable:   {told.memory_kb * 19 // 20 - taken} kB\nHugePages_Total:   {told.huge_pages}\n"
        f"HugePages_Free:    {told.huge_pages}\nHugePages_Rsvd:        0\nHugePages_Surp:        0\n"
        f"Hugepagesize:       2048 kB\nHugetlb:        {taken} kB\n"
    )


def _sys(told: System) -> dict[str, str | bytes | Absent]:
    return {
        f"{DMI}/sys_vendor": told.vendor + "\n",
        f"{DMI}/product_name": told.product + "\n",
        f"{DMI}/bios_date": told.bios_date + "\n",
        f"{HUGE}/nr_hugepages": f"{told.huge_pages}\n",
        f"{HUGE}/free_hugepages": f"{told.huge_pages}\n",
        "/sys/devices/system/cpu/online": f"0-{told.num_cpus - 1}\n",
        "/sys/devices/system/node/has_cpu": told.numa_nodes + "\n",
    }


def _process(told: System) -> dict[str, Any]:
    shm = told.memory_kb * 1024 // 2
    return {
        "hostname": told.hostname,
        "machine": told.machine,
        "memlock": told.memlock,
        "nofile": told.nofile,
        "shm_total": shm,
        "shm_free": shm - 4096 * 1301,
        "cap_effective": ALL_CAPABILITIES if told.uid == 0 else 0,
        "affinity": f"0-{told.num_cpus - 1}",
        "uid": told.uid,
        "hints": [],
        "shm_files": [],
        "private_namespaces": [],
    }
