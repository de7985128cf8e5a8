"""Sample `hgx-h200-roce-degraded`: NVLinks down, a slow port, a small MTU, and NUMA balancing."""

from __future__ import annotations

from epctl.probes.source import Output
from tests.samples import cards, dpu, hgx, linux, network, nvidia, nvml, userland
from tests.samples.cards import Card
from tests.samples.network import Interface
from tests.samples.parts import Part, Sample

DRIVER = "580.95.05"
MEMORY = 150754820096
FRONT = "10.60.4.17"
FIRMWARE, BOARD = "28.43.2566", "MT_0000000838"
TRAFFIC_CLASS, LOSSLESS = 106, 3
"""DSCP 26, which switches and hosts map to priority 3."""
BAD_GPU, BAD_LINKS = 5, (4, 5, 12, 13)
SLOW_NIC, SMALL_NIC = 3, 6
_NICS = (0xF57A, 0xBB7C, 0x1D40, 0x60AC, 0x9E02, 0x33D8, 0xC4F6, 0x0A7E)
_RXDET = "NVRM: knvlinkUpdatePostRxDetLinkMask_IMPL: Failed to update Rx Detect Link mask!"


def _name(i: int) -> str:
    return f"enp{0x19 + 0x10 * i}s0np0"


def _cards() -> tuple[Card, ...]:
    fabric = tuple(
        Card(
            f"mlx5_{i}",
            hgx.NICS[i],
            hgx.place(hgx.NICS[i]),
            hgx.socket(i),
            4129,
            BOARD,
            FIRMWARE,
            f"9c63:c003:00f5:{_NICS[i]:04x}",
            layer="Ethernet",
            rate="200 Gb/sec (4X HDR)" if i == SLOW_NIC else "400 Gb/sec (4X NDR)",
            lane_gbps=50.0 if i == SLOW_NIC else 100.0,
            mtu=1024 if i == SMALL_NIC else 4096,
            tclass=TRAFFIC_CLASS,
            netdev=_name(i),
            address=f"10.61.{i}.17",
            busy=2210031877 + 911 * i,
            hw={"np_cnp_sent": 1203 + 7 * i, "rp_cnp_handled": 988 + 11 * i, "out_of_sequence": 12},
        )
        for i in range(hgx.NUM_GPUS)
    )
    return (*fabric, *dpu.ports(FRONT, "9c63:c003:0071:20de"))


def _interfaces() -> tuple[Interface, ...]:
    fabric = tuple(
        Interface(
            _name(i),
            f"9c:63:c0:f5:{_NICS[i] >> 8:02x}:{_NICS[i] & 0xFF:02x}",
            mtu=1500 if i == SMALL_NIC else 9000,
            speed=200000 if i == SLOW_NIC else 400000,
            place=hgx.place(hgx.NICS[i]),
            addresses=(f"10.61.{i}.17/24",),
            pfc=(LOSSLESS,),
        )
        for i in range(hgx.NUM_GPUS)
    )
    return (*dpu.interfaces(FRONT, "9c:63:c0:71:20:de"), *fabric)


def build() -> tuple[Part, ...]:
    """The parts of the node."""
    down = frozenset((BAD_GPU, link) for link in BAD_LINKS)
    board = hgx.board("NVIDIA H200", MEMORY, DRIVER, 0x2B1A77, down)
    driver = nvidia.Driver(
        DRIVER,
        hgx.LIB,
        "Tue Sep 23 10:11:16 UTC 2025",
        fabric_manager=DRIVER,
        log=(*hgx.log(DRIVER), _RXDET),
        log_head=hgx.LOG_HEAD,
    )
    found = _cards()
    names = ",".join(card.name for card in found[: hgx.NUM_GPUS])
    return (
        linux.system(hgx.system("hgx-h200-17", "Dell Inc.", "PowerEdge XE9680", "06/24/2025", numa_balancing=1)),
        hgx.tree("2335", "020000"),
        hgx.topology(),
        nvml.gpus(board),
        nvidia.driver(driver, hgx.NUM_GPUS, ("/dev/gdrdrv", *hgx.SWITCH_DEVICES)),
        cards.cards(found),
        network.network(_interfaces()),
        Part(commands={("ofed_info", "-s"): Output(b"OFED-internal-25.10-1.7.1:\n")}),
        userland.libraries(hgx.LIB, "2.5"),
        userland.kernel_modules(hgx.KERNEL, DRIVER, "2.5.1"),
        userland.python(userland.Python("2.30.7", {}, deep_ep=("deep-ep", "2.1.0"))),
        userland.toolchain("13.1", "13.1.80"),
        userland.environment(
            NCCL_GIN_TYPE="3",
            NCCL_IB_HCA=f"={names}",
            NCCL_IB_QPS_PER_CONNECTION="4",
            NCCL_IB_SPLIT_DATA_ON_QPS="1",
            NCCL_IB_TC=str(TRAFFIC_CLASS),
            NCCL_SOCKET_IFNAME=dpu.NAMES[0],
        ),
        userland.active(board, tuple(card.name for card in found)),
    )


SAMPLE = Sample(
    "HGX H200 with 8 × 400G RoCE: 4 NVLinks of GPU 5 down, mlx5_3 at half rate, mlx5_6 with MTU 1500 (composed)", build
)
