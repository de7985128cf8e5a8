"""The unit that bench, selftest, plan and fabric share: what an op declares, and what it gets when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

Scalar = int | float | str | bool
Tier = Literal["gpu", "cpu"]
Corruption = Literal["byte", "signal"]
"""How the self-test damages a run: one byte of what is sent is another one, or one signal is not given."""
CORRUPTIONS: tuple[Corruption, ...] = ("byte", "signal")


class Case(Struct, frozen=True):
    """One thing that is run. The name is one word for a shell, and unique among the op's cases."""

    name: str
    params: dict[str, Scalar]

    def whole(self, name: str) -> int:
        """A parameter that is a whole number. Raises TypeError when it is none."""
        if isinstance(value := self.params[name], bool) or not isinstance(value, int):
            raise TypeError(f"{self.name}: {name} is {value!r}")
        return value

    def word(self, name: str) -> str:
        """A parameter that is text. Raises TypeError when it is none."""
        if not isinstance(value := self.params[name], str):
            raise TypeError(f"{self.name}: {name} is {value!r}")
        return value


class Request(Struct, frozen=True):
    """What the user asks an op for; without a value the op chooses."""

    mode: Literal["all", "low-latency", "high-throughput"] = "all"
    sizes: tuple[int, ...] = ()
    """Bytes."""
    sms: tuple[int, ...] = ()
    more: dict[str, str] = {}
    """Options that only some ops know, by their name without dashes."""


class Traffic(Struct, frozen=True):
    """Bytes that the busiest rank moves in one run."""

    nvlink_out_bytes: int = 0
    nvlink_in_bytes: int = 0
    rdma_out_bytes: int = 0
    rdma_in_bytes: int = 0
    hbm_bytes: int = 0
    """Read from local memory and written to it, together."""

    def busiest_bytes(self) -> int:
        """Bytes of the busiest direction of the busiest link; of local memory where no link is used."""
        links = (self.nvlink_out_bytes, self.nvlink_in_bytes, self.rdma_out_bytes, self.rdma_in_bytes)
        return max(links) or self.hbm_bytes


class Limit(Struct, frozen=True):
    """What no run can pass: a rate of the busiest link, or a time."""

    value: float
    unit: Literal["gbs", "us"]
    """gbs: 1e9 bytes/s of `Traffic.busiest_bytes`; us: of one run."""
    name: str
    source: str

    def us(self, traffic: Traffic) -> float:
        """Time that one run takes at the limit, in µs."""
        return self.value if self.unit == "us" else traffic.busiest_bytes() / self.value / 1e3


class Told(Struct, frozen=True):
    """What a timed case tells of itself, on one rank, beside its times."""

    traffic: Traffic | None = None
    """Of this rank, as its data had it; None: `Op.traffic` holds."""
    logical_bytes: int = 0
    """What this rank was given, whatever way it came; 0 where that is the traffic."""
    num_sms: int = 0
    communication_us: float = 0.0
    """Of a case that computes meanwhile: the communication alone; 0 where nothing is computed."""
    computation_us: float = 0.0
    """The computation alone."""
    together_us: float = 0.0
    """Both at once."""
    waited_us: tuple[float, ...] = ()
    """How long this rank waited for each, on average."""
    note: str = ""
    """What a reader must know of it."""
    carried_by: tuple[str, ...] = ()
    """Adapters that sent what this rank sent, by their own counters, the busiest first; () where none did, or none counts."""


class Outcome(Struct, frozen=True):
    """What a check found on one rank."""

    ok: bool
    message: str = ""
    """What is wrong; '' when nothing is."""
    first_difference: str = ""
    """Where it is, what is there, and what should be."""


class Adapter(Struct, frozen=True):
    """One RDMA port that takes part."""

    name: str
    rail: int
    gbps: float
    """Line rate; 0 where it is not known."""


class Layout(Struct, frozen=True):
    """What an output was made on."""

    hosts: tuple[str, ...]
    num_ranks: int
    ranks_per_node: int
    num_gpus: int
    """Of all nodes; fewer than ranks when several ranks share one."""
    scale_out: int
    """Domains of load/store."""
    scale_up: int
    """Ranks of one domain; they follow each other."""
    tier: Tier
    emulated: bool = False
    """Several nodes are played on one host."""
    gpu_name: str = ""
    num_links_per_gpu: int = 0
    link_gbs: float = 0.0
    """Of one NVLink, one way, as the driver prints it; 0 where it is not known."""
    adapters: tuple[Adapter, ...] = ()
    """Of one node."""
    gin_type: str = ""
    """proxy, gdaki, efa_gda; '' without GIN."""
    nccl_version: str = ""
    driver_version: str = ""

    @property
    def num_rails(self) -> int:
        """Different rails of a node's adapters."""
        return len({adapter.rail for adapter in self.adapters})

    def scale_up_peer(self, rank: int, step: int = 1) -> int:
        """The rank `step` further in the load/store domain of `rank`, in a circle."""
        begin = rank - rank % self.scale_up
        return begin + (rank - begin + step) % self.scale_up


