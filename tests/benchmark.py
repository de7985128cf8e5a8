"""How fast epctl is, against its own goals: python -m tests.benchmark [--json]. Not a test: it prints times and ratios.

Each command runs in a fresh process, as from the shell; the median and the spread of a few runs are shown, and the ratio to
the bare start of the interpreter, which says how much of a time is ours on this machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 7
SWEEP = (
    *("--experts", "256", "--topk", "8", "--format", "csv"),
    *("--sweep", "nodes=1,2,4,8,16"),
    *("--sweep", f"topk={','.join(map(str, range(1, 11)))}"),
    *("--sweep", f"tokens={','.join(str(1 << i) for i in range(10))}"),
    *("--sweep", f"rdma-gbs={','.join(map(str, range(20, 40)))}"),
)
"""10,000 combinations; four fifths of them over several nodes, so that both modes are planned."""
GOALS_S: dict[tuple[str, ...], float] = {
    ("--help",): 0.3,
    ("doctor", "--sample", "hgx-h100-ib"): 0.7,
    ("doctor", "--sample", "hgx-h100-ib", "--format", "json"): 0.7,
    ("doctor", "--no-active"): 3.0,
    ("plan", "--experts", "256", "--topk", "8"): 0.4,
    ("plan", *SWEEP): 2.0,
}
"""Command → goal in seconds: help, a recorded 8-GPU node, live static checks, one plan, 10,000 plans."""
GOAL_MB = 200


def seconds(argv: list[str]) -> list[float]:
    """Wall times of RUNS fresh processes after one that warms the file cache."""
    times = []
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - begin)
    return times[1:]


def main() -> None:
    """Prints one line a command: median, range, goal, share of the goal, ratio to the bare interpreter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    epctl = str(Path(sys.executable).parent / "epctl")
    bare = statistics.median(seconds([sys.executable, "-c", "pass"]))
    rows = []
    for command, goal in GOALS_S.items():
        times = seconds([epctl, *command])
        median = statistics.median(times)
        rows.append(
            {
                "command": " ".join(("epctl", *(word if len(word) < 24 else f"{word[:20]}…" for word in command))),
                "median_s": round(median, 4),
                "min_s": round(min(times), 4),
                "max_s": round(max(times), 4),
                "goal_s": goal,
                "share_of_goal": round(median / goal, 3),
                "ratio_to_bare_python": round(median / bare, 1),
            }
        )
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    if as_json:
        print(
            json.dumps(
                {"rows": rows, "bare_python_s": round(bare, 4), "peak_rss_mb": round(peak_mb, 1), "goal_mb": GOAL_MB},
                indent=1,
            )
        )
        return
    for row in rows:
        print(
            f"{row['command']:64} {row['median_s']:.3f} s ({row['min_s']:.3f} to {row['max_s']:.3f}), "
            f"{row['share_of_goal']:.0%} of the goal of {row['goal_s']} s, {row['ratio_to_bare_python']} × bare Python"
        )
    print(f"bare Python {bare:.3f} s; largest process {peak_mb:.0f} MB, goal {GOAL_MB} MB")


if __name__ == "__main__":
    main()
