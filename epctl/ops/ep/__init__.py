"""Expert-parallel dispatch and combine over NVLink: the API, which needs PyTorch, NCCL and a GPU."""

from __future__ import annotations

from epctl.ops.ep.buffer import EPBuffer
from epctl.ops.ep.events import EventHandle, EventOverlap
from epctl.ops.ep.handle import EPHandle

__all__ = ["EPBuffer", "EPHandle", "EventHandle", "EventOverlap"]
