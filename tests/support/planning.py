"""Plans and nodes for tests of the model, from the hardware profiles."""

from __future__ import annotations

from typing import Any

import msgspec

from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpPlan, EpRequest
from epctl.model.hardware import hardware
from epctl.model.inputs import Flags, Node, Number, resolve
from epctl.model.rules import RULES


def node_of(name: str, **changes: float) -> Node:
    """The profile's node, with some numbers replaced."""
    node = resolve(Flags(), hardware(name), None, RULES["deepep-2.5"])
    return msgspec.structs.replace(node, **{key: Number(value, "test") for key, value in changes.items()})


def h800() -> Node:
    """The machine of V1's tables: 160 GB/s is what its document gives as the most that NVLink carries, 50 GB/s RDMA."""
    limits = dict.fromkeys(("nvlink_gbs", "sm_write_limit_gbs", "pull_add_limit_gbs"), 160.0)
    return msgspec.structs.replace(node_of("h100-ndr400", **limits), name="h800")


def request_of(node: Node, num_nodes: int, gpus_per_node: int, mode: str, **changes: Any) -> EpRequest:  # noqa: ANN401
    """256 experts, top 8, on that many of the node."""
    fields: dict[str, Any] = {
        "num_experts": 256,
        "num_topk": 8,
        "num_nodes": num_nodes,
        "gpus_per_node": gpus_per_node,
        "mode": mode,
        "nvlink_gbs": float(node.nvlink_gbs.value),
        "rdma_gbs": float(node.rdma_gbs.value),
        "device_sms": int(node.device_sms.value),
    }
    return EpRequest(**{**fields, **changes})


def plan_of(
    node: Node,
    num_nodes: int,
    gpus_per_node: int,
    mode: str,
    rules: str = "deepep-2.5",
    num_sms: int | None = None,
    **changes: Any,  # noqa: ANN401
) -> EpPlan:
    """The plan by those rules; `num_sms` replaces its SM count, as published tables give theirs."""
    plan = plan_ep(request_of(node, num_nodes, gpus_per_node, mode, **changes), RULES[rules])
    return plan if num_sms is None else msgspec.structs.replace(plan, num_sms=num_sms)
