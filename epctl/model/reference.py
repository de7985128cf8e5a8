"""Published results of the same configuration, as a column beside the prediction. None of them was measured by this project.

Data: epctl/data/published_results.json, every performance figure of DeepEP V1 and V2 and of the hybrid-ep branch, with its document and
revision; decoded at the first use.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct

from epctl.model.ep_types import EpPlan
from epctl.model.inputs import Node
from epctl.model.timing_types import Stage, StageTime, Workload

GPUS_PER_NODE = 8
"""Of the hybrid-ep branch's InfiniBand table, which names ranks alone."""
_ONE_NODE, _NODES_FIRST, _GPUS_FIRST = "EP 8", re.compile(r"(\d+) node\(s\) x (\d+)"), re.compile(r"EP (\d+) x (\d+)")


class _Machine(Struct, frozen=True):
    gpu: str = ""
    arch: str = ""
    nic: str | None = None
    note: str = ""


class _Config(Struct, frozen=True):
    tokens_per_rank: int
    hidden: int
    topk: int
    topk_groups: int | None = None
    dispatch_dtype: str | None = None
    local_experts: int | None = None


class _Row(Struct, frozen=True):
    id: str
    generation: str
    revision: str
    current: bool
    kernel: str
    table: str
    op: Stage
    ep: int
    topology: str | None
    metric: str
    value: float
    unit: str
    link: str
    num_sms: int | None
    hardware: _Machine
    config: _Config
    source: str
    api: str = ""


class _File(Struct, frozen=True):
    sources: dict[str, dict[str, str]]
    results: tuple[_Row, ...]


class Published(Struct, frozen=True, kw_only=True):
    """One published figure. nodes 0: the document names ranks alone."""

    id: str
    generation: str
    revision: str
    current: bool
    """In the newest document of its generation."""
    kernel: str
    op: Stage
    ep: int
    nodes: int
    tokens: int
    hidden: int
    topk: int
    dtype: str
    """Of dispatch; '' where a combine row does not tell."""
    metric: str
    value: float
    unit: str
    link: str
    """nvlink or rdma."""
    num_sms: int | None
    hardware: str
    api: str
    """torch (a call) or kernel only; '' where the document does not tell."""
    source: str
    differs: tuple[str, ...] = ()
    """What is not as in the plan."""


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """All rows, superseded ones included, in the order of the file."""
    raw = (resources.files("epctl") / "data" / "published_results.json").read_bytes()
    file = msgspec.json.decode(raw, type=_File)
    return tuple(_told(row, _source(file.sources[row.source])) for row in file.results)


@lru_cache(maxsize=1)
def _by_size() -> dict[tuple[int, int, int, int], tuple[Published, ...]]:
    found: dict[tuple[int, int, int, int], list[Published]] = {}
    for row in published():
        found.setdefault((row.ep, row.tokens, row.hidden, row.topk), []).append(row)
    return {key: tuple(rows) for key, rows in found.items()}


def matching(plan: EpPlan, work: Workload, node: Node, *, superseded: bool = False) -> tuple[Published, ...]:
    """Rows with the plan's ranks and nodes and the workload's tokens, hidden, top-k and dispatch type; what else differs (GPU, SMs, a
    kernel of another design) is listed on each. `superseded`: with the older revisions of a document."""
    rows = _by_size().get((plan.num_ranks, work.tokens, work.hidden, work.topk), ())
    found = []
    for row in rows:
        same_nodes = row.nodes in (0, plan.physical_domain.rdma_ranks)
        same_type = row.op == "combine" or row.dtype == work.dtype
        if same_nodes and same_type and (row.current or superseded):
            found.append(msgspec.structs.replace(row, differs=_differs(row, plan, work, node)))
    return tuple(found)


def predicted(row: Published, times: tuple[StageTime, ...]) -> float | None:
    """What the model says for the row's figure, in its unit and by its way to count: V1's low-latency kernels by the whole call, V1's and
    V2's bandwidths by the main kernel, scale-out copies where RDMA is the link and scale-up ones where NVLink is. None where the row is
    about another design or another way to count (the hybrid-ep branch's DeepEP and PCIe tables and its torch calls).

    Sources of the ways to count: deepseek-ai/DeepEP, tests/test_internode.py, tests/elastic/test_ep.py and, on the hybrid-ep branch,
    tests/test_hybrid_ep.py; for low latency the notes of published_results.json.
    """
    if row.kernel in ("DeepEP", "PCIe (no NVLink)") or row.api == "torch":
        return None
    for time in times:
        if time.stage != row.op:
            continue
        if row.unit == "us":
            return time.us
        return (time.main_scaleout_gbs or None) if row.link == "rdma" else time.main_logical_gbs
    return None


def _told(row: _Row, source: str) -> Published:
    machine = row.hardware
    parts = (machine.gpu or machine.arch, machine.note, machine.nic or "")
    return Published(
        id=row.id,
        generation=row.generation,
        revision=row.revision,
        current=row.current,
        kernel=row.kernel,
        op=row.op,
        ep=row.ep,
        nodes=_nodes(row),
        tokens=row.config.tokens_per_rank,
        hidden=row.config.hidden,
        topk=row.config.topk,
        dtype=row.config.dispatch_dtype or "",
        metric=row.metric,
        value=row.value,
        unit=row.unit,
        link=_link(row),
        num_sms=row.num_sms,
        hardware=", ".join(part for part in parts if part),
        api=row.api,
        source=f"{source}, {row.table}",
    )


def _source(entry: dict[str, str]) -> str:
    names = ("repo", "package", "branch", "file", "commit")
    return ", ".join(entry[name] for name in names if name in entry)


def _nodes(row: _Row) -> int:
    """GB200 and B200 tables of the hybrid-ep branch are within one NVLink domain, its H100 table goes over InfiniBand."""
    if row.topology is None:
        return row.ep // GPUS_PER_NODE if row.hardware.gpu == "H100" else 1
    if row.topology == _ONE_NODE:
        return 1
    first = _NODES_FIRST.fullmatch(row.topology)
    if first:
        return int(first[1])
    second = _GPUS_FIRST.fullmatch(row.topology)
    return int(second[2]) if second else 0


def _link(row: _Row) -> str:
    if row.link in ("nvlink", "rdma"):
        return row.link
    if row.link == "see platform":
        return "rdma" if _nodes(row) > 1 else "nvlink"
    return "nvlink" if _nodes(row) == 1 else "rdma"


def _differs(row: Published, plan: EpPlan, work: Workload, node: Node) -> tuple[str, ...]:
    found = []
    gpu = row.hardware.split(",")[0]
    if not gpu.lower().startswith("sm") and gpu.lower() not in node.name.lower().replace("-", " ").split():
        found.append(f"GPU: {gpu}, not {node.name}")
    elif gpu.lower().startswith("sm"):
        found.append(f"GPU: only {gpu} is told")
    if row.num_sms is not None and row.num_sms != plan.num_sms:
        found.append(f"SMs: {row.num_sms}, not {plan.num_sms}")
    if row.kernel == "low-latency" and work.sends == "rank":
        found.append("kernel: V1 low-latency sends once a selection, this plan once a rank")
    if row.kernel in ("HybridEP", "DeepEP", "PCIe (no NVLink)"):
        found.append(f"kernel: {row.kernel} of the hybrid-ep branch")
    if row.api == "torch":
        found.append("time: of the whole torch call")
    return tuple(found)
