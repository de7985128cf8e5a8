"""One exchange that is checked: shape, mode and calling conventions, as parameters of a case and back."""

from __future__ import annotations

from msgspec import Struct, structs

from epctl.core.op import Case, Scalar
from epctl.ops.ep.trial.gates import BALANCED

EXCHANGE, BURST, PAIR, GRAPH = "exchange", "burst", "two-buffers", "graph"
ZERO_COPY, COPYING, IN_PLACE = "zero-copy", "copying", "in-place"
"""What dispatch gives: views of symmetric memory; copies; views that are changed in place and go back into combine."""
STREAM, ASYNC, DEFERRED, ASYNC_DEFERRED = "stream", "async", "deferred", "async-deferred"
BF16, FP8, UE8M0 = "bf16", "fp8", "ue8m0"
DTYPES = (BF16, FP8, UE8M0)


class Options(Struct, frozen=True, kw_only=True):
    """Names and meanings as in EPBuffer.dispatch and combine; what is left at its default is not part of the case's name."""

    kind: str = EXCHANGE
    tokens: tuple[int, ...] = (64,)
    """By rank, in a circle."""
    most: int = 0
    """num_max_tokens_per_rank; 0: the most that any rank has, and at least 1."""
    hidden: int = 512
    topk: int = 4
    experts: int = 16
    dtype: str = BF16
    expand: bool = False
    alignment: int = 1
    zero_padding: bool = True
    columns: bool = False
    """use_tma_aligned_col_major_sf."""
    biases: int = 0
    way: str = STREAM
    previous: bool = False
    """The call waits for an event of the caller's instead of the current stream."""
    sync: bool = True
    masked: int = 0
    """Percent of selections that are −1."""
    gate: str = BALANCED
    wide: bool = True
    """int64 indices."""
    place: str = ZERO_COPY
    every_row: bool = False
    """allow_multiple_reduction=False."""
    deterministic: bool = False
    weights: bool = True
    sms: int = 0
    repeats: int = 1
    """Calls of a burst, replays of a graph."""

    @property
    def capacity(self) -> int:
        """num_max_tokens_per_rank of the call."""
        return self.most or max(*self.tokens, 1)

    def tokens_of(self, rank: int) -> int:
        """Tokens of that rank."""
        return self.tokens[rank % len(self.tokens)]


_FLAGS = (
    ("columns", "column-scales"),
    ("previous", "after-event"),
    ("every_row", "every-row"),
    ("deterministic", "deterministic"),
)
_UNSET = (("sync", "no-sync"), ("wide", "int32"), ("weights", "no-weights"))


def name_of(options: Options) -> str:
    """One word for a shell that tells everything that is not at its default."""
    default = Options()
    rows = f"expand{options.alignment}" if options.expand else "rows"
    if not options.expand and options.alignment != 1:
        rows += f"-align{options.alignment}"
    tokens = "+".join(map(str, options.tokens))
    if options.most:
        tokens += f"of{options.most}"
    parts = [f"{options.dtype}-{rows}", f"{tokens}x{options.hidden}", f"top{options.topk}of{options.experts}"]
    if options.kind != EXCHANGE:
        parts.insert(0, f"{options.kind}{options.repeats if options.repeats > 1 else ''}")
    for field, unit in (("biases", "bias"), ("masked", "masked"), ("sms", "sms")):
        if getattr(options, field) != getattr(default, field):
            parts.append(f"{unit}{getattr(options, field)}")
    parts += [
        getattr(options, field) for field in ("way", "place") if getattr(options, field) != getattr(default, field)
    ]
    if options.gate != BALANCED:
        parts.append(options.gate.replace(":", ""))
    parts += [word for field, word in _FLAGS if getattr(options, field)]
    parts += [word for field, word in _UNSET if not getattr(options, field)]
    if options.expand and not options.zero_padding:
        parts.append("dirty-padding")
    return "/".join(parts)


def case_of(options: Options, seed: int, *, signals: bool) -> Case:
    """The case of a self-test. `signals`: ranks wait for each other's in it."""
    params: dict[str, Scalar] = {
        field: "+".join(map(str, value)) if field == "tokens" else value
        for field, value in structs.asdict(options).items()
    }
    return Case(name_of(options), {**params, "seed": seed, "signals": signals})


def options_of(case: Case) -> Options:
    """What `case_of` was made of."""
    params = case.params
    given = {field: params[field] for field in Options.__struct_fields__ if field != "tokens"}
    return Options(tokens=tuple(int(word) for word in str(params["tokens"]).split("+")), **given)  # type: ignore[arg-type]
