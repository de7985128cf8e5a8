from __future__ import annotations

import pytest

from epctl.bench.nominal import hardware
from epctl.comm import node_facts
from epctl.comm.node_facts import NodeFacts
from epctl.core.errors import EpctlError
from epctl.core.op import Adapter
from epctl.probes import load


def test_facts_of_a_node_with_adapters() -> None:
    found = node_facts.of_snapshot(load.sample("hgx-h100-ib"))
    assert found.num_gpus == 8
    assert "H100" in found.gpu_name
    assert found.num_links_per_gpu == 18
    assert found.link_gbs == pytest.approx(26.562)
    assert [adapter.rail for adapter in found.adapters] == list(range(8))
    assert {adapter.gbps for adapter in found.adapters} == {400.0}


def test_facts_of_a_laptop() -> None:
    found = node_facts.of_snapshot(load.sample("laptop"))
    assert (found.num_gpus, found.gpu_name, found.num_links_per_gpu, found.adapters) == (0, "", 0, ())


NODE = NodeFacts("a", 8, "NVIDIA H200", 18, 26.562, (Adapter("mlx5_0", 0, 400.0),), "2.32.3", "580.1")


def of(host: str, **more: object) -> NodeFacts:
    from msgspec import structs

    return structs.replace(NODE, host=host, **more)


def test_ranks_of_two_nodes_make_a_layout() -> None:
    found = node_facts.layout_of([of("a"), of("a"), of("b"), of("b")], "gpu", scale_up=2, num_gpus=4)
    assert (found.hosts, found.num_ranks, found.ranks_per_node) == (("a", "b"), 4, 2)
    assert (found.scale_out, found.scale_up, found.num_gpus) == (2, 2, 4)
    assert (found.nccl_version, found.driver_version, found.gpu_name) == ("2.32.3", "580.1", "NVIDIA H200")


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ([of("a"), of("a"), of("b")], "different numbers of ranks"),
        ([of("a"), of("b", num_links_per_gpu=17)], "num links per gpu"),
        ([of("a"), of("b", driver_version="570")], "driver version"),
        ([of("a"), of("a"), of("a")], "3 ranks make no domains of 2"),
    ],
)
def test_ranks_that_make_no_layout(facts: list[NodeFacts], what: str) -> None:
    with pytest.raises(EpctlError, match=what):
        node_facts.layout_of(facts, "gpu", scale_up=1 if len(facts) < 3 else 2, num_gpus=2)


def test_on_the_cpu_no_gpu_is_told() -> None:
    found = node_facts.layout_of([of("a"), of("a")], "cpu", scale_up=2, num_gpus=0)
    assert (found.gpu_name, found.num_links_per_gpu) == ("", 0)


def test_nominal_figures() -> None:
    where = node_facts.layout_of([of("a"), of("a")], "gpu", scale_up=2, num_gpus=2)
    found = hardware(where)
    assert found.nvlink_gbs == pytest.approx(478.116)
    assert found.nvlink_source == "driver: 18 links x 26.562 GB/s"
    assert (found.num_sms, found.hbm_peak_gbs) == (132, 4800)
    assert found.rdma_gbs == pytest.approx(25.0)
    nobody = hardware(
        node_facts.layout_of([of("a", gpu_name="Unheard of", link_gbs=0.0)], "gpu", scale_up=1, num_gpus=1)
    )
    assert (nobody.nvlink_gbs, nobody.hbm_peak_gbs, nobody.num_sms) == (0.0, 0.0, 0)
