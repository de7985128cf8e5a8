"""The node in a few lines of text: what it is, before what is wrong with it."""

from __future__ import annotations

from collections import Counter

from epctl.core.fact import Absent, Fact, value_or
from epctl.core.snapshot import Snapshot


def at_a_glance(node: Snapshot) -> tuple[str, ...]:
    """Machine, GPUs, network, software. What is not known says so, shortly."""
    host, driver, software = node.host, node.gpu.driver, node.software
    kind = " ".join(part for part in (value_or(host.vendor, ""), value_or(host.product, "")) if part)
    virtual, container = value_or(host.virtualization, "none"), value_or(host.container, "none")
    where = [
        f"{word} ({name})"
        for word, name in (("virtual", virtual), ("container", container))
        if name not in ("", "none")
    ]
    machine = ", ".join(
        part
        for part in (
            kind or "machine of unknown make",
            "" if isinstance(host.num_cpus, Absent) else f"{host.num_cpus} CPUs",
            _size(host.memory_total_bytes),
            value_or(host.os, ""),
            "" if isinstance(host.kernel, Absent) else f"kernel {host.kernel}",
            *where,
        )
        if part
    )
    cuda = driver.cuda_version
    told = f"driver {_say(driver.version)}"
    if not isinstance(cuda, Absent):
        told += f" (CUDA {cuda // 1000}.{cuda // 10 % 100})"
    parts = [
        f"NCCL {_say(software.nccl_effective)}",
        f"torch {_say(software.torch_version)}",
        f"nvcc {_say(software.toolchain.nvcc_version)}",
    ]
    return (machine, f"{_gpus(node)}, {told}", _network(node), ", ".join(parts))


def _gpus(node: Snapshot) -> str:
    gpus = node.gpu.gpus
    if isinstance(gpus, Absent):
        return f"GPUs: {_short(gpus)}"
    names = Counter(value_or(gpu.name, "GPU of unknown name") for gpu in gpus)
    return ", ".join(f"{count} × {name}" for name, count in names.items()) or "no GPU"


def _network(node: Snapshot) -> str:
    devices = node.rdma.devices
    if isinstance(devices, Absent):
        return f"RDMA: {_short(devices)}"
    kinds: Counter[str] = Counter()
    for device in devices:
        if device.manages_nvswitch is True:
            kinds["way to the NVSwitches"] += 1
            continue
        for port in value_or(device.ports, ()):
            rate = f"{port.rate_gbps:g} Gb/s" if isinstance(port.rate_gbps, float) else "rate unknown"
            kinds[
                f"{value_or(device.driver, 'RDMA')} {value_or(port.link_layer, '?')} {rate} {value_or(port.state, 'state unknown')}"
            ] += 1
    return "RDMA: " + (", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "no device")


def _say(fact: Fact[str] | Fact[int]) -> str:
    return _short(fact) if isinstance(fact, Absent) else str(fact)


def _short(fact: Absent) -> str:
    return {"not_found": "none", "tool_missing": "none", "not_read": "not read"}.get(
        fact.absent, fact.absent.replace("_", " ")
    )


def _size(fact: Fact[int]) -> str:
    return "" if isinstance(fact, Absent) else f"{fact / 2**30:.0f} GiB"
