"""What tests of the RDMA area read, and how they look at what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import NetDev, RdmaArea, RdmaDevice

READERS = Path(__file__).parent.parent / "data" / "readers"
IB = "/sys/class/infiniband"
ROOT_USER = {"/proc/self/status": "Name:\tpython\nUid:\t0\t0\t0\t0\n"}


def text(name: str) -> str:
    return (READERS / name).read_text()


def tree(fixture: str) -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of a recorded sysfs tree."""
    files: dict[str, str] = {}
    targets: dict[str, str] = {}
    for line in text(f"sysfs_ib/{fixture}").splitlines():
        if " -> " in line:
            path, target = line.split(" -> ")
            targets[path] = f"/sys/devices/pci0000:15/0000:15:01.0/{target.rsplit('/', 1)[1]}"
        elif ":" in line:
            path, value = line.split(":", 1)
            files[path] = value + "\n"
    for path in list(targets):
        targets[f"{path}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
    return files, targets


def device(area: RdmaArea, name: str) -> RdmaDevice:
    assert isinstance(area.devices, tuple)
    return next(entry for entry in area.devices if entry.name == name)


def netdev(area: RdmaArea, name: str) -> NetDev:
    assert isinstance(area.netdevs, tuple)
    return next(entry for entry in area.netdevs if entry.name == name)


def absent(fact: Any) -> Absent:  # noqa: ANN401
    assert isinstance(fact, Absent), fact
    return fact


ADDR = json.dumps(
    [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "operstate": "UNKNOWN", "link_type": "loopback",
         "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "eth0", "flags": ["UP"], "mtu": 9000, "operstate": "UP",
         "addr_info": [{"local": "10.0.0.4", "prefixlen": 24}, {"local": "fd00::2", "prefixlen": 64}, {"local": "x", "prefixlen": 3}, 7]},
    ]
)  # fmt: skip
ROUTE = json.dumps(
    [{"dst": "default", "nexthops": [{"dev": "eth0"}, {"dev": "eth1"}]}, {"dst": "10.0.0.0/24", "dev": "eth2"}]
)
NET = {
    "/sys/class/net/eth0/operstate": "up",
    "/sys/class/net/eth0/mtu": "9000",
    "/sys/class/net/eth0/speed": "400000",
    "/sys/class/net/lo/operstate": "unknown",
    "/sys/class/net/lo/flags": "0x9",
    "/sys/class/net/lo/mtu": "65536",
}
PROC = {
    "/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
    "/proc/net/fib_trie": "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
    "           |-- 127.0.0.1\n              /32 host LOCAL\n           |-- 192.0.2.0\n              /24 link UNICAST\n"
    "           |-- 192.0.2.2\n              /32 host LOCAL\n        |-- 192.0.2.255\n           /32 link BROADCAST\n"
    "Local:\n           |-- 192.0.2.2\n              /32 host LOCAL\n",
    "/proc/net/if_inet6": "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 04 40 00 82     eth0\n",
    "/proc/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  eth0: 12 0\n",
}
DCB = ("dcb", "-j", "pfc", "show", "dev", "ens3f0np0")
