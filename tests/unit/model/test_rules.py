"""The planners' constants: each has a source, and rates can be calibrated."""

from __future__ import annotations

import pytest

from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES, calibrated, rules_named


def test_every_constant_has_a_source() -> None:
    for name, rules in RULES.items():
        assert rules_named(name) is rules
        assert set(rules.sources) == set(rules.__struct_fields__) - {"name", "sources"}
        assert all(rules.sources.values())
    with pytest.raises(RefusalError):
        rules_named("deepep-9")


def test_calibration_replaces_rates_and_sources() -> None:
    own = calibrated(RULES["epctl"], sm_read_gbs=50.0, sm_write_gbs=60.0, source="bench.json")
    assert (own.sm_read_gbs, own.sources["sm_write_gbs"], own.sources["margin"]) == (
        50.0,
        "bench.json",
        RULES["epctl"].sources["margin"],
    )
    with pytest.raises(RefusalError):
        calibrated(RULES["epctl"], sm_read_gbs=0.0, sm_write_gbs=60.0, source="bench.json")
