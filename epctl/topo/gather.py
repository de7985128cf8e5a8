"""Several sources, one graph: finds out which of them describe the same machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Union

from msgspec import Struct
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.core.snapshot import Snapshot
from epctl.topo import from_matrix, from_nccl_xml, from_slurm, from_snapshot, from_subnet
from epctl.topo.addresses import guid
from epctl.topo.build import assemble
from epctl.topo.from_matrix import Matrix
from epctl.topo.from_subnet import Adapter, SubnetNode
from epctl.topo.graph import Finding, Graph, Part, Source
from epctl.topo.report import without_rails
from epctl.topo.slurm import Topology
from epctl.topo.tree import Tree
from epctl.topo.xml_tree import Element

Thing = Union[Snapshot, Graph, Element, Matrix, tuple[SubnetNode, ...], Topology]
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)


class Input(Struct, frozen=True):
    """One source. `name`: the file's, for messages and as the name of a machine that has none; `notes`: damage that the reader saw."""

    name: str
    thing: Thing
    notes: tuple[str, ...] = ()


def gather(inputs: Sequence[Input]) -> Graph:
    """Snapshots and saved graphs come first, then files that can be matched with a machine of theirs (topology files, matrices), then
    networks. Raises EpctlError where a machine is described twice by the same kind of source."""
    parts: list[Part] = []
    for entry in sorted(inputs, key=lambda given: _turn(given.thing)):
        for part in _parts(entry, parts):
            findings = tuple(Finding("warn", f"{entry.name}: {note}") for note in entry.notes)
            parts.append(replace(part, findings=(*part.findings, *findings)))
    return assemble(parts)


def _turn(thing: Thing) -> int:
    if isinstance(thing, Snapshot | Graph):
        return 0
    return 1 if isinstance(thing, Element) else 2 if isinstance(thing, Matrix) else 3


def _parts(entry: Input, before: list[Part]) -> list[Part]:
    thing = entry.thing
    if isinstance(thing, Snapshot):
        host = from_snapshot.host_name(thing)
        _once(host, entry.name, before)
        return [from_snapshot.part_of(thing)]
    if isinstance(thing, Graph):
        return [_saved(thing, entry.name, before)]
    tree = Tree(assemble(before))
    if isinstance(thing, Element):
        return _xml(thing, entry.name, tree)
    if isinstance(thing, Matrix):
        return [_matrix(thing, entry.name, tree)]
    if isinstance(thing, Topology):
        return [from_slurm.part_of(thing, entry.name)]
    return [from_subnet.part_of(thing, entry.name, *_adapters(tree))]


def _once(host: str, name: str, before: list[Part]) -> None:
    if any(node.id == host for part in before for node in part.nodes):
        why = f"{name} and an earlier source both describe a machine of that name"
        raise EpctlError(
            f"machine {host} is given twice", why, "give each machine once, or compare them with `epctl topo diff A B`"
        )


def _saved(graph: Graph, name: str, before: list[Part]) -> Part:
    bare = without_rails(graph)
    for node in bare.nodes:
        if node.kind == "host":
            _once(node.id, name, before)
    return Part(Source(name, "graph"), bare.nodes, bare.edges, (), bare.findings, bare.distances, bare.measured)


def machine_name(name: str, tree: Tree) -> str:
    """A name for a machine that a file does not name: the file's, without its ending."""
    stem = _NOT_IN_A_NAME.sub("-", name.rsplit("/", 1)[-1].rsplit(".", 1)[0]).strip("-") or "machine"
    taken = {node.id for node in tree.hosts()}
    names = [stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in names if candidate not in taken)


def _xml(root: Element, name: str, tree: Tree) -> list[Part]:
    parts = []
    hosts = from_nccl_xml.hosts_of(root)
    if not hosts:
        raise EpctlError(
            f"{name} shows nothing", "its <system> has no <cpu>", "give a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    stem = machine_name(name, tree)
    for number, cpus in enumerate(hosts.values(), 1):
        host = _host_with(tree, set(from_nccl_xml.gpu_addresses(cpus)))
        if host:
            indices = {str(gpu.attrs.get("pci")): int(gpu.attrs.get("index", 0)) for gpu in tree.of_kind("gpu", host)}
            known = from_nccl_xml.KnownHost(indices)
            parts.append(from_nccl_xml.part_of(cpus, host, name, known))
        else:
            parts.append(from_nccl_xml.part_of(cpus, stem if len(hosts) == 1 else f"{stem}-{number}", name))
    return parts


def _host_with(tree: Tree, addresses: set[str]) -> str:
    """The one machine whose GPUs are at all of these addresses; '' for none, and for several: machines of one kind have the same."""
    found = [
        host.id
        for host in tree.hosts()
        if addresses and addresses <= {str(gpu.attrs.get("pci", "")) for gpu in tree.of_kind("gpu", host.id)}
    ]
    return found[0] if len(found) == 1 else ""


def _matrix(matrix: Matrix, name: str, tree: Tree) -> Part:
    wanted = set(matrix.nics.values())
    found = [
        host.id
        for host in tree.hosts()
        if len(tree.of_kind("gpu", host.id)) == len(matrix.gpus)
        and wanted <= {nic.label for nic in tree.of_kind("nic", host.id)}
    ]
    if len(found) == 1:
        return from_matrix.part_of(matrix, found[0], name, known=True)
    return from_matrix.part_of(matrix, machine_name(name, tree), name)


def _adapters(tree: Tree) -> tuple[dict[str, Adapter], dict[tuple[str, str], Adapter]]:
    """Adapters that are known, by GUID, and by machine and name."""
    by_guid: dict[str, Adapter] = {}
    by_name: dict[tuple[str, str], Adapter] = {}
    for nic in tree.of_kind("nic"):
        ports = {
            int(port.attrs.get("port", 1)): port.id for port in tree.children.get(nic.id, []) if port.kind == "port"
        }
        host = tree.host(nic.id)
        adapter = Adapter(host, nic.label, nic.id, ports)
        by_name[host, nic.label] = adapter
        if number := guid(str(nic.attrs.get("node_guid", ""))):
            by_guid[number] = adapter
    return by_guid, by_name
