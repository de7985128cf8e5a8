"""Texts of ibv_devinfo -v, ibstat and mlxconfig of one adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.samples.cards import Card

_MTU_CODES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
_WIDTHS = {1: 1, 2: 16, 4: 2}
"""ibv_port_attr.active_width."""
_SPEEDS = {25.0: 32, 50.0: 64, 100.0: 128, 200.0: 256}
"""ibv_port_attr.active_speed."""
_ATOMIC_MODES = {0: "PCI_ATOMIC_DISABLED_EXT_ATOMIC_ENABLED", 4: "PCI_ATOMICS_ENABLED_EXT_ATOMICS_ENABLED"}
_MODELS = {
    4129: ("ConnectX7", "MCX75310AAS-NEA_Ax"),
    4131: ("ConnectX8", "900-9X81E-00EX-ST0_Ax"),
    41692: ("BlueField3", "900-9D3B6-00CV-A_Ax"),
}

_MLX5 = """\tmax_mr_size:\t\t\t0xffffffffffffffff
\tpage_size_cap:\t\t\t0xfffffffffffff000
\tmax_qp:\t\t\t\t131072
\tmax_qp_wr:\t\t\t32768
\tdevice_cap_flags:\t\t0x21361c36
\t\t\t\t\tBAD_PKEY_CNTR
\t\t\t\t\tBAD_QKEY_CNTR
\t\t\t\t\tAUTO_PATH_MIG
\t\t\t\t\tCHANGE_PHY_PORT
\t\t\t\t\tPORT_ACTIVE_EVENT
\t\t\t\t\tSYS_IMAGE_GUID
\t\t\t\t\tRC_RNR_NAK_GEN
\t\t\t\t\tMEM_WINDOW
\t\t\t\t\tXRC
\t\t\t\t\tMEM_MGT_EXTENSIONS
\t\t\t\t\tMEM_WINDOW_TYPE_2B
\t\t\t\t\tRAW_IP_CSUM
\t\t\t\t\tMANAGED_FLOW_STEERING
\tmax_sge:\t\t\t30
\tmax_sge_rd:\t\t\t30
\tmax_cq:\t\t\t\t16777216
\tmax_cqe:\t\t\t4194303
\tmax_mr:\t\t\t\t16777216
\tmax_pd:\t\t\t\t8388608
\tmax_qp_rd_atom:\t\t\t16
\tmax_ee_rd_atom:\t\t\t0
\tmax_res_rd_atom:\t\t2097152
\tmax_qp_init_rd_atom:\t\t16
\tmax_ee_init_rd_atom:\t\t0
\tatomic_cap:\t\t\tATOMIC_HCA (1)
\tmax_ee:\t\t\t\t0
\tmax_rdd:\t\t\t0
\tmax_mw:\t\t\t\t16777216
\tmax_ah:\t\t\t\t2147483647
\tmax_srq:\t\t\t8388608
\tmax_srq_wr:\t\t\t32767
\tmax_srq_sge:\t\t\t31
\tmax_pkeys:\t\t\t128
\tlocal_ca_ack_delay:\t\t16
\tgeneral_odp_caps:
\t\t\t\t\tODP_SUPPORT
\t\t\t\t\tODP_SUPPORT_IMPLICIT
\trc_odp_caps:
\t\t\t\t\tSUPPORT_SEND
\t\t\t\t\tSUPPORT_RECV
\t\t\t\t\tSUPPORT_WRITE
\t\t\t\t\tSUPPORT_READ
\t\t\t\t\tSUPPORT_ATOMIC
\t\t\t\t\tSUPPORT_SRQ
\tuc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tud_odp_caps:
\t\t\t\t\tSUPPORT_SEND
\tcompletion timestamp_mask:\t\t\t0x7fffffffffffffff
\thca_core_clock:\t\t\t1000000kHZ
\ttag matching not supported

\tcq moderation caps:
\t\tmax_cq_count:\t65535
\t\tmax_cq_period:\t4095 us

\tmaximum available device memory:\t131072Bytes

