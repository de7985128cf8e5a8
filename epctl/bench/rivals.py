"""Ratios to other ways to do the same work, timed in the same run.

Cases of one work have the same parameter `work`, and `by` names who does it. A rival that is run on several numbers of SMs is compared
with ours on the same number.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from epctl.bench.record import Row

OURS = "epctl"


def with_ratios(row: Row, earlier: Iterable[Row]) -> Row:
    """The row with the ratio of each rival's median to its own; rivals come first in a run."""
    params = row.params
    if not row.ok or not row.median_us or params.get("by") != OURS or "work" not in params or params.get("overlap"):
        return row
    found = {}
    for other in earlier:
        theirs = other.params
        alike = other.op == row.op and theirs.get("work") == params["work"] and theirs.get("by", OURS) != OURS
        if alike and theirs.get("sms", params.get("sms")) == params.get("sms") and other.ok and other.median_us:
            found[str(theirs["by"])] = other.median_us / row.median_us
    return structs.replace(row, ratios=found)
