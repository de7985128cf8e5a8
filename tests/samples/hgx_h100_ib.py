"""Sample `hgx-h100-ib`: nothing is wrong with this node."""

from __future__ import annotations

from epctl.probes.source import Output
from tests.samples import cards, dpu, hgx, linux, network, nvidia, nvml, userland
from tests.samples.cards import Card
from tests.samples.network import Interface
from tests.samples.parts import Part, Sample

DRIVER = "580.95.05"
MEMORY = 85520809984
FRONT = "10.40.2.31"
FIRMWARE, BOARD = "28.43.2566", "MT_0000000838"
_GUIDS = ("72ae54", "72d4b0", "955f48", "72cc1c", "955a3c", "72ab90", "72d258", "955e04")
_BUSY = (918233711, 917901124, 918120045, 917455310, 918002267, 917988102, 918334519, 917765340)


def _guid(i: int) -> str:
    return f"9c63:c003:00{_GUIDS[i][:2]}:{_GUIDS[i][2:]}"


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
            _guid(i),
            lid=200 + i,
            sm_lid=1,
            netdev=f"ibp{0x19 + 0x10 * i}s0",
            busy=_BUSY[i],
        )
        for i in range(hgx.NUM_GPUS)
    )
    return (*fabric, *dpu.ports(FRONT, "9c63:c003:00b4:1934"))


def _interfaces() -> tuple[Interface, ...]:
    fabric = tuple(
        Interface(
            f"ibp{0x19 + 0x10 * i}s0",
            f"00:00:10:29:fe:80:00:00:00:00:00:00:9c:63:c0:03:00:{_GUIDS[i][:2]}:{_GUIDS[i][2:4]}:{_GUIDS[i][4:]}",
            mtu=4092,
            speed=400000,
            place=hgx.place(hgx.NICS[i]),
            addresses=(f"10.41.{i}.31/24",),
            kind="infiniband",
        )
        for i in range(hgx.NUM_GPUS)
    )
    return (*dpu.interfaces(FRONT, "9c:63:c0:b4:19:34"), *fabric)


def build() -> tuple[Part, ...]:
    """The parts of the node."""
    board = hgx.board("NVIDIA H100 80GB HBM3", MEMORY, DRIVER, 0x5EED17, frozenset())
    driver = nvidia.Driver(
        DRIVER,
        hgx.LIB,
        "Tue Sep 23 10:11:16 UTC 2025",
        fabric_manager=DRIVER,
        log=hgx.log(DRIVER),
        log_head=hgx.LOG_HEAD,
    )
    found = _cards()
    names = ",".join(card.name for card in found[: hgx.NUM_GPUS])
    return (
        linux.system(hgx.system("hgx-h100-31", "Supermicro", "SYS-821GE-TNHR", "08/14/2025")),
        hgx.tree("2330", "020700"),
        hgx.topology(),
        nvml.gpus(board),
        nvidia.driver(driver, hgx.NUM_GPUS, ("/dev/gdrdrv", *hgx.SWITCH_DEVICES)),
        cards.cards(found),
        network.network(_interfaces()),
        Part(commands={("ofed_info", "-s"): Output(b"OFED-internal-25.10-1.7.1:\n")}),
        userland.libraries(hgx.LIB, "2.5"),
        userland.kernel_modules(hgx.KERNEL, DRIVER, "2.5.1"),
        userland.python(userland.Python("2.32.3", {}, deep_ep=("deepinfer-ep", "2.5.0"))),
        userland.toolchain("13.1", "13.1.80"),
        userland.environment(NCCL_IB_HCA=f"={names}", NCCL_SOCKET_IFNAME=dpu.NAMES[0]),
        userland.active(board, tuple(card.name for card in found)),
    )


SAMPLE = Sample(
    "HGX H100 with 8 × ConnectX-7 NDR InfiniBand and a BlueField-3, bare metal, DeepEP 2.5: healthy (composed)", build
)
