"""RDMA devices and ports, network interfaces, and the user-space libraries that drive them."""

from __future__ import annotations

import re
from typing import Any

from msgspec import structs

from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot.rdma import NetDev, RdmaArea, RdmaDevice
from epctl.probes import pfc, rdma_firmware, rdma_tools, rdma_tree, verbs_libs, verbs_query
from epctl.probes.netdev import netdevs
from epctl.probes.rdma_tools import Texts, reading
from epctl.probes.readers import fi_info, ibstat, ibv_devinfo, rdma_link, show_gids
from epctl.probes.source import Output, Source
from epctl.probes.sysfs import integer, names_or_none, word
from epctl.probes.together import together

_OFED = re.compile(r"[\w.+-]{0,80}OFED[\w.+-]{0,80}", re.ASCII | re.I)
PCI = "/sys/bus/pci/devices"
_MAX_NOTES = 40
NO_BOND = Absent("not_found", "no bond over this card's ports is in this network namespace")


def rdma(source: Source) -> RdmaArea:
    """The network side of the node. Never raises; what cannot be had is an Absent that says why."""
    found = together(
        {
            "devices": lambda: rdma_tree.devices(source),
            "netdevs": lambda: netdevs(source),
            "ibv_devinfo": lambda: reading(ibv_devinfo, source.run("ibv_devinfo", "-v", timeout_s=8.0)),
            "ibstat": lambda: reading(ibstat, source.run("ibstat")),
            "fi_info": lambda: _fi_devices(source.run("fi_info", "-p", "efa")),
            "data_direct": lambda: _data_direct(source),
            "ofed": lambda: _ofed(source.run("ofed_info", "-s")),
            "libraries": lambda: verbs_libs.look(source),
        },
    )
    texts = Texts(found["ibv_devinfo"], found["ibstat"])
    texts = structs.replace(texts, query=_query(source, found["devices"], texts))
    interfaces, notes = found["netdevs"] if isinstance(found["netdevs"], tuple) else (found["netdevs"], ())
    devices, further = _devices(source, found["devices"], texts)
    interfaces = pfc.with_pfc(source, interfaces, devices)
    devices = _with_bonds(devices, interfaces)
    if isinstance(devices, tuple) and devices:
        devices = rdma_firmware.with_settings(source, devices)
    seen = found["libraries"] if isinstance(found["libraries"], verbs_libs.Userspace) else verbs_libs.Userspace()
    return RdmaArea(
        devices=devices,
        netdevs=interfaces,
        uverbs=seen.uverbs,
        libraries=seen.libraries,
        providers=seen.providers,
        ibstat=rdma_tools.status(texts.stat),
        ibstat_devices=rdma_tools.device_names(texts.stat, "ibstat"),
        ibv_devices=rdma_tools.device_names(texts.verbs, "ibv_devinfo"),
        ofed_version=found["ofed"],
        efa_driver_version=_efa_version(source),
        fi_efa_devices=found["fi_info"],
        notes=tuple(dict.fromkeys((*further, *notes, *seen.notes)))[:_MAX_NOTES],
        data_direct_functions=found["data_direct"],
    )


def _query(source: Source, shown: Fact[tuple[RdmaDevice, ...]], texts: Texts) -> Fact[tuple[RdmaDevice, ...]]:
    """What the verbs library tells itself. It is asked only for what `ibv_devinfo -v` leaves out: it opens each device again."""
    told = () if isinstance(texts.verbs, Absent) else texts.verbs.facts.devices
    whole = {device.name for device in told if device.atomic_cap is not None and device.max_qp is not None}
    wanted = {device.name for device in shown} if isinstance(shown, tuple) else set(rdma_tools.mentioned(texts))
    if wanted <= whole and (isinstance(shown, tuple) or whole):
        return NOT_READ
    return verbs_query.devices(source)


def _devices(
    source: Source, shown: Fact[tuple[RdmaDevice, ...]], texts: Texts
) -> tuple[Fact[tuple[RdmaDevice, ...]], tuple[str, ...]]:
    """The devices of sysfs, completed from the tools; where sysfs could not be read, those that the tools list."""
    if isinstance(shown, Absent):
        texts = structs.replace(
            texts,
            links=reading(rdma_link, source.run("rdma", "link")),
            gids=reading(show_gids, source.run("show_gids")),
        )
    names = rdma_tools.mentioned(texts)
    own = {device.name: device for device in shown} if isinstance(shown, tuple) else {}
    notes = [
        f"{name}: a tool lists it, sysfs does not show it"
        for name in names
        if isinstance(shown, tuple) and name not in own
    ]
    if isinstance(shown, Absent) and not names:
        return _none_listed(texts) or shown, ()
    done: list[RdmaDevice] = []
    for name in dict.fromkeys((*own, *names)):
        others = rdma_tools.sources(name, texts)
        device = own.get(name) or RdmaDevice(name)
        notes.extend(rdma_tools.differences(device, others) if name in own else ())
        done.append(_explained(rdma_tools.fill(device, others), texts))
    return tuple(done), tuple(notes)


def _none_listed(texts: Texts) -> tuple[RdmaDevice, ...] | None:
    """() when both tools say that there is no device; the verbs library alone says it when a provider is missing, too."""
    verbs, stat = rdma_tools.device_names(texts.verbs, "ibv_devinfo"), rdma_tools.device_names(texts.stat, "ibstat")
    return () if verbs == () and stat == () else None


