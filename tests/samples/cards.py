"""RDMA adapters: their tree in sysfs, and what ibv_devinfo, ibstat and mlxconfig print of them."""

from __future__ import annotations

from msgspec import Struct

from epctl.core.fact import Absent
from epctl.probes.rdma_firmware import PARAMETERS
from epctl.probes.source import Output
from tests.samples import verbs_text
from tests.samples.parts import Argv, Part

IB = "/sys/class/infiniband"
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
_ROWS = 255
"""Rows of the GID table of mlx5."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COUNTERS = _names(
    """
    VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery
    local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors
    port_rcv_data port_rcv_errors port_rcv_packets port_rcv_remote_physical_errors
    port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards
    port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets
    """
)
MLX5_COUNTERS = _names(
    """
    duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets
    out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error
    req_remote_access_errors req_remote_invalid_request resp_cqe_error resp_cqe_flush_error
    resp_local_length_error resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans
    roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled
    rp_cnp_ignored rx_atomic_requests rx_icrc_encapsulated rx_read_requests rx_write_requests
    """
)
EFA_COUNTERS = _names(
    """
    rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err rdma_read_wrs rdma_write_bytes
    rdma_write_recv_bytes rdma_write_wr_err rdma_write_wrs recv_bytes recv_wrs rx_bytes rx_drops rx_pkts
    send_bytes send_wrs tx_bytes tx_pkts
    """
)


class Card(Struct, frozen=True):
    """One RDMA device with one port. `rate`: text of sysfs; `lanes` and `lane_gbps` are what ibv_devinfo prints of it."""

    name: str
    pci: str
    place: str
    """Real path of its PCI function."""
    numa: int
    part_id: int
    board: str = ""
    firmware: str = "0.0.0.0"  # noqa: S104 - a version
    guid: str = "0000:0000:0000:0000"
    driver: str = "mlx5_core"
    layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    lanes: int = 4
    lane_gbps: float = 100.0
    lid: int = 0
    sm_lid: int = 0
    mtu: int = 4096
    up: bool = True
    tclass: int = 0
    netdev: str = ""
    address: str = ""
    """IPv4 address of the interface, for RoCE's GIDs."""
    busy: int = 0
    """Packets that the port has sent and received so far."""
    hw: dict[str, int] = {}

    @property
    def gids(self) -> tuple[tuple[str, str], ...]:
        """(GID, type) of the first rows."""
        if self.driver == "efa":
            return ((f"fe80:0000:0000:0000:{self.guid}", ""),)
        if self.layer == "InfiniBand":
            return ((f"fe80:0000:0000:0000:{self.guid}", "IB/RoCE v1"),)
        a, _, b, c = self.guid.split(":")
        found = [f"fe80:0000:0000:0000:{int(a, 16) ^ 0x0200:04x}:{b[:2]}ff:fe{b[2:]}:{c}"]
        if self.address:
            digits = "".join(f"{int(part):02x}" for part in self.address.split("."))
            found.append(f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}")
        return tuple((gid, kind) for gid in found for kind in ("IB/RoCE v1", "RoCE v2"))


