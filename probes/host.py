"""Operating system, limits and container of this process."""

from __future__ import annotations

import re
from typing import Any

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.host import HostArea, ShmFile
from epctl.core.snapshot.rdma import DeviceNode
from epctl.probes import documents, firewall, virtualization
from epctl.probes.modules import modules
from epctl.probes.source import Source, number, text

DMI = "/sys/class/dmi/id"
HUGE = "/sys/kernel/mm/hugepages"
HUGE_2M = f"{HUGE}/hugepages-2048kB"
NVIDIA_MAJOR = 195
"""Device number that the kernel's list of devices reserves for NVIDIA."""
NVIDIACTL_MINOR = 255

_ARM_PARTS = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
"""CPU part numbers of Arm Ltd. (implementer 0x41): N1 Altra, V1 Graviton 3, N2 Cobalt, V2 Grace and Graviton 4."""
_NVIDIA_NODE = re.compile(r"/dev/(?:nvidia|gdrdrv)")
_GPU_NODE = re.compile(r"/dev/nvidia(\d{1,3})", re.ASCII)


def host(source: Source) -> HostArea:
    """Facts of /proc, /sys and /etc, and of the collectors `process` and `nodes`."""
    process = source.document("process")
    meminfo = _meminfo(source)
    vendor = _line(source, f"{DMI}/sys_vendor")
    virtual, notes = virtualization.virtualization(source, vendor)
    wall, remarks = firewall.policy(source)
    nodes = _nodes(source.document("nodes"))
    devices = text(source, "/proc/devices")
    ports = _line(source, "/proc/sys/net/ipv4/ip_local_port_range")
    return HostArea(
        hostname=documents.text(process, "hostname"),
        os=_os(source),
        kernel=_line(source, "/proc/sys/kernel/osrelease"),
        architecture=_either(documents.text(process, "machine"), _line(source, "/proc/sys/kernel/arch")),
        cmdline=_line(source, "/proc/cmdline"),
        cpu_model=_cpu_model(source),
        num_cpus=_num_cpus(source),
        num_numa_nodes=_num_numa_nodes(source),
        memory_total_bytes=_field(meminfo, "MemTotal"),
        virtualization=virtual,
        container=virtualization.container(source, process),
        vendor=vendor,
        product=_either(_line(source, f"{DMI}/product_name"), _line(source, "/sys/firmware/devicetree/base/model")),
        bios_date=_line(source, f"{DMI}/bios_date"),
        modules=modules(source),
        nvidia_nodes=nodes,
        imex_in_proc_devices=devices if isinstance(devices, Absent) else "nvidia-caps-imex-channels" in devices,
        dev_char_nvidia=_dev_char(source, devices, nodes),
        memlock_bytes=documents.integer(process, "memlock"),
        nofile=documents.integer(process, "nofile"),
        file_max=_number(source, "/proc/sys/fs/file-max"),
        shm_total_bytes=documents.integer(process, "shm_total"),
        shm_free_bytes=documents.integer(process, "shm_free"),
        shm_files=documents.items(process, "shm_files", _shm_file),
        hugepages_2m_total=_huge(source, meminfo, "nr_hugepages", "HugePages_Total"),
        hugepages_2m_free=_huge(source, meminfo, "free_hugepages", "HugePages_Free"),
        numa_balancing=_number(source, "/proc/sys/kernel/numa_balancing"),
        ptrace_scope=_number(source, "/proc/sys/kernel/yama/ptrace_scope"),
        cap_effective=documents.integer(process, "cap_effective"),
        affinity=documents.text(process, "affinity"),
        port_range=_pair(ports),
        firewall=wall,
        notes=(*notes, *remarks),
        uptime_s=_uptime(source),
        private_namespaces=documents.texts(process, "private_namespaces"),
    )


def _either(first: Fact[str], second: Fact[str]) -> Fact[str]:
    return second if isinstance(first, Absent) and isinstance(second, str) else first


def _line(source: Source, path: str) -> Fact[str]:
    found = text(source, path)
    return found if isinstance(found, Absent) else documents.text_of(found)


def _number(source: Source, path: str) -> Fact[int]:
    found = number(source, path)
    if isinstance(found, Absent) or documents.is_int(found):
        return found
    return Absent("unparsable", f"{path} holds no integer of 64 bits")


def _os(source: Source) -> Fact[str]:
    found = text(source, "/etc/os-release")
    if isinstance(found, Absent):
        found = text(source, "/usr/lib/os-release")
    if isinstance(found, Absent):
        return found
    values = dict(line.partition("=")[::2] for line in found.splitlines())
    for key in ("PRETTY_NAME", "NAME", "ID"):
        value = values.get(key, "").strip().strip("\"'")
        if value:
            return documents.text_of(value)
    return Absent("unparsable", "os-release holds no name", documents.text_of(found.partition("\n")[0])[:80])


def _cpu_model(source: Source) -> Fact[str]:
    found = text(source, "/proc/cpuinfo")
    if isinstance(found, Absent):
        return found
    values: dict[str, str] = {}
    for line in found.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            values.setdefault(name.strip(), value.strip())
    if values.get("model name"):
        return documents.text_of(values["model name"])
    part = values.get("CPU part", "")
    if values.get("CPU implementer") == "0x41" and part in _ARM_PARTS:
        return f"Arm {_ARM_PARTS[part]}"
    if part:
        return documents.text_of(f"implementer {values.get('CPU implementer', '?')} part {part}")
    return Absent("unparsable", "/proc/cpuinfo names no processor", documents.text_of(found.partition("\n")[0])[:80])


