"""The RDMA area: network interfaces, their addresses, and their lossless priorities."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import NetDev, RdmaArea
from epctl.probes.rdma import rdma
from epctl.probes.source import Output
from tests.support.damage import json_values
from tests.support.fake_source import FakeSource
from tests.support.probed_rdma import (
    ADDR,
    DCB,
    IB,
    NET,
    PROC,
    ROUTE,
    absent,
    netdev,
    tree,
)


def test_interfaces_from_sysfs_and_ip() -> None:
    targets = {"/sys/class/net/eth0/device": "/sys/devices/pci0000:00/0000:00:03.0/virtio2"}
    area = rdma(FakeSource(NET, targets=targets, commands={("ip", "-j", "addr"): ADDR, ("ip", "-j", "route"): ROUTE}))
    front = netdev(area, "eth0")
    wanted = NetDev("eth0", True, 9000, 400000, "physical", "0000:00:03.0", ("10.0.0.4/24", "fd00::2/64"), True, ())
    assert msgspec.structs.replace(front, pfc_priorities=wanted.pfc_priorities) == wanted
    lo = netdev(area, "lo")
    assert (lo.up, lo.kind, lo.default_route, lo.addresses) == (True, "virtual", False, ("127.0.0.1/8",))
    assert absent(lo.speed_mbps).absent == "not_found"


def test_interfaces_without_sysfs_come_from_ip() -> None:
    area = rdma(FakeSource(commands={("ip", "-j", "addr"): ADDR, ("ip", "-j", "route"): ROUTE}))
    front = netdev(area, "eth0")
    assert (front.up, front.mtu, front.addresses, front.default_route) == (
        True,
        9000,
        ("10.0.0.4/24", "fd00::2/64"),
        True,
    )
    assert absent(front.speed_mbps).absent == "not_found"


@pytest.mark.parametrize(
    "ip", ["", 'Option "-j" is unknown, try "ip -help".\n', None], ids=["nothing", "no -j", "missing"]
)
def test_without_ip_the_tables_of_the_kernel_count(ip: str | None) -> None:
    commands: dict[tuple[str, ...], str | bytes | Output | Absent] = (
        {} if ip is None else {("ip", "-j", what): Output(b"", ip.encode(), 255) for what in ("addr", "route")}
    )
    for files in (PROC, {**PROC, **NET}):
        area = rdma(FakeSource(files, commands=commands))
        front, lo = netdev(area, "eth0"), netdev(area, "lo")
        assert (front.addresses, front.default_route) == (("192.0.2.2/24", "fd00::2/64"), True)
        assert (lo.addresses, lo.default_route) == (("127.0.0.1/8", "::1/128"), False)


def test_another_namespace_in_sys_is_noted() -> None:
    area = rdma(FakeSource(NET | {"/sys/class/net/eth0/mtu": "1500"}, commands={("ip", "-j", "addr"): ADDR}))
    assert any("another network namespace" in note for note in area.notes)


QOS = """DCBX mode: OS controlled
Priority trust state: dscp
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   1   0
\tbuffer      0   0   0   1   0   0   0   0
"""
NO_DCB = Output(b"", b"Attribute not found: Operation not supported\n", 1)


@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ({DCB: json.dumps({"pfc_cap": 8, "prio_pfc": [False, False, False, True, False, False, False, False]})}, (3,)),
        ({DCB: json.dumps({"pfc_cap": 8, "prio_pfc": [False] * 8})}, ()),
        ({DCB: json.dumps({"prio_pfc": [1] * 8})}, "unparsable"),
        ({DCB: NO_DCB}, "unsupported"),
        ({DCB: NO_DCB, ("mlnx_qos", "-i", "ens3f0np0"): QOS}, (3, 6)),
        ({("mlnx_qos", "-i", "ens3f0np0"): "Netlink error"}, "unparsable"),
        ({}, "tool_missing"),
    ],
)
def test_lossless_priorities_of_roce_interfaces(
    commands: dict[tuple[str, ...], Any], wanted: tuple[int, ...] | str
) -> None:
    files, targets = tree("roce_gid_table.txt")
    files |= {f"{IB}/mlx5_2/device/net/ens3f0np0/mtu": "9000", "/sys/class/net/ens3f0np0/mtu": "9000", **NET}
    targets["/sys/class/net/ens3f0np0/device"] = "/sys/devices/pci0000:15/0000:15:01.0/0000:4b:00.0"
    source = FakeSource(files, targets=targets, commands=commands)
    area = rdma(source)
    found = netdev(area, "ens3f0np0").pfc_priorities
    assert found == wanted if isinstance(wanted, tuple) else absent(found).absent == wanted
    assert absent(netdev(area, "eth0").pfc_priorities).absent == "unsupported"
    assert not any("eth0" in argv for argv in source.asked), "front-end interfaces are not asked"


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_the_json_of_ip_may_hold_anything(value: Any) -> None:  # noqa: ANN401
    said = json.dumps(value)
    area = rdma(FakeSource(NET, commands={("ip", "-j", "addr"): said, ("ip", "-j", "route"): said}))
    assert msgspec.json.decode(msgspec.json.encode(area), type=RdmaArea) == area