def cards(found: tuple[Card, ...], *, atomic_mode: int = 4, has_ibstat: bool = True) -> Part:
    """The adapters. Tools list them in the order of their names, as readdir of sysfs is sorted by libibverbs and ibstat."""
    files: dict[str, str | bytes | Absent] = {}
    targets: dict[str, str | Absent] = {}
    folders: dict[str, tuple[str, ...]] = {}
    commands: dict[Argv, str | Output] = {}
    for card in found:
        root = f"{IB}/{card.name}"
        files |= {f"{root}/{name}": content for name, content in (_device(card) | _port(card)).items()}
        targets[f"{root}/device"] = card.place
        targets[f"{root}/device/driver"] = f"/sys/bus/pci/drivers/{card.driver}"
        folders[f"{root}/ports/1/gids"] = tuple(str(i) for i in range(1 if card.driver == "efa" else _ROWS))
        if card.netdev:
            folders[f"{root}/device/net"] = (card.netdev,)
        if card.driver == "mlx5_core":
            commands[("mlxconfig", "-d", card.pci, "-e", "q", *PARAMETERS)] = verbs_text.mlxconfig(card, atomic_mode)
    named = sorted(found, key=lambda card: card.name)
    commands[("ibv_devinfo", "-v")] = "".join(map(verbs_text.ibv_devinfo, named))
    if has_ibstat:
        commands[("ibstat",)] = "".join(verbs_text.ibstat(card) for card in named if card.driver != "efa")
    devices = tuple(f"/dev/infiniband/uverbs{i}" for i in range(len(found)))
    return Part(files, targets, folders, commands, {}, ("/dev/infiniband/rdma_cm", *devices))


def _device(card: Card) -> dict[str, str | bytes | Absent]:
    found: dict[str, str | bytes | Absent] = {
        "fw_ver": card.firmware + "\n",
        "node_guid": card.guid + "\n",
        "sys_image_guid": card.guid + "\n",
        "node_type": "7: unspecified\n" if card.driver == "efa" else "1: CA\n",
        "device/numa_node": f"{card.numa}\n",
        "device/vendor": "0x1d0f\n" if card.driver == "efa" else "0x15b3\n",
        "device/device": f"0x{card.part_id:04x}\n",
    }
    if card.board:
        found |= {"board_id": card.board + "\n", "hca_type": f"MT{card.part_id}\n"}
    if card.driver == "mlx5_core":
        found["tc/1/traffic_class"] = f"Global tclass={card.tclass}\n" if card.tclass else ""
    return found


def _port(card: Card) -> dict[str, str | bytes | Absent]:
    packets, is_efa = card.busy, card.driver == "efa"
    moved = {
        "port_rcv_packets": packets,
        "port_xmit_packets": packets,
        "unicast_rcv_packets": packets,
        "unicast_xmit_packets": packets,
        "port_rcv_data": packets * 983,
        "port_xmit_data": packets * 979,
        "port_xmit_wait": packets // 4103,
    }
    own = {"rx_write_requests": packets // 2, "rx_read_requests": packets // 9000, **card.hw}
    if is_efa:
        own = {
            "rx_pkts": packets,
            "tx_pkts": packets,
            "rx_bytes": packets * 8200,
            "tx_bytes": packets * 8190,
            **card.hw,
        }
    found: dict[str, str | bytes | Absent] = {
        "state": "4: ACTIVE\n" if card.up else "1: DOWN\n",
        "phys_state": "5: LinkUp\n" if card.up else "3: Disabled\n",
        "rate": card.rate + "\n",
        "link_layer": card.layer + "\n",
        "lid": f"0x{card.lid:x}\n",
        "sm_lid": f"0x{card.sm_lid:x}\n",
        **{f"hw_counters/{name}": f"{own.get(name, 0)}\n" for name in (EFA_COUNTERS if is_efa else MLX5_COUNTERS)},
    }
    if not is_efa:
        found |= {f"counters/{name}": f"{moved.get(name, 0)}\n" for name in COUNTERS}
    for i in range(1 if is_efa else _ROWS):
        found[f"gids/{i}"] = (card.gids[i][0] if i < len(card.gids) else _ZERO) + "\n"
    for i, (_, kind) in enumerate(card.gids):
        if kind:
            found[f"gid_attrs/types/{i}"] = kind + "\n"
            # IPoIB's interface is no owner of the GID: the kernel answers EINVAL for it.
            path = f"gid_attrs/ndevs/{i}"
            no_owner = Absent("failed", f"{IB}/{card.name}/ports/1/{path}: Invalid argument")
            found[path] = f"{card.netdev}\n" if card.layer == "Ethernet" else no_owner
    return {f"ports/1/{name}": content for name, content in found.items()}
