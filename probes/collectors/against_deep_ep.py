"""Asks the DeepEP 2.5 of the examined interpreter what it would plan, in a group of this node's GPUs. The question is JSON in the first
argument; the answer is the line of standard output that begins with MARK, since DeepEP prints as well. Not run by a doctor."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from typing import Any

MARK = "epctl-answer "


def main() -> None:
    """Prints one answer: {"package", "values"} or {"reason"}."""
    question = json.loads(sys.argv[1])
    missing = [name for name in ("deep_ep", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        return answer({"reason": f"{missing[0]} is not installed for {sys.executable}"})
    import torch

    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = question["gpus"]
    if question["nodes"] != 1:
        return answer(
            {"reason": f"the plan is for {question['nodes']} nodes, and a group of one node can be made here"}
        )
    if here < wanted:
        return answer(
            {"reason": f"the plan is for {wanted} GPUs, {here} are here: give --gpus-per-node {max(here, 1)}"}
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(ask, args=(question, port), nprocs=wanted)
    return None


def ask(rank: int, question: dict[str, Any], port: int) -> None:
    """One rank of the group; the first one answers."""
    if question["nodes"] == 1:
        os.environ.setdefault("EP_DISABLE_GIN", "1")
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        world_size=question["gpus"],
        rank=rank,
        device_id=torch.device("cuda", rank),
    )
    import deep_ep

    group = dist.new_group(list(range(question["gpus"])))
    sizes = (question["tokens"], question["hidden"], question["topk"], question["fp8"])
    hint = deep_ep.EPBuffer.get_buffer_size_hint(group, *sizes, question["hybrid"], question["multiple_reduction"])
    # The smallest buffer there is: the questions are about counts, not about memory.
    buffer = deep_ep.EPBuffer(
        group,
        num_bytes=1 << 21,
        allow_hybrid_mode=question["hybrid"],
        prefer_overlap_with_compute=question["overlap"],
        explicitly_destroy=True,
    )
    rates = {"rdma_gbs": question["rdma_gbs"], "nvlink_gbs": question["nvlink_gbs"]}
    num_sms = buffer.get_theoretical_num_sms(question["experts"], question["topk"], **rates)
    values = {
        "num_ranks": group.size(),
        "num_sms": num_sms,
        "num_qps": buffer.get_theoretical_num_qps(num_sms),
        "buffer_bytes": hint,
    }
    buffer.destroy()
    if rank == 0:
        answer({"package": version(), "values": values})
    dist.destroy_process_group()


def version() -> str:
    """Name and version of the distribution that brings deep_ep."""
    import importlib.metadata

    for name in importlib.metadata.packages_distributions().get("deep_ep", ["deep_ep"]):
        return f"{name} {importlib.metadata.version(name)}"
    return "deep_ep"


def answer(found: dict[str, Any]) -> None:
    """Prints the line that epctl looks for."""
    sys.stdout.write(f"{MARK}{json.dumps(found)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
