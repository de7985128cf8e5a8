"""GPUs, their NVLinks and their P2P status, from the document of the collector `nvml`."""

from __future__ import annotations

from typing import Any, Literal

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Gpu, NvLink, P2p
from epctl.probes.documents import is_int, text_of
from epctl.probes.nvml_answers import LOST, NOT_SUPPORTED, Answers, code_of, sysfs_address, value_of

MAX_GPUS = 256
MAX_LINKS = 64
MAX_PAIRS = MAX_GPUS * MAX_GPUS

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
FABRIC_STATES: dict[int, Literal["not_supported", "not_started", "in_progress", "completed"]] = {
    0: "not_supported",
    1: "not_started",
    2: "in_progress",
    3: "completed",
}
HEALTH: dict[int, Literal["not_supported", "healthy", "unhealthy", "limited_capacity"]] = {
    0: "not_supported",
    1: "healthy",
    2: "unhealthy",
    3: "limited_capacity",
}
REMOTE_TYPES: dict[int, Literal["gpu", "nvswitch", "npu", "unknown"]] = {
    0: "gpu",
    1: "npu",
    2: "nvswitch",
    255: "unknown",
}
NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlNvlinkVersion_t → generation: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0."""
P2P_STATES = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "ioh_topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
    6: "unknown",
}
RECOVERY_ACTIONS = {1: "GPU reset", 2: "node reboot", 4: "drain and reset", 6: "bus reset", 7: "system reboot"}
"""NVML's recovery actions that mean that this GPU waits for a reset. 3 (drain P2P) and 5 (IMEX domain) concern its peers."""
UNKNOWN_ARCHITECTURE = 0xFFFFFFFF

_NOT_ASKED = Absent("not_read", "the collector did not ask NVML for it")
_TOO_LATE = Absent("timed_out", "NVML did not answer in time")


def missing_of(document: Any) -> Absent:  # noqa: ANN401 - JSON
    """Why an entry is not in the document."""
    if isinstance(document, Absent):
        return document
    if not isinstance(document, dict):
        return Absent("unparsable", "the answers of NVML are no object", text_of(document)[:80])
    return _TOO_LATE if document.get("partial") else _NOT_ASKED


def started(document: Any) -> Absent | None:  # noqa: ANN401 - JSON
    """Why NVML could not be used; None when it could."""
    entry = document.get("init") if isinstance(document, dict) else None
    found = value_of(entry, "the start of NVML", missing_of(document))
    return found if isinstance(found, Absent) else None


def gpus_of(document: Any) -> Fact[tuple[Gpu, ...]]:  # noqa: ANN401 - JSON
    """The GPUs, each at NVML's index, lost ones and those that NVML did not get to included."""
    failure = started(document)
    if failure is not None:
        return failure
    missing = missing_of(document)
    count = Answers(document, missing).integer("count")
    listed = document.get("gpus")
    if isinstance(count, Absent) and not (isinstance(listed, list) and listed):
        return count
    entries = [entry for entry in listed[:MAX_GPUS] if isinstance(entry, dict)] if isinstance(listed, list) else []
    made: dict[int, dict[str, Any]] = {}
    for i, entry in enumerate(entries):
        index: Any = entry.get("index")
        made[index if is_int(index) and 0 <= index < MAX_GPUS else i] = entry
    for i in range(min(count, MAX_GPUS) if isinstance(count, int) else 0):
        made.setdefault(i, {})
    return tuple(_gpu(index, made[index], missing) for index in sorted(made))


