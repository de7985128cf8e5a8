"""Where a plan's numbers come from: flag before snapshot before profile, and a refusal that names the flag."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.model.hardware import hardware, hardware_names
from epctl.model.inputs import FLAG_NAMES, Flags, Node, Number, resolve
from epctl.model.readings import NVLINK_SHARE, read
from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES
from epctl.probes.load import sample
from tests.support.nodes import edit, ib_node

RULE = RULES["deepep-2.5"]


def numbers(node: Node) -> dict[str, Number]:
    return {name: getattr(node, name) for name in node.__struct_fields__ if name != "name"}


@pytest.mark.parametrize("name", hardware_names())
def test_profiles_alone_give_every_number(name: str) -> None:
    node = resolve(Flags(), hardware(name), None, RULE)
    for number in numbers(node).values():
        assert math.isfinite(number.value)
        assert number.source
    assert node.name == name
    assert math.isclose(node.nvlink_gbs.value, hardware(name).nvlink_gbs * 0.9)
    assert node.sm_write_limit_gbs.value < node.pull_add_limit_gbs.value < node.nvlink_gbs.value


def test_golden_nvlink_inputs() -> None:
    assert resolve(Flags(), hardware("h200-ndr400"), None, RULE).nvlink_gbs.value == 430.3044
    assert resolve(Flags(), hardware("b200-ndr400"), None, RULE).nvlink_gbs.value == 860.625


def test_the_measured_machine_has_measured_figures() -> None:
    node = resolve(Flags(), hardware("h200x2"), None, RULE)
    for name, value in {
        "sm_write_limit_gbs": 356,
        "pull_add_limit_gbs": 366,
        "hbm_gbs": 1800,
        "launch_us": 0.56,
        "nvlink_hop_us": 0.635,
    }.items():
        number = getattr(node, name)
        assert number.value == value
        assert number.source.startswith("measured: ")
        assert "2 x H200" in number.source
    assert node.rdma_gbs.value == node.max_qp.value == node.rdma_hop_us.value == 0
    assert resolve(Flags(), hardware("h200-ndr400"), None, RULE).launch_us.source.startswith("assumed: ")


def test_flags_win() -> None:
    flags = Flags(
        gpus_per_node=4,
        nvlink_gbs=405.0,
        rdma_gbs=25.0,
        device_sms=100,
        memory_bytes=1 << 30,
        fast_atomics=True,
        max_qp=99,
    )
    node = resolve(flags, hardware("b200-xdr800"), ib_node(), RULE)
    for name, flag in FLAG_NAMES.items():
        assert getattr(node, name) == Number(getattr(flags, name), f"flag {flag}")
    assert math.isclose(node.sm_write_limit_gbs.value, 356 * 450 / 478.116, rel_tol=1e-6)


def test_snapshot_before_profile() -> None:
    node = resolve(Flags(), hardware("a100-hdr200"), ib_node(), RULE)
    assert node.nvlink_gbs.value == 430.3044
    assert "18 active links x 26.562 GB/s x 0.9" in node.nvlink_gbs.source
    assert (node.rdma_gbs.value, node.device_sms.value, node.gpus_per_node.value) == (50.0, 132, 8)
    assert (node.max_qp.value, node.nics_per_gpu.value, node.fast_atomics.value) == (131072, 1.0, False)
    assert node.memory_bytes.value == 80 << 30
    for name in (*FLAG_NAMES, "nics_per_gpu", "smem_bytes", "compute_capability", "gdaki"):
        assert getattr(node, name).source.startswith("snapshot ")


def test_the_weakest_gpu_counts() -> None:
    node = resolve(Flags(), None, sample("hgx-h200-roce-degraded"), RULE)
    assert node.nvlink_gbs.value == 334.6812
    assert node.rdma_gbs.value == 25.0
    assert "weakest of 8 GPUs" in node.rdma_gbs.source
    assert math.isclose(node.sm_write_limit_gbs.value, 356 * 14 / 18, rel_tol=1e-6)


def test_the_slot_limits_rdma() -> None:
    slow = edit(
        ib_node(),
        "pcie.functions",
        tuple(
            msgspec.structs.replace(entry, speed_gts=16.0) if entry.pci == "0000:19:00.0" else entry
            for entry in ib_node().pcie.functions  # type: ignore[union-attr]
        ),
    )
    assert math.isclose(float(resolve(Flags(), None, slow, RULE).rdma_gbs.value), 16 * 16 * 128 / 130 / 8, rel_tol=1e-4)


def test_the_two_gpu_machine_is_recognised() -> None:
    node = resolve(Flags(), None, sample("h200x2-vm"), RULE)
    assert (node.gpus_per_node.value, node.device_sms.value, node.rdma_gbs.value) == (2, 132, 0)
    assert node.sm_write_limit_gbs == resolve(Flags(), hardware("h200x2"), None, RULE).sm_write_limit_gbs


def test_efa() -> None:
    node = resolve(Flags(), None, sample("p5-efa"), RULE)
    assert (node.rdma_gbs.value, node.nics_per_gpu.value, node.fast_atomics.value) == (50.0, 4.0, False)


def test_a_tray_does_not_tell_the_size_of_its_rack() -> None:
    tray = sample("gb200-nvl")
    with pytest.raises(RefusalError) as caught:
        resolve(Flags(), None, tray, RULE)
    assert "--gpus-per-node 72" in caught.value.todo
    assert resolve(Flags(gpus_per_node=4), None, tray, RULE).nvlink_gbs.value == 860.625
    assert resolve(Flags(), hardware("gb200-nvl72-ndr400"), tray, RULE).gpus_per_node.value == 72


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("gpu.gpus.*.links", "nvlink_gbs", 430.3044),
        ("gpu.gpus.2.links.3.speed_gbs", "nvlink_gbs", 430.3044),
        ("gpu.gpus.*.memory_total_bytes", "memory_bytes", 80_000_000_000),
        ("active.devices", "device_sms", 132),
        ("active.devices.0.num_sms", "device_sms", 132),
        ("rdma.devices", "rdma_gbs", 50.0),
        ("rdma.devices.0.max_qp", "max_qp", 131072),
        ("gpu.gpus.0.compute_capability", "smem_bytes", 232448),
    ],
)
def test_absent_facts_fall_to_the_profile(path: str, field: str, value: float) -> None:
    node = resolve(Flags(), hardware("h100-ndr400"), edit(ib_node(), path, NOT_READ), RULE)
    assert getattr(node, field).value == value
    assert getattr(node, field).source.startswith("hardware h100")


def test_no_active_port_is_a_rate_of_zero() -> None:
    """A fact, not a gap: the profile does not paper over it."""
    down = edit(ib_node(), "rdma.devices.*.ports.0.state", "DOWN")
    assert resolve(Flags(), hardware("h100-ndr400"), down, RULE).rdma_gbs.value == 0


def test_without_rdma_device_there_is_no_rdma() -> None:
    alone = edit(ib_node(), "rdma.devices", ())
    node = resolve(Flags(), None, alone, RULE)
    assert (node.rdma_gbs.value, node.max_qp.value, node.nics_per_gpu.value, node.rdma_hop_us.value) == (0, 0, 0, 0)
    assert "--rdma-gbs" in node.rdma_gbs.source
    with_rate = resolve(Flags(rdma_gbs=50.0), None, alone, RULE)
    assert (with_rate.max_qp.value, with_rate.nics_per_gpu.value) == (131072, 1)
    assert "assumed" in with_rate.max_qp.source


UNKNOWN = edit(ib_node(), "gpu.gpus.*.name", "NVIDIA Nameless")


@pytest.mark.parametrize(
    ("node", "flag"),
    [
        (None, "--gpus-per-node"),
        (edit(UNKNOWN, "gpu.gpus.*.links", NOT_READ), "--nvlink-gbs"),
        (edit(UNKNOWN, "active.devices", NOT_READ), "--sms-on-device"),
        (edit(UNKNOWN, "gpu.gpus.*.memory_total_bytes", Absent("unsupported")), "--memory-bytes"),
    ],
)
def test_what_nobody_tells_is_refused_by_its_flag(node: Snapshot | None, flag: str) -> None:
    with pytest.raises(RefusalError) as caught:
        resolve(Flags(), None, node, RULE)
    assert caught.value.todo.startswith(f"give {flag} ")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"nvlink_gbs": -1.0}, "nvlink_bandwidth_missing"),
        ({"nvlink_gbs": math.nan}, "nvlink_bandwidth_missing"),
        ({"rdma_gbs": math.inf}, "rdma_bandwidth_missing"),
        ({"rdma_gbs": 400e9}, "absurd_argument"),
        ({"gpus_per_node": 0}, "no_ranks"),
        ({"device_sms": -132}, "non_positive_argument"),
        ({"memory_bytes": 0}, "non_positive_argument"),
        ({"max_qp": 1 << 50}, "absurd_argument"),
    ],
)
def test_flags_that_cannot_be(flags: dict[str, Any], code: str) -> None:
    with pytest.raises(RefusalError) as caught:
        resolve(Flags(**flags), hardware("h200-ndr400"), None, RULE)
    assert caught.value.code == code
    assert FLAG_NAMES[next(iter(flags))] in f"{caught.value.what} {caught.value.todo}"


@given(st.floats(1.0, 5000.0), st.sampled_from(hardware_names()))
def test_limits_keep_their_share_of_the_link(nvlink: float, name: str) -> None:
    node = resolve(Flags(nvlink_gbs=nvlink), hardware(name), None, RULE)
    assert math.isclose(node.sm_write_limit_gbs.value, nvlink / NVLINK_SHARE * 356 / 478.116, rel_tol=1e-5)
    assert node.hbm_gbs == resolve(Flags(), hardware(name), None, RULE).hbm_gbs


def test_readings_can_be_taken_once() -> None:
    assert resolve(Flags(), None, read(ib_node()), RULE) == resolve(Flags(), None, ib_node(), RULE)


def test_an_empty_snapshot_reads_as_absent() -> None:
    values = read(Snapshot()).values
    assert all(isinstance(reading.value, Absent) for reading in values.values())
