"""What `epctl plan` prints beside plans: errors as JSON, and the list of hardware profiles."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from epctl.commands import errors, options

PLAN_SCHEMA = {"name": "epctl.plan", "version": 1}


def errors_told(format: str) -> AbstractContextManager[None]:  # noqa: A002
    """See errors.told."""
    return errors.told(format, PLAN_SCHEMA)


def list_hardware(format: str, output: Path | None) -> None:  # noqa: A002
    """Prints the profiles, one a line, or as JSON."""
    from epctl.core.jsontext import dump
    from epctl.model.hardware import hardware, hardware_names

    profiles = {name: hardware(name) for name in hardware_names()}
    if format == "json":
        whole = {"schema": {"name": "epctl.hardware", "version": 1}, "hardware": profiles}
        return options.emit(dump(whole).decode(), output)
    lines = []
    for name, profile in profiles.items():
        nic = profile.nic.title if profile.nic is not None else "no RDMA"
        lines.append(
            f"{name:22} {profile.gpus_per_node} x {profile.gpu.title}; {profile.nics_per_gpu:g} a GPU: {nic}\n"
        )
    return options.emit("".join(lines), output)
