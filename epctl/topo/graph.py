"""The graph: nodes that hang in a tree (host, NUMA node, PCIe bridges, devices), links between them, and what sources say that differs."""

from __future__ import annotations

from typing import Literal, Union

from msgspec import UNSET, Struct, UnsetType, field

SCHEMA_NAME = "epctl.topo"
SCHEMA_VERSION = 1
SCHEMA: dict[str, str | int] = {"name": SCHEMA_NAME, "version": SCHEMA_VERSION}

NodeKind = Literal[
    "host",
    "numa",
    "host_bridge",  # PCI root complex: pci0000:15
    "root_port",
    "pcie_switch",  # upstream port of a switch, or a switch that a topology file tells as one bridge
    "pcie_port",  # downstream port of a switch
    "gpu",
    "nic",  # one RDMA (or network) device
    "port",
    "nvlink_domain",
    "nvswitch",
    "rail",
    "switch",  # of the scale-out network, or of a scheduler's tree
    "block",  # nodes that a scheduler takes for one NVLink domain
]
EdgeKind = Literal["pcie", "nvlink", "c2c", "rail", "network", "member"]
Scalar = Union[str, int, float, bool]


class Node(Struct, frozen=True, omit_defaults=True):
    """One thing. `parent` is the id of what it hangs on, '' at the top. What is not known is not among `attrs`."""

    id: str
    kind: NodeKind
    label: str
    parent: str = ""
    source: str = ""
    """Who told of it: NVML, sysfs, NCCL XML, nvidia-smi topo -m, ibnetdiscover, Slurm."""
    attrs: dict[str, Scalar] = field(default_factory=dict)


class Edge(Struct, frozen=True, omit_defaults=True):
    """Links between two nodes that do the same. `pcie` edges go from the device (`a`) up to what it hangs on (`b`)."""

    a: str
    b: str
    kind: EdgeKind
    source: str
    gbs: float | UnsetType = UNSET
    """All links together, one direction, 1e9 bytes/s; left out where it is not known."""
    num_links: int = 1
    detail: str = ""
    measured_up_gbs: float | UnsetType = UNSET
    """From `a` to `b`, of a bench run: best pair of GPUs that takes this link and no other one at its end. `source` then tells of it."""
    measured_down_gbs: float | UnsetType = UNSET
    """From `b` to `a`."""


class Measured(Struct, frozen=True, omit_defaults=True):
    """What a bench run moved from one GPU (`a`) to another (`b`) over NVLink while nothing else did: the best of its one-way cases."""

    a: str
    b: str
    gbs: float
    by: Literal["SMs", "copy engine"]
    case: str
    """Of `epctl bench link`."""
    source: str
    """Name of the record."""
    nominal_gbs: float | UnsetType = UNSET
    """All links between the two, one direction, by the other sources; left out where they do not tell."""


class Distance(Struct, frozen=True):
    """How far two devices are apart, told as a word (PIX, PXB, PHB, NODE, SYS) by a source that does not tell the tree."""

    a: str
    b: str
    level: str
    source: str


class Finding(Struct, frozen=True):
    """Sources that disagree, or something that a reader should know. `sources`: those concerned."""

    severity: Literal["warn", "note"]
    text: str
    sources: tuple[str, ...] = ()


class Source(Struct, frozen=True, omit_defaults=True):
    """Something the graph was made of. `sample`: packaged example data, not a machine of the user."""

    name: str
    kind: Literal["live", "snapshot", "nccl_xml", "topo_matrix", "ibnetdiscover", "slurm", "graph", "bench"]
    sample: bool = False
    hand_made: bool = False


class Claim(Struct, frozen=True):
    """What one source says about one thing, to be held against what others say. Values compare as text."""

    host: str
    subject: str
    """GPU 0, GPU 0 - mlx5_0"""
    what: str
    """NVLinks, NUMA node, path, Gb/s …"""
    value: str
    source: str


class Part(Struct, frozen=True):
    """What one source gives."""

    source: Source
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    claims: tuple[Claim, ...] = ()
    findings: tuple[Finding, ...] = ()
    distances: tuple[Distance, ...] = ()
    measured: tuple[Measured, ...] = ()


class Graph(Struct, frozen=True):
    """All parts together. Every parent and every end of an edge is among `nodes`, parents make no cycle, no link stands there twice."""

    sources: tuple[Source, ...] = ()
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    findings: tuple[Finding, ...] = ()
    distances: tuple[Distance, ...] = ()
    """Only of machines whose tree no source tells."""
    measured: tuple[Measured, ...] = ()
    """Pairs of GPUs that a bench run timed; one entry a pair, direction and engine."""
