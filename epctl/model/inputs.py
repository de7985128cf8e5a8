"""What a plan reckons with: each number from a flag, else from a snapshot, else from a hardware profile, and it says which."""

from __future__ import annotations

import math

from msgspec import Struct

from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.model.hardware import Figure, Hardware, MeasuredTable, hardware_of_gpu, measured, measured_node
from epctl.model.hardware import hardware as named
from epctl.model.readings import NVLINK_SHARE, Readings, read
from epctl.model.refusal import MAX_GBS, MIN_GBS, RATES, RefusalError, positive
from epctl.model.rules import Rules

FLAG_NAMES = {
    "gpus_per_node": "--gpus-per-node",
    "nvlink_gbs": "--nvlink-gbs",
    "rdma_gbs": "--rdma-gbs",
    "device_sms": "--sms-on-device",
    "memory_bytes": "--memory-bytes",
    "fast_atomics": "--atomics",
    "max_qp": "--max-qp",
}
"""Field of Flags → the flag that gives it."""
_EXAMPLES = {
    "gpus_per_node": "8",
    "nvlink_gbs": "405",
    "rdma_gbs": "50",
    "device_sms": "132",
    "memory_bytes": "141000000000",
    "fast_atomics": "slow",
    "max_qp": "131072",
}
_CODES = {"nvlink_gbs": "nvlink_bandwidth_missing", "rdma_gbs": "rdma_bandwidth_missing"}
_RDMA = ("rdma_gbs", "fast_atomics", "max_qp", "nics_per_gpu", "gdaki")
_FOUND = ("nics_per_gpu", "smem_bytes", "compute_capability", "gdaki")
"""What no flag gives."""


class Number(Struct, frozen=True):
    """A value and where it comes from."""

    value: float | int | bool
    source: str


class Node(Struct, frozen=True, kw_only=True):
    """One node (NVLink domain) as a plan sees it. Rates in GB/s, per GPU and one way."""

    name: str
    gpus_per_node: Number
    nvlink_gbs: Number
    """As the rules use it: 0.9 of the links' nominal rate. 0: the GPU has no NVLink."""
    rdma_gbs: Number
    """Line rate of a GPU's share of ports, held to its PCIe way. 0: no RDMA."""
    device_sms: Number
    memory_bytes: Number
    fast_atomics: Number
    max_qp: Number
    """Queue pairs of one RDMA device. 0: no RDMA device."""
    nics_per_gpu: Number
    smem_bytes: Number
    compute_capability: Number = Number(0.0, "not known")
    """9.0 is Hopper. 0: not known."""
    gdaki: Number = Number(False, "not known")
    """Whether DeepEP's one way between nodes, GDAKI, runs on the RDMA devices."""
    launch_us: Number
    nvlink_hop_us: Number
    rdma_hop_us: Number
    """0: no RDMA device."""
    sm_write_limit_gbs: Number
    """What SMs reach over NVLink when they write."""
    pull_add_limit_gbs: Number
    """… when they read peer rows, add, and write the sum."""
    hbm_gbs: Number
    """Payload of a copy within HBM: each byte is read and written once."""


class Flags(Struct, frozen=True, kw_only=True):
    """What the user gave; None where nothing was given. Units as in Node."""

    gpus_per_node: int | None = None
    nvlink_gbs: float | None = None
    rdma_gbs: float | None = None
    device_sms: int | None = None
    memory_bytes: int | None = None
    fast_atomics: bool | None = None
    max_qp: int | None = None


class _Known(Struct, frozen=True):
    """What numbers are taken from. `gpu`: the profile for figures of the GPU, by the name of the snapshot's GPU where there is one."""

    flags: Flags
    found: Readings | None
    profile: Hardware | None
    gpu: Hardware | None
    rules: str


def resolve(flags: Flags, hardware: Hardware | None, node: Snapshot | Readings | None, rules: Rules) -> Node:
    """The node to plan for. Flags win over the snapshot, that over the profile; a sweep passes `readings.read(snapshot)` once.

    Figures of the GPU that a snapshot lacks come by the name of its GPU, the rest from `hardware`. Without one, a snapshot that
    found no RDMA device means that there is none.
    Raises RefusalError that names the flag: value_missing, nvlink_bandwidth_missing, rdma_bandwidth_missing, non_positive_argument,
    absurd_argument.
    """
    found = read(node) if isinstance(node, Snapshot) else node
    gpu = hardware_of_gpu(found.gpu_name) if found is not None and found.gpu_name else None
    profile = hardware
    if profile is None and found is not None and gpu is not None:
        profile = _measured_profile(found, gpu)
    _check(flags)
    _check_slot(flags.rdma_gbs, gpu or profile)
    known = _Known(flags, found, profile, gpu or profile, rules.name)
    picked = {name: _pick(name, known) for name in (*FLAG_NAMES, *_FOUND)}
    names = [found.name] if found is not None else []
    names += [profile.name] if profile is not None else []
    limits = _limits(picked, known, measured())
    return Node(name=" on ".join(names) or "flags", rdma_hop_us=_hop(picked, profile), **picked, **limits)


