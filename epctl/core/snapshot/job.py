"""What the debug log of a job says (NCCL_DEBUG=INFO or WARN). It may come from other machines than the node of the snapshot."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import NOT_READ, Fact
from epctl.core.snapshot.gpu import Setting


class LogEvent(Struct, frozen=True):
    """Lines of the log that tell of the same trouble (`error`) or explain something (`note`). A number or name that the text
    does not hold is `not_found`."""

    kind: str
    """Stable word of the reader: ib_completion_error, cuda_failure, …; `other` for lines of no known kind."""
    weight: Literal["error", "note"]
    text: str
    """First of the lines."""
    count: int = 1
    order: int = 0
    """Place among the events by first appearance in the log, from 0."""
    level: Literal["warn", "info", "program"] = "warn"
    """Level at which NCCL printed it; `program`: a line of the program itself (PyTorch's watchdog)."""
    hosts: tuple[str, ...] = ()
    """Hosts that printed it; empty for lines of the program, which do not name theirs."""
    code: Fact[int] = NOT_READ
    """Status of a work completion (ib_completion_error), CUDA error (cuda_failure, nvls_failed, cumem_failed, …), else errno."""
    code_name: Fact[str] = NOT_READ
    vendor_err: Fact[int] = NOT_READ
    call: Fact[str] = NOT_READ
    """Verbs call that failed: ibv_reg_mr."""
    hca: Fact[str] = NOT_READ
    peer: Fact[str] = NOT_READ
    """Address or host of the other end."""
    ranks: Fact[tuple[int, ...]] = NOT_READ


class JobRank(Struct, frozen=True):
    """One rank of the largest communicator in the log."""

    rank: int
    host: str
    pci: str
    """Bus address of its GPU: 0000:18:00.0."""
    finished: bool
    """The log has the line that ends its initialisation."""


class Conflict(Struct, frozen=True):
    """A variable that processes of the job report with different values."""

    name: str
    values: tuple[str, ...]


class JobArea(Struct, frozen=True):
    """Everything about the log of a job. What the log does not say is `not_found`."""

    log: Fact[str] = NOT_READ
    """Name of the file."""
    whole: Fact[bool] = NOT_READ
    """False when the middle of a very long log was left out, or it has too many warnings to tell all apart: what is not among the
    events may still have happened."""
    info: Fact[bool] = NOT_READ
    """The log has records that NCCL_DEBUG=INFO prints; without them notes and settings cannot be expected."""
    nccl_versions: Fact[tuple[str, ...]] = NOT_READ
    network: Fact[str] = NOT_READ
    """The first that is named: IB, IBext, Socket, Libfabric, …"""
    networks: Fact[tuple[str, ...]] = NOT_READ
    transports: Fact[tuple[str, ...]] = NOT_READ
    """Ways that channels take, without device numbers: P2P/CUMEM, SHM/direct/direct, NET/IB/GDRDMA, …"""
    num_ranks: Fact[int] = NOT_READ
    num_nodes: Fact[int] = NOT_READ
    hosts: Fact[tuple[str, ...]] = NOT_READ
    """Hosts whose output is in the log."""
    ranks: Fact[tuple[JobRank, ...]] = NOT_READ
    """Ranks that began to build the largest communicator."""
    ranks_unfinished: Fact[tuple[int, ...]] = NOT_READ
    """Those of them whose initialisation has no end in the log."""
    bootstrap: Fact[tuple[Setting, ...]] = NOT_READ
    """Host → interface:address that its ranks meet over."""
    gdr: Fact[bool] = NOT_READ
    mnnvl: Fact[bool] = NOT_READ
    nvls: Fact[bool] = NOT_READ
    gin_type: Fact[int] = NOT_READ
    gin_plugin: Fact[str] = NOT_READ
    """Backend that NCCL assigned: GIN_IB_GDAKI, …"""
    net_plugin: Fact[str] = NOT_READ
    net_devices: Fact[tuple[str, ...]] = NOT_READ
    relaxed_ordering: Fact[bool] = NOT_READ
    settings: Fact[tuple[Setting, ...]] = NOT_READ
    """NCCL_* variables that NCCL says it read."""
    env_conflicts: Fact[tuple[Conflict, ...]] = NOT_READ
    events: Fact[tuple[LogEvent, ...]] = NOT_READ
    """By order of first appearance."""
    notes: tuple[str, ...] = ()
    """What could be read in part only."""
