"""GIN on top of a domain: device communicator with the type asked for, kernels, and a barrier of the whole world."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct, structs

from epctl.comm.domain import FLAG_BYTES, Domain
from epctl.comm.gin_gates import Asked, closed, gates
from epctl.core.errors import EpctlError
from epctl.core.views.gates import Gate
from epctl.native.communicator import GIN_TYPES, GinWish, gin_name
from epctl.native.gin_args import (
    BARRIER_THREADS,
    BLOCK_THREADS,
    FOUND_BYTES,
    KERNELS,
    GinArgs,
    GinBarrier,
    GinFound,
    pack_describe,
)
from epctl.native.gin_family import GIN, variant
from epctl.native.launcher import Kernel

__all__ = ["GinDomain", "RankFacts", "gates"]
DEFAULT = GinWish()


class RankFacts(Struct, frozen=True):
    """What the ranks tell each other before GIN is set up."""

    types: tuple[int, ...]
    gpu: str
    """UUID, or host and ordinal."""


class GinDomain:
    """Collective: all ranks make it together, with equal wishes. It belongs to the domain, and ends before it."""

    def __init__(self, domain: Domain, wish: GinWish = DEFAULT, static_gates: tuple[Gate, ...] = ()) -> None:
        """`static_gates`: of the node, for the message when there is no GIN. Raises EpctlError (exit code 4: no GIN here)."""
        import torch

        self.domain = domain
        self._torch = torch
        self._static = static_gates
        properties = domain.comm.properties
        self.num_domains = domain.num_ranks // domain.lsa_size
        self.facts = self._exchange()
        self.type = self._choose(wish)
        self._kernels = {name: self._kernel(name) for name in KERNELS}  # before any kernel waits for a peer
        self._barrier_signal = wish.num_signals
        self.wish = structs.replace(wish, type=self.type, num_signals=wish.num_signals + self.num_domains)
        self.image = domain.comm.add_device_comm(self.wish)
        self.found = self._describe()
        self._check_found()
        self._flags = domain.symmetric(FLAG_BYTES * domain.lsa_size)
        self._where = GinBarrier(domain.peers(self._flags), 0, self._barrier_signal, self.num_domains)
        self._rounds = 0
        self._open = True
        self.rail = properties.gin_type == 0

    def _exchange(self) -> tuple[RankFacts, ...]:
        properties = self.domain.comm.properties
        uuid = str(getattr(self._torch.cuda.get_device_properties(self.domain.device_idx), "uuid", ""))
        mine = RankFacts(properties.gin_types, uuid or f"{os.uname().nodename}:{self.domain.device_idx}")
        every = self.domain.control.all_gather("facts about GIN", msgspec.json.encode(mine))
        return tuple(msgspec.json.decode(one, type=RankFacts) for one in every)

    def asked(self, wish: GinWish) -> Asked:
        """What the gates compare with what NCCL offers."""
        counts = [sum(one.gpu == other.gpu for other in self.facts) for one in self.facts]
        return Asked(wish.type, wish.connection, tuple(one.types for one in self.facts), max(counts))

    def gates(self, wish: GinWish) -> tuple[Gate, ...]:
        """All gates with their states, those of the node last."""
        return gates(self.domain.comm.properties, self._static, self.asked(wish), os.environ)

    def _choose(self, wish: GinWish) -> str:
        properties = self.domain.comm.properties
        usual = properties.railed_gin_type if wish.connection == "rail" else properties.gin_type
        number = usual if wish.type == "auto" else GIN_TYPES.get(wish.type, -1)
        if number == -1:
            raise EpctlError(
                f"GIN type {wish.type!r} is unknown", f"there are auto, {', '.join(GIN_TYPES)}", "choose one"
            )
        offered_everywhere = all(number in one.types for one in self.facts)
        if number == 0 or not usual or not offered_everywhere:
            every = self.gates(wish)
            fixes = [gate.fix for gate in every if gate.state == "closed" and gate.fix]
            raise EpctlError(
                "NCCL offers no GIN here"
                if number == 0 or not usual
                else f"NCCL offers no GIN of type {wish.type} here",
                closed(every),
                " ".join(dict.fromkeys(fixes))
                or "epctl doctor shows all gates; --emulate-nodes plays nodes without an adapter",
                exit_code=4,
            )
        return gin_name(number)

    def _kernel(self, name: str) -> Kernel:
        block = BARRIER_THREADS if name == "epctl_gin_barrier" else BLOCK_THREADS
        return self.domain.launcher.kernel(GIN, variant(self.type), name, block)

    def _describe(self) -> GinFound:
        out = self._torch.zeros(FOUND_BYTES, dtype=self._torch.uint8, device=f"cuda:{self.domain.device_idx}")
        self._kernels["epctl_gin_describe"].launch(1, self.stream(), pack_describe(self.image, out.data_ptr()))
        return GinFound.read(bytes(out.cpu().tolist()))

    def _check_found(self) -> None:
        """NCCL takes types and numbers as hints; kernels of another type would run into memory that is not theirs."""
        found = self.found
        if set(found.types) != {GIN_TYPES[self.type]}:
            told = ", ".join(gin_name(number) for number in found.types) or "no connection"
            raise EpctlError(
                f"NCCL made a device communicator with {told}", f"{self.type} was asked for", "report this", exit_code=1
            )
        if found.num_signals < self.wish.num_signals:
            raise EpctlError(
                f"NCCL gave {found.num_signals} signals",
                f"{self.wish.num_signals} were asked for",
                "use fewer contexts or signals",
                exit_code=1,
            )
        counts = self.domain.control.all_gather("contexts of GIN", str(found.num_contexts).encode())
        if len(set(counts)) > 1 or not found.num_contexts:
            told = ", ".join(f"rank {rank}: {count.decode()}" for rank, count in enumerate(counts))
            raise EpctlError(
                "the ranks have different numbers of GIN contexts", told, "use nodes that are alike", exit_code=1
            )

    @property
    def num_contexts(self) -> int:
        """How many blocks a launch may have: NCCL may give fewer or more than asked for."""
        return self.found.num_contexts

    @property
    def num_connections(self) -> int:
        """Over how many adapters a rank sends."""
        return len(self.found.types)

    def stream(self) -> int:
        """The current stream of the rank's GPU, as kernels take it."""
        return int(self._torch.cuda.current_stream(self.domain.device_idx).cuda_stream)

    def launch(self, name: str, num_contexts: int, args: GinArgs, stream: int | None = None) -> None:
        """`epctl_gin_…` with one block for each context. Raises ValueError for more than there are, or signals of the barrier."""
        if not 1 <= num_contexts <= self.num_contexts:
            raise ValueError(f"{num_contexts} of {self.num_contexts} contexts")
        if args.signal >= self._barrier_signal:
            raise ValueError(f"signal {args.signal} of {self._barrier_signal}")
        self._kernels[name].launch(num_contexts, self.stream() if stream is None else stream, args.pack(self.image))

    def barrier(self, stream: int | None = None) -> None:
        """All ranks of the world meet on the GPU: a kernel in the stream. It says nothing about puts that are under way."""
        self._rounds += 1
        arguments = self._where.pack(self.image, self._rounds, self.domain.limits())
        self._kernels["epctl_gin_barrier"].launch(1, self.stream() if stream is None else stream, arguments)

    def close(self) -> None:
        """Collective. After the last kernel, before the domain. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._torch.cuda.synchronize(self.domain.device_idx)
        self.domain.control.all_gather("close GIN", b"")
        self.domain.comm.remove_device_comm(self.image)
