"""What `epctl plan` prints beside plans: errors as JSON, and the list of hardware profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epctl.commands import options
from epctl.core.errors import EpctlError

PLAN_SCHEMA = {"name": "epctl.plan", "version": 1}


@contextmanager
def errors_told(format: str) -> Iterator[None]:  # noqa: A002
    """With --format json, a program that reads standard output gets the error there, too."""
    try:
        yield
    except EpctlError as error:
        if format == "json":
            from epctl.core.jsontext import dump

            told = {"what": error.what, "why": error.why, "do": error.todo}
            code = getattr(error, "code", "input_invalid")
            whole = {"schema": PLAN_SCHEMA, "status": "error", "error_code": code, "error": told}
            options.emit(dump(whole).decode(), None)
        raise


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