def _gpu(index: int, entries: dict[str, Any], missing: Absent) -> Gpu:
    lost = _lost(entries, missing)
    handle = value_of(entries.get("handle"), "the handle", missing)
    if isinstance(handle, Absent):
        missing = handle
    elif isinstance(lost, str) and lost:
        missing = Absent("failed", f"NVML: {lost}")
    nvml = Answers(entries, missing)
    watts = nvml.integer("power_mw")
    return Gpu(
        index=index,
        name=nvml.text("name"),
        uuid=nvml.text("uuid"),
        serial=nvml.text("serial"),
        pci=sysfs_address(nvml.text("pci")),
        compute_capability=_capability(nvml),
        architecture=_architecture(nvml),
        memory_total_bytes=nvml.integer("memory", "total"),
        memory_free_bytes=nvml.integer("memory", "free"),
        bar1_total_bytes=nvml.integer("bar1", "bar1Total"),
        pcie_generation=nvml.integer("pcie_generation"),
        pcie_generation_max=nvml.integer("pcie_generation_max"),
        pcie_width=nvml.integer("pcie_width"),
        pcie_width_max=nvml.integer("pcie_width_max"),
        sm_clock_mhz=nvml.integer("sm_clock"),
        sm_clock_max_mhz=nvml.integer("sm_clock_max"),
        memory_clock_mhz=nvml.integer("memory_clock"),
        clock_event_reasons=nvml.integer("clock_event_reasons"),
        utilization_percent=nvml.integer("utilization", "gpu"),
        temperature_c=nvml.integer("temperature"),
        power_w=watts if isinstance(watts, Absent) else watts / 1000,
        persistence=nvml.flag("persistence"),
        # A GPU that cannot do MIG has it off.
        mig_enabled=False if nvml.code("mig") == NOT_SUPPORTED else nvml.flag("mig", 0),
        compute_mode=nvml.word("compute_mode", COMPUTE_MODES),
        ecc_enabled=nvml.flag("ecc", 0),
        ecc_sram_uncorrected_volatile=_sram(nvml, "uncorrected_volatile", "volatileUncParity", "volatileUncSecDed"),
        ecc_sram_uncorrected_aggregate=_sram(nvml, "uncorrected_aggregate", "aggregateUncParity", "aggregateUncSecDed"),
        ecc_sram_corrected_aggregate=_sram(nvml, "corrected_aggregate", "aggregateCor"),
        ecc_dram_uncorrected_volatile=nvml.integer("ecc_dram_uncorrected_volatile"),
        remapped_correctable=nvml.integer("remapped_rows", 0),
        remapped_uncorrectable=nvml.integer("remapped_rows", 1),
        remap_pending=nvml.flag("remapped_rows", 2),
        remap_failed=nvml.flag("remapped_rows", 3),
        links=_links(nvml),
        # Before Hopper NVML has no fabric for the GPU at all.
        fabric_state="not_supported"
        if nvml.code("fabric") == NOT_SUPPORTED
        else nvml.word("fabric", FABRIC_STATES, "state"),
        fabric_status=nvml.integer("fabric", "status"),
        fabric_clique=nvml.integer("fabric", "cliqueId"),
        fabric_cluster_uuid=_cluster(nvml),
        fabric_health_summary=_newer(nvml, "healthSummary", nvml.word("fabric", HEALTH, "healthSummary")),
        fabric_health_mask=_newer(nvml, "healthMask", nvml.integer("fabric", "healthMask")),
        lost=lost,
    )


def _lost(entries: dict[str, Any], missing: Absent) -> Fact[str]:
    for entry in entries.values():
        if code_of(entry) in LOST:
            words = entry.get("s")
            return text_of(words)[:200] if isinstance(words, str) and words else "GPU is lost"
    handle = value_of(entries.get("handle"), "the handle", missing)
    if isinstance(handle, Absent):
        return handle
    action = value_of(entries.get("recovery_action"), "the recovery action", missing)
    named = RECOVERY_ACTIONS.get(action) if is_int(action) else None
    return f"NVML asks for: {named}" if named else ""


def _capability(nvml: Answers) -> Fact[str]:
    major, minor = nvml.integer("compute_capability", 0), nvml.integer("compute_capability", 1)
    if isinstance(major, Absent):
        return major
    return minor if isinstance(minor, Absent) else f"{major}.{minor}"


def _architecture(nvml: Answers) -> Fact[int]:
    found = nvml.integer("architecture")
    return Absent("unsupported", "NVML does not know the architecture") if found == UNKNOWN_ARCHITECTURE else found


