"""Reports of ptxas, and what is refused on their account."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.errors import EpctlError
from epctl.native import ptxas
from epctl.native.ptxas import Use

REPORT = """ptxas info    : 0 bytes gmem, 12 bytes cmem[4]
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compile time = 31.591 ms
ptxas info    : Function properties for _Z6helperv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    {frame} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers{rest}
"""


def report(frame: int = 0, stores: int = 0, loads: int = 0, rest: str = "") -> tuple[Use, ...]:
    return ptxas.parse(REPORT.format(frame=frame, stores=stores, loads=loads, rest=rest))


def test_report() -> None:
    assert report() == (
        Use("one", "90a", 22, 1, 128),
        Use("_Z6helperv", "90a"),
        Use("two", "90a", 30),
    )
    ptxas.check(report(), ("one", "two"), "it")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame": 32}, "two: 32 bytes of stack"),
        ({"stores": 4}, "two: 4 bytes of spill stores"),
        ({"loads": 8}, "two: 8 bytes of spill loads"),
        ({"rest": ", 16 bytes lmem"}, "two: 16 bytes of local memory"),
        ({"rest": ", 48 bytes cumulative stack size"}, "two: 48 bytes of stack"),
    ],
)
def test_local_memory_is_refused_with_the_name_of_the_kernel(options: dict[str, int], words: str) -> None:
    with pytest.raises(EpctlError, match="it keeps variables in local memory") as caught:
        ptxas.check(report(**options), ("one", "two"), "it")  # type: ignore[arg-type]
    assert words in caught.value.why
    assert caught.value.exit_code == 1


def test_a_stack_that_is_allowed_is_allowed_up_to_its_bytes() -> None:
    for options in ({"frame": 136, "stores": 4, "loads": 4}, {"rest": ", 136 bytes cumulative stack size"}):
        ptxas.check(report(**options), ("one", "two"), "it", 136)  # type: ignore[arg-type]
        with pytest.raises(EpctlError) as caught:
            ptxas.check(report(**options), ("one", "two"), "it", 135)  # type: ignore[arg-type]
        assert "135 bytes are allowed" in caught.value.why
    with pytest.raises(EpctlError):
        ptxas.check(report(rest=", 200 bytes lmem"), ("one", "two"), "it", 136)


def test_a_function_that_is_called_counts_as_well() -> None:
    text = REPORT.format(frame=0, stores=0, loads=0, rest="").replace(
        "helperv\n    0 bytes stack", "helperv\n    8 bytes stack"
    )
    with pytest.raises(EpctlError) as caught:
        ptxas.check(ptxas.parse(text), ("one", "two"), "it")
    assert "_Z6helperv: 8 bytes of stack" in caught.value.why


def test_a_kernel_that_the_report_does_not_name_is_no_pass() -> None:
    for uses, kernels in ((report(), ("one", "three")), ((), ("one",)), (report(), ("_Z6helperv",))):
        with pytest.raises(EpctlError, match="ptxas says nothing about"):
            ptxas.check(uses, kernels, "it")


@given(st.text() | st.lists(st.sampled_from(REPORT.splitlines())).map("\n".join))
def test_any_text_can_be_parsed(text: str) -> None:
    assert all(use.function for use in ptxas.parse(text))