def _num_cpus(source: Source) -> Fact[int]:
    online = text(source, "/sys/devices/system/cpu/online")
    count = count_list(online) if isinstance(online, str) else None
    if count is not None:
        return count
    cpuinfo = text(source, "/proc/cpuinfo")
    if isinstance(cpuinfo, Absent):
        return cpuinfo
    processors = sum(1 for line in cpuinfo.splitlines() if re.match(r"processor\s*:", line))
    return processors or Absent("unparsable", "/proc/cpuinfo lists no processor")


def _num_numa_nodes(source: Source) -> Fact[int]:
    """Nodes with processors: the memory of a GPU (GH200, GB200) is a NUMA node, too."""
    with_cpu = text(source, "/sys/devices/system/node/has_cpu")
    count = count_list(with_cpu) if isinstance(with_cpu, str) else None
    if count:
        return count
    names = source.entries("/sys/devices/system/node")
    if isinstance(names, Absent):
        return names
    nodes = sum(1 for name in names if re.fullmatch(r"node[0-9]+", name))
    return nodes or Absent("not_found", "/sys/devices/system/node lists no node")


def count_list(listed: str) -> int | None:
    """Number of entries of a kernel list: `0-3,8` → 5; None for anything else."""
    total = 0
    for part in listed.strip().split(",")[:4096]:
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if found is None:
            return None
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        if last < first:
            return None
        total += last - first + 1
    return total


def _meminfo(source: Source) -> Fact[dict[str, str]]:
    found = text(source, "/proc/meminfo")
    if isinstance(found, Absent):
        return found
    return {name: value.strip() for name, _, value in (line.partition(":") for line in found.splitlines())}


def _field(meminfo: Fact[dict[str, str]], name: str) -> Fact[int]:
    """Bytes, or a count where the line has no unit."""
    if isinstance(meminfo, Absent):
        return meminfo
    value = meminfo.get(name, "")
    found = re.fullmatch(r"(\d{1,15})( kB)?", value, re.ASCII)
    if found is None:
        return Absent(
            "unparsable" if value else "not_found", f"no {name} in /proc/meminfo", documents.text_of(value)[:80]
        )
    return int(found.group(1)) * (1024 if found.group(2) else 1)


def _huge(source: Source, meminfo: Fact[dict[str, str]], name: str, field: str) -> Fact[int]:
    """Count of 2 MiB pages; meminfo counts pages of the default size alone."""
    found = _number(source, f"{HUGE_2M}/{name}")
    if not isinstance(found, Absent):
        return found
    if isinstance(meminfo, dict) and meminfo.get("Hugepagesize") == "2048 kB":
        return _field(meminfo, field)
    if isinstance(source.entries(HUGE), tuple) and found.absent == "not_found":
        return Absent("unsupported", "this kernel has no huge pages of 2 MiB")
    return found


def _nodes(document: Any) -> Fact[tuple[DeviceNode, ...]]:  # noqa: ANN401 - JSON
    reason = documents.absent_of(document)
    if reason is not None:
        return reason
    if not isinstance(document, dict):
        return Absent("unparsable", "the list of device files is no object", documents.text_of(document)[:80])
    paths = sorted(path for path in document if isinstance(path, str) and _NVIDIA_NODE.match(path))
    return tuple(
        DeviceNode(documents.text_of(path), documents.flag(document[path], "rw"))
        for path in paths[: documents.MAX_ITEMS]
    )


def _dev_char(source: Source, devices: Fact[str], nodes: Fact[tuple[DeviceNode, ...]]) -> Fact[bool]:
    """Every GPU's device file and nvidiactl have their link in /dev/char."""
    if isinstance(devices, Absent):
        return devices
    if not re.search(r"^\s*\d+ nvidia", devices, re.M | re.ASCII):
        return Absent("not_found", "no NVIDIA device in /proc/devices")
    links = source.entries("/dev/char")
    if isinstance(links, Absent):
        return False if links.absent == "not_found" else links
    wanted = {f"{NVIDIA_MAJOR}:{NVIDIACTL_MINOR}"}
    for node in nodes if isinstance(nodes, tuple) else ():
        gpu = _GPU_NODE.fullmatch(node.path)
        if gpu:
            wanted.add(f"{NVIDIA_MAJOR}:{int(gpu.group(1))}")
    return wanted <= set(links)


def _shm_file(entry: Any) -> ShmFile | None:  # noqa: ANN401 - JSON
    name, size = documents.name_of(entry, "name"), documents.integer(entry, "size")
    if not name or isinstance(size, Absent):
        return None
    return ShmFile(name, size, documents.flag(entry, "owner_alive"))


def _uptime(source: Source) -> Fact[int]:
    found = text(source, "/proc/uptime")
    if isinstance(found, Absent):
        return found
    seconds = re.match(r"(\d{1,12})(?:\.\d+)?\s", found + " ", re.ASCII)
    return int(seconds.group(1)) if seconds else Absent("unparsable", "/proc/uptime holds no number", found[:80])


def _pair(ports: Fact[str]) -> Fact[tuple[int, int]]:
    if isinstance(ports, Absent):
        return ports
    found = re.fullmatch(r"(\d{1,5})\s+(\d{1,5})", ports, re.ASCII)
    if found is None:
        return Absent("unparsable", "ip_local_port_range holds no pair", ports[:80])
    return int(found.group(1)), int(found.group(2))
