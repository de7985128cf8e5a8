"""The parts of a report that need no traffic: the fabric in numbers, roles, weights, inputs."""

from __future__ import annotations

from typing import Any

from epctl.fabric.report import Layout, Node, Weights
from epctl.fabric.request import Settled
from epctl.fabric.topology import Fabric


def layout(fabric: Fabric) -> Layout:
    """Counts of the fabric."""
    return Layout(
        wiring=fabric.wiring,
        nodes=fabric.num_nodes,
        gpus_per_node=fabric.gpus_per_node,
        gpus=fabric.num_gpus,
        nodes_per_leaf=fabric.nodes_per_leaf,
        leaves=len(fabric.leaf_names),
        spines=len(fabric.spine_names),
        uplinks=fabric.num_uplinks,
        lanes=fabric.regular[1] if fabric.regular else 0,
        planes=fabric.num_planes,
        lost=fabric.lost,
    )


def ep_size(found: Settled) -> dict[str, int]:
    """GPUs that hold one full set of routed experts, by phase."""
    gpus = found.fabric.gpus_per_node
    return {"prefill": len(found.roles.prefill.experts) * gpus, "decode": len(found.roles.decode.experts) * gpus}


def nodes(found: Settled) -> tuple[Node, ...]:
    """Nodes and what they do."""
    gpus = found.fabric.gpus_per_node
    rows = []
    for node in range(found.fabric.num_nodes):
        mine = [
            f"{phase} {part}"
            for phase, side in (("prefill", found.roles.prefill), ("decode", found.roles.decode))
            for part, where in (("attention", side.attention), ("experts", side.experts))
            if node in where
        ]
        rows.append(Node(node, tuple(mine), tuple(range(node * gpus, (node + 1) * gpus))))
    return tuple(rows)


def weights(found: Settled) -> tuple[Weights, ...]:
    """Weights of the preset on one GPU, by role: routed experts are dealt out, all else is on every attention GPU. Nothing where the
    number of experts is not the preset's."""
    model = found.model
    if found.experts != model.num_experts:
        return ()
    each, sizes = model.weight_bytes, ep_size(found)
    rows: dict[tuple[int, int], list[str]] = {}
    for phase, side in (("prefill", found.roles.prefill), ("decode", found.roles.decode)):
        routed = model.routed_parameters * each // sizes[phase]
        other = model.other_parameters * each
        if side.split:
            rows.setdefault((0, other), []).append(f"{phase} attention")
            rows.setdefault((routed, 0), []).append(f"{phase} experts")
        else:
            rows.setdefault((routed, other), []).append(phase)
    return tuple(
        Weights(" and ".join(names), sizes[names[0].split()[0]], routed, other)
        for (routed, other), names in rows.items()
    )


def inputs(found: Settled) -> dict[str, Any]:
    """All values that decide the result."""
    request = found.request
    return {
        "layout": request.layout,
        "transfer": request.transfer,
        "model": found.model.name,
        "model_source": found.model.source,
        "experts": found.experts,
        "topk": found.topk,
        "send_bytes": found.send_bytes,
        "return_bytes": found.return_bytes,
        "kv_bytes_per_token": found.kv_bytes,
        "batch": found.batch,
        "lengths": request.lengths if len(found.lengths.given) == 1 else list(found.lengths.given),
        "prompt_tokens": sum(found.lengths.of(found.batch, request.seed)),
        "gate": request.gate,
        "seed": request.seed,
        "redraw": request.redraw,
        "qps": request.qps,
        "ports": request.ports,
    }
