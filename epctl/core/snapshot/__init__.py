"""The snapshot: all that epctl knows of one node. Probes fill it; everything after them reads it and nothing else.

Every field is a fact or an `Absent` with its reason. `null` has no meaning and does not occur.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.jsontext import dump
from epctl.core.snapshot.gpu import GpuArea
from epctl.core.snapshot.host import HostArea, PcieArea
from epctl.core.snapshot.job import JobArea
from epctl.core.snapshot.rdma import GdrArea, RdmaArea
from epctl.core.snapshot.software import ActiveArea, EnvArea, SoftwareArea

SCHEMA_NAME = "epctl.snapshot"
SCHEMA_VERSION = 1


class Schema(Struct, frozen=True):
    """Name and version of a file format."""

    name: str
    version: int


class Origin(Struct, frozen=True):
    """Where a snapshot comes from. `name` is the sample's name or the file's; `redacted`: names and addresses were replaced."""

    kind: Literal["live", "recorded", "sample"]
    name: str = ""
    redacted: bool = False
    hand_made: bool = False
    """True for a sample that was composed, not recorded from a machine."""


class Snapshot(Struct, frozen=True):
    """One node at one moment."""

    schema: Schema = Schema(SCHEMA_NAME, SCHEMA_VERSION)
    origin: Origin = Origin("live")
    taken_at: str = ""
    """ISO 8601, UTC."""
    epctl_version: str = ""
    host: HostArea = HostArea()
    gpu: GpuArea = GpuArea()
    pcie: PcieArea = PcieArea()
    rdma: RdmaArea = RdmaArea()
    gdr: GdrArea = GdrArea()
    software: SoftwareArea = SoftwareArea()
    env: EnvArea = EnvArea()
    active: ActiveArea = ActiveArea()
    job: JobArea = JobArea()
    """The log that was given with `doctor --nccl-log`; not of this node unless its hosts say so."""


def encode(snapshot: Snapshot) -> bytes:
    """Indented JSON of a snapshot, with a final newline."""
    return dump(snapshot)


def decode(raw: bytes, name: str) -> Snapshot:
    """The snapshot in `raw` (JSON). Raises EpctlError, naming `name`, when it is not one or of a newer version."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EpctlError(
            f"{name} is not a snapshot", f"its JSON could not be read: {error}", "make one with `epctl capture -o FILE`"
        ) from None
    if head.schema.name != SCHEMA_NAME:
        raise EpctlError(
            f"{name} is not a snapshot",
            f"its schema is {head.schema.name!r}, expected {SCHEMA_NAME!r}",
            "give the file that `epctl capture` wrote",
        )
    if head.schema.version > SCHEMA_VERSION:
        raise EpctlError(
            f"{name} is of a newer epctl",
            f"its schema is version {head.schema.version}, this epctl reads up to {SCHEMA_VERSION}",
            "upgrade epctl on this machine",
        )
    try:
        return msgspec.json.decode(raw, type=Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EpctlError(f"{name} is a damaged snapshot", str(error), "capture the node again") from None


def json_schema() -> dict[str, Any]:
    """JSON Schema of the snapshot."""
    return msgspec.json.schema(Snapshot)


class _Head(Struct):
    schema: Schema
