"""Slurm's short forms of hosts and counts, as slurmctld writes them, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.hostlist import MAX_HOSTS, collapse, counts, hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-01", ("gpu-01",)),
        ("gnode[10,20,25,37]", ("gnode10", "gnode20", "gnode25", "gnode37")),
        ("h[08-11]", ("h08", "h09", "h10", "h11")),
        ("login,dgx[1-2,10].pod3", ("login", "dgx1.pod3", "dgx2.pod3", "dgx10.pod3")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("ip-10-0-[3-4]-17", ("ip-10-0-3-17", "ip-10-0-4-17")),
    ],
)
def test_hosts_keep_order_and_zeros_in_front(text: str, expected: tuple[str, ...]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a[",
        "a]",
        "a[1-]",
        "a[3-1]",
        "a[x]",
        "a[[1]]",
        "a[]",
        "a[1-99999999]",
        "n[1-999][1-999]",
        ",",
        "a b",
        f"n[{9 * '1-60000,'}7]",
    ],
)
def test_what_is_no_list_of_hosts_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        hosts(text)


@given(st.integers(0, 500), st.integers(0, 300), st.integers(1, 5))
def test_a_range_counts_up_with_its_width(low: int, more: int, width: int) -> None:
    found = hosts(f"n[{low:0{width}d}-{low + more}]")
    assert [int(name[1:]) for name in found] == list(range(low, low + more + 1))
    assert all(len(name) >= width + 1 for name in found)


@given(st.text(alphabet="ab19[]-,. ", max_size=30))
def test_any_text_gives_hosts_or_a_value_error(text: str) -> None:
    try:
        found = hosts(text)
    except ValueError:
        return
    assert 0 < len(found) <= MAX_HOSTS
    assert not any(letter in name for name in found for letter in "[],")


@pytest.mark.parametrize(("text", "expected"), [("4", (4,)), ("8(x2)", (8, 8)), ("8(x2),4,1(x3)", (8, 8, 4, 1, 1, 1))])
def test_counts_a_node_are_repeated(text: str, expected: tuple[int, ...]) -> None:
    assert counts(text) == expected


@pytest.mark.parametrize("text", ["", "x", "8(x)", "8(x0)", "8(2)", "8(x999999999)", "-1"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        counts(text)


names = st.from_regex(r"[a-z]{1,4}-?[0-9]{0,3}", fullmatch=True)


@settings(max_examples=200)
@given(st.lists(names, unique=True, min_size=1, max_size=30))
def test_host_lists_come_back(listed: list[str]) -> None:
    assert sorted(hosts(collapse(listed))) == sorted(listed)


@pytest.mark.parametrize(
    ("listed", "short"),
    [
        (["n01", "n02", "n10"], "n[01-02,10]"),
        (["n1", "n2", "n10"], "n[1-2,10]"),
        (["a", "n7"], "a,n7"),
        (["r1-n1", "r1-n2", "r2-n1"], "r1-n[1-2],r2-n1"),
        ([], ""),
    ],
)
def test_host_lists_are_short(listed: list[str], short: str) -> None:
    assert collapse(listed) == short


def test_the_number_of_hosts_is_bounded_before_they_are_listed() -> None:
    assert len(hosts("n[1-5],m", most=6)) == 6
    with pytest.raises(ValueError, match="more than 5 hosts"):
        hosts("n[1-5],m", most=5)
    with pytest.raises(ValueError, match="more than 65,536 hosts"):
        hosts("n[1-1000][1-1000][1-1000][1-1000]")
