"""What NVML and nvidia-smi say of the GPUs of a made-up machine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tests.samples.parts import Part

COMPLETED = 3
HOPPER_COUNTERS = ("replay", "recovery", "crc")
BLACKWELL_COUNTERS = (
    "malformed_packet_errors",
    "buffer_overrun_errors",
    "rx_errors",
    "rx_remote_errors",
    "rx_general_errors",
    "local_link_integrity_errors",
    "tx_discards",
    "link_recovery_successful_events",
    "link_recovery_failed_events",
    "total_link_recovery_events",
    "effective_errors",
    "symbol_errors",
)


class Board(Struct, frozen=True):
    """GPUs of one kind and their NVLinks. `down`: (GPU, link) pairs that are inactive."""

    name: str
    pci: tuple[str, ...]
    numa: tuple[int, ...]
    cpus: tuple[str, ...]
    driver: str
    memory_bytes: int
    free_bytes: int
    bar1_bytes: int
    sm_clock_max: int
    memory_clock: int
    uuid_seed: int
    cuda: int = 13000
    capability: tuple[int, int] = (9, 0)
    architecture: int = 9
    num_sms: int = 132
    links: int = 18
    link_mbps: int = 26562
    link_version: int = 6
    """nvmlNvlinkVersion_t: 6 is NVLink 4, 7 NVLink 5."""
    switches: tuple[str, ...] = ()
    """Addresses of the NVSwitches, empty where NVML does not tell them."""
    counters: tuple[str, ...] = HOPPER_COUNTERS
    down: frozenset[tuple[int, int]] = frozenset()
    cluster: str = "0" * 32
    clique: int = 0
    health: tuple[int, int] = (0, 0)
    """healthMask and healthSummary."""
    pcie_generation: int = 5

    def uuid(self, i: int) -> str:
        """A version-4 UUID of its own for each GPU."""
        a, b = (self.uuid_seed * (i + 3) * 2654435761) & 0xFFFFFFFF, (self.uuid_seed * (i + 7) * 40503) & 0xFFF
        return f"GPU-{a:08x}-{b:04x}-4{b ^ 0x3A5:03x}-9{b ^ 0xC11:03x}-{(a * 65537 + b) & 0xFFFFFFFFFFFF:012x}"


def gpus(board: Board) -> Part:
    """NVML's document, and `nvidia-smi nvlink -s`."""
    count = len(board.pci)
    everywhere = ("read", "write", "nvlink", "atomics")
    document = {
        "partial": False,
        "init": {"v": 0},
        "system": {
            "driver_version": {"v": board.driver},
            "cuda_version": {"v": board.cuda},
            "confidential_computing": {"v": {"ccFeature": 0}},
        },
        "count": {"v": count},
        "gpus": [_gpu(board, i) for i in range(count)],
        "p2p": [
            {"a": a, "b": b, **{what: {"v": 0} for what in everywhere}}
            for a in range(count)
            for b in range(count)
            if a != b
        ],
    }
    return Part(
        commands={("nvidia-smi", "nvlink", "-s"): "".join(_status(board, i) for i in range(count))},
        documents={"nvml": document},
    )


def _status(board: Board, i: int) -> str:
    lines = (
        f"\t Link {k}: {'<inactive>' if (i, k) in board.down else f'{board.link_mbps / 1000:.3f} GB/s'}\n"
        for k in range(board.links)
    )
    return f"GPU {i}: {board.name} (UUID: {board.uuid(i)})\n{''.join(lines)}"


def _gpu(board: Board, i: int) -> dict[str, Any]:
    domain, _, rest = board.pci[i].partition(":")
    sram = ("aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed")
    plain: dict[str, Any] = {
        "handle": True,
        "name": board.name,
        "uuid": board.uuid(i),
        "serial": f"16{(board.uuid_seed * 7919 + i * 10007) % 10**11:011d}",
        "compute_capability": list(board.capability),
        "architecture": board.architecture,
        "pcie_generation": board.pcie_generation,
        "pcie_generation_max": board.pcie_generation,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "power_mw": 71020 + 1013 * i,
        "persistence": 1,
        "mig": [0, 0],
        "compute_mode": 0,
        "ecc": [1, 1],
        "remapped_rows": [0, 0, 0, 0],
        "pci": f"{domain:0>8}:{rest}".upper(),
        "memory": {"total": board.memory_bytes, "free": board.free_bytes},
        "bar1": {"bar1Total": board.bar1_bytes},
        "sm_clock": 345,
        "sm_clock_max": board.sm_clock_max,
        "memory_clock": board.memory_clock,
        "utilization": {"gpu": 0},
        "temperature": 27 + i % 5,
        **dict.fromkeys(_ECC, 0),
        "clock_event_reasons": 1,
        "sram": dict.fromkeys(sram, 0),
        "recovery_action": 0,
        "fabric": {
            "clusterUuid": board.cluster,
            "status": 0,
            "cliqueId": board.clique,
            "state": COMPLETED,
            "healthMask": board.health[0],
            "healthSummary": board.health[1],
        },
    }
    entries: dict[str, Any] = {name: {"v": value} for name, value in plain.items()}
    return {"index": i, **entries, "links": [_link(board, i, k) for k in range(board.links)]}


_ECC = (
    "ecc_sram_uncorrected_volatile",
    "ecc_sram_uncorrected_aggregate",
    "ecc_sram_corrected_aggregate",
    "ecc_dram_uncorrected_volatile",
)


def _link(board: Board, i: int, k: int) -> dict[str, Any]:
    down = (i, k) in board.down
    switch = board.switches[k % len(board.switches)] if board.switches else "ffff:ff:ff.0"
    domain, _, rest = switch.partition(":")
    remote = f"{domain:0>8}:{rest}".upper() if board.switches else "FFFFFFFF:FF:FF.0"
    unused = {"e": 3, "s": "Not Supported"}
    return {
        "link": k,
        "state": {"v": 0 if down else 1},
        "version": unused if down else {"v": board.link_version},
        "speed_mbps": {"v": 0 if down else board.link_mbps},
        "remote_type": unused if down else {"v": 2},
        "remote_pci": unused if down else {"v": remote},
        "errors": {name: unused if down else {"v": 0} for name in board.counters},
    }
