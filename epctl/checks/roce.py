"""RoCE: MTU, GIDs, network namespaces, traffic class."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot.rdma import Gid
from epctl.core.views import gdaki, nics, versions
from epctl.core.views.needs import ROCE
from epctl.core.views.nics import Nic
from epctl.core.views.settings import integer, number, setting, told

PATH_MTU_BYTES = 4096
"""MTU that NCCL sets on GDAKI queues whatever the port has (NCCL 2.30.7, gin_host_gdaki.cc), and the largest of RoCE."""
ROCE_HEADER_BYTES = 96
"""What the kernel takes off an interface's MTU for the headers of RoCE before it rounds down to an MTU of InfiniBand (iboe_get_mtu,
include/rdma/ib_addr.h): 4200 is enough for 4096 bytes."""
FIXED_MTU = "2.31.2"
"""Up to 2.30.7 the constant is there (read in its source); the library of this release has the messages of the fix of July 2026
(NVIDIA/nccl commit b87848f), that of 2.30.7 has not."""
JUMBO_BYTES = 9000
"""What switches of RoCE fabrics carry by custom."""
_INTERFACE = re.compile(r"[\w.@-]{1,15}", re.ASCII)
"""Names of interfaces that may stand in a command (IFNAMSIZ)."""
SELF_CHOOSING = "2.21"
"""From this NCCL on the GID is chosen by itself (NCCL user guide, NCCL_IB_GID_INDEX)."""
INDEX_VARIABLES = ("NCCL_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX")


def roce_ports(context: Context) -> tuple[Nic, ...]:
    """Active RoCE ports of the fabric."""
    return tuple(nic for nic in nics.fabric(context) if nic.is_roce and nic.active)


def _mtu(context: Context, nic: Nic) -> tuple[Fact[int], str]:
    """Active MTU, and the evidence. Where the verbs library did not tell it, it follows from the interface's."""
    active = nic.port.active_mtu
    if isinstance(active, int):
        return active, f"{nic.label}: active MTU {active} (verbs)"
    for entry in nics.netdevs(nic, context.node):
        if isinstance(entry.mtu, int):
            room = entry.mtu - ROCE_HEADER_BYTES
            size = max((size for size in (256, 512, 1024, 2048, 4096) if size <= room), default=0)
            return size, f"{nic.label}: interface {entry.name} has MTU {entry.mtu} (sysfs)"
    return active, f"{nic.label} active MTU"


@check(
    "ROCE-MTU-SMALL",
    area="rdma",
    severity="fail",
    title="The MTU of a RoCE port is below 4096 bytes",
    why="NCCL up to 2.30.7 sets a path MTU of 4096 on GDAKI queues whatever the port has: queues are made without error, then "
    "device code waits for ever for frames that are dropped. Everything else pays with more packets.",
    fix="Use NCCL 2.31.2 or newer, or NCCL_GIN_TYPE=2 where the library allows proxy. For full rate, and for older NCCL: drain the node "
    "(the link goes down for a moment) and raise the MTU of the interface to 4200 or 9000, here, in the network configuration and on the "
    "switches.",
    reference="https://github.com/NVIDIA/nccl/issues/1957 https://github.com/NVIDIA/nccl/issues/2255",
    needs=(ROCE,),
)
def roce_mtu_small(context: Context) -> Iterator[Seen]:
    nccl = value_or(context.node.software.nccl_effective, "")
    asked = gdaki.gdaki(context)
    for nic in roce_ports(context):
        size, text = _mtu(context, nic)
        if isinstance(size, Absent):
            yield unread(text, size)
        elif size >= PATH_MTU_BYTES:
            yield good(text)
        else:
            hangs = asked and nic.device.driver == "mlx5_core"
            severity: Severity = "fail" if hangs and nccl and versions.below(nccl, FIXED_MTU) else "warn"
            why = f"; GIN GDAKI is asked for by {gdaki.because(context)}, NCCL {nccl or 'unknown'}" if hangs else ""
            yield bad(f"{text}{why}", severity=severity, commands=_raise(context, nic))


