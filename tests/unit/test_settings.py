"""Settings are read as NCCL reads them."""

from __future__ import annotations

import pytest

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable
from epctl.core.snapshot.gpu import Setting
from epctl.core.views.settings import integer, is_off, is_on, same, setting, told
from tests.support.nodes import edit, env, ib_node


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        (" 2", 2),
        ("-1", -1),
        ("0x10", 16),
        ("010", 8),
        ("08", 0),
        ("3abc", 3),
        ("", 0),
        ("off", 0),
        ("false", 0),
        ("true", 1),
        ("On", 1),
        ("9" * 5000, int("9" * 18)),
        ("0x" + "f" * 5000, int("f" * 16, 16)),
    ],
)
def test_numbers_are_those_of_strtoll(text: str, number: int) -> None:
    assert integer(text) == number


def test_environment_stands_above_configuration_files() -> None:
    node = edit(ib_node(), "env.nccl_conf", (Setting("NCCL_X", "0"),))
    assert is_off(Context(node), "NCCL_X")
    assert is_on(Context(env(node, NCCL_X="1")), "NCCL_X")
    assert told(Context(env(node, NCCL_X="1")), "NCCL_X") == "NCCL_X=1 (environment)"


def test_empty_is_unset() -> None:
    context = Context(env(ib_node(), NCCL_X=""))
    assert setting(context, "NCCL_X") is None
    assert not is_off(context, "NCCL_X")
    assert not is_on(context, "NCCL_X")


def test_files_that_may_not_be_read_leave_nccl_settings_open_and_no_others() -> None:
    context = Context(env(edit(ib_node(), "env.nccl_conf", Absent("permission")), NCCL_Y="1"))
    assert setting(context, "NCCL_Y") == "1"
    assert setting(context, "EP_DISABLE_GIN") is None
    with pytest.raises(Unreadable, match="configuration files: permission"):
        setting(context, "NCCL_X")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [("0", "00", True), ("0x1", "1", True), ("Libfabric", "libfabric", True), ("1", "2", False)],
)
def test_values_that_mean_the_same(one: str, other: str, equal: bool) -> None:
    assert same(one, other) is equal