def _measured_profile(found: Readings, gpu: Hardware) -> Hardware | None:
    """The profile of the machine that was measured, where the snapshot is of its kind: same GPU, as many, no RDMA."""
    mine = named(measured_node())
    same = mine.gpu == gpu.gpu and found.values["gpus_per_node"].value == mine.gpus_per_node
    return mine if same and isinstance(found.values["nics_per_gpu"].value, Absent) else None


def _check(flags: Flags) -> None:
    for name in ("gpus_per_node", "device_sms", "memory_bytes", "max_qp"):
        value = getattr(flags, name)
        if name == "gpus_per_node" and value is not None and value < 1:
            what, why = f"{FLAG_NAMES[name]} is {value}", "a group has at least one rank"
            raise RefusalError("no_ranks", what, why, f"give {FLAG_NAMES[name]} {_EXAMPLES[name]}")
        if value is not None:
            positive(FLAG_NAMES[name], value)
    for name in ("nvlink_gbs", "rdma_gbs"):
        value = getattr(flags, name)
        if value is None:
            continue
        flag, example = FLAG_NAMES[name], _EXAMPLES[name]
        if not math.isfinite(value) or value < 0:
            why = "a rate is a number of GB/s, 0 where there is no such link"
            raise RefusalError(_CODES[name], f"{flag} is {value}", why, f"give {flag} {example}")
        if value and not MIN_GBS <= value <= MAX_GBS:
            raise RefusalError("absurd_argument", f"{flag} is {value}", RATES, f"give {flag} {example}")


def _check_slot(rdma_gbs: float | None, gpu: Hardware | None) -> None:
    """A rate of twice what the GPU's way to its adapter carries was meant in Gb/s. Raises RefusalError absurd_argument."""
    slot = 0.0 if gpu is None else float(gpu.gpu.host_gbs.value)
    if rdma_gbs and slot and rdma_gbs > 2 * slot:
        flag = FLAG_NAMES["rdma_gbs"]
        what = f"{flag} is {rdma_gbs:g}"
        why = f"it is in GB/s, and the slot of an adapter carries {slot:g}; 400 Gb/s are 50 GB/s"
        todo = f"give {flag} {rdma_gbs / 8:g}" if rdma_gbs / 8 <= slot else f"give {flag} {_EXAMPLES['rdma_gbs']}"
        raise RefusalError("absurd_argument", what, why, f"{todo}, or the --hardware that has such a slot")


def slot_note(rdma_gbs: Number, gpu: Hardware | None) -> str:
    """'' or that a rate given by flag is more than the GPU's way to its adapter carries."""
    slot = 0.0 if gpu is None else float(gpu.gpu.host_gbs.value)
    if not slot or rdma_gbs.value <= slot or not rdma_gbs.source.startswith("flag"):
        return ""
    return (
        f"{FLAG_NAMES['rdma_gbs']} {rdma_gbs.value:g} is more than the {slot:g} GB/s that an adapter's slot carries; it is in GB/s, "
        "and 400 Gb/s are 50 GB/s."
    )


def _pick(name: str, known: _Known) -> Number:
    given = getattr(known.flags, name, None)
    if given is not None:
        return Number(given, f"flag {FLAG_NAMES[name]}")
    found = known.found
    reading = found.values.get(name) if found is not None else None
    if found is not None and reading is not None and not isinstance(reading.value, Absent):
        share = f" (rules {known.rules})" if name == "nvlink_gbs" else ""
        return Number(reading.value, f"snapshot {found.name}: {reading.how}{share}")
    figure = _of_gpu(name, known) or _of_node(name, known.profile)
    if figure is not None:
        return figure
    absent = reading.value if reading is not None and isinstance(reading.value, Absent) else None
    return _without_rdma(name, known.flags, absent) if name in _RDMA else _default(name, absent)


def _of_gpu(name: str, known: _Known) -> Number | None:
    if known.gpu is None:
        return None
    gpu, label = known.gpu.gpu, f"hardware {known.gpu.name}"
    if name in ("device_sms", "memory_bytes", "smem_bytes", "compute_capability"):
        figure: Figure = getattr(gpu, name)
        return Number(figure.value, f"{label}: {figure.told()}")
    if name == "nvlink_gbs":
        how = f"{gpu.nvlinks.value} links x {gpu.link_gbs.value:g} GB/s x {NVLINK_SHARE} (rules {known.rules})"
        return Number(round(known.gpu.nvlink_gbs * NVLINK_SHARE, 6), f"{label}: {how}; {gpu.link_gbs.told()}")
    return None


