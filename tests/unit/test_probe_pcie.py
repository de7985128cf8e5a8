"""The PCIe area: the tree from real paths, links, IOMMU groups, ACS from configuration space, and lspci where sysfs is missing."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.host import PcieArea, PciFunction
from epctl.core.views.pcie import distance
from epctl.probes.pci_config import acs_of
from epctl.probes.pcie import pcie
from epctl.probes.source import Output, RecordedSource, Recording
from tests.support.damage import damaged_source
from tests.support.fake_source import FakeSource

READERS = Path(__file__).parent.parent / "data" / "readers"
ROOT = "/sys/bus/pci/devices"
PORT, SWITCH, DOWN_GPU, DOWN_NIC = "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:17:01.0"
GPU, NIC, NVSWITCH, DISK, FRONT = "0000:18:00.0", "0000:19:00.0", "0000:05:00.0", "0000:02:00.0", "0000:03:00.0"


def config(control: int | None, size: int = 4096, before: int = 0x000B) -> bytes:
    """Configuration space with one extended capability in front, and ACS behind it unless `control` is None."""
    raw = bytearray(size)
    raw[0:2] = b"\x00\x10"
    if size > 0x100:
        following = 0x140 if control is not None else 0
        struct.pack_into("<I", raw, 0x100, before | 1 << 16 | following << 20)
        if control is not None:
            struct.pack_into("<IHH", raw, 0x140, 0x000D | 1 << 16, 0x5F, control)
    return bytes(raw)


def machine(*, size: int = 4096) -> FakeSource:
    """A GPU and a NIC below one switch, an NVSwitch, a disk and a plain Ethernet card."""
    ids = {
        PORT: ("0x8086", "0x352a", "0x060400"),
        SWITCH: ("0x1000", "0xc030", "0x060400"),
        DOWN_GPU: ("0x1000", "0xc030", "0x060400"),
        DOWN_NIC: ("0x1000", "0xc030", "0x060400"),
        GPU: ("0x10de", "0x2330", "0x030200"),
        NIC: ("0x15b3", "0x1021", "0x020000"),
        NVSWITCH: ("0x10de", "0x22a3", "0x068000"),
        DISK: ("0x144d", "0xa80a", "0x010802"),
        FRONT: ("0x8086", "0x1563", "0x020000"),
    }
    paths = {
        PORT: PORT,
        SWITCH: f"{PORT}/{SWITCH}",
        DOWN_GPU: f"{PORT}/{SWITCH}/{DOWN_GPU}",
        DOWN_NIC: f"{PORT}/{SWITCH}/{DOWN_NIC}",
        GPU: f"{PORT}/{SWITCH}/{DOWN_GPU}/{GPU}",
        NIC: f"{PORT}/{SWITCH}/{DOWN_NIC}/{NIC}",
    }
    files: dict[str, str | bytes | Absent] = {}
    targets: dict[str, str | Absent] = {}
    for pci, (vendor, device, pci_class) in ids.items():
        folder = f"{ROOT}/{pci}"
        files |= {
            f"{folder}/vendor": vendor + "\n",
            f"{folder}/device": device + "\n",
            f"{folder}/class": pci_class + "\n",
        }
        speed = "32.0 GT/s PCIe\n"
        files |= {
            f"{folder}/numa_node": "0\n",
            f"{folder}/current_link_speed": speed,
            f"{folder}/max_link_speed": speed,
        }
        files |= {f"{folder}/current_link_width": "16\n", f"{folder}/max_link_width": "16\n"}
        targets[folder] = "/sys/devices/pci0000:15/" + paths[pci] if pci in paths else f"/sys/devices/pci0000:00/{pci}"
    files[f"{ROOT}/{NIC}/infiniband/mlx5_0/node_guid"] = "1"
    files[f"{ROOT}/{GPU}/current_link_speed"] = "2.5 GT/s PCIe\n"
    files[f"{ROOT}/{NVSWITCH}/current_link_speed"] = "Unknown\n"
    files[f"{ROOT}/{NVSWITCH}/current_link_width"] = "255\n"
    files[f"{ROOT}/{NVSWITCH}/numa_node"] = "-1\n"
    files[f"{ROOT}/{PORT}/config"] = config(0x1D, size)
    files[f"{ROOT}/{SWITCH}/config"] = config(None, size)
    files[f"{ROOT}/{DOWN_GPU}/config"] = config(0x00, size)
    files[f"{ROOT}/{DOWN_NIC}/config"] = Absent("permission", "no")
    targets[f"{ROOT}/{GPU}/iommu_group"] = "/sys/kernel/iommu_groups/61"
    files |= {"/sys/kernel/iommu_groups/61/type": "DMA-FQ\n", "/sys/kernel/iommu_groups/7/type": "identity\n"}
    return FakeSource(files, targets=targets)


def function(area: PcieArea, pci: str) -> PciFunction:
    assert isinstance(area.functions, tuple)
    return next(entry for entry in area.functions if entry.pci == pci)


def absent(fact: Any) -> Absent:  # noqa: ANN401
    assert isinstance(fact, Absent), fact
    return fact


def test_gpus_switches_rdma_cards_and_their_bridges_and_nothing_else() -> None:
    area = pcie(machine())
    assert isinstance(area.functions, tuple)
    assert [entry.pci for entry in area.functions] == [NVSWITCH, PORT, SWITCH, DOWN_GPU, DOWN_NIC, GPU, NIC]
    gpu = function(area, GPU)
    assert (gpu.vendor, gpu.device, gpu.pci_class) == ("10de", "2330", "030200")
    assert (gpu.upstream, gpu.root) == ((PORT, SWITCH, DOWN_GPU), "pci0000:15")
    assert (gpu.speed_gts, gpu.speed_max_gts, gpu.width, gpu.width_max, gpu.numa_node) == (2.5, 32.0, 16, 16, 0)
    assert distance(gpu, function(area, NIC)) == "PIX"
    assert function(area, SWITCH).upstream == (PORT,)
    assert area.iommu_groups == 2
    assert (gpu.iommu_group, gpu.iommu_type) == (61, "DMA-FQ")
    assert absent(function(area, NIC).iommu_group).absent == "not_found"


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", "nvgrace-gpu-vfio-pci"])
def test_the_driver_that_a_function_is_bound_to(driver: str) -> None:
    source = machine()
    source.targets[f"{ROOT}/{GPU}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    area = pcie(source)
    assert function(area, GPU).driver == driver
    assert absent(function(area, NIC).driver).absent == "not_found"


def test_what_a_link_does_not_know_is_unsupported() -> None:
    switch = function(pcie(machine()), NVSWITCH)
    assert [absent(fact).absent for fact in (switch.speed_gts, switch.width, switch.numa_node)] == ["unsupported"] * 3


def test_acs_of_bridges_from_configuration_space() -> None:
    area = pcie(machine())
    port = function(area, PORT)
    assert (port.acs_source_validation, port.acs_request_redirect) == (True, True)
    below = function(area, DOWN_GPU)
    assert (below.acs_source_validation, below.acs_request_redirect) == (False, False)
    assert absent(function(area, SWITCH).acs_source_validation).absent == "unsupported"
    assert absent(function(area, DOWN_NIC).acs_source_validation).absent == "permission"
    assert absent(function(area, GPU).acs_source_validation).absent == "unsupported"


def test_the_64_bytes_that_plain_users_see_are_a_matter_of_permission() -> None:
    port = function(pcie(machine(size=64)), PORT)
    assert absent(port.acs_request_redirect).absent == "permission"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "unparsable"),
        (b"\xff" * 4096, "failed"),
        (bytes(256), "unsupported"),
        (config(None), "unsupported"),
        (config(0x1D)[:0x144], "unparsable"),
        (config(0x1D)[:0x142], "unsupported"),
    ],
    ids=["empty", "lost", "conventional PCI", "without ACS", "cut inside ACS", "cut before ACS"],
)
def test_configuration_space_without_an_answer_says_why(raw: bytes, reason: str) -> None:
    assert absent(acs_of(raw).source_validation).absent == reason


def test_a_capability_list_that_bites_its_tail_ends() -> None:
    raw = bytearray(config(None))
    struct.pack_into("<I", raw, 0x100, 0x000B | 1 << 16 | 0x100 << 20)
    assert absent(acs_of(bytes(raw)).source_validation).absent == "unsupported"


@pytest.mark.parametrize(("bits", "wanted"), [(0x01, (True, False)), (0x04, (False, True)), (0x5A, (False, False))])
def test_the_two_bits_that_matter(bits: int, wanted: tuple[bool, bool]) -> None:
    assert tuple(acs_of(config(bits))) == wanted


def test_an_rdma_card_without_a_child_folder_is_found_through_its_rdma_device() -> None:
    source = machine()
    del source.files[f"{ROOT}/{NIC}/infiniband/mlx5_0/node_guid"]
    targets = {
        **source.targets,
        "/sys/class/infiniband/mlx5_2/device": f"/sys/devices/pci0000:15/{PORT}/{NIC}/mlx5_core.sf.2",
    }
    area = pcie(FakeSource(source.files, targets=targets))
    assert function(area, NIC).vendor == "15b3"


def test_several_host_bridges_above_a_function() -> None:
    files = {f"{ROOT}/10000:01:00.0/class": "0x020700", f"{ROOT}/10000:01:00.0/vendor": "0x15b3"}
    targets = {f"{ROOT}/10000:01:00.0": "/sys/devices/pci0000:c0/0000:c0:00.5/pci10000:00/10000:00:02.0/10000:01:00.0"}
    found = function(pcie(FakeSource(files, targets=targets)), "10000:01:00.0")
    assert (found.root, found.upstream) == ("pci10000:00", ("10000:00:02.0",))


@pytest.mark.parametrize(
    ("files", "functions", "groups"),
    [({"/sys/bus/cpu/x": "", "/sys/kernel/y": ""}, (), 0), ({}, "not_found", "not_found")],
    ids=["no PCI", "no /sys"],
)
def test_no_pci_is_a_fact_only_where_sysfs_can_be_read(files: dict[str, str], functions: Any, groups: Any) -> None:  # noqa: ANN401
    area = pcie(FakeSource(files))
    assert area.functions == functions if isinstance(functions, tuple) else absent(area.functions).absent == functions
    assert area.iommu_groups == groups if isinstance(groups, int) else absent(area.iommu_groups).absent == groups


def test_the_topology_file_that_nccl_takes_by_itself() -> None:
    path = "/var/run/nvidia-topologyd/virtualTopology.xml"
    assert pcie(FakeSource({path: "<system/>"})).default_topology_file is True
    assert pcie(FakeSource()).default_topology_file is False
    assert absent(pcie(RecordedSource(Recording())).default_topology_file).absent == "not_read"


def lspci_area(fixture: str) -> PcieArea:
    raw = (READERS / "lspci" / fixture).read_bytes()
    return pcie(RecordedSource(Recording(commands={("lspci", "-vv"): Output(raw)})))


def test_lspci_stands_in_for_sysfs() -> None:
    area = lspci_area("acs_on_and_downgraded.txt")
    assert isinstance(area.functions, tuple)
    assert [(entry.pci, entry.vendor, entry.pci_class) for entry in area.functions] == [
        ("0000:5d:02.0", "8086", "060400"),
        ("0000:5e:00.0", "15b3", "020700"),
        ("0000:b3:00.0", "10de", "030200"),
    ]
    bridge, card, gpu = area.functions
    assert (bridge.acs_source_validation, bridge.acs_request_redirect) == (True, True)
    assert (card.speed_gts, card.speed_max_gts, card.width, card.width_max, card.iommu_group) == (8.0, 16.0, 8, 16, 61)
    assert (gpu.numa_node, gpu.root) == (1, "")
    assert {type(entry.driver) for entry in area.functions} <= {str, Absent}
    assert all(entry.driver != Absent("not_read") for entry in area.functions)
    assert any("lspci" in note for note in area.notes)


def test_lspci_tells_the_tree_by_the_buses_of_bridges() -> None:
    text = (
        "00:01.0 PCI bridge: Intel Corporation Root Port (rev 04) (prog-if 00 [Normal decode])\n"
        "\tBus: primary=00, secondary=01, subordinate=03, sec-latency=0\n\n"
        "01:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n"
        "\tBus: primary=01, secondary=02, subordinate=03, sec-latency=0\n\n"
        "02:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tNUMA node: 0\n\n"
        "02:01.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n\tNUMA node: 0\n\n"
        "07:00.0 PCI bridge: ASPEED Technology, Inc. AST1150 PCI-to-PCI Bridge\n"
        "\tBus: primary=07, secondary=08, subordinate=08, sec-latency=0\n\n"
    )
    area = pcie(RecordedSource(Recording(commands={("lspci", "-vv"): Output(text.encode())})))
    assert isinstance(area.functions, tuple)
    assert [entry.pci for entry in area.functions] == ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"]
    gpu, card = area.functions[2:]
    assert (gpu.upstream, gpu.root) == (("0000:00:01.0", "0000:01:00.0"), "pci0000:00")
    assert distance(gpu, card) == "PIX"


def test_lspci_without_root_is_a_matter_of_permission() -> None:
    area = lspci_area("not_root_access_denied.txt")
    assert isinstance(area.functions, tuple)
    assert {absent(entry.speed_gts).absent for entry in area.functions} == {"permission"}


def test_a_cut_acs_line_is_not_read_as_off() -> None:
    area = lspci_area("truncated_inside_acsctl.txt")
    assert isinstance(area.functions, tuple)
    assert area.functions[0].acs_source_validation is True
    assert any("truncated" in note for note in area.notes)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_of_any_kind_leaves_an_area_that_encodes(data: st.DataObject) -> None:
    area = pcie(damaged_source(machine(), data))
    assert msgspec.json.decode(msgspec.json.encode(area), type=PcieArea) == area


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=5000), st.data())
def test_any_bytes_in_place_of_lspci_and_configuration_space(raw: bytes, data: st.DataObject) -> None:
    whole = (READERS / "lspci" / "hgx_h100_switch_gpu_nic.txt").read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    area = pcie(FakeSource(commands={("lspci", "-vv"): whole[:at] + raw}))
    assert msgspec.json.decode(msgspec.json.encode(area), type=PcieArea) == area
    acs_of(raw)
