"""What tests of probes share: a snapshot survives its file, and documents with one odd spot."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot, decode, encode
from tests.support.damage import json_values


def survives(**areas: Any) -> None:  # noqa: ANN401 - an area of the snapshot by its name
    """The areas are the same after a way through a file."""
    snapshot = Snapshot(**areas)
    assert decode(encode(snapshot), "test") == snapshot


def reason(fact: Any) -> str:  # noqa: ANN401 - a fact
    """The reason of an absent fact."""
    assert isinstance(fact, Absent), fact
    return fact.absent


def odd_document(document: Any, data: st.DataObject) -> Any:  # noqa: ANN401 - JSON
    """A copy of a document in which some values, at any depth, are other JSON."""
    dice = random.Random(data.draw(st.integers(0, 2**32), label="seed"))  # noqa: S311 - tests
    odd = data.draw(st.lists(json_values, min_size=1, max_size=4), label="odd values")
    share = dice.choice((0.05, 0.3))

    def twist(value: Any) -> Any:  # noqa: ANN401 - JSON
        if dice.random() < share:
            return dice.choice((*odd, {"error": 7}, {"error": "permission"}, {"error": None}, 2**70, "\udcff", [], {}))
        if isinstance(value, dict):
            return {key: twist(entry) for key, entry in value.items() if dice.random() > share / 4}
        return [twist(entry) for entry in value] if isinstance(value, list) else value

    return twist(copy.deepcopy(document))
