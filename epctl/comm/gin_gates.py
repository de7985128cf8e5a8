"""Why a communicator has no GIN, or not the one asked for: gate by gate, what NCCL says of it and what its setting closes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from epctl.core.views.gates import Gate, State
from epctl.native.communicator import GIN_TYPES, Properties, gin_name

OFF = ("0", "n", "no", "f", "false")
PREFIXES = (
    "NCCL_GIN_",
    "NCCL_RMA_",
    "NCCL_CUMEM_",
    "NCCL_CROSS_NIC",
    "NCCL_LSA_TEAM_SIZE",
    "NCCL_HOSTID",
    "EP_DISABLE_GIN",
)
"""Variables that decide about GIN (names in libnccl 2.32.3), and one of DeepEP's."""


class Asked(Struct, frozen=True):
    """What the communicator was wanted for, and what its ranks know of each other."""

    type: str = "auto"
    connection: str = "full"
    offered_by_rank: tuple[tuple[int, ...], ...] = ()
    """Types that each rank was told of; () where they were not compared."""
    num_ranks_sharing: int = 1
    """Ranks on the GPU that has most of them."""


def gates(
    properties: Properties,
    static_gates: tuple[Gate, ...],
    asked: Asked | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Gate, ...]:
    """All gates: of the live communicator first, then `static_gates` (epctl.core.views.gin.gates of the node's snapshot)."""
    asked = Asked() if asked is None else asked
    live = (
        _device_api(properties),
        _type(properties, asked),
        _connection(properties, asked),
        _same_on_all(properties, asked),
        _sharing(properties, asked),
        *environment({} if environ is None else environ),
    )
    return (*live, *static_gates)


def closed(every: tuple[Gate, ...]) -> str:
    """The gates that are not open, in one line; '' when all are."""
    return "; ".join(f"{gate.name} {gate.state}: {gate.text}" for gate in every if gate.state != "open")


def _device_api(properties: Properties) -> Gate:
    name = "device API"
    if properties.device_api:
        return Gate(name, "open", "NCCL offers it for these ranks")
    teams = f"{properties.num_lsa_teams} load/store domains of {properties.lsa_size} ranks"
    fix = "Look at the gates below: with several domains and no GIN there is no device API; inside one it needs cuMem memory."
    return Gate(name, "closed", f"NCCL offers none between {teams}", fix)


def _type(properties: Properties, asked: Asked) -> Gate:
    name = "GIN type"
    offered = ", ".join(gin_name(number) for number in properties.gin_types) or "none"
    told = f"asked for {asked.type}, offered: {offered}"
    wanted = GIN_TYPES.get(asked.type)
    found = properties.gin_type or (properties.railed_gin_type if asked.connection == "rail" else 0)
    if wanted is None and found:
        return Gate(name, "open", f"{told}; NCCL takes {gin_name(found)}")
    if wanted is not None and wanted in properties.gin_types:
        return Gate(name, "open", told)
    fix = "Ask for a type that is offered." if properties.gin_types else "Open the gates that are closed below."
    return Gate(name, "closed", told, fix)


def _connection(properties: Properties, asked: Asked) -> Gate:
    name = "cross-NIC"
    if asked.connection == "full" and not properties.gin_type and properties.railed_gin_type:
        text = f"all ranks are to be reached, and NCCL connects rails alone (stride {properties.gin_min_stride})"
        return Gate(
            name, "closed", text, "Unset NCCL_CROSS_NIC where the network joins the rails, or ask for rail connections."
        )
    if not properties.gin_type and not properties.railed_gin_type:
        return Gate(name, "unknown", "no GIN at all: NCCL does not come to this question")
    return Gate(name, "open", f"{asked.connection} connections are possible")


def _same_on_all(properties: Properties, asked: Asked) -> Gate:
    name = "same on all ranks"
    if not asked.offered_by_rank:
        return Gate(name, "unknown", "the ranks were not compared")
    every = set(asked.offered_by_rank)
    if len(every) == 1:
        return Gate(name, "open", f"all {properties.num_ranks} ranks tell of the same types")
    first = asked.offered_by_rank[0]
    odd = next(rank for rank, types in enumerate(asked.offered_by_rank) if types != first)
    told = " and ".join(
        f"rank {rank}: {', '.join(gin_name(one) for one in asked.offered_by_rank[rank]) or 'none'}" for rank in (0, odd)
    )
    return Gate(name, "closed", told, "Bring the odd node in line, or force one type on all with NCCL_GIN_TYPE.")


def _sharing(properties: Properties, asked: Asked) -> Gate:
    name = "ranks on a GPU"
    if asked.num_ranks_sharing <= 1:
        return Gate(name, "open", "one rank on each GPU")
    state: State = "open" if properties.gin_type or properties.railed_gin_type else "unknown"
    text = f"{asked.num_ranks_sharing} ranks share a GPU; NCCL allows it with NCCL_MULTI_RANK_GPU_ENABLE=1 from 2.32 on"
    return Gate(name, state, text, "" if state == "open" else "Start one rank on each GPU.")


def environment(environ: Mapping[str, str]) -> tuple[Gate, ...]:
    """One gate a variable that is set; those that only choose are open."""
    return tuple(
        _setting(name, environ[name]) for name in sorted(environ) if name.startswith(PREFIXES) and environ[name] != ""
    )


def _setting(name: str, value: str) -> Gate:
    text = f"{name}={value}"
    off = value.strip().lower() in OFF
    if name in ("NCCL_GIN_ENABLE", "NCCL_CUMEM_ENABLE") and off:
        return Gate(name, "closed", text, f"Unset {name}.")
    if name == "NCCL_RMA_DISABLE" and not off:
        return Gate(name, "closed", text, f"Unset {name}: the proxy sends over NCCL's RMA.")
    if name in ("NCCL_GIN_PLUGIN", "NCCL_RMA_PLUGIN") and value.strip().lower() == "none":
        return Gate(name, "closed", text, f"Unset {name}.")
    if name == "NCCL_GIN_TYPE" and value.strip() == "0":
        return Gate(name, "closed", text, f"Unset {name}.")
    if name == "EP_DISABLE_GIN" and not off:
        return Gate(name, "open", f"{text}: only DeepEP reads it, its kernels then go without GIN")
    return Gate(name, "open", text)
