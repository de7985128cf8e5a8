from __future__ import annotations

from msgspec import structs

from epctl.bench import header
from epctl.core.op import Adapter, Layout
from tests.support.worlds import layout

NODE = Layout(
    hosts=("a", "b"),
    num_ranks=16,
    ranks_per_node=8,
    num_gpus=16,
    scale_out=2,
    scale_up=8,
    tier="gpu",
    gpu_name="NVIDIA H200",
    num_links_per_gpu=18,
    link_gbs=26.562,
    adapters=tuple(Adapter(f"mlx5_{rail}", rail, 400.0) for rail in range(8)),
    gin_type="gdaki",
    nccl_version="2.32.3",
    driver_version="580.95.05",
)


def test_the_topology_of_a_cluster() -> None:
    assert header.lines(NODE) == (
        "layout     2 x 8 (scale-out x scale-up): 16 ranks on 2 hosts (a, b)",
        "GPUs       16 x NVIDIA H200",
        "NVLink     18 links a GPU x 26.562 GB/s = 478 GB/s each way",
        "network    8 NICs a node of 400 Gb/s (mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 4 more), 8 rails; GIN gdaki",
        "versions   NCCL 2.32.3, driver 580.95.05",
    )


def test_what_is_played_is_said_first() -> None:
    told = structs.replace(NODE, emulated=True, num_gpus=8)
    assert header.lines(told)[0].startswith("EMULATED")
    assert "GPUs       8 x NVIDIA H200, 2 ranks on each" in header.lines(told)
    assert header.lines(layout(2))[0].startswith("NO KERNEL RAN")
    assert header.cautions(layout(4, emulated=True)) == (header.NO_KERNEL, header.EMULATED)


def test_nothing_that_is_not_there_is_shown() -> None:
    told = structs.replace(NODE, num_links_per_gpu=0, adapters=(), gin_type="", nccl_version="", driver_version="")
    assert header.lines(told)[2:] == ("NVLink     none seen", "network    no active RDMA port; no GIN")


def test_names_from_outside_do_not_steer_the_terminal() -> None:
    told = structs.replace(NODE, hosts=("a\x1b[31m\nb",), gpu_name="\x1b]0;x\x07")
    assert all("\x1b" not in line and "\n" not in line for line in header.lines(told))
