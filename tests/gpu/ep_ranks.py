"""Expert parallelism on real GPUs: every mode against the reference, bit by bit, and how fast it is. Run by torchrun.

    torchrun --nproc-per-node 2 tests/gpu/ep_ranks.py check|time|peer [--seed N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from epctl.ops.ep import EPBuffer, reference
from epctl.ops.ep.reference import Returned, Sent, Setting

Tensor = torch.Tensor
HIDDEN = 7168
EXPERTS = 256
TOPK = 8


def say(*words: object) -> None:
    if dist.get_rank() == 0:
        print(*words, flush=True)


def gather(value: Tensor | None, num_rows: int) -> list[Tensor] | None:
    """The tensors of all ranks, which differ in their number of rows only."""
    if value is None:
        return None
    sizes = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([value.shape[0]], device="cuda"))
    width = value[0:1].numel() if value.shape[0] else int(torch.tensor(value.shape[1:]).prod())
    raw = torch.zeros((num_rows, width * value.element_size()), dtype=torch.uint8, device="cuda")
    if value.shape[0]:
        raw[: value.shape[0]] = value.contiguous().view(torch.uint8).view(value.shape[0], -1)
    all_raw = [torch.empty_like(raw) for _ in sizes]
    dist.all_gather(all_raw, raw)
    return [
        one[: int(size)].contiguous().view(value.dtype).view(int(size), *value.shape[1:]) if int(size) else value.new_zeros((0, *value.shape[1:]))
        for one, size in zip(all_raw, sizes, strict=True)
    ]


def make(num_tokens: int, hidden: int, topk: int, experts: int, dtype: str, gate: str, wide: bool, seed: int, masked: float) -> Sent:
    generator = torch.Generator("cuda").manual_seed(seed * 1000 + dist.get_rank())
    if gate == "one-rank":
        scores = torch.rand((num_tokens, experts), device="cuda", generator=generator)
        scores[:, experts // dist.get_world_size() :] -= 2.0
    elif gate == "skew":
        scores = torch.rand((num_tokens, experts), device="cuda", generator=generator) + torch.linspace(0.8, 0, experts, device="cuda")
    else:
        scores = torch.rand((num_tokens, experts), device="cuda", generator=generator)
    topk_idx = scores.topk(topk, 1).indices.contiguous() if num_tokens else torch.zeros((0, topk), dtype=torch.long, device="cuda")
    if masked:
        drop = torch.rand(topk_idx.shape, device="cuda", generator=generator) < masked
        topk_idx = torch.where(drop, -1, topk_idx)
    weights = torch.rand((num_tokens, topk), device="cuda", generator=generator)
    if dtype == "bf16":
        x, scales = torch.randn((num_tokens, hidden), device="cuda", generator=generator).bfloat16(), None
    else:
        x = torch.randint(0, 120, (num_tokens, hidden), dtype=torch.uint8, device="cuda", generator=generator).view(torch.float8_e4m3fn)
        width = -(-hidden // 128)
        if dtype == "fp8":
            scales = torch.rand((num_tokens, width), device="cuda", generator=generator)
        else:
            scales = torch.randint(0, 1 << 30, (num_tokens, -(-width // 4)), dtype=torch.int32, device="cuda", generator=generator)
    return Sent(x, scales, topk_idx if wide else topk_idx.int(), weights)


def same(what: str, mine: Tensor | None, wanted: Tensor | None) -> list[str]:
    if mine is None or wanted is None:
        return [] if mine is wanted else [f"{what}: {mine is None} against {wanted is None}"]
    if tuple(mine.shape) != tuple(wanted.shape) or mine.dtype != wanted.dtype:
        return [f"{what}: {mine.dtype} {tuple(mine.shape)} against {wanted.dtype} {tuple(wanted.shape)}"]
    if mine.numel() == 0:
        return []
    left = mine.contiguous().view(torch.uint8).view(mine.shape[0], -1)
    right = wanted.contiguous().view(torch.uint8).view(wanted.shape[0], -1)
    wrong = (left != right).any(1).nonzero().flatten()
    return [f"{what}: {wrong.numel()} of {mine.shape[0]} rows differ, first {int(wrong[0])}"] if wrong.numel() else []


def case(buffer: EPBuffer, options: dict[str, Any], seed: int) -> list[str]:
    """One dispatch, cached dispatch and combine against the reference."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tokens = options["tokens"][rank % len(options["tokens"])]
    most = options.get("most", max(options["tokens"]) or 1)
    hidden, topk, experts = options["hidden"], options["topk"], options["experts"]
    dtype, expand, alignment = options["dtype"], options["expand"], options["alignment"]
    shape = (tokens, hidden, topk, experts, dtype, options.get("gate", ""), options.get("wide", True))
    sent = make(*shape, seed, options.get("masked", 0.0))
    setting = Setting(world, experts, most, alignment, expand)
    everything = [gather(one, most) for one in (sent.x, sent.scales, sent.topk_idx, sent.weights)]
    all_sent = [Sent(*(None if column is None else column[r] for column in everything)) for r in range(world)]
    bad: list[str] = []
    sync = options.get("sync", True)
    arguments = dict(
        num_experts=experts, num_max_tokens_per_rank=most, expert_alignment=alignment, do_expand=expand, do_cpu_sync=sync,
        do_zero_padding=True, num_sms=options.get("sms", 0), async_with_compute_stream=options.get("asynchronous", False),
        use_tma_aligned_col_major_sf=options.get("columns", False), defer_epilogue=options.get("deferred", False),
    )
    stats = torch.zeros(experts // world, dtype=torch.int32, device="cuda")

    def got(value: Any) -> Any:
        if options.get("deferred"):
            return value.current_stream_wait()
        value[-1].current_stream_wait()
        return value[:-1]

    for turn in range(2):
        x = sent.x if sent.scales is None else (sent.x, sent.scales)
        if turn == 0:
            out = got(buffer.dispatch(x, sent.topk_idx, sent.weights, stats, **arguments))
        else:
            # New data, old routing.
            fresh = make(*shape, seed + 77, 0.0)
            sent = Sent(fresh.x, fresh.scales, sent.topk_idx, fresh.weights)
            columns = [gather(one, most) for one in (sent.x, sent.scales, sent.weights)]
            all_sent = [
                Sent(columns[0][r], None if columns[1] is None else columns[1][r], all_sent[r].topk_idx, columns[2][r])
                for r in range(world)
            ]
            x = sent.x if sent.scales is None else (sent.x, sent.scales)
            keep = {key: arguments[key] for key in ("do_zero_padding", "num_sms", "async_with_compute_stream", "use_tma_aligned_col_major_sf", "defer_epilogue")}
            out = got(buffer.dispatch(x, None, sent.weights, handle=out[3], **keep))
        recv_x, recv_idx, recv_weights, handle = out
        wanted = reference.dispatch(all_sent, setting, rank)
        num_rows = wanted.x.shape[0]
        data, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
        found = wanted.metadata.shape[0]
        label = "cached " if turn else ""
        bad += same(label + "x", data[:num_rows], wanted.x)
        bad += same(label + "scales", None if scales is None else scales[:num_rows], wanted.scales)
        bad += same(label + "topk_idx", None if recv_idx is None else recv_idx[:num_rows], None if wanted.topk_idx is None else wanted.topk_idx.to(sent.topk_idx.dtype))
        bad += same(label + "weights", recv_weights[:num_rows], wanted.weights)
        meta = handle.recv_src_metadata[:found]
        bad += same(label + "metadata", meta, wanted.metadata)
        bad += same(label + "psum ranks", handle.psum_num_recv_tokens_per_scaleup_rank, wanted.tokens_per_source)
        bad += same(label + "psum experts", handle.psum_num_recv_tokens_per_expert, wanted.expert_sums)
        if sync:
            if tuple(data.shape)[0] != num_rows:
                bad.append(f"{label}rows {data.shape[0]} against {num_rows}")
            if handle.num_recv_tokens != found:
                bad.append(f"num_recv_tokens {handle.num_recv_tokens} against {found}")
        if turn == 0:
            bad += same("stats", stats, wanted.expert_tokens)
        # Combine.
        generator = torch.Generator("cuda").manual_seed(seed + 5 + rank)
        rows = torch.randn((data.shape[0], hidden), device="cuda", generator=generator).bfloat16()
        biases = tuple(torch.randn((tokens, hidden), device="cuda", generator=generator).bfloat16() for _ in range(options.get("biases", 0)))
        most_rows = world * most * (min(topk, experts // world) if expand else 1) + (alignment * experts if expand else 0)
        all_rows, all_weights = gather(rows[:num_rows], most_rows), gather(wanted.weights.view(num_rows, 1 if expand else topk), most_rows)
        returned = [
            Returned(all_rows[r], all_weights[r].flatten() if expand else all_weights[r], reference.dispatch(all_sent, setting, r)) for r in range(world)
        ]
        result = got(
            buffer.combine(
                rows, handle, recv_weights, biases if len(biases) != 1 else biases[0], num_sms=options.get("sms", 0),
                async_with_compute_stream=options.get("asynchronous", False), defer_epilogue=options.get("deferred", False),
            )
        )
        want_x, want_weights = reference.combine(returned, sent, setting, rank, biases, multiple_reduction=buffer.allow_multiple_reduction)
        bad += same(label + "combined", result[0], want_x)
        bad += same(label + "combined weights", result[1], want_weights)
    torch.cuda.synchronize()
    buffer._domain.check()
    return bad


def sweep(args: argparse.Namespace) -> int:
    base = dict(tokens=(64, 64), hidden=512, topk=4, experts=16, dtype="bf16", expand=False, alignment=1)
    cases = [
        base,
        base | dict(tokens=(128, 128), hidden=7168, topk=8, experts=256),
        base | dict(tokens=(1000, 700), hidden=7168, topk=8, experts=256),
        base | dict(tokens=(1000, 700), hidden=7168, topk=8, experts=256, zero_copy=True, sms=24),
        base | dict(tokens=(0, 5)),
        base | dict(tokens=(0, 0), most=7),
        base | dict(tokens=(1, 0), topk=1),
        base | dict(tokens=(300, 513), gate="one-rank", topk=3),
        base | dict(tokens=(900, 1200), gate="skew", topk=16, experts=32, masked=0.3),
        base | dict(tokens=(77, 600), masked=0.9, wide=False),
        base | dict(tokens=(77, 600), masked=1.0),
        base | dict(tokens=(513, 2000), hidden=128, topk=16, experts=1024, sms=8),
        base | dict(tokens=(40, 50), hidden=16384, topk=2),
        base | dict(tokens=(700, 600), hidden=7168, dtype="fp8", topk=8, experts=256),
        base | dict(tokens=(700, 600), hidden=2944, dtype="fp8", topk=8, experts=256, wide=False),
        base | dict(tokens=(130, 60), hidden=7168, dtype="ue8m0", topk=8, experts=256),
        base | dict(tokens=(600, 64), biases=1),
        base | dict(tokens=(60, 640), biases=2, zero_copy=True),
        base | dict(tokens=(600, 64), sync=False),
        base | dict(tokens=(600, 64), asynchronous=True),
        base | dict(tokens=(600, 64), deferred=True),
        base | dict(tokens=(100, 64), deferred=True, asynchronous=True, sync=False),
        base | dict(tokens=(600, 640), expand=True),
        base | dict(tokens=(600, 640), expand=True, alignment=128, hidden=7168, topk=8, experts=256),
        base | dict(tokens=(600, 640), expand=True, alignment=128, dtype="fp8", hidden=7168, topk=8, experts=256, columns=True),
        base | dict(tokens=(100, 50), expand=True, alignment=16, sync=False, masked=0.5),
        base | dict(tokens=(300, 500), expand=True, alignment=8, deferred=True, biases=2, gate="skew"),
        base | dict(tokens=(0, 9), expand=True, alignment=4),
    ]
    if args.small_only:
        cases = [one for one in cases if one["hidden"] * max(one["tokens"]) <= 1 << 20]
    failed = 0
    for multiple in (True, False):
        buffers: dict[tuple[int, int, int], EPBuffer] = {}
        for index, options in enumerate(cases):
            if not multiple and not options["expand"]:
                continue
            most = options.get("most", max(options["tokens"]) or 1)
            key = (most, options["hidden"], options["topk"])
            if key not in buffers:
                buffers[key] = EPBuffer(dist.group.WORLD, None, most, options["hidden"], options["topk"], allow_multiple_reduction=multiple, num_gpu_timeout_secs=5, num_cpu_timeout_secs=10)
            bad = case(buffers[key], options, args.seed + index)
            told: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(told, bad)
            if any(told):
                failed += 1
                say(f"FAILED {index} multiple={multiple} {options}: {told}")
            else:
                say(f"ok {index} multiple={multiple} {options}")
        for one in buffers.values():
            one.destroy()
    say(f"{failed} failed")
    return failed


FLUSH: list[Tensor] = []


def measure(buffer: EPBuffer, call: Any, samples: int = 20) -> float:
    """Median over samples of the slowest rank, µs: cold L2, a barrier before each."""
    if not FLUSH:
        FLUSH.append(torch.empty(1 << 29, dtype=torch.int32, device="cuda"))
    times = []
    for index in range(samples + 3):
        FLUSH[0].zero_()
        buffer.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if index >= 3:
            times.append(begin.elapsed_time(end) * 1e3)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, times)
    return statistics.median([max(column) for column in zip(*told, strict=True)])


def timing(args: argparse.Namespace, peer: Any = None) -> None:
    for tokens in args.tokens:
        rows: dict[str, dict[Any, float]] = {}
        buffer = EPBuffer(dist.group.WORLD, None, tokens, HIDDEN, TOPK, num_gpu_timeout_secs=5, num_cpu_timeout_secs=10)
        theirs = None
        if peer is not None:
            theirs = peer.EPBuffer(dist.group.WORLD, num_max_tokens_per_rank=tokens, hidden=HIDDEN, num_topk=TOPK, explicitly_destroy=True)
        for dtype in ("fp8", "bf16"):
            sent = make(tokens, HIDDEN, TOPK, EXPERTS, dtype, "", True, args.seed, 0.0)
            x = sent.x if sent.scales is None else (sent.x, sent.scales)
            common = dict(topk_idx=sent.topk_idx, topk_weights=sent.weights, num_experts=EXPERTS, num_max_tokens_per_rank=tokens)
            for sms in args.sms:
                out = buffer.dispatch(x, **common, num_sms=sms)
                handle, count = out[3], out[3].num_recv_tokens
                rows.setdefault(f"dispatch {dtype}", {})[sms] = measure(buffer, lambda: buffer.dispatch(x, **common, num_sms=sms, do_cpu_sync=False))
                rows.setdefault(f"dispatch {dtype} cached", {})[sms] = measure(buffer, lambda: buffer.dispatch(x, None, sent.weights, handle=handle, num_sms=sms))
                buffer.zero_copy = False
                rows.setdefault(f"dispatch {dtype} copied", {})[sms] = measure(buffer, lambda: buffer.dispatch(x, **common, num_sms=sms, do_cpu_sync=False))
                buffer.zero_copy = True
                if dtype == "bf16":
                    plain = torch.randn((count, HIDDEN), device="cuda").bfloat16()
                    rows.setdefault("combine", {})[sms] = measure(buffer, lambda: buffer.combine(plain, handle, num_sms=sms))
                if theirs is not None and sms <= 64:
                    told = theirs.dispatch(x, **common, num_sms=sms, do_cpu_sync=False)
                    rows.setdefault(f"peer dispatch {dtype}", {})[sms] = measure(buffer, lambda: theirs.dispatch(x, **common, num_sms=sms, do_cpu_sync=False))
                    if dtype == "bf16":
                        rows_in = torch.randn((told[0].shape[0], HIDDEN), device="cuda").bfloat16()
                        rows.setdefault("peer combine", {})[sms] = measure(buffer, lambda: theirs.combine(rows_in, told[3], num_sms=sms))
        for name, times in rows.items():
            size = tokens * (HIDDEN * 2 if "fp8" not in name else HIDDEN + 224)
            told = ", ".join(f"{sms}: {us:.1f} us ({size / us / 1e3:.0f} GB/s)" for sms, us in times.items())
            say(f"{tokens:6} {name:22} {told}")
        if theirs is not None:
            theirs.destroy()
        buffer.destroy()


def tune(args: argparse.Namespace) -> None:
    """Variants of the kernels side by side, with the stages of one call."""
    from msgspec import structs

    from epctl.native import ep_args, families
    from epctl.native.families import Variant

    family = families.EP
    measured: dict[str, float] = {}
    for stages, movers, pushers in ((2, 12, 7), (2, 11, 5), (3, 10, 4)):
        families.EP = structs.replace(family, variants=(Variant("trace", (("EPCTL_EP_TRACE", 1),)),))
        ep_args.MAX_MOVERS, ep_args.MAX_PUSHERS = movers, pushers
        ring_for = ep_args.ring_for
        for tokens in args.tokens:
            buffer = EPBuffer(dist.group.WORLD, None, tokens, HIDDEN, TOPK, num_gpu_timeout_secs=5, num_cpu_timeout_secs=10)
            buffer.engine.ring = lambda row, num, sms, stages=stages: ring_for(row, num, dist.get_world_size(), sms, num_stages=stages)
            trace = torch.zeros(128, dtype=torch.int64, device="cuda")
            told = [f"stages {stages} movers {movers} pushers {pushers}: {tokens}"]
            for dtype in ("fp8", "bf16"):
                sent = make(tokens, HIDDEN, TOPK, EXPERTS, dtype, "", True, args.seed, 0.0)
                x = sent.x if sent.scales is None else (sent.x, sent.scales)
                common = dict(topk_idx=sent.topk_idx, topk_weights=sent.weights, num_experts=EXPERTS, num_max_tokens_per_rank=tokens)
                for sms in args.sms:
                    out = buffer.dispatch(x, **common, num_sms=sms)
                    us = measure(buffer, lambda: buffer.dispatch(x, **common, num_sms=sms, do_cpu_sync=False, waited_ns=trace), 12)
                    stamps = trace[72:80].tolist()
                    told.append(f"  dispatch {dtype} {sms}: {us:.1f} us, stamps {[round((one - stamps[0]) / 1e3, 1) for one in stamps]}")
                    if dtype == "bf16":
                        rows = torch.randn((out[3].num_recv_tokens, HIDDEN), device="cuda").bfloat16()
                        us = measure(buffer, lambda: buffer.combine(rows, out[3], num_sms=sms, waited_ns=trace), 12)
                        stamps = trace[72:77].tolist()
                        told.append(f"  combine {sms}: {us:.1f} us, stamps {[round((one - stamps[0]) / 1e3, 1) for one in stamps]}")
            say("\n".join(told))
            if not measured:
                measured["nothing"] = measure(buffer, lambda: None)
                measured["barrier"] = measure(buffer, lambda: buffer.barrier())
                say(measured)
            buffer.destroy()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("check", "time", "peer", "tune"))
    parser.add_argument("--small-only", action="store_true", help="cases of few tokens and small rows, for slow tools")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--tokens", type=lambda text: [int(one) for one in text.split(",")], default=[128, 4096, 8192])
    parser.add_argument("--sms", type=lambda text: [int(one) for one in text.split(",")], default=[24, 64, 132])
    args = parser.parse_args()
    device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    seeds = [args.seed]
    dist.broadcast_object_list(seeds)
    args.seed = seeds[0]
    if args.what == "check":
        say(f"seed {args.seed}")
        return sweep(args)
    if args.what == "tune":
        tune(args)
        return 0
    peer = None
    if args.what == "peer":
        import deep_ep as peer
    timing(args, peer)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    dist.destroy_process_group()
    sys.exit(min(code, 1))
