"""The probe of the GPU area: NVML's document, the texts of nvidia-smi, and what happens when they disagree or are damaged."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.gpu import Gpu, GpuArea, NvLink, PathCell
from epctl.probes.collectors import nvml
from epctl.probes.gpu import gpu
from epctl.probes.source import Output
from tests.support.fake_pynvml import NVMLError, fabric, fake_pynvml, field_values, giving, link_states, raising
from tests.support.fake_source import FakeSource

READERS = Path(__file__).resolve().parents[1] / "data" / "readers"
STATUS, ERRORS, CAPS = (("nvidia-smi", "nvlink", option) for option in ("-s", "-e", "-c"))
TOPO = ("nvidia-smi", "topo", "-m")


def document(module: Any = None) -> dict[str, Any]:  # noqa: ANN401
    """What the collector prints over a fake pynvml."""
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = module if module is not None else fake_pynvml()
    try:
        made: dict[str, Any] = {"partial": True}
        nvml.collect(made)
    finally:
        if before is None:
            del sys.modules["pynvml"]
        else:
            sys.modules["pynvml"] = before
    again: dict[str, Any] = json.loads(json.dumps(made))
    return again


def text(tool: str, name: str) -> bytes:
    return (READERS / tool / f"{name}.txt").read_bytes()


def gpus(area: GpuArea) -> tuple[Gpu, ...]:
    assert isinstance(area.gpus, tuple), area.gpus
    return area.gpus


def links(one: Gpu) -> tuple[NvLink, ...]:
    assert isinstance(one.links, tuple), one.links
    return one.links


def h200(**replaced: Any) -> FakeSource:  # noqa: ANN401
    """The two-GPU virtual machine: NVML, nvidia-smi and sysfs."""
    return FakeSource(
        files={
            "/sys/bus/pci/devices/0000:00:06.0/numa_node": "-1\n",
            "/sys/bus/pci/devices/0000:00:06.0/local_cpulist": "0-31\n",
            "/sys/bus/pci/devices/0000:00:07.0/numa_node": "1\n",
            "/sys/bus/pci/devices/0000:00:07.0/local_cpulist": "32-63\n",
        },
        commands={STATUS: text("nvlink_status", "h200_vm_2gpu"), TOPO: text("topo", "h200_vm_no_nic_ansi")},
        documents={"nvml": document(fake_pynvml(**replaced))},
    )


def test_h200_virtual_machine() -> None:
    source = h200()
    area = gpu(source)
    first, second = gpus(area)
    assert first == Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-00000000-0000-4000-8000-000000000000",
        serial="1650000000000",
        pci="0000:00:06.0",
        compute_capability="9.0",
        architecture=9,
        memory_total_bytes=140 * 1024**3,
        memory_free_bytes=139 * 1024**3,
        bar1_total_bytes=256 * 1024**3,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        sm_clock_mhz=345,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=3201,
        clock_event_reasons=1,
        utilization_percent=0,
        temperature_c=38,
        power_w=104.627,
        persistence=True,
        mig_enabled=False,
        compute_mode="default",
        ecc_enabled=True,
        ecc_sram_uncorrected_volatile=0,
        ecc_sram_uncorrected_aggregate=0,
        ecc_sram_corrected_aggregate=5785,
        ecc_dram_uncorrected_volatile=0,
        remapped_correctable=0,
        remapped_uncorrectable=0,
        remap_pending=False,
        remap_failed=False,
        numa_node=Absent("unsupported", "the firmware assigns no NUMA node"),
        local_cpus="0-31",
        links=first.links,
        fabric_state="completed",
        fabric_status=0,
        fabric_clique=0,
        fabric_cluster_uuid="0" * 32,
        fabric_health_summary="not_supported",
        fabric_health_mask=0,
        lost="",
    )
    assert links(first)[17] == NvLink(
        link=17,
        active=True,
        speed_gbs=26.562,
        version=4,
        remote_type="nvswitch",
        remote_pci=Absent("unsupported", "NVML does not tell the address"),
        errors=(("replay", 0), ("recovery", 0), ("crc", 0)),
    )
    assert len(links(first)) == 18
    assert (second.numa_node, second.local_cpus) == (1, "32-63")
    assert isinstance(area.p2p, tuple)
    assert [(pair.a, pair.b, pair.nvlink, pair.atomics) for pair in area.p2p] == [
        (0, 1, "ok", "ok"),
        (1, 0, "ok", "ok"),
    ]
    assert area.topology == (
        PathCell(0, "GPU0", "X"),
        PathCell(0, "GPU1", "NV18"),
        PathCell(1, "GPU0", "NV18"),
        PathCell(1, "GPU1", "X"),
    )
    assert area.nvlink_status_lines is True
    assert area.driver.nvml_code == 0
    assert area.driver.version == "580.159.04"
    assert area.driver.cuda_version == 13000
    assert area.driver.confidential_computing is False
    assert area.notes == ()
    assert ERRORS not in source.asked
    assert CAPS not in source.asked


def test_lost_gpu_keeps_its_index() -> None:
    def handle(index: int) -> str:
        if index == 0:
            raise NVMLError(15)
        return f"handle {index}"

    first, second = gpus(gpu(h200(nvmlDeviceGetHandleByIndex=handle)))
    assert (first.index, first.lost) == (0, "GPU is lost")
    assert first.name == Absent("failed", "NVML: GPU is lost")
    assert (second.index, second.lost, second.name) == (1, "", "NVIDIA H200")


def test_gpu_that_waits_for_a_reset() -> None:
    told = field_values({164: 26562, 230: 1})
    assert gpus(gpu(h200(nvmlDeviceGetFieldValues=told)))[0].lost == "NVML asks for: GPU reset"
    reset = gpus(gpu(h200(nvmlDeviceGetMigMode=raising(16))))[0]
    assert reset.lost == "code 16"
    assert reset.name == "NVIDIA H200"


@pytest.mark.parametrize(
    ("call", "code", "field", "value"),
    [
        ("nvmlDeviceGetMigMode", 3, "mig_enabled", False),
        ("nvmlDeviceGetGpuFabricInfoV", 3, "fabric_state", "not_supported"),
        ("nvmlDeviceGetSerial", 3, "serial", Absent("unsupported", "NVML: Not Supported")),
        ("nvmlDeviceGetEccMode", 4, "ecc_enabled", Absent("permission", "NVML: Insufficient Permissions")),
        ("nvmlDeviceGetTemperature", 999, "temperature_c", Absent("failed", "NVML: code 999")),
        ("nvmlDeviceGetSramEccErrorStatus", 13, "ecc_sram_corrected_aggregate", 0),
        ("nvmlDeviceGetNvLinkState", 3, "links", ()),
        ("nvmlDeviceGetNvLinkState", 999, "links", None),
    ],
)
def test_one_call_fails(call: str, code: int, field: str, value: object) -> None:
    source = h200(**{call: raising(code)})
    source.commands = {}
    found = getattr(gpus(gpu(source))[0], field)
    assert found == (value if value is not None else Absent("failed", f"NVML: code {code}"))


def test_fabric_of_a_rack() -> None:
    uuid = bytes.fromhex("7b7ed6a2" * 4)
    told = fabric(uuid, cliqueId=5, state=2, healthMask=0x15, healthSummary=3)
    first = gpus(gpu(h200(nvmlDeviceGetGpuFabricInfoV=told)))[0]
    assert first.fabric_cluster_uuid == "7b7ed6a2" * 4
    assert (first.fabric_state, first.fabric_clique) == ("in_progress", 5)
    assert (first.fabric_health_summary, first.fabric_health_mask) == ("limited_capacity", 0x15)


def test_driver_too_old_for_fabric_health() -> None:
    first = gpus(gpu(h200(c_nvmlGpuFabricInfo_v3_t=None)))[0]
    assert first.fabric_health_summary == Absent("unsupported", "this driver's NVML does not tell healthSummary")
    assert first.fabric_health_mask == 0


def test_p2p_words() -> None:
    def status(a: str, b: str, kind: int) -> int:
        return {("handle 0", "handle 1"): 1, ("handle 1", "handle 0"): 4}[a, b] if kind == 0 else 0

    area = gpu(h200(nvmlDeviceGetP2PStatus=status))
    assert isinstance(area.p2p, tuple)
    assert [pair.read for pair in area.p2p] == ["chipset_not_supported", "disabled_by_regkey"]
    assert [pair.write for pair in area.p2p] == ["ok", "ok"]


def test_link_down_in_both_sources() -> None:
    source = h200(nvmlDeviceGetNvLinkState=link_states(18, frozenset({3})))
    source.commands[STATUS] = text("nvlink_status", "h200_vm_2gpu").replace(
        b"Link 3: 26.562 GB/s", b"Link 3: <inactive>"
    )
    area = gpu(source)
    assert [link.link for link in links(gpus(area)[0]) if not link.active] == [3]
    assert area.notes == ()


def test_sources_disagree() -> None:
    area = gpu(h200(nvmlDeviceGetNvLinkState=link_states(18, frozenset({3}))))
    assert area.notes == (
        "GPU 0: NVML tells 17 active NVLinks, nvidia-smi nvlink -s 18; NVML is taken",
        "GPU 1: NVML tells 17 active NVLinks, nvidia-smi nvlink -s 18; NVML is taken",
    )
    assert links(gpus(area)[0])[3].active is False


def test_links_from_text_where_nvml_has_none() -> None:
    source = h200(nvmlDeviceGetNvLinkState=raising(999))
    source.commands[ERRORS] = text("nvlink_errors", "h100_legacy_blank_lines")
    first = links(gpus(gpu(source))[0])
    assert len(first) == 18
    assert (first[0].active, first[0].speed_gbs) == (True, 26.562)


def test_speed_and_errors_from_text() -> None:
    source = h200(nvmlDeviceGetFieldValues=raising(3))
    source.commands[ERRORS] = text("nvlink_errors", "h100_legacy_blank_lines")
    first = links(gpus(gpu(source))[0])
    assert first[0].speed_gbs == 26.562
    assert first[0].errors == (("replay", 0), ("recovery", 0), ("crc", 0))
    assert ERRORS in source.asked


def test_texts_alone() -> None:
    """A folder of raw outputs: no NVML, no sysfs."""
    source = FakeSource(
        commands={
            STATUS: text("nvlink_status", "a100_8gpu_one_all_inactive"),
            TOPO: text("topo", "dgx_a100_10nic_tabs"),
        }
    )
    area = gpu(source)
    found = gpus(area)
    assert [one.index for one in found] == list(range(8))
    assert all(isinstance(one.name, str) and isinstance(one.uuid, str) for one in found)
    dark = [one.index for one in found if not any(link.active for link in links(one))]
    assert len(dark) == 1
    assert len(links(found[dark[0]])) == 12
    assert all(len([link for link in links(one) if link.active]) == 12 for one in found if one.index != dark[0])
    assert isinstance(found[0].ecc_enabled, Absent)
    assert isinstance(found[0].local_cpus, str)
    assert isinstance(area.p2p, Absent)
    assert isinstance(area.topology, tuple)
    assert PathCell(0, "mlx5_0", "PXB") in area.topology or any(cell.other == "mlx5_0" for cell in area.topology)
    assert area.notes[0].startswith("GPUs are those that nvidia-smi prints; ")


def test_nvlink5_counters_from_text() -> None:
    source = FakeSource(
        commands={ERRORS: text("nvlink_errors", "b200_nvlink5_healthy"), STATUS: text("nvlink_status", "gb200_4gpu")}
    )
    first = links(gpus(gpu(source))[0])[0]
    assert isinstance(first.errors, tuple)
    names = [name for name, _ in first.errors]
    assert names == list(nvml.NVLINK5_FIELDS)


def test_topology_alone_gives_the_indices() -> None:
    area = gpu(FakeSource(commands={TOPO: text("topo", "gb200_4gpu_6nic")}))
    assert [one.index for one in gpus(area)] == [0, 1, 2, 3]
    assert isinstance(gpus(area)[0].links, Absent)


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "failed"), (12, "not_found"), (18, "failed"), (999, "failed"), (-2, "tool_missing")]
)
def test_nvml_does_not_start(code: int, reason: str) -> None:
    area = gpu(FakeSource(documents={"nvml": {"partial": False, "init": {"e": code, "s": "words"}}}))
    assert area.gpus == Absent(reason, "NVML: words")  # type: ignore[arg-type]
    assert area.driver.nvml_code == (code if code >= 0 else Absent("tool_missing", "NVML: words"))
    assert area.driver.nvml_message == "words"
    assert area.driver.version == Absent(reason, "NVML: words")  # type: ignore[arg-type]


def test_driver_and_library_differ() -> None:
    source = FakeSource(
        commands={STATUS: text("nvlink_status", "error_driver_library_mismatch")},
        documents={"nvml": {"partial": False, "init": {"e": 18, "s": "RM has detected an NVML/RM version mismatch."}}},
    )
    area = gpu(source)
    assert isinstance(area.gpus, Absent)
    assert isinstance(area.nvlink_status_lines, Absent)
    assert area.nvlink_status_lines.absent == "failed"


def test_nothing_at_all() -> None:
    area = gpu(FakeSource())
    assert isinstance(area.gpus, Absent)
    assert area.nvlink_status_lines == Absent("tool_missing", "nvidia-smi is not on PATH")
    assert isinstance(area.driver.nvml_code, Absent)


def test_no_gpu() -> None:
    assert gpus(gpu(FakeSource(documents={"nvml": document(fake_pynvml(0))}))) == ()


def test_no_nvlink_prints_no_speed_line() -> None:
    source = h200(nvmlDeviceGetNvLinkState=raising(3))
    source.commands[STATUS] = Output(b"")
    area = gpu(source)
    assert area.nvlink_status_lines is False
    assert links(gpus(area)[0]) == ()


def test_nvml_that_did_not_answer_in_time() -> None:
    cut = document(fake_pynvml(8))
    cut["partial"] = True
    del cut["gpus"][5:], cut["p2p"]
    cut["gpus"][4] = {"index": 4, "handle": {"v": True}, "name": {"v": "NVIDIA H200"}}
    area = gpu(FakeSource(documents={"nvml": cut}))
    late = Absent("timed_out", "NVML did not answer in time")
    assert [one.index for one in gpus(area)] == list(range(8))
    assert gpus(area)[3].uuid == "GPU-00000003-0000-4000-8000-000000000000"
    assert (gpus(area)[4].name, gpus(area)[4].uuid, gpus(area)[7].name) == ("NVIDIA H200", late, late)
    assert area.p2p == late
    assert "NVML did not answer in time: what it said until then is used" in area.notes


def test_damaged_text_leaves_a_note() -> None:
    source = h200()
    source.commands[STATUS] = text("nvlink_status", "h200_vm_2gpu")[:700]
    area = gpu(source)
    assert any(note.startswith("nvidia-smi nvlink -s: truncated") for note in area.notes)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.text(st.characters(categories=["Cs"]), max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def roundtrip(area: GpuArea) -> None:
    assert msgspec.json.decode(msgspec.json.encode(area), type=GpuArea) == area


def _places(thing: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401
    inner = (
        list(thing.items()) if isinstance(thing, dict) else list(enumerate(thing)) if isinstance(thing, list) else []
    )
    return [path, *(place for key, value in inner for place in _places(value, (*path, key)))]


WHOLE = document(fake_pynvml(nvmlDeviceGetNvLinkState=link_states(2), nvmlDeviceGetNvLinkVersion=giving(6)))
PLACES = _places(WHOLE)


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_document_gives_an_area(damage: list[tuple[tuple[Any, ...], Any]]) -> None:
    broken: Any = copy.deepcopy(WHOLE)
    for place, value in damage:
        if not place:
            broken = value
            continue
        at = broken
        try:
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    roundtrip(gpu(FakeSource(documents={"nvml": broken})))


TEXTS = [
    text("nvlink_status", "h200_vm_2gpu"),
    text("topo", "dgx_a100_10nic_tabs"),
    text("nvlink_errors", "b200_nvlink5_healthy"),
]


@given(
    st.sampled_from([STATUS, TOPO, ERRORS, CAPS]),
    st.sampled_from(TEXTS),
    st.integers(0, 4000),
    st.binary(max_size=40),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_text_gives_an_area(argv: tuple[str, ...], whole: bytes, cut: int, noise: bytes, with_nvml: bool) -> None:
    commands = {
        STATUS: TEXTS[0],
        TOPO: TEXTS[1],
        ERRORS: TEXTS[2],
        argv: whole[:cut] + noise + whole[cut + 30 : cut + 300],
    }
    area = gpu(FakeSource(commands=commands, documents={"nvml": WHOLE} if with_nvml else {}))
    roundtrip(area)
    if with_nvml:
        assert len(gpus(area)) == 2


def test_recorded_virtual_machine() -> None:
    """Two H200 of a Firecracker machine, driver 580.159.04: the fabric is the host's, switches have no address here."""
    recorded = json.loads((READERS.parent / "nvml" / "h200_vm_2gpu.json").read_bytes())
    source = FakeSource(
        commands={STATUS: text("nvlink_status", "h200_vm_2gpu"), TOPO: text("topo", "h200_vm_no_nic_ansi")},
        documents={"nvml": recorded},
    )
    area = gpu(source)
    assert area.notes == ()
    for one in gpus(area):
        assert (one.name, one.compute_capability, one.lost) == ("NVIDIA H200", "9.0", "")
        assert (one.fabric_state, one.fabric_status, one.fabric_health_summary) == ("completed", 0, "not_supported")
        assert [(link.active, link.speed_gbs, link.version, link.remote_type) for link in links(one)] == [
            (True, 26.562, 4, "nvswitch")
        ] * 18
        assert {link.errors for link in links(one)} == {(("replay", 0), ("recovery", 0), ("crc", 0))}
        told = {name: getattr(one, name) for name in one.__struct_fields__ if name not in ("numa_node", "local_cpus")}
        assert not [name for name, value in told.items() if isinstance(value, Absent)]
        assert (one.local_cpus, one.numa_node) == ("0-31", 0)
    roundtrip(area)
