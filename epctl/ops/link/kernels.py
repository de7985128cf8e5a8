"""Link kernels by case: which variant, how many blocks, how much shared memory."""

from __future__ import annotations

from collections.abc import Callable

from epctl.core.op import Case, World
from epctl.native.families import LINK, link_variant
from epctl.native.link_args import LinkArgs, bulk_shared_bytes
from epctl.ops import launcher
from epctl.ops.link.cases import ALL_SMS

FUNCTIONS = {
    "bulk-write": "bulk_copy",
    "bulk-read": "bulk_copy",
    "vector-write": "vector_copy",
    "vector-read": "vector_copy",
    "pull-add": "pull_add",
    "sm-read": "read",
    "sm-write": "write",
}
"""Kind → entry function without its prefix."""


def grid(case: Case, world: World) -> int:
    """Blocks. One of 512 threads, or one whose rows fill shared memory, is all that an SM gets of a grid no larger than the GPU."""
    sms, whole = case.whole("sms"), launcher.num_sms(world)
    return (whole if sms == ALL_SMS else min(sms, whole)) * case.whole("blocks_per_sm")


def prepare(case: Case, world: World) -> Callable[[LinkArgs], None]:
    """Loads the kernel of the case now; what it returns launches it on the current stream. Raises EpctlError."""
    function = FUNCTIONS[case.word("kind")]
    row_bytes, block_threads = case.whole("row_bytes"), case.whole("block_threads")
    shared = bulk_shared_bytes(row_bytes, block_threads) if function == "bulk_copy" else 0
    kernel = launcher.launcher(world).kernel(
        LINK, link_variant(row_bytes, block_threads), f"epctl_link_{function}", block_threads, shared
    )
    blocks = grid(case, world)
    return lambda arguments: kernel.launch(blocks, launcher.stream(world), arguments.pack())


def num_rows(case: Case) -> int:
    """Whole rows of the case."""
    return case.whole("bytes") // case.whole("row_bytes")
