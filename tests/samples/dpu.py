"""The front end of an HGX machine: a BlueField-3 with one of its two ports in use."""

from __future__ import annotations

from tests.samples import hgx
from tests.samples.cards import Card
from tests.samples.network import Interface

_BOARD, _FIRMWARE, _NUMBER = "MT_0000000884", "32.43.2566", 41692
NAMES = ("ens21f0np0", "ens21f1np1")


def ports(address: str, guid: str) -> tuple[Card, Card]:
    """RDMA devices mlx5_8 (200 Gb/s Ethernet, active) and mlx5_9 (no cable). `guid`: of the first port."""
    first = Card(
        "mlx5_8",
        hgx.DPU[0],
        hgx.place(hgx.DPU[0]),
        1,
        _NUMBER,
        _BOARD,
        _FIRMWARE,
        guid,
        layer="Ethernet",
        rate="200 Gb/sec (2X NDR)",
        lanes=2,
        mtu=1024,
        netdev=NAMES[0],
        address=address,
        busy=40112931,
    )
    second = Card(
        "mlx5_9",
        hgx.DPU[1],
        hgx.place(hgx.DPU[1]),
        1,
        _NUMBER,
        _BOARD,
        _FIRMWARE,
        f"{guid[:-4]}{int(guid[-4:], 16) + 1:04x}",
        layer="Ethernet",
        rate="40 Gb/sec (4X QDR)",
        lane_gbps=25.0,
        mtu=1024,
        up=False,
        netdev=NAMES[1],
    )
    return first, second


def interfaces(address: str, mac: str) -> tuple[Interface, Interface]:
    """Their interfaces; the first one has the default route. `mac`: its six bytes."""
    net = address.rpartition(".")[0]
    first = Interface(
        NAMES[0],
        mac,
        speed=200000,
        place=hgx.place(hgx.DPU[0]),
        addresses=(f"{address}/24",),
        gateway=f"{net}.1",
        pfc=(),
    )
    second = Interface(
        NAMES[1], f"{mac[:-2]}{int(mac[-2:], 16) + 1:02x}", place=hgx.place(hgx.DPU[1]), up=False, pfc=()
    )
    return first, second
