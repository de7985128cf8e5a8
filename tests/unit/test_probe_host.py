"""Host: machines as they are, from bare metal to gVisor."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.fact import Absent, value_or
from epctl.core.snapshot.host import KernelModule, ShmFile
from epctl.core.snapshot.rdma import DeviceNode
from epctl.probes import firewall
from epctl.probes.collectors import process
from epctl.probes.host import count_list, host
from epctl.probes.source import COLLECTORS, Output
from tests.support.damage import damaged_source
from tests.support.fake_source import FakeSource
from tests.support.probing import odd_document, reason, survives

HIDDEN = {"error": "permission", "detail": "processes of other users"}
PROCESS: dict[str, Any] = {
    "hostname": "gpu-01",
    "machine": "x86_64",
    "memlock": -1,
    "nofile": 1048576,
    "shm_total": 1 << 40,
    "shm_free": 1 << 39,
    "cap_effective": 0x1FFFFFFFFFF,
    "affinity": "0-111",
    "uid": 0,
    "hints": [],
    "shm_files": [
        {"name": "nccl-Ab12", "size": 9637888, "owner_alive": False},
        {"name": "psm_1", "size": 4096, "owner_alive": HIDDEN},
    ],
}
FILES = {
    "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
    "/proc/sys/kernel/osrelease": "5.15.0-142-generic\n",
    "/proc/version": "Linux version 5.15.0-142-generic (buildd@lcy02)\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro iommu=pt\n",
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu vmx\n",
    "/proc/uptime": "8000.52 12.00\n",
    "/proc/meminfo": "MemTotal:       2113489264 kB\nHugePages_Total:     512\nHugePages_Free:  12\nHugepagesize:       2048 kB\n",
    "/sys/devices/system/cpu/online": "0-111\n",
    "/sys/devices/system/node/has_cpu": "0-1\n",
    "/sys/class/dmi/id/sys_vendor": "Supermicro\n",
    "/sys/class/dmi/id/product_name": "SYS-821GE-TNHR\n",
    "/sys/class/dmi/id/bios_date": "08/14/2025\n",
    "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nib_core 425984 3 nvidia_peermem,rdma_cm,[permanent], Live 0x0\n",
    "/proc/devices": "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-caps-imex-channels\n",
    "/proc/sys/fs/file-max": "9223372036854775807\n",
    "/proc/sys/kernel/numa_balancing": "1\n",
    "/proc/sys/kernel/yama/ptrace_scope": "1\n",
    "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
}
NODES = {"/dev/nvidia0": {"rw": True}, "/dev/nvidiactl": {"rw": False}, "/dev/infiniband/uverbs0": {"rw": True}}
COMMANDS: dict[tuple[str, ...], str | bytes | Output | Absent] = {
    ("systemd-detect-virt", "--vm"): Output(b"none\n", code=1),
    ("systemd-detect-virt", "--container"): Output(b"none\n", code=1),
    ("nft", "list", "chains"): "",
}


def machine(**changes: Any) -> FakeSource:  # noqa: ANN401 - arguments of FakeSource
    return FakeSource(
        {**FILES, **changes.get("files", {})},
        folders=changes.get("folders", {"/dev/char": ("195:0", "195:255", "1:3")}),
        commands={**COMMANDS, **changes.get("commands", {})},
        documents={"process": {**PROCESS, **changes.get("process", {})}, "nodes": changes.get("nodes", NODES)},
    )


def test_bare_metal() -> None:
    area = host(machine())
    assert (area.hostname, area.os, area.kernel) == ("gpu-01", "Ubuntu 22.04.5 LTS", "5.15.0-142-generic")
    assert (area.cpu_model, area.num_cpus, area.num_numa_nodes) == ("Intel(R) Xeon(R) Platinum 8480C", 112, 2)
    assert area.memory_total_bytes == 2113489264 * 1024
    assert (area.virtualization, area.container, area.firewall) == ("none", "none", "none")
    assert (area.vendor, area.product, area.bios_date) == ("Supermicro", "SYS-821GE-TNHR", "08/14/2025")
    assert area.modules == (
        KernelModule("nvidia_peermem", 0),
        KernelModule("ib_core", 3, ("nvidia_peermem", "rdma_cm")),
    )
    assert area.nvidia_nodes == (DeviceNode("/dev/nvidia0", True), DeviceNode("/dev/nvidiactl", False))
    assert area.imex_in_proc_devices is True
    assert area.dev_char_nvidia is True
    assert (area.memlock_bytes, area.nofile, area.file_max) == (-1, 1048576, 2**63 - 1)
    assert (area.hugepages_2m_total, area.hugepages_2m_free) == (512, 12)
    assert (area.numa_balancing, area.ptrace_scope, area.port_range, area.uptime_s) == (1, 1, (32768, 60999), 8000)
    assert area.shm_files == (
        ShmFile("nccl-Ab12", 9637888, False),
        ShmFile("psm_1", 4096, Absent("permission", "processes of other users")),
    )
    assert area.notes == ()


def test_a_gpu_without_its_link_in_dev_char() -> None:
    assert host(machine(folders={"/dev/char": ("195:255",)})).dev_char_nvidia is False
    assert host(machine(folders={"/dev": ("null",)})).dev_char_nvidia is False
    assert reason(host(machine(files={"/proc/devices": "1 mem\n"})).dev_char_nvidia) == "not_found"


@pytest.mark.parametrize(
    ("files", "told", "expected"),
    [
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "amazon\n", "amazon"),
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "kvm\n", "amazon"),
        ({"/proc/sys/kernel/osrelease": "6.1.0-fc-v3"}, "kvm\n", "firecracker"),
        ({"/proc/sys/kernel/osrelease": "6.1.0-fcoe"}, "kvm\n", "kvm"),
        ({"/proc/cpuinfo": "flags : fpu hypervisor\n", "/sys/class/dmi/id/sys_vendor": "QEMU"}, None, "kvm"),
        ({"/proc/cpuinfo": "flags : fpu\n", "/sys/class/dmi/id/sys_vendor": "Amazon EC2"}, None, "none"),
        (
            {"/proc/cpuinfo": "flags : hypervisor\n", "/sys/class/dmi/id/sys_vendor": "Microsoft Corporation"},
            None,
            "microsoft",
        ),
        ({"/proc/cpuinfo": "CPU part : 0xd4f\n", "/sys/class/dmi/id/sys_vendor": "NVIDIA"}, None, "none"),
        (
            {"/proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"},
            None,
            "gvisor",
        ),
    ],
)
def test_virtualization(files: dict[str, str], told: str | None, expected: str) -> None:
    output = Absent("tool_missing") if told is None else told
    area = host(machine(files=files, commands={("systemd-detect-virt", "--vm"): output}))
    assert area.virtualization == expected


def test_sources_that_disagree_are_noted() -> None:
    area = host(machine(files={"/proc/cpuinfo": "flags : fpu hypervisor\n"}))
    assert area.virtualization == "none"
    assert "says none" in area.notes[0]


def test_nothing_tells_the_virtualization() -> None:
    bare = FakeSource({"/proc/cpuinfo": "CPU part : 0xd4f\n"})
    assert reason(host(bare).virtualization) == "not_found"


@pytest.mark.parametrize(
    ("hints", "told", "expected"),
    [
        (["kubernetes", "docker"], "none", "kubernetes"),
        (["docker"], "none", "docker"),
        (["cgroup:lxc"], "none", "lxc"),
        ([], "podman", "podman"),
        ([], "none", "none"),
    ],
)
def test_container(hints: list[str], told: str, expected: str) -> None:
    area = host(machine(process={"hints": hints}, commands={("systemd-detect-virt", "--container"): told}))
    assert area.container == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", "none"),
        (
            "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n",
            "drop",
        ),
        ("table inet f {\n\tchain i {\n\t\ttype filter hook input priority 0; policy accept;\n\t}\n}\n", "accept"),
        ("table inet f {\n\tchain o {\n\t\ttype filter hook output priority 0; policy drop;\n\t}\n}\n", "none"),
    ],
)
def test_firewall_policy(output: str, expected: str) -> None:
    assert firewall.policy(FakeSource(commands={("nft", "list", "chains"): output}))[0] == expected


def test_firewalld_rejects_in_its_last_rule() -> None:
    chains = "table inet firewalld {\n\tchain filter_INPUT {\n\t\ttype filter hook input priority filter + 10; policy accept;\n"
    chain = chains + "\t\tct state established accept\n\t\treject with icmpx admin-prohibited\n\t}\n}\n"
    listed = ("nft", "list", "chain", "inet", "firewalld", "filter_INPUT")
    word, notes = firewall.policy(FakeSource(commands={("nft", "list", "chains"): chains, listed: chain}))
    assert word == "drop"
    assert "filter_INPUT" in notes[0]


def test_firewall_of_plain_users_and_of_old_systems() -> None:
    denied = Output(b"", b"Operation not permitted (you must be root)\n", 1)
    assert reason(firewall.policy(FakeSource(commands={("nft", "list", "chains"): denied}))[0]) == "permission"
    rules = ("iptables", "-S", "INPUT")
    assert firewall.policy(FakeSource(commands={rules: "-P INPUT DROP\n"}))[0] == "drop"
    assert firewall.policy(FakeSource(commands={rules: "-P INPUT ACCEPT\n"}))[0] == "none"
    assert (
        firewall.policy(FakeSource(commands={rules: "-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with x\n"}))[0]
        == "drop"
    )
    assert reason(firewall.policy(FakeSource())[0]) == "tool_missing"


def test_huge_pages_of_a_kernel_without_2_mib() -> None:
    files = {"/proc/meminfo": "MemTotal: 1 kB\nHugepagesize: 524288 kB\nHugePages_Total: 9\n"}
    area = host(machine(files=files, folders={"/sys/kernel/mm/hugepages": ("hugepages-524288kB",)}))
    assert reason(area.hugepages_2m_total) == "unsupported"


def test_arm_processor() -> None:
    area = host(machine(files={"/proc/cpuinfo": "processor: 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n"}))
    assert area.cpu_model == "Arm Neoverse-V2"


@pytest.mark.parametrize(("listed", "count"), [("0-3,8", 5), ("0", 1), ("", None), ("3-1", None), ("0-99999999", None)])
def test_count_list(listed: str, count: int | None) -> None:
    assert count_list(listed) == count


def test_collector_finds_owners(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    monkeypatch.setattr(process, "SHM", str(tmp_path))
    monkeypatch.setattr(process, "_hidden_processes", lambda: None)
    for name in ("nccl-open", "torch_stale", "other"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    with (tmp_path / "nccl-open").open("rb"):
        found = {entry["name"]: entry for entry in process.shm_files()}
    assert set(found) == {"nccl-open", "torch_stale"}
    assert found["nccl-open"]["owner_alive"] is True
    assert found["torch_stale"]["owner_alive"] in (
        False,
        {**HIDDEN, "detail": "processes of other users cannot be looked at"},
    )
    assert found["nccl-open"]["size"] >= 5000


def test_collector_prints_a_document() -> None:
    script = COLLECTORS / "process.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=True, text=True)
    area = host(FakeSource(documents={"process": json.loads(done.stdout)}))
    assert isinstance(area.memlock_bytes, int)
    assert isinstance(area.hostname, str)
    assert isinstance(area.shm_files, tuple)


@given(st.data())
def test_any_damage_gives_an_area(data: st.DataObject) -> None:
    whole = machine()
    whole.documents = {name: odd_document(value, data) for name, value in whole.documents.items()}
    survives(host=host(damaged_source(whole, data)))


def test_a_kernel_that_cannot_unload_modules_prints_dashes_and_still_lists_them() -> None:
    listed = "nvidia_uvm 1830912 - - Live 0x0000000000000000 (O)\nnvidia 14299136 - - Live 0x0000000000000000 (O)\n"
    found = host(FakeSource(files={"/proc/modules": listed})).modules
    assert isinstance(found, tuple)
    assert [(module.name, value_or(module.users, -1), value_or(module.used_by, ("?",))) for module in found] == [
        ("nvidia_uvm", -1, ("?",)),
        ("nvidia", -1, ("?",)),
    ]


def test_namespaces_of_a_container_are_told_apart_from_the_first_ones() -> None:
    source = FakeSource(documents={"process": {"private_namespaces": ["ipc", "pid"]}})
    assert host(source).private_namespaces == ("ipc", "pid")
    assert isinstance(host(FakeSource(documents={"process": {}})).private_namespaces, Absent)
