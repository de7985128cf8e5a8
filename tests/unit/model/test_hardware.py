"""Hardware profiles: each number has a mark and a source, parts are written once, unknown names are refused."""

from __future__ import annotations

from importlib import resources

import pytest

from epctl.model.hardware import DEFAULT_HARDWARE, Figure, hardware, hardware_names, hardware_of_gpu, measured
from epctl.model.refusal import RefusalError

FOLDER = resources.files("epctl") / "data" / "hardware"


def figures(table: object) -> list[Figure]:
    fields = table.__struct_fields__  # type: ignore[attr-defined]
    return [value for name in fields if isinstance(value := getattr(table, name), Figure)]


@pytest.mark.parametrize("name", hardware_names())
def test_every_number_has_a_source(name: str) -> None:
    found = hardware(name)
    tables = [found.gpu, measured(), *([found.nic] if found.nic is not None else [])]
    for figure in (figure for table in tables for figure in figures(table)):
        assert figure.value >= 0
        assert len(figure.source) > 10
        if figure.mark == "measured":
            assert "2 x H200" in figure.source
    assert found.source
    assert 1 <= found.gpus_per_node <= 72
    assert (found.nic is None) == (found.nics_per_gpu == 0) == (found.rdma_gbs == 0)


def test_every_table_is_used() -> None:
    used = {hardware(name).gpu.title for name in hardware_names()}
    assert len(used) == sum(entry.name.endswith(".toml") for entry in (FOLDER / "gpu").iterdir())
    nics = {nic.title for name in hardware_names() if (nic := hardware(name).nic) is not None}
    assert len(nics) == sum(entry.name.endswith(".toml") for entry in (FOLDER / "nic").iterdir())


@pytest.mark.parametrize(
    ("name", "sms", "nvlink", "rdma", "gpus"),
    [
        ("h200-ndr400", 132, 478.116, 50.0, 8),
        ("h200-ndr200", 132, 478.116, 25.0, 8),
        ("h100-ndr400", 132, 478.116, 50.0, 8),
        ("h100-p5-efa", 132, 478.116, 50.0, 8),
        ("h200-p5en-efa", 132, 478.116, 50.0, 8),
        ("h200x2", 132, 478.116, 0.0, 2),
        ("b200-ndr400", 148, 956.25, 50.0, 8),
        ("b200-xdr800", 148, 956.25, 63.015, 8),
        ("gb200-nvl72-xdr800", 152, 956.25, 63.015, 72),
        ("a100-hdr200", 108, 300.0, 25.0, 8),
    ],
)
def test_profiles(name: str, sms: int, nvlink: float, rdma: float, gpus: int) -> None:
    found = hardware(name)
    assert found.gpu.device_sms.value == sms
    assert (found.nvlink_gbs, found.rdma_gbs, found.gpus_per_node) == (nvlink, rdma, gpus)


def test_measured_machine() -> None:
    assert [name for name in hardware_names() if hardware(name).measured_here] == ["h200x2"]
    assert measured().link_gbs == hardware("h200x2").nvlink_gbs
    assert measured().hbm_peak_gbs == hardware("h200x2").gpu.hbm_peak_gbs.value


def test_only_connectx_8_has_fast_atomics() -> None:
    for name in hardware_names():
        nic = hardware(name).nic
        assert nic is None or nic.fast_atomics.value == ("ConnectX-8" in nic.title)


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(RefusalError) as caught:
        hardware("h200-ndr-400")
    assert caught.value.code == "unknown_hardware"
    assert "h200-ndr400" in caught.value.todo
    with pytest.raises(RefusalError) as caught:
        hardware("../nodes")
    assert DEFAULT_HARDWARE in caught.value.todo


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
    ],
)
def test_gpus_by_name(device: str, key: str) -> None:
    found = hardware_of_gpu(device)
    assert found is not None
    assert (found.name, found.nic, found.gpus_per_node) == (key, None, 0)


def test_gpus_without_a_table() -> None:
    assert hardware_of_gpu("NVIDIA L40S") is None
    assert hardware_of_gpu("NVIDIA H100 PCIe") is None