def _raise(context: Context, nic: Nic) -> tuple[str, ...]:
    """Lines that give the interface the MTU that its sisters with full frames have; none in a container."""
    sizes = [
        entry.mtu
        for other in roce_ports(context)
        for entry in nics.netdevs(other, context.node)
        if isinstance(entry.mtu, int) and entry.mtu - ROCE_HEADER_BYTES >= PATH_MTU_BYTES
    ]
    wanted = Counter(sizes).most_common(1)[0][0] if sizes else JUMBO_BYTES
    entries = nics.netdevs(nic, context.node)
    bonds = [entry for entry in entries if entry.kind == "bond"]
    names = [
        entry.name
        for entry in bonds or entries
        if _INTERFACE.fullmatch(entry.name) and value_or(entry.mtu, 0) - ROCE_HEADER_BYTES < PATH_MTU_BYTES
    ]
    if value_or(context.node.host.container, "none") != "none":
        return ()
    return tuple(f"sudo ip link set dev {shlex.quote(name)} mtu {wanted}" for name in names)


@check(
    "ROCE-MTU-UNEVEN",
    area="rdma",
    severity="warn",
    title="RoCE ports of this node have different MTUs",
    why="Small messages pass, large ones time out between ports whose MTUs differ.",
    fix="Drain the node (the links go down for a moment) and give all fabric interfaces one MTU, here, in the network configuration and "
    "on the switches.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/223",
    needs=(ROCE,),
)
def roce_mtu_uneven(context: Context) -> Iterator[Seen]:
    sizes: dict[int, list[Nic]] = {}
    derived = False
    for nic in roce_ports(context):
        size, what = _mtu(context, nic)
        derived = derived or isinstance(nic.port.active_mtu, Absent)
        sizes.setdefault(known(size, what), []).append(nic)
    listed = {size: ", ".join(nic.label for nic in sizes[size]) for size in sorted(sizes)}
    text = "; ".join(f"active MTU {size}: {labels}" for size, labels in listed.items())
    origin = "verbs, and by the MTU of interfaces" if derived else "verbs"
    small = [nic for size in sorted(sizes)[:-1] for nic in sizes[size]]
    lines = tuple(line for nic in small for line in _raise(context, nic))
    if sizes:
        yield bad(f"{text} ({origin})", commands=lines) if small else good(f"{text} ({origin})")


@check(
    "ROCE-GID-EMPTY",
    area="rdma",
    severity="fail",
    title="A RoCE port has no GID that can be routed",
    why="The port is active, but no connection can be made: its interface has no IP address, or lives in another network "
    "namespace.",
    fix="Give the interface an address; in a pod attach the secondary RDMA network.",
    commands=("ip -br addr", "show_gids"),
    reference="https://github.com/Mellanox/network-operator/issues/222",
    needs=(ROCE,),
)
def roce_gid_empty(context: Context) -> Iterator[Seen]:
    for nic in roce_ports(context):
        kinds = {nics.gid_kind(gid.gid) for gid in nics.gids(nic)} - {"zero"}
        if not kinds:
            yield bad(f"{nic.label}: its GID table is empty (sysfs)")
        elif kinds == {"link_local"}:
            yield _link_local(context, nic)
        else:
            yield good(f"{nic.label}: has a GID of kind {' and '.join(sorted(kinds - {'link_local'}))} (sysfs)")


def _link_local(context: Context, nic: Nic) -> Seen:
    listed = known(context.node.rdma.netdevs, "network interfaces")
    for entry in nics.netdevs(nic, context.node):
        for address in known(entry.addresses, f"addresses of {entry.name}"):
            if "." in address:
                return good(f"{nic.label}: GIDs are link-local, {entry.name} has {address}")
    return bad(f"{nic.label}: all GIDs are link-local, no IPv4 address on its interface ({len(listed)} looked at)")


@check(
    "ROCE-GID-FORCED-WRONG",
    area="rdma",
    severity="fail",
    title="A GID index is forced by a setting",
    why="At a wrong index ibv_modify_qp fails or times out (110), or transfers end with status 12 from the start; the index of "
    "the right entry moves with pods and bonds.",
    fix="Unset NCCL_IB_GID_INDEX with NCCL 2.21 or newer; otherwise choose the RoCE v2 entry of the routable address (often 3).",
    commands=("unset NCCL_IB_GID_INDEX", "show_gids"),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index "
    "https://github.com/NVIDIA/nccl/issues/769 https://github.com/deepseek-ai/DeepEP/issues/268",
    needs=(ROCE,),
)
def roce_gid_forced_wrong(context: Context) -> Iterator[Seen]:
    forced = {name: value for name in INDEX_VARIABLES if (value := setting(context, name)) and integer(value) >= 0}
    ports = roce_ports(context)
    if ports and not forced:
        yield good(f"{' and '.join(INDEX_VARIABLES)} force no index")
    for name, value in forced.items():
        wrong = 0
        for nic in ports:
            fault = _fault(nic, integer(value))
            wrong += bool(fault)
            if fault:
                yield bad(
                    f"{told(context, name)}: {nic.label} {fault} (sysfs)", commands=(f"unset {name}", "show_gids")
                )
        if ports and not wrong:
            yield _needless(context, name)


