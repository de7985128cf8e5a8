"""What each rank knows of its node, and the layout that these make together."""

from __future__ import annotations

from msgspec import Struct, structs

from epctl.core.context import Context
from epctl.core.errors import EpctlError
from epctl.core.fact import Unreadable, value_or
from epctl.core.op import Adapter, Layout, Tier
from epctl.core.snapshot import Snapshot
from epctl.core.views import nics


class NodeFacts(Struct, frozen=True):
    """Of the node that a rank runs on. What could not be read is empty or 0: a header then leaves it out."""

    host: str
    num_gpus: int = 0
    gpu_name: str = ""
    num_links_per_gpu: int = 0
    """Active NVLinks of the GPU that has the fewest."""
    link_gbs: float = 0.0
    adapters: tuple[Adapter, ...] = ()
    nccl_version: str = ""
    driver_version: str = ""


def live() -> NodeFacts:
    """Of this node, without active probes."""
    from epctl.probes import load

    return of_snapshot(load.live(active=False))


def of_snapshot(node: Snapshot) -> NodeFacts:
    """The same out of a snapshot."""
    gpus = value_or(node.gpu.gpus, ())
    links = [[link for link in value_or(gpu.links, ()) if link.active is True] for gpu in gpus]
    speeds = [value_or(link.speed_gbs, 0.0) for active in links for link in active]
    return NodeFacts(
        host=value_or(node.host.hostname, ""),
        num_gpus=len(gpus),
        gpu_name=value_or(gpus[0].name, "") if gpus else "",
        num_links_per_gpu=min((len(active) for active in links), default=0),
        link_gbs=min(speeds, default=0.0),
        adapters=_adapters(node),
        driver_version=value_or(node.gpu.driver.version, ""),
    )


def _adapters(node: Snapshot) -> tuple[Adapter, ...]:
    """Active ports of the fabric; each is a rail of its own, in the order of their names, as cabled by convention."""
    try:
        found = [nic for nic in nics.fabric(Context(node)) if nic.active]
    except Unreadable:
        return ()
    return tuple(
        Adapter(nic.label, rail, value_or(nics.nominal_gbps(nic, node), 0.0)) for rail, nic in enumerate(found)
    )


def layout_of(facts: list[NodeFacts], tier: Tier, *, scale_up: int, num_gpus: int) -> Layout:
    """The layout of ranks that told `facts`, in their order. Raises EpctlError when the ranks are not spread evenly, or nodes differ
    in what a figure depends on."""
    hosts = tuple(dict.fromkeys(one.host for one in facts))
    counts = {host: sum(one.host == host for one in facts) for host in hosts}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{host}: {count}" for host, count in counts.items())
        raise EpctlError("the nodes have different numbers of ranks", told, "start as many ranks on each node")
    if scale_up < 1 or len(facts) % scale_up:
        raise EpctlError(
            f"{len(facts)} ranks make no domains of {scale_up}",
            "a load/store domain that is cut leaves ranks over",
            "start a multiple of that",
        )
    for field in ("gpu_name", "num_links_per_gpu", "driver_version"):
        values = {str(getattr(one, field)): one.host for one in facts}
        if len(values) > 1:
            told = ", ".join(f"{host}: {value}" for value, host in values.items())
            raise EpctlError(f"the nodes differ in {field.replace('_', ' ')}", told, "run on nodes that are alike")
    first = facts[0]
    return Layout(
        hosts=hosts,
        num_ranks=len(facts),
        ranks_per_node=len(facts) // len(hosts),
        num_gpus=num_gpus,
        scale_out=len(facts) // scale_up,
        scale_up=scale_up,
        tier=tier,
        gpu_name=first.gpu_name if tier == "gpu" else "",
        num_links_per_gpu=first.num_links_per_gpu if tier == "gpu" else 0,
        link_gbs=first.link_gbs if tier == "gpu" else 0.0,
        adapters=first.adapters,
        nccl_version=first.nccl_version,
        driver_version=first.driver_version,
    )


def with_nccl(facts: NodeFacts, version: str) -> NodeFacts:
    """`facts` with the version of NCCL that this process loaded."""
    return structs.replace(facts, nccl_version=version)