\tnum_comp_vectors:\t\t63
"""
_EFA = """\tmax_mr_size:\t\t\t0x2800000000
\tpage_size_cap:\t\t\t0xfffff000
\tmax_qp:\t\t\t\t1024
\tmax_qp_wr:\t\t\t4096
\tdevice_cap_flags:\t\t0x00000000
\tmax_sge:\t\t\t2
\tmax_sge_rd:\t\t\t1
\tmax_cq:\t\t\t\t2048
\tmax_cqe:\t\t\t32768
\tmax_mr:\t\t\t\t262144
\tmax_pd:\t\t\t\t1024
\tmax_qp_rd_atom:\t\t\t0
\tmax_ee_rd_atom:\t\t\t0
\tmax_res_rd_atom:\t\t0
\tmax_qp_init_rd_atom:\t\t0
\tmax_ee_init_rd_atom:\t\t0
\tatomic_cap:\t\t\tATOMIC_NONE (0)
\tmax_ee:\t\t\t\t0
\tmax_rdd:\t\t\t0
\tmax_mw:\t\t\t\t0
\tmax_ah:\t\t\t\t8192
\tmax_srq:\t\t\t0
\tmax_pkeys:\t\t\t1
\tlocal_ca_ack_delay:\t\t0
\tgeneral_odp_caps:
\trc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tuc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tud_odp_caps:
\t\t\t\t\tNO SUPPORT
\tcompletion_timestamp_mask not supported
\tcore clock not supported
\tnum_comp_vectors:\t\t32
"""


def ibv_devinfo(card: Card) -> str:
    """The block of one device in `ibv_devinfo -v`."""
    is_efa = card.driver == "efa"
    head = (
        f"hca_id:\t{card.name}\n"
        f"\ttransport:\t\t\t{'unspecified (4)' if is_efa else 'InfiniBand (0)'}\n"
        f"\tfw_ver:\t\t\t\t{card.firmware}\n"
        f"\tnode_guid:\t\t\t{card.guid}\n"
        f"\tsys_image_guid:\t\t\t{card.guid}\n"
        f"\tvendor_id:\t\t\t{'0x1d0f' if is_efa else '0x02c9'}\n"
        f"\tvendor_part_id:\t\t\t{card.part_id}\n"
        f"\thw_ver:\t\t\t\t{'0xEFA1' if is_efa else '0x0'}\n"
    )
    board = f"\tboard_id:\t\t\t{card.board}\n" if card.board else ""
    return f"{head}{board}\tphys_port_cnt:\t\t\t1\n{_EFA if is_efa else _MLX5}{_port(card)}\n"


def _port(card: Card) -> str:
    flags = {"InfiniBand": "0xa751e848", "Ethernet": "0x04010000"}.get(card.layer, "0x00000000")
    lanes = {"InfiniBand": "8 (4)", "Ethernet": "invalid value (0)"}.get(card.layer, "1 (1)")
    state = ("PORT_ACTIVE (4)", "LINK_UP (5)") if card.up else ("PORT_DOWN (1)", "DISABLED (3)")
    rows = "".join(_gid(card, i, gid, kind) for i, (gid, kind) in enumerate(card.gids))
    return (
        "\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\t{state[0]}\n"
        "\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tactive_mtu:\t\t{card.mtu} ({_MTU_CODES[card.mtu]})\n"
        f"\t\t\tsm_lid:\t\t\t{card.sm_lid}\n"
        f"\t\t\tport_lid:\t\t{card.lid}\n"
        "\t\t\tport_lmc:\t\t0x00\n"
        f"\t\t\tlink_layer:\t\t{card.layer}\n"
        "\t\t\tmax_msg_sz:\t\t0x40000000\n"
        f"\t\t\tport_cap_flags:\t\t{flags}\n"
        "\t\t\tport_cap_flags2:\t0x0000\n"
        f"\t\t\tmax_vl_num:\t\t{lanes}\n"
        "\t\t\tbad_pkey_cntr:\t\t0x0\n"
        "\t\t\tqkey_viol_cntr:\t\t0x0\n"
        "\t\t\tsm_sl:\t\t\t0\n"
        "\t\t\tpkey_tbl_len:\t\t1\n"
        f"\t\t\tgid_tbl_len:\t\t{1 if card.driver == 'efa' else 255}\n"
        "\t\t\tsubnet_timeout:\t\t0\n"
        "\t\t\tinit_type_reply:\t0\n"
        f"\t\t\tactive_width:\t\t{card.lanes}X ({_WIDTHS[card.lanes]})\n"
        f"\t\t\tactive_speed:\t\t{card.lane_gbps:.1f} Gbps ({_SPEEDS[card.lane_gbps]})\n"
        f"\t\t\tphys_state:\t\t{state[1]}\n{rows}"
    )


def _gid(card: Card, i: int, gid: str, kind: str) -> str:
    also = f", {kind.removeprefix('IB/')}" if card.layer == "Ethernet" else ""
    return f"\t\t\tGID[{i:3}]:\t\t{gid}{also}\n"


def ibstat(card: Card) -> str:
    """The block of one device in `ibstat`."""
    guid = "0x" + card.guid.replace(":", "")
    rate = card.rate.split()[0]
    mask = "0xa751e848" if card.layer == "InfiniBand" else "0x00010000"
    return f"""CA '{card.name}'
\tCA type: MT{card.part_id}
\tNumber of ports: 1
\tFirmware version: {card.firmware}
\tHardware version: 0
\tNode GUID: {guid}
\tSystem image GUID: {guid}
\tPort 1:
\t\tState: {"Active" if card.up else "Down"}
\t\tPhysical state: {"LinkUp" if card.up else "Disabled"}
\t\tRate: {rate}
\t\tBase lid: {card.lid}
\t\tLMC: 0
\t\tSM lid: {card.sm_lid}
\t\tCapability mask: {mask}
\t\tPort GUID: {guid}
\t\tLink layer: {card.layer}
"""


def mlxconfig(card: Card, atomic_mode: int) -> str:
    """`mlxconfig -d PCI -e q PCI_ATOMIC_MODE ADVANCED_PCI_SETTINGS`."""
    model, name = _MODELS[card.part_id]
    atomics = f"{_ATOMIC_MODES[atomic_mode]}({atomic_mode})"
    default = f"{_ATOMIC_MODES[0]}(0)"
    return f"""
Device #1:
----------

Device type:        {model:<20}
Name:               {name:<20}
Description:        NVIDIA {model} adapter
Device:             {card.pci:<20}

Configurations:                                     Default              Current              Next Boot
        PCI_ATOMIC_MODE                             {default:<20} {atomics:<20} {atomics:<20}
        ADVANCED_PCI_SETTINGS                       False(0)             True(1)              True(1)
"""
