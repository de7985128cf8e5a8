"""Which adapter carried a run: the counters of this node's ports, before and after."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/class/infiniband")
COUNTER = "port_xmit_data"
WORD_BYTES = 4
"""The counter's unit (InfiniBand Architecture Specification, PortXmitData; Linux Documentation/ABI/stable/sysfs-class-infiniband)."""


def read(root: Path = ROOT) -> dict[str, int]:
    """Bytes that each port has sent so far, by `mlx5_0` or `mlx5_0:2`; ports without the counter are left out."""
    found: dict[str, int] = {}
    for path in sorted(root.glob(f"*/ports/*/counters/{COUNTER}")):
        device, port = path.parts[-5], path.parts[-3]
        try:
            words = int(path.read_text().strip())
        except (OSError, ValueError):
            continue
        found[device if port == "1" else f"{device}:{port}"] = words * WORD_BYTES
    return found


def carried(before: dict[str, int], after: dict[str, int], num_bytes: int) -> tuple[str, ...]:
    """The ports that sent a sixteenth of `num_bytes` or more between the two readings, the busiest first."""
    sent = {name: after[name] - before[name] for name in after if name in before}
    busy = [name for name, moved in sent.items() if num_bytes and moved * 16 >= num_bytes]
    return tuple(sorted(busy, key=lambda name: -sent[name]))
