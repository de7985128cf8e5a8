"""Logs of NCCL jobs in the forms that NCCL prints, and nodes that were given one."""

from __future__ import annotations

import msgspec

from epctl.core.snapshot import Snapshot
from epctl.probes.job import area
from epctl.probes.readers.nccl_log import read
from tests.support.nodes import laptop

VERSION = "2.32.3+cuda13.0"


def info(text: str, host: str = "n1", dev: int = 0) -> str:
    """A record of level INFO."""
    return f"{host}:100:{101 + dev} [{dev}] NCCL INFO {text}"


def warn(text: str, host: str = "n1", where: str = "transport/x.cc:10") -> str:
    """A record of level WARN."""
    return f"{host}:100:101 [0] {where} NCCL WARN {text}"


def init(rank: int, host: str, state: str, size: int = 2) -> str:
    """Start or end of a rank's initialisation."""
    comm = f"ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 18000"
    return info(f"{comm} commId 0xabc - Init {state}", host)


def start(network: str = "IB", version: str = VERSION, devices: str = "[0]mlx5_0:1/IB [RO]") -> tuple[str, ...]:
    """Two nodes that have chosen a network and begin to build a communicator."""
    hosts = ("n1", "n2")
    return (
        info(f"NCCL version {version}"),
        *(info(f"Bootstrap: Using eth0:10.0.0.{i}<0>", host) for i, host in enumerate(hosts, 1)),
        info("NCCL_DEBUG set by environment to INFO"),
        info(f"NET/{network} : Using {devices}; OOB eth0:10.0.0.1<0>"),
        *(info(f"Using network {network}", host) for host in hosts),
        *(init(rank, host, "START") for rank, host in enumerate(hosts)),
        info("comm 0x50 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"),
    )


def channels(way: str = "NET/IB/0/GDRDMA") -> tuple[str, ...]:
    """Ranks that are connected and done."""
    return (
        info(f"Channel 00/0 : 0[0] -> 1[0] [send] via {way}"),
        *(init(rank, host, "COMPLETE") for rank, host in enumerate(("n1", "n2"))),
    )


def healthy(*more: str) -> tuple[str, ...]:
    """A job over two nodes with RDMA, GPUDirect and GIN that did all it should, then `more`."""
    assigned = info("GIN/Plugin: Assigned plugin GIN_IB_GDAKI type 3 to comm")
    return (*start(), assigned, *channels(), *more)


def given(*lines: str, left_out: int = 0) -> Snapshot:
    """A machine without GPU that reads the log of `lines`."""
    reading = read(("\n".join(lines) + "\n").encode())
    return msgspec.structs.replace(laptop(), job=area(reading, "job.log", left_out))
