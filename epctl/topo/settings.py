"""Lines for the environment that say which NICs to use."""

from __future__ import annotations

from msgspec import Struct

from epctl.topo.graph import Node
from epctl.topo.pairing import Problem


class Line(Struct, frozen=True):
    """One setting. `value` is what stands behind the `=`; `note`: when to use it; `source`: where its form is documented."""

    name: str
    value: str
    note: str
    source: str


_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_NVSHMEM = "https://docs.nvidia.com/nvshmem/api/gen/env.html"
_UCX = "https://openucx.readthedocs.io/en/master/faq.html"


def lines_of(problem: Problem, chosen: list[tuple[str, str]]) -> tuple[Line, ...]:
    """Settings for adapters that speak verbs. With EFA, aws-ofi-nccl goes by the tree, and lists of HCAs are for other adapters; a NIC
    that is known by its address alone cannot be named."""
    nodes = problem.tree.nodes
    used = [nodes[nic] for nic in dict.fromkeys(nic for _, nic in chosen)]
    if not used or any(nic.attrs.get("driver") == "efa" or ":" in nic.label for nic in used):
        return ()
    ports = {nic.id: _port(problem, nic) for nic in used}
    names = ",".join(ports[nic.id] for nic in used)
    found = [Line("NCCL_IB_HCA", f"={names}", "the same for all ranks; `=` in front asks for exact names", _NCCL)]
    found.append(Line("NVSHMEM_HCA_LIST", names, "takes effect with NVSHMEM_ENABLE_NIC_PE_MAPPING=1", _NVSHMEM))
    per_gpu = [next((nic for owner, nic in chosen if owner == gpu.id), "") for gpu in problem.gpus]
    if all(per_gpu):
        mapping = ",".join(f"{ports[nic]}:1" for nic in per_gpu)
        note = "adapter:port:ranks in the order of local ranks, with NVSHMEM_ENABLE_NIC_PE_MAPPING=1; not for DeepEP's normal kernels"
        found.append(Line("NVSHMEM_HCA_PE_MAPPING", mapping, note, _NVSHMEM))
    for gpu, nic in zip(problem.gpus, per_gpu, strict=True):
        if nic:
            found.append(Line("UCX_NET_DEVICES", ports[nic], f"for the rank on {gpu.label}", _UCX))
    return tuple(found)


def _port(problem: Problem, nic: Node) -> str:
    """mlx5_0:1, the first active port; port 1 where ports are not known."""
    ports = [node for node in problem.tree.children.get(nic.id, []) if node.kind == "port"]
    active = [node for node in ports if node.attrs.get("active") is True] or ports
    number = active[0].attrs.get("port", 1) if active else nic.attrs.get("port", 1)
    return f"{nic.label}:{number}"