def _of_node(name: str, profile: Hardware | None) -> Number | None:
    if profile is None:
        return None
    nic, label = profile.nic, f"hardware {profile.name}"
    if name == "gpus_per_node":
        return Number(profile.gpus_per_node, f"{label}: {profile.source}")
    if nic is None:
        return Number(False if name in ("fast_atomics", "gdaki") else 0, f"{label}: no RDMA device")
    if name == "nics_per_gpu":
        return Number(profile.nics_per_gpu, f"{label}: {profile.source}")
    if name == "rdma_gbs":
        return Number(profile.rdma_gbs, f"{label}: {_rdma_text(profile, nic.port_gbps)}")
    figure: Figure = getattr(nic, name)
    return Number(figure.value, f"{label}: {figure.told()}")


def _rdma_text(profile: Hardware, port: Figure) -> str:
    how = f"{profile.nics_per_gpu:g} x {port.value:g} Gb/s / 8 ({port.told()})"
    if profile.rdma_gbs < profile.port_gbs:
        host = profile.gpu.host_gbs
        how += f", held to {host.value:g} GB/s ({host.told()})"
    return how


def _without_rdma(name: str, flags: Flags, absent: Absent | None) -> Number:
    """No flag, no reading, no profile: no RDMA. With an RDMA rate by flag, the device is taken as one a GPU of the usual kind."""
    if flags.rdma_gbs:
        usual = {"fast_atomics": False, "max_qp": 131_072, "nics_per_gpu": 1, "gdaki": True}[name]
        kind = "assumed: one device a GPU, as ConnectX-7 (ibv_devinfo -v)"
        return Number(usual, f"{kind}; {FLAG_NAMES[name]} changes it" if name in FLAG_NAMES else kind)
    flag = FLAG_NAMES["rdma_gbs"]
    why = f"snapshot: {absent}" if absent is not None else "no profile and no snapshot name an RDMA device"
    return Number(
        False if name in ("fast_atomics", "gdaki") else 0, f"no RDMA ({why}); give {flag} {_EXAMPLES['rdma_gbs']}"
    )


def _default(name: str, absent: Absent | None) -> Number:
    if name == "smem_bytes":
        return Number(232_448, "assumed: 227 KiB a block, as compute capability 9.0 and 10.0")
    if name == "compute_capability":
        return Number(
            0.0, f"not known ({absent})" if absent is not None else "not known: no snapshot or profile tells it"
        )
    flag, example = FLAG_NAMES[name], _EXAMPLES[name]
    what = f"{name.replace('_', ' ')} is not known"
    why = f"the snapshot does not tell it ({absent})" if absent is not None else "no flag, snapshot or profile tells it"
    todo = f"give {flag} {example}, or --hardware NAME"
    if name == "gpus_per_node" and absent is not None and "rack" in absent.detail:
        todo = f"give {flag} 72 for a whole NVL72 rack, or what one job has of it"
    raise RefusalError(_CODES.get(name, "value_missing"), what, why, todo)


def _hop(picked: dict[str, Number], profile: Hardware | None) -> Number:
    if not picked["rdma_gbs"].value:
        return Number(0.0, "no RDMA")
    if profile is not None and profile.nic is not None:
        figure = profile.nic.rdma_hop_us
        return Number(figure.value, f"hardware {profile.name}: {figure.told()}")
    paper = "https://arxiv.org/abs/2511.15076: GDAKI put with signal, 16.7 us there and back, halved"
    return Number(8.35, f"assumed: as ConnectX-7 ({paper})")


def _limits(picked: dict[str, Number], known: _Known, table: MeasuredTable) -> dict[str, Number]:
    """Measured figures where this is the machine; elsewhere the same share of the links in hand, and the same latencies."""
    nominal = picked["nvlink_gbs"].value / NVLINK_SHARE
    here = known.profile is not None and known.profile.measured_here
    # Two GPUs were measured, joined without a switch: more of them are another machine.
    joined = here and known.profile is not None and picked["gpus_per_node"].value == known.profile.gpus_per_node
    links = joined and math.isclose(nominal, table.link_gbs, rel_tol=1e-6)
    peak = float(known.gpu.gpu.hbm_peak_gbs.value) if known.gpu is not None else table.hbm_peak_gbs
    found = {}
    for name, base, mine, same in (
        ("sm_write_limit_gbs", table.link_gbs, nominal, links),
        ("pull_add_limit_gbs", table.link_gbs, nominal, links),
        ("hbm_gbs", table.hbm_peak_gbs, peak, here),
    ):
        figure: Figure = getattr(table, name)
        if same:
            found[name] = Number(figure.value, figure.told())
        else:
            share = f"{figure.value:g} of {base:g} GB/s nominal ({figure.source}), here of {mine:g}"
            found[name] = Number(round(figure.value * mine / base, 6), f"assumed: {share}")
    for name, same in (("launch_us", here), ("nvlink_hop_us", joined)):
        figure = getattr(table, name)
        found[name] = Number(figure.value, figure.told() if same else f"assumed: as {figure.source}")
    return found