def _sram(nvml: Answers, counter: str, *members: str) -> Fact[int]:
    """A counter of the SRAM status (driver 535 and later), else of the older call."""
    parts = [nvml.integer("sram", member) for member in members]
    known = [part for part in parts if isinstance(part, int)]
    return min(sum(known), 2**63 - 1) if len(known) == len(parts) else nvml.integer(f"ecc_sram_{counter}")


def _cluster(nvml: Answers) -> Fact[str]:
    found = nvml.raw("fabric", "clusterUuid")
    if isinstance(found, Absent):
        return found
    if isinstance(found, str) and len(found) == 32 and set(found.lower()) <= set("0123456789abcdef"):
        return found.lower()
    return Absent("unparsable", "the cluster's UUID cannot be read", text_of(found)[:80])


def _newer(nvml: Answers, member: str, found: Any) -> Any:  # noqa: ANN401 - a fact of any type
    """`found`, unless the call that answered is too old to have the member."""
    told = nvml.raw("fabric")
    if isinstance(told, dict) and member not in told:
        return Absent("unsupported", f"this driver's NVML does not tell {member}")
    return found


def _links(nvml: Answers) -> Fact[tuple[NvLink, ...]]:
    """Empty: NVML has no link for this GPU. When no link could be asked for its state: the reason."""
    listed = nvml.entries.get("links")
    if listed is None:
        return nvml.missing
    if not isinstance(listed, list):
        return Absent("unparsable", "NVML's links are no list", text_of(listed)[:80])
    entries = [entry for entry in listed[:MAX_LINKS] if isinstance(entry, dict) and is_int(entry.get("link"))]
    links = tuple(_link(entry["link"], Answers(entry, nvml.missing)) for entry in entries)
    states = [link.active for link in links if isinstance(link.active, Absent)]
    return states[0] if states and len(states) == len(links) else links


def _link(number: int, nvml: Answers) -> NvLink:
    active = nvml.flag("state")
    speed = nvml.integer("speed_mbps")
    if isinstance(speed, int):
        speed = speed or Absent("unsupported", "NVML tells no speed")
    return NvLink(
        link=number,
        active=active,
        speed_gbs=speed if isinstance(speed, Absent) else speed / 1000,
        version=nvml.word("version", NVLINK_GENERATIONS),
        remote_type=nvml.word("remote_type", REMOTE_TYPES),
        remote_pci=sysfs_address(nvml.text("remote_pci")),
        errors=_errors(nvml),
    )


def _errors(nvml: Answers) -> Fact[tuple[tuple[str, int], ...]]:
    """The counters that could be read; when none could, the reason of the first."""
    listed = nvml.entries.get("errors")
    if listed is None:
        return nvml.missing
    counters = Answers(listed, nvml.missing)
    answers = {text_of(name)[:80]: counters.integer(name) for name in list(counters.entries)[:64]}
    known = tuple((name, value) for name, value in answers.items() if isinstance(value, int))
    reason = next((value for value in answers.values() if isinstance(value, Absent)), nvml.missing)
    return known or reason


def p2p_of(document: Any) -> Fact[tuple[P2p, ...]]:  # noqa: ANN401 - JSON
    """P2P status of every ordered pair."""
    failure = started(document)
    if failure is not None:
        return failure
    missing = missing_of(document)
    listed = document.get("p2p")
    if listed is None:
        return missing
    if not isinstance(listed, list):
        return Absent("unparsable", "NVML's pairs are no list", text_of(listed)[:80])
    pairs = [entry for entry in listed[:MAX_PAIRS] if isinstance(entry, dict)]
    return tuple(
        P2p(entry["a"], entry["b"], *(Answers(entry, missing).word(key, P2P_STATES) for key in _PAIR))
        for entry in pairs
        if is_int(entry.get("a")) and is_int(entry.get("b"))
    )


_PAIR = ("nvlink", "read", "write", "atomics")
