"""Measured NVLink rates are put on the right pairs and links, and what is slow becomes a finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.topo.build import assemble
from epctl.topo.gather import Input, gather
from epctl.topo.graph import Edge, Graph, Node, Part, Source
from epctl.topo.measured import Rate, Run, with_run


def graph_of(*edges: Edge, num_gpus: int = 2, hosts: tuple[str, ...] = ("h",)) -> Graph:
    """GPUs of 4 links to each other or to a switch, as `edges` say."""
    nodes = []
    for host in hosts:
        nodes += [
            Node(host, "host", host),
            Node(f"{host}/sw0", "nvswitch", "s", host),
            Node(f"{host}/sw1", "nvswitch", "t", host),
        ]
        nodes += [
            Node(
                f"{host}/gpu{i}",
                "gpu",
                f"GPU {i}",
                host,
                "NVML",
                {"index": i, "name": "X100", "uuid": f"GPU-{host}{i}"},
            )
            for i in range(num_gpus)
        ]
    return assemble([Part(Source("f", "snapshot"), tuple(nodes), edges)])


STRAIGHT = Edge("h/gpu0", "h/gpu1", "nvlink", "NVML", 100.0, 4)


def run_of(*rates: Rate, uuids: tuple[str, ...] = ("GPU-h0", "GPU-h1"), num_gpus: int = 2, host: str = "h") -> Run:
    return Run("r.json", host, "X100", num_gpus, 0, uuids, rates)


def sms(source: int, target: int, gbs: float) -> Rate:
    return Rate(source, target, gbs, "SMs", f"bulk-write/{source}-to-{target}/1")


def test_each_direction_and_engine_keeps_its_best_rate_and_the_link_has_the_best_of_all() -> None:
    copy = Rate(0, 1, 92.5, "copy engine", "copy-engine/0-to-1/1")
    graph = with_run(graph_of(STRAIGHT), run_of(sms(0, 1, 85.0), sms(0, 1, 90.0), copy, sms(1, 0, 81.25)))
    assert [(one.a, one.b, one.gbs, one.by, one.nominal_gbs) for one in graph.measured] == [
        ("h/gpu0", "h/gpu1", 90.0, "SMs", 100.0),
        ("h/gpu0", "h/gpu1", 92.5, "copy engine", 100.0),
        ("h/gpu1", "h/gpu0", 81.25, "SMs", 100.0),
    ]
    (edge,) = graph.edges
    assert (edge.source, edge.gbs, edge.measured_up_gbs, edge.measured_down_gbs) == (
        "NVML, measured",
        100.0,
        92.5,
        81.25,
    )
    assert graph.sources[-1] == Source("r.json", "bench")
    assert graph.findings == ()  # both are above 70 %, and UUIDs say whose they are


def test_ranks_are_put_on_gpus_by_uuid_not_by_number() -> None:
    graph = with_run(graph_of(STRAIGHT), run_of(sms(0, 1, 85.0), uuids=("GPU-h1", "GPU-h0")))
    assert [(one.a, one.b) for one in graph.measured] == [("h/gpu1", "h/gpu0")]
    assert (graph.edges[0].measured_up_gbs, graph.edges[0].measured_down_gbs) == (UNSET, 85.0)


def test_a_link_below_70_percent_of_nominal_is_a_finding_with_the_slowest_first() -> None:
    graph = with_run(graph_of(STRAIGHT), run_of(sms(0, 1, 69.0), sms(1, 0, 40.0)))
    assert [(finding.severity, finding.text) for finding in graph.findings] == [
        (
            "warn",
            (
                "h: NVLink is measured below 70% of nominal: GPU 1 -> GPU 0 40.0 of 100.0 GB/s (40%), "
                "GPU 0 -> GPU 1 69.0 of 100.0 GB/s (69%)"
            ),
        )
    ]


@given(st.floats(1, 1000), st.floats(1, 1000))
def test_a_finding_is_there_exactly_below_70_percent(gbs: float, nominal: float) -> None:
    graph = with_run(graph_of(replace(STRAIGHT, gbs=nominal)), run_of(sms(0, 1, gbs)))
    assert bool(graph.findings) == (round(gbs, 3) < 0.7 * round(nominal, 3))


def test_nominal_over_switches_is_the_narrower_side_of_each_and_no_single_link_is_given_the_rate() -> None:
    links = [
        Edge(f"h/gpu{gpu}", f"h/sw{switch}", "nvlink", "NVML", gbs, 2)
        for gpu, switch, gbs in ((0, 0, 50.0), (0, 1, 50.0), (1, 0, 50.0), (1, 1, 25.0))
    ]
    graph = with_run(graph_of(*links), run_of(sms(0, 1, 70.0)))
    assert graph.measured[0].nominal_gbs == 75.0
    assert graph.edges == tuple(links)
    assert [finding.text for finding in graph.findings] == [
        "r.json: rates are of all NVLinks of two GPUs together; which NVSwitch carried what is not measured"
    ]


def test_over_one_switch_a_gpus_link_has_the_best_rate_that_left_it_and_the_best_that_came() -> None:
    links = [Edge(f"h/gpu{gpu}", "h/sw0", "nvlink", "NVML", 100.0, 4) for gpu in range(3)]
    rates = (sms(0, 1, 90.0), sms(0, 2, 95.0), sms(1, 0, 85.0), sms(2, 0, 88.0))
    run = run_of(*rates, uuids=tuple(f"GPU-h{i}" for i in range(3)), num_gpus=3)
    graph = with_run(graph_of(*links, num_gpus=3), run)
    assert [(edge.measured_up_gbs, edge.measured_down_gbs) for edge in graph.edges] == [
        (95.0, 88.0),
        (85.0, 90.0),
        (88.0, 95.0),
    ]


def test_without_a_nominal_rate_nothing_is_called_slow() -> None:
    graph = with_run(graph_of(replace(STRAIGHT, gbs=UNSET)), run_of(sms(0, 1, 1.0)))
    assert graph.measured[0].nominal_gbs is UNSET
    assert graph.findings == ()


def test_gpus_that_share_no_nvlink_get_no_rate_and_that_is_said() -> None:
    graph = with_run(graph_of(), run_of(sms(0, 1, 50.0)))
    assert graph.measured == ()
    assert "1 of 1 rates are of GPUs that share no NVLink" in graph.findings[0].text


def test_other_links_than_the_driver_counted_and_cautions_of_the_run_are_told() -> None:
    run = replace(run_of(sms(0, 1, 90.0)), links_per_gpu=6, cautions=("rank 0's GPU is busy",))
    assert [finding.text for finding in with_run(graph_of(STRAIGHT), run).findings] == [
        "r.json: rank 0's GPU is busy",
        "h: NVLinks a GPU: r.json says 6; GPU 0 has 4, GPU 1 has 4",
    ]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (run_of(sms(0, 1, 1.0), num_gpus=4), "it is of 4 GPUs, and h has 2"),
        (replace(run_of(sms(0, 1, 1.0)), gpu_name="Y200"), "it is of Y200, and h has X100"),
        (run_of(sms(0, 1, 1.0), uuids=("GPU-h0", "GPU-z")), "only 1 of its GPUs are in h, by UUID"),
    ],
)
def test_a_run_on_other_gpus_is_refused(run: Run, why: str) -> None:
    with pytest.raises(EpctlError) as told:
        with_run(graph_of(STRAIGHT), run)
    assert (told.value.what, told.value.why) == ("r.json does not fit the topology", why)


def test_of_several_machines_the_run_is_of_the_one_with_its_name() -> None:
    links = [replace(STRAIGHT, a=f"{host}/gpu0", b=f"{host}/gpu1") for host in ("g", "h")]
    both = graph_of(*links, hosts=("g", "h"))
    assert [one.a for one in with_run(both, run_of(sms(0, 1, 90.0))).measured] == ["h/gpu0"]
    with pytest.raises(EpctlError, match="it is of i; the sources show g, h"):
        with_run(both, run_of(sms(0, 1, 90.0), host="i"))


def test_rates_survive_in_a_saved_graph_and_a_second_run_is_refused() -> None:
    timed = with_run(graph_of(STRAIGHT), run_of(sms(0, 1, 90.0)))
    again = gather([Input("saved.json", timed)])
    assert (again.measured, again.edges) == (timed.measured, timed.edges)
    with pytest.raises(EpctlError, match="has measured rates already"):
        with_run(again, run_of(sms(0, 1, 90.0)))
