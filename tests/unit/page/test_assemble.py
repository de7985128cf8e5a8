"""Pages as files: nothing leaves them, nothing in their data can become markup, colours can be told apart."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.page.assemble import embedded, page, part

SCRIPTS = ("page.js", "drawing.js", "fabric_draw.js", "fabric_panel.js", "fabric.js")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_embedded_data_is_the_same_json_and_cannot_end_a_script(value: object) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "\u2028", "{{style}}"])
def test_names_of_machines_stay_data(name: str) -> None:
    html = page(title=name, body="topo.html", scripts=("page.js",), data={"name": name})
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data) == {"name": name}
    title = html.partition("<title>")[2].partition("</title>")[0]
    assert "<" not in title


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert json.loads(embedded({"name": "gpu\udcff"})) == {"name": "gpu\ufffd"}


def test_policy_names_the_one_script_and_the_one_style_by_hash() -> None:
    html = page(title="t", body="fabric.html", scripts=SCRIPTS, data={})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.group(1).split(";"))
    style = html.partition("<style>")[2].partition("</style>")[0]
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    for rule, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"


@pytest.mark.parametrize(
    "name", ["page.html", "page.css", "fabric.html", "topo.html", *SCRIPTS, "topo.js", "topo_panel.js"]
)
def test_parts_name_no_address_but_that_of_svg(name: str) -> None:
    text = part(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|@import|innerHTML|insertAdjacentHTML|\beval\b|fetch\(|XMLHttpRequest", text)


def _schemes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", part("page.css"), re.S)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        for name, text in (("light", light), ("dark", dark))
    }


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_loaded_links_stand_out_in_both_schemes(scheme: str) -> None:
    colours = _schemes()[scheme]
    text = [
        ("ink", "paper"),
        ("ink", "card"),
        ("soft", "card"),
        ("soft", "paper"),
        ("accent-ink", "accent"),
        ("accent", "card"),
    ]
    text += [("ink", box) for box in ("box", "gpu", "nic", "switch")]
    for front, back in text:
        assert _contrast(colours[front], colours[back]) >= 4.5, (front, back)
    for step in range(1, 6):
        assert _contrast(colours[f"load-{step}"], colours["card"]) >= 3, step


@pytest.mark.parametrize(("scheme", "sign"), [("light", -1), ("dark", 1)])
def test_shades_of_load_differ_in_lightness_so_that_no_hue_is_needed(scheme: str, sign: int) -> None:
    colours = _schemes()[scheme]
    shades = [_luminance(colours[f"load-{step}"]) * sign for step in range(1, 6)]
    assert shades == sorted(shades)
    assert all(abs(b - a) > 0.02 for a, b in pairwise(shades))
