"""What the ranks tell each other on the host while they set something up; never in the path of data."""

from __future__ import annotations

from typing import Any, Protocol


class Control(Protocol):
    """A way for all ranks to exchange a few bytes."""

    def all_gather(self, stage: str, payload: bytes) -> list[bytes]:
        """The payloads of all ranks in their order. Collective; `stage` names it in messages. Raises EpctlError when a rank does not
        come in time."""
        ...


class GroupControl:
    """Over a process group of PyTorch, whatever its backend."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - torch.distributed.ProcessGroup
        self._group = group

    def all_gather(self, stage: str, payload: bytes) -> list[bytes]:  # noqa: ARG002 - the group has limits of its own
        """See Control."""
        import torch.distributed as dist

        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, payload, group=self._group)
        return [bytes(one) for one in gathered]
