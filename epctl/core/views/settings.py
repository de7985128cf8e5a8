"""Settings as NCCL and the EP libraries read them: environment first, then NCCL's configuration files."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, value_or
from epctl.core.values import integer, same

__all__ = ["integer", "is_off", "is_on", "number", "same", "setting", "told"]


def setting(context: Context, name: str) -> str | None:
    """The value of `name`; None when it is not set, or empty, which NCCL takes for the same. Raises Unreadable when neither
    the environment nor (for a name of NCCL's) its configuration files could be read."""
    found = context.env.get(name, "")
    if found:
        return found
    conf = context.node.env.nccl_conf
    if name.startswith("NCCL_") and isinstance(conf, Absent) and conf.absent != "not_found":
        raise Unreadable("NCCL's configuration files", conf)
    return None


def number(context: Context, name: str) -> int | None:
    """`setting` as a number; None when it is not set."""
    found = setting(context, name)
    return None if found is None else integer(found)


def is_off(context: Context, name: str) -> bool:
    """A switch that is on by default was turned off."""
    return number(context, name) == 0


def is_on(context: Context, name: str) -> bool:
    """A switch that is off by default was turned on."""
    return (number(context, name) or 0) != 0


def told(context: Context, name: str) -> str:
    """`NCCL_IB_DISABLE=1 (environment)`: a setting and where it comes from, for evidence."""
    in_process = {entry.name for entry in value_or(context.node.env.variables, ())}
    origin = "environment" if name in in_process else "NCCL configuration file"
    files = context.node.env.nccl_conf_files
    if origin != "environment" and files:
        origin = " or ".join(files)
    return f"{name}={context.env.get(name, '')} ({origin})"
