"""Whether the GPUs of a load/store domain are joined by NVLink: NCCL counts GPUs that reach each other over PCIe among them, too."""

from __future__ import annotations

from msgspec import Struct

NVLINK = 2
"""NVML_P2P_CAPS_INDEX_NVLINK."""
STATUS_OK = 0
"""NVML_P2P_STATUS_OK."""


class Seat(Struct, frozen=True):
    """Where a rank sits."""

    host: str
    uuid: str
    """Of its GPU, as NVML writes it: GPU-…"""


def joined(mine: Seat, others: tuple[Seat, ...]) -> bool:
    """Whether NVLink, or one GPU's own memory, joins this rank's GPU with all of `others`. Load/store domains reach across hosts over
    NVLink alone. False also where NVML does not tell."""
    near = {other.uuid for other in others if other.host == mine.host} - {mine.uuid}
    return not near or _near(mine.uuid, near)


def _near(mine: str, others: set[str]) -> bool:
    try:
        import pynvml
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
        here = pynvml.nvmlDeviceGetHandleByUUID(mine)
        there = [pynvml.nvmlDeviceGetHandleByUUID(other) for other in sorted(others)]
        return all(pynvml.nvmlDeviceGetP2PStatus(here, other, NVLINK) == STATUS_OK for other in there)
    except pynvml.NVMLError:
        return False