def _explained(device: RdmaDevice, texts: Texts) -> RdmaDevice:
    """Says why the values that only the verbs library tells are absent."""
    why = _why(device.name, texts)
    ports = device.ports
    if isinstance(ports, tuple):
        ports = tuple(_replace_unread(port, ("active_mtu", "max_mtu"), why) for port in ports)
    device = _replace_unread(device, ("atomic_cap", "max_qp", "max_qp_rd_atom"), why)
    return structs.replace(device, ports=ports)


def _why(name: str, texts: Texts) -> Absent:
    """The reason of ibv_devinfo; where it is not installed, that of the verbs library when it was asked."""
    tool = rdma_tools.trouble(texts.verbs, "ibv_devinfo")
    if isinstance(texts.query, Absent):
        own: Fact[str] = texts.query
    else:
        listed = (device.atomic_cap for device in texts.query if device.name == name)
        own = next(listed, Absent("not_found", f"libibverbs does not list {name}"))
    if tool.absent != "tool_missing" or not isinstance(own, Absent) or own.absent in ("not_read", "tool_missing"):
        return tool
    return own


def _replace_unread(thing: Any, fields: tuple[str, ...], why: Absent) -> Any:  # noqa: ANN401 - a struct of facts
    return structs.replace(thing, **{name: why for name in fields if getattr(thing, name) == NOT_READ})


def _with_bonds(
    devices: Fact[tuple[RdmaDevice, ...]], interfaces: Fact[tuple[NetDev, ...]]
) -> Fact[tuple[RdmaDevice, ...]]:
    if isinstance(devices, Absent) or isinstance(interfaces, Absent):
        return devices
    by_name = {entry.name: entry for entry in interfaces}
    devices = tuple(_replace_unread(device, ("num_lag_ports",), NO_BOND) for device in devices)
    return tuple(_with_bond(device, devices, by_name) for device in devices)


def _with_bond(device: RdmaDevice, devices: tuple[RdmaDevice, ...], by_name: dict[str, NetDev]) -> RdmaDevice:
    """`num_lag_ports` of a device whose GIDs belong to a bond, and that bond among its interfaces.

    mlx5 makes one RDMA device of the bonded ports of one card; the ports' own devices are then gone. Members of the bond that
    sit on the card's PCI functions, and have no RDMA device of their own, are its LAG ports.
    """
    own = device.netdevs if isinstance(device.netdevs, tuple) else ()
    bond = next((entry for entry in by_name.values() if _carries(entry, device, own)), None)
    if bond is None or not isinstance(device.pci, str):
        return device
    others = {other.pci for other in devices if other.name != device.name}
    card = device.pci.rpartition(".")[0]
    members = bond.bond_members if isinstance(bond.bond_members, tuple) else ()
    places = {by_name[name].pci for name in members if name in by_name}
    ports = [pci for pci in places if isinstance(pci, str) and pci.rpartition(".")[0] == card and pci not in others]
    if len(ports) < 2 and "bond" not in device.name:
        return device
    return structs.replace(device, num_lag_ports=len(ports) or NO_BOND, netdevs=tuple(dict.fromkeys((*own, bond.name))))


def _carries(entry: NetDev, device: RdmaDevice, own: tuple[str, ...]) -> bool:
    """The bond has a member of this device, and its GIDs name it or the device is named after it."""
    if entry.kind != "bond" or not isinstance(entry.bond_members, tuple) or not set(entry.bond_members) & set(own):
        return False
    ports = device.ports if isinstance(device.ports, tuple) else ()
    return "bond" in device.name or any(
        gid.netdev == entry.name for port in ports if isinstance(port.gids, tuple) for gid in port.gids
    )


def _data_direct(source: Source) -> Fact[int]:
    """PCI functions 15b3:2100: the kernel's mlx5 driver binds its data-direct part to this id."""
    listed = names_or_none(source, PCI, "/sys/bus")
    if isinstance(listed, Absent):
        return listed
    found = (name for name in listed[:20_000] if integer(source, f"{PCI}/{name}/device") == 0x2100)
    return sum(integer(source, f"{PCI}/{name}/vendor") == 0x15B3 for name in found)


def _ofed(found: Output | Absent) -> Fact[str]:
    if isinstance(found, Absent):
        return found
    said = found.raw[:4096].decode("utf-8", "replace")
    match = _OFED.search(said)
    return (
        match.group().rstrip(".:-")
        if match
        else Absent("unparsable", "ofed_info -s names no version", said.strip()[:80])
    )


def _efa_version(source: Source) -> Fact[str]:
    found = word(source, "/sys/module/efa/version")
    if (
        isinstance(found, Absent)
        and found.absent == "not_found"
        and isinstance(source.entries("/sys/module/efa"), tuple)
    ):
        return Absent("unsupported", "the loaded efa module tells no version (it came with the kernel)")
    return found


def _fi_devices(found: Output | Absent) -> Fact[int]:
    """Distinct devices of `fi_info -p efa`; 0 when libfabric says that it has no data."""
    if isinstance(found, Absent):
        return found
    read = fi_info.read(found.raw)
    if read.status == "error" and (read.error or {}).get("kind") != "no_devices":
        return rdma_tools.trouble(read, "fi_info")
    if read.status == "empty":
        return Absent("unparsable", "fi_info printed nothing")
    return int(read.facts.n_devices)
