"""The assignment of NICs beside what libraries do by themselves, what each gives every GPU, and the settings that say it."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from epctl.topo.graph import Node
from epctl.topo.pairing import Pair, Problem, best, nic_gbs, problem_of
from epctl.topo.settings import Line, lines_of
from epctl.topo.tree import LEVELS, Tree


class Choice(Struct, frozen=True, omit_defaults=True):
    """One way to give NICs to GPUs. `least_gbps`: of the GPU that gets least, when all send at once."""

    pairs: tuple[Pair, ...]
    least_gbps: float | UnsetType = UNSET
    total_gbps: float | UnsetType = UNSET


class Pairing(Struct, frozen=True, omit_defaults=True):
    """One machine. `best`: the cheapest assignment, `cost` its points; `default`: what NCCL picks by itself."""

    host: str
    best: Choice
    default: Choice
    cost: int
    lost_gbps: float | UnsetType = UNSET
    """What the GPU that loses most loses by the default."""
    lost_total_gbps: float | UnsetType = UNSET
    """What all GPUs together lose by it."""
    unused: tuple[str, ...] = ()
    """NICs that take part in the fabric and serve no GPU."""
    left_out: tuple[str, ...] = ()
    """NICs that carry no EP traffic: front-end, storage, down."""
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()


def pairing_of(tree: Tree, host: str) -> Pairing | None:
    """None for a machine without a GPU or without a NIC."""
    problem = problem_of(tree, host)
    if not problem.gpus or not problem.nics:
        return None
    chosen, cost = best(problem)
    first = _choice(problem, chosen)
    default = _choice(problem, default_of(problem))
    used = {nic for _, nic in chosen}
    names = {node.id for node in problem.nics}
    losses = [_less(mine.gbps, theirs.gbps) for mine, theirs in zip(first.pairs, default.pairs, strict=True)]
    known = [loss for loss in losses if not isinstance(loss, UnsetType)]
    lost: float | UnsetType = max(0.0, *known) if known else UNSET
    return Pairing(
        host,
        first,
        default,
        cost,
        lost,
        _less(first.total_gbps, default.total_gbps),
        tuple(node.label for node in problem.nics if node.id not in used),
        tuple(node.label for node in tree.of_kind("nic", host) if node.id not in names),
        lines_of(problem, chosen),
        tuple(_notes(problem, first, default)),
    )


def _less(one: float | UnsetType, other: float | UnsetType) -> float | UnsetType:
    return UNSET if isinstance(one, UnsetType) or isinstance(other, UnsetType) else round(one - other, 3)


def _choice(problem: Problem, chosen: list[tuple[str, str]]) -> Choice:
    rates = usable_gbps(problem, chosen)
    pairs = []
    for gpu in problem.gpus:
        nics = [nic for owner, nic in chosen if owner == gpu.id]
        levels = [problem.tree.level(gpu.id, nic) or "unknown" for nic in nics]
        labels = tuple(problem.tree.nodes[nic].label for nic in nics)
        gbps = UNSET if rates is None else round(rates.get(gpu.id, 0.0), 3)
        pairs.append(Pair(gpu.label, labels, tuple(levels), gbps))
    if rates is None:
        return Choice(tuple(pairs))
    each = [rates.get(gpu.id, 0.0) for gpu in problem.gpus]
    return Choice(tuple(pairs), round(min(each), 3), round(sum(each), 3))


def usable_gbps(problem: Problem, chosen: list[tuple[str, str]]) -> dict[str, float] | None:
    """GPU id → Gb/s when all send at once, its flows together; None as in `flow_gbps`."""
    rates = flow_gbps(problem, chosen)
    if rates is None:
        return None
    found: dict[str, float] = {}
    for (gpu, _), rate in zip(chosen, rates, strict=True):
        found[gpu] = found.get(gpu, 0.0) + rate
    return found


def flow_gbps(problem: Problem, chosen: list[tuple[str, str]]) -> list[float] | None:
    """By (GPU, NIC), Gb/s when all send at once: of each flow the smallest equal share among its links and its NIC. None where the rate
    of a NIC is not known. Links without a known rate do not limit."""
    tree = problem.tree
    line = {nic: nic_gbs(tree.nodes[nic]) for _, nic in chosen}
    if not chosen or None in line.values():
        return None
    ways = [tree.way(gpu, nic) for gpu, nic in chosen]
    load: dict[tuple[str, bool], int] = {}
    users: dict[str, int] = {}
    for (_, nic), way in zip(chosen, ways, strict=True):
        users[nic] = users.get(nic, 0) + 1
        for hop in way:
            load[hop.edge.a, hop.up] = load.get((hop.edge.a, hop.up), 0) + 1
    rates = []
    for (_, nic), way in zip(chosen, ways, strict=True):
        shares = [float(hop.edge.gbs) / load[hop.edge.a, hop.up] for hop in way if hop.edge.gbs is not UNSET]
        rates.append(8 * min([(line[nic] or 0.0) / users[nic], *shares]))
    return rates


def default_of(problem: Problem) -> list[tuple[str, str]]:
    """What NCCL does (ncclTopoGetLocalNet, src/graph/topo.cc of NVIDIA/nccl): among the NICs with the widest way, and of these the
    nearest, it starts at one that depends on the GPU's number and goes on as far as there are more NICs than GPUs near them. Ways across
    sockets count as narrower than all others: they are limited by the link between CPUs, whose rate no source tells."""
    found = []
    for gpu in problem.gpus:
        near = _widest(problem, gpu, problem.nics)
        beside = _widest(problem, near[0], problem.gpus)
        start = int(gpu.attrs.get("index", 0)) % len(beside)
        if len(near) & (len(near) - 1) == 0:
            start = _mirrored(start, len(near))
        each = -(-len(near) // len(beside))
        found += [(gpu.id, near[(start + channel) % len(near)].id) for channel in range(each)]
    return found


def _widest(problem: Problem, one: Node, others: tuple[Node, ...]) -> list[Node]:
    keys = {}
    for other in others:
        level = problem.tree.level(one.id, other.id)
        nic = other if other.kind == "nic" else one
        rates = [float(hop.edge.gbs) for hop in problem.tree.way(one.id, other.id) if hop.edge.gbs is not UNSET]
        rank = LEVELS.index(level) if level is not None else len(LEVELS)
        keys[other.id] = (rank >= LEVELS.index("SYS"), -min([nic_gbs(nic) or 0.0, *rates]), rank)
    least = min(keys.values())
    return [other for other in others if keys[other.id] == least]


def _mirrored(value: int, power: int) -> int:
    """Bits of `value` in reverse order, below a power of two."""
    width = power.bit_length() - 1
    return sum(1 << (width - 1 - bit) for bit in range(width) if value >> bit & 1)


def _of(number: int, total: int) -> str:
    return "the only GPU has" if total == 1 else f"{number} of {total} GPUs {'has' if number == 1 else 'have'}"


def _notes(problem: Problem, first: Choice, default: Choice) -> list[str]:
    notes = []
    if len(problem.nics) < len(problem.gpus):
        notes.append(f"{len(problem.gpus)} GPUs share {len(problem.nics)} NICs")
    far = [pair for pair in first.pairs if any(level in ("NODE", "SYS", "unknown") for level in pair.levels)]
    if far:
        worst = max((level for pair in far for level in pair.levels), key=lambda word: [*LEVELS, "unknown"].index(word))
        notes.append(f"{_of(len(far), len(first.pairs))} no NIC nearer than a host bridge away (at worst {worst})")
    if {pair.gpu: pair.nics for pair in first.pairs} == {pair.gpu: pair.nics for pair in default.pairs}:
        notes.append("the default choice is the same")
    unknown = [nic.label for nic in problem.nics if nic_gbs(nic) is None]
    if unknown:
        notes.append(f"no source tells the rate of {', '.join(unknown[:4])}{' …' if len(unknown) > 4 else ''}")
    return notes
