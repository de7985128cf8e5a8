"""What child processes with a time limit found out by doing it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from epctl.core.fact import NOT_PROBED, Absent, Fact
from epctl.core.snapshot.software import ActiveArea, GpuAttributes, PeerAccess, VerbsProbe
from epctl.probes import documents, gin_canary
from epctl.probes.source import Source
from epctl.probes.stages import Stages

LIMITS_S = {
    "active_cuda": 80.0,
    "active_verbs": 60.0,
    "active_nvcc": 70.0,
    "active_pidfd": 15.0,
    "active_import": 70.0,
    gin_canary.COLLECTOR: gin_canary.LIMIT_S,
}
"""Collector → seconds. Eight GPUs without persistence mode take tens of seconds for their contexts."""

_REFUSALS = (1, 13)  # EPERM, EACCES


def active(source: Source) -> ActiveArea:
    """Runs all active collectors at the same time."""
    with ThreadPoolExecutor(len(LIMITS_S)) as pool:
        running = {name: pool.submit(source.document, name, limit) for name, limit in LIMITS_S.items()}
        found = {name: future.result() for name, future in running.items()}
    cuda = Stages(found["active_cuda"])
    nvcc = found["active_nvcc"]
    message = documents.text(nvcc, "message")
    return ActiveArea(
        cu_init=_code(cuda.stage("init")),
        cu_driver_version=_after_init(cuda, documents.integer(cuda.stage("version"), "version")),
        devices=_after_init(cuda, documents.items(cuda.stage("devices"), "devices", _device)),
        peers=_after_init(cuda, _peers(cuda)),
        cumem_export=_after_init(cuda, _code(cuda.stage("posix"))),
        cumem_fabric=_after_init(cuda, _fabric(cuda)),
        nvcc_compile=documents.flag(nvcc, "ok"),
        nvcc_compile_message=message if isinstance(message, str) else "",
        verbs=_verbs(Stages(found["active_verbs"])),
        pidfd_getfd=documents.integer(found["active_pidfd"], "errno"),
        deep_ep_import=documents.text(found["active_import"], "error_line"),
        gin=gin_canary.trials(found[gin_canary.COLLECTOR]),
    )


def _code(stage: Any) -> Fact[int]:  # noqa: ANN401 - JSON
    return documents.integer(stage, "code")


def _after_init(cuda: Stages, fact: Fact[Any]) -> Fact[Any]:
    """Behind a failed start there is nothing: say so instead of `not_probed`."""
    code = _code(cuda.stage("init"))
    if not isinstance(fact, Absent) or code == 0:
        return fact
    if isinstance(code, Absent):
        return code if code != NOT_PROBED else fact
    return Absent("failed", f"cuInit gave {code}")


def _device(entry: Any) -> GpuAttributes | None:  # noqa: ANN401 - JSON
    ordinal = documents.integer(entry, "ordinal")
    if isinstance(ordinal, Absent):
        return None
    return GpuAttributes(
        ordinal=ordinal,
        uuid=documents.text(entry, "uuid"),
        num_sms=documents.integer(entry, "num_sms"),
        dma_buf=documents.flag(entry, "dma_buf"),
        gdr_with_vmm=documents.flag(entry, "gdr_with_vmm"),
        multicast=documents.flag(entry, "multicast"),
        fabric_handles=documents.flag(entry, "fabric_handles"),
        posix_handles=documents.flag(entry, "posix_handles"),
    )


def _peers(cuda: Stages) -> Fact[tuple[PeerAccess, ...]]:
    """Pairs of the `access` stage, with the copies that were finished. One GPU has none."""
    devices = documents.items(cuda.stage("devices"), "devices", _device)
    if isinstance(devices, tuple) and len(devices) < 2:
        return ()
    pairs = documents.items(cuda.stage("access"), "pairs", _pair)
    if isinstance(pairs, Absent):
        return pairs
    copied: dict[tuple[int, int], Fact[bool]] = {}
    for line in cuda.every("copy"):
        a, b = line.get("a"), line.get("b")
        if isinstance(a, int) and isinstance(b, int):
            copied[a, b] = documents.flag(line, "ok")
    return tuple(PeerAccess(a, b, access, copied.get((a, b), cuda.absent)) for a, b, access in pairs)


def _pair(entry: Any) -> tuple[int, int, Fact[bool]] | None:  # noqa: ANN401 - JSON
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    a, b, access = entry
    if not documents.is_int(a) or not documents.is_int(b):
        return None
    return a, b, documents.flag({"access": access}, "access")


def _fabric(cuda: Stages) -> Fact[int]:
    """Asked for only where the first device says that it has fabric handles."""
    devices = documents.items(cuda.stage("devices"), "devices", _device)
    if isinstance(devices, tuple) and devices and devices[0].fabric_handles is False:
        return Absent("unsupported", "the device has no fabric handles")
    return _code(cuda.stage("fabric"))


def _verbs(told: Stages) -> Fact[tuple[VerbsProbe, ...]]:
    """Each listed device with the steps that were finished for it."""
    names = documents.texts(told.stage("list"), "devices")
    if isinstance(names, Absent):
        return names
    steps = {
        (documents.name_of(line, "stage"), documents.name_of(line, "device")): line
        for line in reversed(told.lines)
        if "stage" in line
    }
    return tuple(_verbs_probe(told, steps, name) for name in dict.fromkeys(names) if name)


def _verbs_probe(told: Stages, steps: dict[tuple[str, str], dict[str, Any]], device: str) -> VerbsProbe:
    def step(name: str) -> Any:  # noqa: ANN401 - JSON
        return steps.get((name, device), told.absent)

    opened = documents.flag(step("open"), "opened")
    if opened is not True:
        why = opened if isinstance(opened, Absent) else _not_opened(step("open"))
        return VerbsProbe(device, opened, why, why, why)
    errnos = (documents.integer(step(name), "errno") for name in ("dmabuf", "gpu", "devx"))
    return VerbsProbe(device, opened, *errnos)


def _not_opened(step: Any) -> Absent:  # noqa: ANN401 - JSON
    number = documents.integer(step, "errno")
    if isinstance(number, Absent):
        return Absent("failed", "the device could not be opened")
    return Absent("permission" if number in _REFUSALS else "failed", f"ibv_open_device: errno {number}")
