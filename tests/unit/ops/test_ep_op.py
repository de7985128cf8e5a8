"""Cases of the expert-parallel op, its bytes and times, gates, comparisons, ratios and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from epctl.bench.overlap import hidden_share
from epctl.bench.record import Row
from epctl.bench.rivals import with_ratios
from epctl.bench.verdict import Verdict
from epctl.commands import bench_calls
from epctl.core.errors import EpctlError
from epctl.core.op import Hardware, Layout, Request, Told, Traffic
from epctl.ops.ep.trial import cases, compare, figures, gates, sweep
from epctl.ops.ep.trial.op import OP
from epctl.ops.ep.trial.options import Options, case_of, name_of, options_of
from tests.support.worlds import layout, torch_or_skip

TWO = layout(2, tier="gpu", gpu_name="NVIDIA H200", num_links_per_gpu=18, link_gbs=26.562)
H200 = Hardware("NVIDIA H200", 132, 478.116, "driver", 4800.0, "table")
SPLIT = structs.replace(TWO, scale_out=2, scale_up=1)


def names(layout: Layout = TWO, sms: tuple[int, ...] = (), mode: Any = "all", **more: str) -> list[str]:  # noqa: ANN401
    return [case.name for case in cases.bench_cases(Request(mode=mode, sms=sms, more=more), layout)]


# ---- the sweep


@pytest.mark.parametrize("tier", ["gpu", "cpu"])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_cases_have_one_name_each_and_are_what_they_say(ranks: int, tier: Any) -> None:  # noqa: ANN401
    found = sweep.cases(layout(ranks, tier=tier), 5, tier)
    assert len({case.name for case in found}) == len(found) > 100
    for case in found:
        options = options_of(case)
        assert name_of(options) == case.name
        assert options.topk <= options.experts
        assert options.experts % ranks == 0
        assert max(options.tokens) <= options.capacity
        assert " " not in case.name
    assert sweep.cases(layout(ranks, tier=tier), 5, tier) == found


def test_every_value_meets_every_mode() -> None:
    """Pairs of layout, type, way and kernels for few or many tokens with all else that can go with them."""
    found = [options_of(case) for case in sweep.cases(TWO, 0, "gpu")]
    modes: dict[str, Any] = {
        "expand": lambda one: one.expand,
        "dtype": lambda one: one.dtype,
        "way": lambda one: one.way,
        "many": lambda one: one.capacity >= sweep.MANY,
        "biases": lambda one: one.biases,
    }
    for name in ("sync", "masked", "gate", "wide", "deterministic", "weights", "tokens", "biases", "alignment"):
        values = {"masked": set(sweep.MASKED), "tokens": set(sweep.TOKENS), "gate": set(sweep.GATES)}.get(
            name, {getattr(one, name) for one in found if one.hidden == 512 and one.alignment in (1, 128)}
        )
        for mode, of in modes.items():
            if mode == name:
                continue
            met = {(getattr(one, name), of(one)) for one in found}
            missing = [
                (value, kind) for value in values for kind in {of(one) for one in found} if (value, kind) not in met
            ]
            assert missing == [], (name, mode)
    assert any(one.every_row and one.biases == 2 for one in found)
    assert any(one.columns and one.way != "stream" for one in found)


def test_nothing_runs_across_load_store_domains() -> None:
    assert (
        sweep.cases(SPLIT, 0, "gpu")
        == sweep.stress_cases(SPLIT, 0, "gpu", 9)
        == cases.bench_cases(Request(), SPLIT)
        == ()
    )


def test_damage_is_tried_where_every_rank_sends_to_each() -> None:
    def corruptions(signals: bool = True, **more: Any) -> tuple[str, ...]:  # noqa: ANN401
        return OP.corruptions(case_of(Options(**more), 0, signals=signals))

    assert corruptions() == ("byte", "signal")
    assert corruptions(signals=False) == ("byte",)
    for more in ({"tokens": (64, 3)}, {"masked": 30}, {"gate": "one-rank"}, {"weights": False}, {"kind": "graph"}):
        assert corruptions(**more) == ()
    first = sweep.cases(TWO, 0, "gpu")[0]
    assert OP.corruptions(first) == ("byte", "signal")


# ---- what is timed


def test_modes() -> None:
    low, high = names(mode="low-latency"), names(mode="high-throughput")
    assert {name.split("/")[2] for name in low} == {"128"}
    assert {name.split("/")[2] for name in high} == {"4096", "8192"}
    assert names() == [*low, *high]
    assert [name for name in low if name.startswith("dispatch/fp8")] == [
        "dispatch/fp8/128",
        "dispatch/fp8/128/copying",
        "dispatch/fp8/128/graph",
    ]
    assert not any(name.endswith("graph") for name in high)


def test_rivals_come_first_and_have_the_same_work() -> None:
    found = cases.bench_cases(
        Request(sms=(24, 64), more={"tokens": "4096", "dtype": "fp8", "against": "nccl,deep-ep"}), TWO
    )
    group = [case for case in found if case.params["work"] == "dispatch/fp8/4096"]
    assert [case.name.removeprefix("dispatch/fp8/4096/") for case in group] == [
        "nccl",
        "deep-ep/24-sms",
        "deep-ep/64-sms",
        "24-sms",
        "24-sms/copying",
        "64-sms",
        "64-sms/copying",
    ]
    assert {case.params["stage"] for case in found} == {"dispatch", "cached", "combine"}
    assert "sms" not in group[0].params


def test_expand_waits_and_overlap() -> None:
    assert not any("copying" in name for name in names(expand="yes"))
    assert "dispatch/bf16/64/overlap" in names(tokens="64", overlap="yes")
    found = cases.bench_cases(Request(more={"waits": "yes", "tokens": "64", "against": "nccl"}), TWO)
    waiting = [case.name for case in found if case.params["waits"]]
    assert waiting[0] == "dispatch/fp8/64"
    assert not any("nccl" in name or "copying" in name for name in waiting)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tokens": "0"}, "--tokens 0 cannot be"),
        ({"tokens": "128,x"}, "--tokens x cannot be"),
        ({"tokens": "16385"}, "--tokens 16385"),
        ({"experts": "255"}, "--experts 255"),
        ({"experts": "4", "topk": "8"}, "--topk 8"),
        ({"topk": "17"}, "--topk 17"),
        ({"hidden": "7000"}, "--hidden 7000"),
        ({"hidden": "16512"}, "--hidden 16512"),
        ({"dtype": "fp4"}, "--dtype fp4"),
        ({"against": "gloo"}, "--against gloo"),
        ({"against": "nccl", "expand": "yes"}, "--against nccl"),
        ({"gate": "zipf"}, "--gate 'zipf' is unknown"),
        ({"gate": "skew:x"}, "--gate 'skew:x'"),
        ({"gate": "skew:9"}, "--gate 'skew:9'"),
        ({"gate": "trace:/nowhere.csv"}, "nowhere.csv"),
    ],
)
def test_options_that_cannot_be(more: dict[str, str], words: str) -> None:
    with pytest.raises(EpctlError) as caught:
        cases.bench_cases(Request(more=more), TWO)
    assert words in caught.value.what
    assert caught.value.exit_code == 2


def test_the_cpu_has_no_kernels_to_wait_for() -> None:
    where = layout(2)
    assert names(where) == ["dispatch/fp8/16", "dispatch/bf16/16", "cached/fp8/16", "cached/bf16/16", "combine/bf16/16"]
    for more in ({"waits": "yes"}, {"overlap": "yes"}, {"against": "deep-ep"}):
        with pytest.raises(EpctlError):
            cases.bench_cases(Request(more=more), where)


# ---- figures


def case_named(name: str, **more: str) -> Any:  # noqa: ANN401
    found = cases.bench_cases(Request(sms=(24,), more={"against": "nccl", **more}), TWO)
    return next(case for case in found if case.name == name)


def test_bytes_limit_and_prediction_of_a_dispatch() -> None:
    case = case_named("dispatch/fp8/4096/24-sms")
    moved = OP.traffic(case, TWO)
    # Top-8 of 256 reaches 2 (1 - C(128, 8) / C(256, 8)) = 1.9933 ranks, one of them its own.
    assert moved.nvlink_out_bytes == moved.nvlink_in_bytes == round(4096 * 1.99331 / 2) * (7168 + 224)
    limit = OP.limit(case, TWO, H200)
    assert limit is not None
    assert (limit.value, limit.unit) == (362, "gbs")
    predicted = OP.predict(case, TWO, H200)
    assert predicted is not None
    assert limit.us(moved) < predicted < 1.12 * limit.us(moved)
    combine = OP.limit(case_named("combine/bf16/4096/24-sms"), TWO, H200)
    assert combine is not None
    assert combine.value == 366


def test_what_a_case_adds_to_the_plan() -> None:
    def predicted(name: str, **more: str) -> float:
        found = OP.predict(case_named(name, **more), TWO, H200)
        assert found is not None
        return found

    plain = predicted("dispatch/bf16/4096/24-sms")
    assert predicted("cached/bf16/4096/24-sms") < plain
    # Every received row is read and written once more, at 1.8 TB/s.
    copied = 4096 * 1.99331 * 14336 / 1800 / 1e3
    assert predicted("dispatch/bf16/4096/24-sms/copying") - plain == pytest.approx(copied, abs=1.5)
    assert predicted("dispatch/bf16/4096/24-sms", against="deep-ep", expand="yes") > plain + 3.5 * copied


def test_no_prediction_without_ground() -> None:
    assert OP.predict(case_named("dispatch/fp8/4096/nccl"), TWO, H200) is None
    assert OP.predict(case_named("dispatch/fp8/4096/24-sms", gate="skew:1"), TWO, H200) is None
    assert OP.predict(case_named("dispatch/fp8/4096/24-sms"), TWO, Hardware()) is None
    case = sweep.cases(TWO, 0, "gpu")[0]
    assert (OP.predict(case, TWO, H200), OP.limit(case, TWO, H200), OP.traffic(case, TWO)) == (None, None, Traffic())


def test_combine_brings_back_what_dispatch_took() -> None:
    assert figures.bytes_moved("dispatch", 3, 5, 10) == Traffic(nvlink_out_bytes=30, nvlink_in_bytes=50)
    assert figures.bytes_moved("combine", 3, 5, 10) == Traffic(nvlink_out_bytes=50, nvlink_in_bytes=30)


# ---- gates


def test_gates_by_name() -> None:
    assert gates.parse("balanced") == gates.Gate()
    assert gates.parse("skew:1.5") == gates.Gate("skew", 1.5)
    assert gates.parse("trace:a:b.csv") == gates.Gate("trace", path="a:b.csv")


def test_a_trace_is_replayed_row_by_row(tmp_path: Path) -> None:
    torch = torch_or_skip()
    path = tmp_path / "trace.csv"
    path.write_text("0,3\n2,-1\n1,0\n", "utf-8")
    generator = torch.Generator()
    gate = gates.parse(f"trace:{path}")
    found = gates.selections(gate, 4, 2, 4, 2, generator, first=2)
    assert found.tolist() == [[1, 0], [0, 3], [2, -1], [1, 0]]
    with pytest.raises(EpctlError, match="--topk is 3"):
        gates.selections(gate, 4, 3, 4, 2, generator)
    with pytest.raises(EpctlError, match="names expert 3"):
        gates.selections(gate, 4, 2, 2, 2, generator)


# ---- comparisons


def test_a_difference_is_told_with_its_place() -> None:
    torch = torch_or_skip()
    one = torch.arange(6, dtype=torch.int32).view(3, 2)
    other = one.clone()
    other[1, 1] = 9
    (found,) = compare.same("x", other, one, "cached")
    assert (found.told, found.where) == ("1 of 3 rows differ", "row 1, byte 4 is 0x09 and should be 0x03")
    outcome = compare.outcome([found])
    assert outcome.message == "cached x: 1 of 3 rows differ"
    assert compare.same("x", one, one.clone()) == compare.same("x", None, None) == []
    assert compare.same("x", None, one)[0].told == "is nothing and should be torch.int32 [3, 2]"
    assert compare.same("x", one.long(), one)[0].told.startswith("is torch.int64 [3, 2]")
    assert compare.same("x", one[:2], one) != []


def test_zeros_of_both_signs_and_columns_differ_bit_by_bit() -> None:
    torch = torch_or_skip()
    assert compare.same("x", torch.tensor([[0.0]]), torch.tensor([[-0.0]])) != []
    columns = torch.zeros((4, 1)).t()[:, :1]
    assert compare.same("x", columns, torch.zeros((1, 1))) == []


def test_damage_that_only_some_outputs_show_is_no_proof() -> None:
    seen = [compare.Difference("x", "", "differs")]
    assert not compare.outcome_of_damage(seen, {"x"}).ok
    assert compare.outcome_of_damage(seen, {"x", "weights"}).message == "not noticed: weights"
    assert compare.outcome_of_damage(seen, {"x", "weights"}).ok
    assert compare.outcome_of_damage([], set()).ok


# ---- ratios, overlap, text


def row(by: str, us: float, **more: Any) -> Row:  # noqa: ANN401
    params = {"by": by, "work": "dispatch/fp8/4096", "place": "zero-copy", **more}
    told = (Told(num_sms=24, logical_bytes=1), Told(num_sms=24, note=f"contract of {by}"))
    return Row("ep", f"dispatch/fp8/4096/{by}", params, ok=True, verdict=Verdict("unrated"), median_us=us, told=told)


def test_ratios_to_rivals_on_as_many_sms() -> None:
    earlier = [row("nccl", 300.0), row("deep-ep", 150.0, sms=24), row("deep-ep", 140.0, sms=64)]
    assert with_ratios(row("epctl", 100.0, sms=24), earlier).ratios == {"nccl": 3.0, "deep-ep": 1.5}
    assert with_ratios(row("epctl", 100.0, sms=64), earlier).ratios == {"nccl": 3.0, "deep-ep": 1.4}
    assert with_ratios(row("nccl", 1.0), earlier).ratios == {}
    other = structs.replace(earlier[0], params={**earlier[0].params, "work": "combine"})
    failed = structs.replace(earlier[1], ok=False)
    assert with_ratios(row("epctl", 100.0, sms=24), [other, failed]).ratios == {}


@pytest.mark.parametrize(
    ("alone", "product", "both", "share"),
    [(100, 120, 120, 1.0), (100, 120, 220, 0.0), (100, 120, 145, 0.75), (100, 120, 300, 0.0), (100, 120, 110, 1.0)],
)
def test_hidden_share(alone: float, product: float, both: float, share: float) -> None:
    told = Told(communication_us=alone, computation_us=product, together_us=both)
    quick = Told(communication_us=alone / 2, computation_us=product / 2, together_us=both / 2)
    assert hidden_share((quick, told)) == pytest.approx(share)


def test_no_share_where_nothing_was_computed() -> None:
    assert hidden_share(()) is None
    assert hidden_share((Told(),)) is None


def test_sections_fit_80_columns_and_tell_all() -> None:
    ours = structs.replace(row("epctl", 95.1), logical_gbs=636.94, gbs=318.2, ratios={"nccl": 3.1, "deep-ep": 1.504})
    waits = (Told(waited_us=(0.2, 11.25)), Told(waited_us=(3.0, 0.1)))
    waiting = structs.replace(row("epctl", 1.0), case="cached/fp8/128", told=waits)
    times = Told(communication_us=95.0, computation_us=100.0, together_us=119.0)
    beside = structs.replace(
        row("epctl", 1.0, overlap=True), case="dispatch/bf16/4096/24-sms/overlap", told=(times, times), hidden_share=0.8
    )
    text = "\n".join(bench_calls.sections([row("nccl", 300.0), ours, waiting, beside]))
    assert max(map(len, text.splitlines())) <= 80
    assert "  24   636.9   318.2  3.10 x  1.50 x" in text
    assert "     0    0.20   11.25" in text
    assert "95.0    100.0    119.0      80%" in text
    assert "nccl: contract of nccl" in text
    assert bench_calls.sections([structs.replace(ours, told=())]) == []
