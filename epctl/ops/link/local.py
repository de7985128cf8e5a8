"""The link op within the memory of each GPU: what a copy reaches, and what one SM reads and writes."""

from __future__ import annotations

from epctl.core.op import Case, Corruption, Outcome, Running, World
from epctl.native.link_args import LinkArgs
from epctl.ops.bits import compare
from epctl.ops.link import kernels
from epctl.ops.link.roles import STALE, WRONG_BIT, Tensor, payload, seed_of, wrong_byte

_WORD = 1 << 32


def make(case: Case, world: World) -> Running:
    """The case on this rank."""
    kinds = {"hbm-copy": _Copy, "sm-read": _Read, "sm-write": _Write}
    return kinds[case.word("kind")](case, world)


class _Local:
    """A source and a target of this GPU."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._launch = kernels.prepare(case, world) if case.word("kind") in kernels.FUNCTIONS else None
        self._damages = False

    def run(self) -> None:
        raise NotImplementedError

    def check(self) -> Outcome:
        raise NotImplementedError

    def corrupt(self, kind: Corruption) -> None:
        if kind != "byte":
            raise ValueError(kind)
        self._damages = self._world.rank == 0

    def measured_us(self) -> float | None:
        return None

    def close(self) -> None:
        """Tensors go with this object."""

    def _go(self, arguments: LinkArgs) -> None:
        if self._launch is None:
            raise ValueError("no kernel belongs to this case")
        self._launch(arguments)

    @staticmethod
    def _flip(memory: Tensor) -> None:
        memory[wrong_byte(memory.numel())] ^= WRONG_BIT


class _Copy(_Local):
    def __init__(self, case: Case, world: World) -> None:
        super().__init__(case, world)
        self._source = payload(world, case, "rows", world.rank)
        self._target = world.torch.full_like(self._source, STALE)

    def run(self) -> None:
        if self._damages:
            self._flip(self._source)
        self._target.copy_(self._source)

    def check(self) -> Outcome:
        if self._damages:
            self._flip(self._source)
        self._damages = False
        wanted = payload(self._world, self._case, "rows", self._world.rank)
        outcome = compare(self._target, wanted, "the copy")
        self._target.fill_(STALE)
        return outcome


class _Read(_Local):
    """Each thread adds up what it reads."""

    def __init__(self, case: Case, world: World) -> None:
        super().__init__(case, world)
        torch = world.torch
        self._source = payload(world, case, "rows", world.rank)
        self._num_threads = kernels.grid(case, world) * case.whole("block_threads")
        self._sums = torch.zeros(self._num_threads, dtype=torch.int32, device=world.device)

    def run(self) -> None:
        if self._damages:
            self._flip(self._source)
        rows = kernels.num_rows(self._case)
        self._go(LinkArgs(rows, source=int(self._source.data_ptr()), sums=int(self._sums.data_ptr())))

    def check(self) -> Outcome:
        """Vector i is read by thread i modulo their number."""
        if self._damages:
            self._flip(self._source)
        self._damages = False
        torch = self._world.torch
        words = payload(self._world, self._case, "rows", self._world.rank).view(torch.int32)
        vectors = words.view(-1, 4).sum(1, dtype=torch.int64)
        vectors = torch.nn.functional.pad(vectors, (0, -vectors.numel() % self._num_threads))
        wanted = vectors.view(-1, self._num_threads).sum(0) & (_WORD - 1)
        found = self._sums.to(torch.int64) & (_WORD - 1)
        self._sums.zero_()
        same = found == wanted
        if bool(same.all()):
            return Outcome(ok=True)
        wrong = (~same).nonzero().flatten()
        first = int(wrong[0])
        return Outcome(
            ok=False,
            message=f"{wrong.numel()} of {same.numel()} threads read something else",
            first_difference=f"thread {first} has the sum {int(found[first])} and should have {int(wanted[first])}",
        )


class _Write(_Local):
    """Vector i holds four numbers from pattern + 4 i on."""

    def __init__(self, case: Case, world: World) -> None:
        super().__init__(case, world)
        torch = world.torch
        self._target = torch.full((case.whole("bytes"),), STALE, dtype=torch.uint8, device=world.device)
        self._pattern = seed_of(case, "pattern", world.rank)

    def run(self) -> None:
        target = int(self._target.data_ptr())
        self._go(LinkArgs(kernels.num_rows(self._case), target=target, pattern=self._pattern))
        if self._damages:
            self._flip(self._target)

    def check(self) -> Outcome:
        self._damages = False
        torch = self._world.torch
        words = torch.arange(self._target.numel() // 4, dtype=torch.int64, device=self._world.device) + self._pattern
        words = words & (_WORD - 1)
        wanted = torch.where(words >= _WORD // 2, words - _WORD, words).to(torch.int32).view(torch.uint8)
        outcome = compare(self._target, wanted, "what was written")
        self._target.fill_(STALE)
        return outcome
