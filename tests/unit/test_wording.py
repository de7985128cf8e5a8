"""How evidence is worded: counts, GPUs of which the same is said, and who read a value."""

from __future__ import annotations

import re

import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import registered
from epctl.core.doctor import examine
from epctl.core.fact import Absent
from epctl.core.snapshot import Origin, Snapshot
from epctl.core.wording import by_reader, counted, grouped, ranges
from tests.support.cases import run
from tests.support.nodes import edit, efa_node, gb200_node, ib_node, roce_node

MANY = re.compile(
    r"(?<![\w.:/=×-])1 (?:(?:NVIDIA|RDMA|EFA|RoCE|uverbs|usable|active|fabric|huge|uncorrectable|data-direct) )*"
    r"(?:lines|GPUs|ports|numbers|NVLinks|files|nodes|kernels|interfaces|bridges|CPUs|devices|pages|functions|Xids|symbols|links|remaps)\b"
)
NODES = (ib_node(), roce_node(), efa_node(), gb200_node())


def test_one_of_a_kind_is_not_plural() -> None:
    assert [counted(number, "line") for number in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]
    assert counted(1, "entry", "entries") == "1 entry"
    assert counted(3, "entry", "entries") == "3 entries"


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([7, 0, 1, 3, 2, 7]) == "0-3, 7"
    assert ranges([]) == ""


def test_the_same_of_several_gpus_is_said_once_and_nothing_is_lost() -> None:
    lines = [f"GPU {i}: fine" for i in range(4)] + [
        "GPU 4: odd",
        "nvmlInit returns 0",
        "GPU 5: fine",
        "nvmlInit returns 0",
    ]
    assert grouped(lines) == ("GPU 0-3, 5: fine", "GPU 4: odd", "nvmlInit returns 0")
    assert grouped(["CUDA device 0: x = 1", "CUDA device 1: x = 1", "GPU 0 link 3: a", "GPU 1 link 3: a"]) == (
        "CUDA device 0-1: x = 1",
        "GPU 0-1 link 3: a",
    )
    assert grouped(["GPU 1→2 fails", "GPU 1→3 fails", "GPU 12"]) == ("GPU 1→2 fails", "GPU 1→3 fails", "GPU 12")


@pytest.mark.parametrize("node", NODES, ids=["ib", "roce", "efa", "gb200"])
def test_no_line_of_a_report_is_there_for_each_gpu(node: Snapshot) -> None:
    for finding in examine(node, registered().values()).findings:
        plain = [re.sub(r"^(GPU|CUDA device) [\d, -]+", "", text) for text in finding.evidence]
        assert len(set(plain)) == len(plain), finding.evidence


def test_compute_capability_of_eight_gpus_is_one_line() -> None:
    finding = run("CUDA-ARCH-UNSUPPORTED", edit(ib_node(), "gpu.gpus.*.compute_capability", "8.0"))
    assert finding.evidence == (
        "GPU 0-7: compute capability 8.0 (NVIDIA H100 80GB HBM3), DeepEP 2.5 (deepinfer-ep) needs 9.0",
    )


def test_what_nvidia_smi_printed_is_not_called_nvml() -> None:
    """A folder of raw outputs has no answer of NVML; one in which NVML was asked has."""
    asked = ib_node()
    replayed = edit(edit(asked, "gpu.driver.nvml_code", Absent("not_read")), "origin", Origin("recorded", "folder"))
    for node, word in ((asked, "(NVML)"), (replayed, "(nvidia-smi)")):
        for status, changed in (("passed", node), ("failed", edit(node, "gpu.gpus.2.mig_enabled", True))):
            finding = run("GPU-MIG-ON", changed)
            assert finding.status == status
            assert all(text.endswith(word) for text in finding.evidence)
    texts = [text for finding in examine(replayed, registered().values()).findings for text in finding.evidence]
    assert not [text for text in texts if re.search(r"\bNVML\b", text)]
    assert (
        by_reader("GPUs (NVML): timed out", edit(replayed, "gpu.gpus", Absent("timed_out"))) == "GPUs (NVML): timed out"
    )


def test_what_could_not_be_read_is_said_once() -> None:
    """Not `could not read X: not read: Y`."""
    bare = Snapshot(origin=Origin("live"))
    for node in (
        bare,
        edit(ib_node(), "pcie.functions", Absent("not_read")),
        edit(ib_node(), "gpu.driver.services", ()),
    ):
        for finding in examine(node, registered().values(), num_nodes=2).findings:
            for text in finding.evidence:
                assert not re.search(r"could not read .*not read|not read.*not read", text), (finding.id, text)


def test_a_name_that_the_reason_repeats_is_said_once() -> None:
    gone = Absent("not_read", "/proc/modules is not in the recording")
    assert gone.of("/proc/modules") == "/proc/modules: not in the recording"
    assert gone.of("modules") == "modules: /proc/modules is not in the recording"
    assert Absent("not_found").of("/proc/modules") == "/proc/modules: not found"
    assert Absent("permission", "only root may").of("ACSCtl") == "ACSCtl: permission: only root may"


@pytest.mark.parametrize("name", ["pcie.functions", "rdma.netdevs", "rdma.uverbs", "host.nvidia_nodes"])
def test_counts_of_reports_agree_with_their_nouns(name: str) -> None:
    for node in NODES:
        for path in ("gpu.gpus", name):
            changed = edit(node, path, _one(node, path))
            for finding in examine(changed, registered().values(), num_nodes=2).findings:
                for text in finding.evidence:
                    wrong = MANY.search(text)
                    assert wrong is None, (finding.id, text)


def _one(node: Snapshot, path: str) -> tuple[object, ...]:
    """The first entry of a list alone."""
    area, _, field = path.partition(".")
    every = getattr(getattr(node, area), field)
    assert isinstance(every, tuple)
    return every[:1]
