"""What a request can mean at all, before anything is planned."""

from __future__ import annotations

from epctl.model.gate import MAX_EXPERTS, check_topk
from epctl.model.plan.request import EXAMPLES, Request, flag, integer_fields, short
from epctl.model.refusal import ASSERTS, RefusalError, largest

_COUNTS = integer_fields()


def check_shares(experts: int, topk: int, nodes: int, gpus: int) -> None:
    """Every rank holds as many experts. Raises RefusalError experts_not_divisible, with values of flags that would do."""
    ranks = nodes * gpus
    check_topk(experts, topk)
    if experts % ranks == 0:
        return
    up = -(-experts // ranks) * ranks
    ways = [f"--experts {up} ({up - experts} redundant)"] if up <= MAX_EXPERTS else []
    fewer_nodes = next((n for n in range(min(nodes, experts), 0, -1) if experts % (n * gpus) == 0), 0)
    fewer = next(g for g in range(min(gpus, experts), 0, -1) if experts % g == 0)
    ways.append(f"--nodes {fewer_nodes}" if fewer_nodes else f"--nodes 1 --gpus-per-node {fewer}")
    what = f"{experts} experts do not divide by {ranks} ranks ({nodes} x {gpus})"
    why = "every rank holds the same number of experts"
    raise RefusalError("experts_not_divisible", what, why, f"give {', or '.join(ways)}", deepep_2_5_0=ASSERTS)


def check_bounds(request: Request) -> None:
    """No count is past what can be meant. Raises RefusalError absurd_argument."""
    for field in _COUNTS:
        given = getattr(request, field)
        if given is not None and abs(given) > largest(field):
            what, why = f"{flag(field)} is {short(str(given))}", f"at most {largest(field)} are planned for"
            raise RefusalError("absurd_argument", what, why, f"give {flag(field)} {EXAMPLES[field]}")