def _fault(nic: Nic, index: int) -> str:
    """What is wrong with the GID at an index; '' when it serves. Raises Unreadable."""
    entry = next((gid for gid in nics.gids(nic) if gid.index == index), None)
    if entry is None or nics.gid_kind(entry.gid) == "zero":
        return f"has no GID {index}"
    if nics.gid_kind(entry.gid) == "link_local":
        return f"has a link-local address at GID {index}: {entry.gid}"
    kind = known(entry.type, f"{nic.label} type of GID {index}")
    return "" if kind == "RoCE v2" else f"has a {kind} entry at GID {index}"


def _needless(context: Context, name: str) -> Seen:
    text = f"{told(context, name)} points to a routable RoCE v2 entry on every port"
    nccl = value_or(context.node.software.nccl_effective, "")
    if name == "NCCL_IB_GID_INDEX" and nccl and versions.below(nccl, SELF_CHOOSING) is False:
        return bad(f"{text}; NCCL {nccl} finds it by itself", severity="info", fix="Unset NCCL_IB_GID_INDEX.")
    return good(text)


def _v2(gid: Gid, nic: Nic) -> bool:
    return known(gid.type, f"{nic.label} type of GID {gid.index}") == "RoCE v2"


@check(
    "ROCE-GID-V6-ONLY",
    area="rdma",
    severity="fail",
    title="A RoCE port has IPv6 GIDs only, and NCCL looks for IPv4",
    why="NCCL finds no IPv4 entry and takes index 0, a link-local address that is not routed: every operation times out "
    "(status 12).",
    fix="Set NCCL_IB_ADDR_FAMILY=AF_INET6, or force the index of the global address.",
    commands=("export NCCL_IB_ADDR_FAMILY=AF_INET6",),
    reference="https://github.com/uccl-project/uccl/issues/803 "
    "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/connect.cc",
    needs=(ROCE,),
)
def roce_gid_v6_only(context: Context) -> Iterator[Seen]:
    index = number(context, "NCCL_IB_GID_INDEX")
    family = setting(context, "NCCL_IB_ADDR_FAMILY") or "AF_INET"
    told_how = "" if index is None or index < 0 else told(context, "NCCL_IB_GID_INDEX")
    if family.upper() == "AF_INET6":
        told_how = told(context, "NCCL_IB_ADDR_FAMILY")
    for nic in roce_ports(context):
        kinds = {nics.gid_kind(gid.gid) for gid in nics.gids(nic) if _v2(gid, nic)}
        if "ipv4" in kinds:
            yield good(f"{nic.label}: has a RoCE v2 GID for IPv4 (sysfs)")
        elif "global" not in kinds:
            continue  # nothing that can be routed at all: ROCE-GID-EMPTY
        elif told_how:
            yield good(f"{nic.label}: RoCE v2 GIDs are IPv6, {told_how}")
        else:
            yield bad(f"{nic.label}: RoCE v2 GIDs are IPv6 alone (sysfs); NCCL_IB_ADDR_FAMILY is {family}")


@check(
    "NIC-OTHER-NETNS",
    area="rdma",
    severity="fail",
    title="The interface of an RDMA adapter is not in this network namespace",
    why="All adapters of the host are visible through /dev/infiniband, but a queue pair on one whose interface is elsewhere "
    "fails with `no such device`.",
    fix="Name only adapters with GIDs in NCCL_IB_HCA, use the host network, or, on a drained node, the exclusive "
    "RDMA namespace mode (`rdma system set netns exclusive`).",
    reference="https://github.com/NVIDIA/nccl/issues/925 https://github.com/microsoft/mscclpp/issues/431",
    needs=(ROCE,),
)
def nic_other_netns(context: Context) -> Iterator[Seen]:
    for nic in roce_ports(context):
        names = nic.device.netdevs
        gids = value_or(nic.port.gids, ())
        owner = next((gid.netdev for gid in gids if isinstance(gid.netdev, str) and gid.netdev), "")
        if isinstance(names, Absent):
            yield unread(f"{nic.label} interfaces", names)
        elif names:
            yield good(f"{nic.label}: interface {', '.join(names)} is in this namespace (sysfs)")
        elif owner:
            yield good(f"{nic.label}: its GIDs belong to {owner} (sysfs)")
        else:
            yield bad(f"{nic.label}: no interface of it is in this network namespace (sysfs)")