class Hardware(Struct, frozen=True):
    """Nominal figures of a rank's GPU, for limits; 0 where one is not known."""

    gpu_name: str = ""
    num_sms: int = 0
    nvlink_gbs: float = 0.0
    """All links, one way."""
    nvlink_source: str = ""
    hbm_peak_gbs: float = 0.0
    """Read and written together."""
    hbm_source: str = ""
    rdma_gbs: float = 0.0
    rdma_source: str = ""


class Memory(Protocol):
    """Symmetric memory: the same size on each rank of the group."""

    @property
    def address(self) -> int:
        """Device address on this rank."""

    def peer_address(self, rank: int) -> int:
        """Where this rank's GPU reaches the memory of `rank`, which is of the same load/store domain."""

    def bytes_tensor(self) -> Any:  # noqa: ANN401 - a tensor
        """uint8 view of this rank's memory."""

    def close(self) -> None:
        """Gives it back; all ranks do so in the same order."""


class Meeting(Protocol):
    """Where ranks tell each other what they found, over the CPU."""

    def all_gather(self, stage: str, value: bytes) -> list[bytes]:
        """The values of all ranks, by rank. `stage` names the place in the program, and is used once."""


class World(Protocol):
    """What an op runs in."""

    @property
    def rank(self) -> int:
        """Of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def layout(self) -> Layout:
        """What the ranks run on."""

    @property
    def tier(self) -> Tier:
        """gpu: kernels run; cpu: plain PyTorch stands for them."""

    @property
    def torch(self) -> ModuleType:
        """PyTorch."""

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """Where this rank's tensors live."""

    @property
    def meeting(self) -> Meeting:
        """The control path."""

    @property
    def group(self) -> Any:  # noqa: ANN401 - ProcessGroup
        """A gloo group of all ranks, for control and for data on the CPU."""

    def barrier(self) -> None:
        """Of all ranks: enqueued on the current stream on a GPU, at once on the CPU."""

    def generator(self, seed: int) -> Any:  # noqa: ANN401 - torch.Generator
        """Random numbers on `device`, the same on every rank for the same seed."""

    def symmetric(self, num_bytes: int) -> Memory:
        """Memory that peers of the load/store domain reach; all ranks ask for the same."""


class Running(Protocol):
    """A case that is set up on one rank."""

    def run(self) -> None:
        """Does it once: enqueued on the current stream on a GPU."""

    def check(self) -> Outcome:
        """Whether the last run did what it should, on this rank. All ranks have ended the run, and the GPU is idle."""

    def corrupt(self, kind: Corruption) -> None:
        """Damages the next run, and that one only, so that the checks of some rank must fail. Called on all ranks."""

    def measured_us(self) -> float | None:
        """Time of the last run as the kernel itself took it; None when the time around the run is meant."""

    def close(self) -> None:
        """Gives everything back, also after an error."""


@runtime_checkable
class Tells(Protocol):
    """A Running that tells more than times."""

    def told(self) -> Told:
        """After the samples, on all ranks together: it may run the case again."""


class Op(Protocol):
    """One family of kernels."""

    name: str
    summary: str
    """Less than a line."""
    tiers: tuple[Tier, ...]

    def cases(self, request: Request, layout: Layout) -> Sequence[Case]:
        """What is timed. Raises EpctlError for a request that cannot be met."""

    def selftest_cases(self, layout: Layout, seed: int, tier: Tier) -> Sequence[Case]:
        """What is checked against the reference."""

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        """How the case can be damaged; each kind that some case can is tried before checks are believed."""

    def traffic(self, case: Case, layout: Layout) -> Traffic:
        """Of the busiest rank, for one run."""

    def limit(self, case: Case, layout: Layout, hardware: Hardware) -> Limit | None:
        """None where nobody knows one."""

    def predict(self, case: Case, layout: Layout, hardware: Hardware) -> float | None:
        """Time of one run in µs; None where there is no ground for one."""

    def make(self, case: Case, world: World) -> Running:
        """Sets the case up; called on all ranks. Raises EpctlError."""
