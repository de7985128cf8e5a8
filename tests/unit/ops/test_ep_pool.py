"""Buffers that cases share: made once, given back when they need too much room, and after a wait that gave up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.ops.ep.trial import pool
from epctl.ops.ep.trial.pool import Key, Pool, key_for


class Buffer:
    """Notes what it is asked for."""

    def __init__(self, *shape: Any, **more: Any) -> None:  # noqa: ANN401
        self.shape, self.more, self.num_bytes, self.destroyed = shape, more, 3 << 30, False

    def destroy(self) -> None:
        self.destroyed = True


class Domain:
    """Of one rank."""

    device_idx = 0

    def __init__(self) -> None:
        self.control = self
        self.gave_up = False
        self.cleared = 0

    def clear(self) -> None:
        self.cleared += 1
        self.gave_up = False

    def timeout(self) -> str | None:
        return "a wait gave up" if self.gave_up else None

    def all_gather(self, stage: str, payload: bytes) -> list[bytes]:  # noqa: ARG002
        return [payload, b""]


WORLD: Any = SimpleNamespace(torch=SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda _: None)))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> tuple[Pool, Domain]:
    monkeypatch.setattr(pool, "EPBuffer", Buffer)
    domain: Any = Domain()
    return Pool(domain), domain


def test_cases_of_about_one_size_share_a_buffer(found: tuple[Pool, Domain]) -> None:
    assert key_for(77, 512, 4) == key_for(128, 512, 8) == Key(128, 512, 8)
    assert key_for(129, 512, 9) == Key(1024, 512, 16)
    assert key_for(20_000, 512, 1).max_tokens == 20_000
    assert key_for(1, 512, 1, every_row=True) != key_for(1, 512, 1)
    buffers, _ = found
    first: Any = buffers.get(key_for(77, 512, 4))
    assert first.shape == (None, None, 128, 512, 8)
    assert first.more["allow_multiple_reduction"] is True
    assert buffers.get(key_for(100, 512, 2)) is first


def test_the_one_that_was_not_used_for_longest_goes_first(found: tuple[Pool, Domain]) -> None:
    buffers, _ = found
    one, two = (buffers.get(Key(128, hidden, 8)) for hidden in (128, 256))
    buffers.get(Key(128, 128, 8))
    three: Any = buffers.get(Key(128, 384, 8))
    assert [getattr(each, "destroyed") for each in (one, two, three)] == [False, True, False]  # noqa: B009


def test_nothing_happens_while_all_is_well(found: tuple[Pool, Domain]) -> None:
    buffers, domain = found
    one: Any = buffers.get(Key(128, 128, 8))
    assert not buffers.heal(WORLD)
    assert (one.destroyed, domain.cleared) == (False, 0)


@pytest.mark.parametrize("raises", [False, True])
def test_after_a_wait_that_gave_up_or_an_error_all_are_made_anew(found: tuple[Pool, Domain], raises: bool) -> None:
    buffers, domain = found
    one: Any = buffers.get(Key(128, 128, 8))
    if raises:
        with pytest.raises(EpctlError, match="in the middle"), buffers.watched():
            raise EpctlError("in the middle", "of calls", "nothing")
    else:
        domain.gave_up = True
    assert buffers.heal(WORLD)
    assert (one.destroyed, domain.cleared, domain.timeout()) == (True, 1, None)
    assert buffers.get(Key(128, 128, 8)) is not one
    assert not buffers.heal(WORLD)
