"""JSON Schema of a plan. msgspec describes no field that is one of two untagged objects, so a refused family is put in by hand."""

from __future__ import annotations

from typing import Any, Union, get_args

import msgspec

from epctl.model.plan.types import PlanReport, Refused


def schema() -> dict[str, Any]:
    """Of PlanReport, as a dict."""
    planned = []
    refusable = []
    for field in msgspec.structs.fields(PlanReport):
        kind = field.type
        if Refused in get_args(kind):
            refusable.append(field.name)
            kind = Union[tuple(part for part in get_args(kind) if part is not Refused)]
        default = () if field.default is msgspec.NODEFAULT else (field.default,)
        planned.append((field.name, kind, *default))
    whole = msgspec.defstruct("PlanReport", planned, kw_only=True)
    (found, refused), parts = msgspec.json.schema_components([whole, Refused], ref_template="#/$defs/{name}")
    mine = parts["PlanReport"]["properties"]
    for name in refusable:
        mine[name] = {"anyOf": [mine[name], refused]}
    return {**found, "$defs": parts}
