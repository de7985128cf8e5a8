"""The command line of a request."""

from __future__ import annotations

import shlex

from epctl.fabric.flags import FIELDS, flag
from epctl.fabric.request import Request
from epctl.fabric.topology import Shape


def command(request: Request) -> str:
    """The command line that gives the request's JSON; what is as by default is left out."""
    words = ["epctl", "fabric"]
    for field in FIELDS:
        in_shape = field in Shape.__struct_fields__
        value, default = (
            getattr(thing, field) for thing in ((request.shape, Shape()) if in_shape else (request, Request()))
        )
        if value == default or value is None:
            continue
        if field == "lost":
            words += [word for part in value for word in (flag(field), part)]
        else:
            words += [flag(field), ",".join(value) if isinstance(value, tuple) else str(value)]
    if request.graph is not None:
        words += ["--topology", "FILE.toml"]
    return shlex.join(words)
