"""The pages in headless Chromium: their numbers are those of the JSON, toggles and keys do what they say, nothing leaves the page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from epctl import cli
from tests.support.browser import Browser, chromium

PATH = chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="Chromium is not installed"),
]
FIGURES = ("rdma_bytes", "spine_bytes", "nvlink_bytes", "hops", "largest_link_bytes")
DEGRADED = ("topo", "--sample", "hgx-h200-roce-degraded", "--ep", "16")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PATH is not None
    one = Browser(PATH)
    yield one
    one.close()


def epctl(*words: str) -> str:
    """What a command writes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        sys.argv = ["epctl", *words, "--output", str(path)]
        with pytest.raises(SystemExit) as ended:
            cli.main()
        # 4: a machine without GPUs, which is what some samples are.
        assert ended.value.code in (None, 0, 4)
        return path.read_text()


@cache
def told(*words: str) -> dict[str, Any]:
    """The JSON of a command."""
    return dict(json.loads(epctl(*words, "--format", "json")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The page of a command, as a file."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def write(*words: str) -> Path:
        path = folder / f"{abs(hash(words))}.html"
        path.write_text(epctl(*words, "--format", "html"))
        return path

    return write


@pytest.fixture(autouse=True)
def same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.argv` is put back after each test."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture
def fabric(browser: Browser, written: Callable[..., Path]) -> Iterator[Browser]:
    browser.open(written("fabric"))
    yield browser
    quiet(browser)


@pytest.fixture
def topo(browser: Browser, written: Callable[..., Path]) -> Iterator[Browser]:
    browser.open(written(*DEGRADED))
    yield browser
    quiet(browser)


def quiet(browser: Browser) -> None:
    """No error, and nothing but the page itself was asked for."""
    browser.run("new Promise((done) => setTimeout(done, 20))")
    assert browser.complaints == []
    assert len(browser.requests) == 1
    assert browser.requests[0].startswith("file:")


def click(browser: Browser, selector: str) -> None:
    """A click with the mouse in the middle of an element that is seen there."""
    spot = browser.run(
        f"""(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{ block: "center" }});
        const box = one.getBoundingClientRect(); const x = box.x + box.width / 2, y = box.y + box.height / 2;
        return [x, y, one.contains(document.elementFromPoint(x, y))]; }})()"""
    )
    assert spot[2], f"{selector} is covered"
    browser.click(spot[0], spot[1])


def choose(browser: Browser, **values: str) -> None:
    labels = {"wiring": "Wiring", "pd": "PD split", "af": "AF split", "transfer": "Relay", "nics": "NICs"}
    for name, value in values.items():
        click(browser, f'[data-choice="{labels[name]}:{value}"]')


def figures(browser: Browser) -> dict[str, float]:
    """Exact values of the table."""
    rows = browser.run(
        "[...document.querySelectorAll('#figures [data-value]')].map((cell) => [cell.dataset.name, +cell.dataset.value])"
    )
    return dict(rows)


def expected(report: dict[str, Any]) -> dict[str, float]:
    return {f"{row['phase']} {row['traffic']} {name}": row[name] for row in report["traffic"] for name in FIGURES}


VARIANTS: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    ({}, ()),
    ({"wiring": "tor"}, ("--wiring", "tor")),
    ({"pd": "true", "transfer": "direct"}, ("--layout", "pd", "--transfer", "direct")),
    ({"af": "true", "transfer": "relay"}, ("--layout", "af", "--transfer", "relay")),
    ({"wiring": "tor", "pd": "true", "af": "true"}, ("--wiring", "tor", "--layout", "pd+af")),
)


@pytest.mark.parametrize(("toggles", "flags"), VARIANTS, ids=lambda value: " ".join(value) or "default")
def test_toggles_lead_to_the_numbers_of_that_command(
    fabric: Browser, toggles: dict[str, str], flags: tuple[str, ...]
) -> None:
    choose(fabric, **toggles)
    assert figures(fabric) == expected(told("fabric", *flags))
    shown = fabric.run("document.getElementById('command').textContent").split()
    assert set(flags) <= set(shown)
    assert told(*shown[1:-2])["traffic"] == told("fabric", *flags)["traffic"]


def test_every_link_of_every_step_has_the_bytes_of_the_json(fabric: Browser) -> None:
    report = told("fabric")
    steps = fabric.run("[...document.querySelectorAll('#steps button')].map((one) => one.textContent)")
    assert steps == [
        *("1 prefill dispatch", "2 prefill experts", "3 prefill combine"),
        *("4 decode dispatch", "5 decode experts", "6 decode combine"),
    ]
    names = {tuple(step.split()[1:]): i for i, step in enumerate(steps)}
    for row in report["traffic"]:
        click(fabric, f'[data-choice="step:{names[row["phase"], row["traffic"]]}"]')
        loads = {load["link"]: (load["up_bytes"], load["down_bytes"]) for load in row["loads"]}
        carrying = fabric.run(
            "[...document.querySelectorAll('.link')].filter((one) => !/nothing/.test(one.ariaLabel)).map((one) => +one.dataset.id)"
        )
        assert sorted(carrying) == sorted(loads)
        for link in list(loads)[::9]:
            assert opened(fabric, link) == loads[link]
            check_flows(fabric, row, link)


def opened(browser: Browser, link: int) -> tuple[int, int]:
    """Bytes up and down in the panel of a link that is opened by key."""
    browser.run(f"document.querySelector('.link[data-id=\"{link}\"]').focus()")
    browser.press("Enter")
    up, down = browser.run("['up', 'down'].map((side) => +document.getElementById(`link-${side}`).dataset.value)")
    return up, down


def check_flows(browser: Browser, row: dict[str, Any], link: int) -> None:
    found = browser.run(
        "[...document.querySelectorAll('#flows [data-value]')].map((one) => [one.dataset.up === 'true', +one.dataset.value])"
    )
    passing = []
    for flow in row["flow_rows"]:
        half = len(flow["path"]) / 2
        passing += [[place < half, flow["bytes"]] for place, other in enumerate(flow["path"]) if other == link]
    assert sorted(found) == sorted(passing)


def test_the_experts_step_uses_no_link_and_says_how_experts_are_dealt(fabric: Browser) -> None:
    click(fabric, '[data-choice="step:4"]')
    assert fabric.run("document.getElementById('sentence').textContent").startswith(
        "Experts compute on 32 GPUs, 8 of the 256"
    )
    assert fabric.run("document.querySelectorAll('.load-0').length") == fabric.run(
        "document.querySelectorAll('.link').length"
    )
    assert fabric.run("document.querySelectorAll('.computing').length") == 32


def test_redraws_of_the_hash_go_through_the_seeds_of_the_command_line(fabric: Browser) -> None:
    choose(fabric, wiring="tor")
    draws = []
    for seed in range(8):
        assert fabric.run("+document.getElementById('hash').dataset.value") == seed
        draws.append(figures(fabric))
        click(fabric, '[data-choice="redraw"]')
    assert figures(fabric) == draws[0]
    report = told("fabric", "--wiring", "tor", "--seeds", "8", "--redraw", "ecmp")
    for row in report["traffic"]:
        name = f"{row['phase']} {row['traffic']}"
        largest = [draw[f"{name} largest_link_bytes"] for draw in draws]
        spread = row["largest_link_bytes"]
        assert (min(largest), max(largest)) == (spread["min"], spread["max"])
        assert sum(largest) / 8 == pytest.approx(spread["mean"])
        assert len({draw[f"{name} rdma_bytes"] for draw in draws}) == 1


def test_where_no_spine_is_used_a_redraw_is_not_offered(fabric: Browser) -> None:
    choose(fabric, transfer="relay")
    before = figures(fabric)
    assert fabric.run("document.querySelector('[data-choice=redraw]').ariaDisabled") == "true"
    click(fabric, '[data-choice="redraw"]')
    assert figures(fabric) == before
    assert "crosses a spine" in fabric.run("document.getElementById('sentence').textContent")


def test_toggling_keeps_the_step(fabric: Browser) -> None:
    click(fabric, '[data-choice="step:3"]')
    choose(fabric, pd="true", af="true")
    assert fabric.run("document.querySelector('[aria-current=step]').textContent") == "5 decode A→F"


def test_the_keyboard_alone_is_enough(fabric: Browser) -> None:
    seen = []
    for _ in range(24):
        fabric.press("Tab")
        seen.append(
            fabric.run(
                "document.activeElement.dataset.choice ?? document.activeElement.dataset.id ?? document.activeElement.id"
            )
        )
    order = ["Wiring:rail", "PD split:false", "Relay:direct", "redraw", "back", "step:0", "step:5", "next", "64"]
    assert [seen.index(one) for one in order] == sorted(seen.index(one) for one in order)
    stop = seen.index("row:0")
    assert len([one for one in seen[:stop] if one.isdigit()]) == 1  # all links are one stop


def test_focus_can_be_seen_on_buttons_and_links(fabric: Browser) -> None:
    fabric.press("Tab")
    assert fabric.run("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    fabric.run("document.querySelector('.link[tabindex=\"0\"]').focus()")
    fabric.press("ArrowRight")
    width = "getComputedStyle(document.activeElement.querySelector('path.line')).strokeWidth"
    assert fabric.run(width) == "5px"
    assert fabric.run("document.getElementById('tip').hidden") is False


def test_arrows_go_from_link_to_link_enter_opens_and_escape_gives_the_place_back(fabric: Browser) -> None:
    fabric.run("document.querySelector('.link[tabindex=\"0\"]').focus()")
    here = "document.activeElement.dataset.id"
    title = "document.getElementById('panel-title').firstChild.textContent"
    begin = fabric.run(here)
    fabric.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert fabric.run(here) != begin
    fabric.press("ArrowDown")
    lower = fabric.run(here)
    assert told("fabric")["links"][int(lower)]["kind"] == "nic"
    fabric.press("Enter")
    link = told("fabric")["links"][int(lower)]
    assert fabric.run(title) == f"{link['lower']} – {link['upper']}"
    assert fabric.run("document.querySelector('.link.chosen').ariaPressed") == "true"
    fabric.press("Escape")
    assert fabric.run(title) == "prefill dispatch"
    assert fabric.run(here) == lower
    fabric.press("End", "Home")
    assert fabric.run(here) == "32"


def test_a_button_keeps_the_focus_when_it_was_pressed_by_key(fabric: Browser) -> None:
    fabric.run("document.querySelector('[data-choice=\"Wiring:tor\"]').focus()")
    fabric.press("Enter")
    assert fabric.run("document.activeElement.dataset.choice") == "Wiring:tor"
    assert fabric.run("document.activeElement.ariaPressed") == "true"
    assert figures(fabric) == expected(told("fabric", "--wiring", "tor"))


def test_pointing_at_a_link_tells_its_figures(fabric: Browser) -> None:
    where = """(() => { const box = document.querySelector('.link[data-id="0"]').getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; })()"""
    fabric.move(*fabric.run(where))
    tip = fabric.run("document.getElementById('tip').textContent")
    assert tip.startswith("node0.gpu0 – node0.nvswitch\nup 3.69 MB, down 3.84 MB\n")
    fabric.move(5, 5)
    assert fabric.run("document.getElementById('tip').hidden") is True


def test_everything_that_can_be_pressed_has_a_name(fabric: Browser) -> None:
    named = """[...document.querySelectorAll('button, [role=button], svg[role], nav, aside')]
        .map((one) => (one.ariaLabel ?? one.textContent).trim())"""
    assert all(fabric.run(named))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_readers_scheme(fabric: Browser, scheme: str) -> None:
    fabric.scheme(scheme)
    colour = re.findall(r"\d+", fabric.run("getComputedStyle(document.body).backgroundColor"))
    assert (sum(map(int, colour)) > 600) is (scheme == "light")
    fabric.scheme("light")


def test_the_page_fits_the_window(fabric: Browser) -> None:
    assert fabric.run("document.documentElement.scrollWidth <= innerWidth") is True


def test_several_seeds_show_mean_and_range(browser: Browser, written: Callable[..., Path]) -> None:
    words = ("fabric", "--wiring", "tor", "--seeds", "5", "--lengths", "8")
    browser.open(written(*words))
    found = figures(browser)
    for row in told(*words)["traffic"]:
        for name in FIGURES:
            assert found[f"{row['phase']} {row['traffic']} {name}"] == pytest.approx(row[name]["mean"])
    assert " – " in browser.run("document.querySelector('[data-name=\"decode dispatch rdma_bytes\"]').textContent")
    quiet(browser)


def test_a_larger_fabric_is_drawn_node_by_node_and_says_what_is_left_out(
    browser: Browser, written: Callable[..., Path]
) -> None:
    words = ("fabric", "--nodes", "16", "--batch", "64", "--lengths", "4")
    browser.open(written(*words))
    assert figures(browser) == expected(told(*words))
    assert "holds 7 of 24 variants" in browser.run("document.getElementById('footer').textContent")
    assert browser.run("document.querySelectorAll('.link').length") == 16 * 8 + 8 * 4 + 16
    choose(browser, wiring="tor")
    click(browser, '[data-choice="PD split:true"]')
    assert "too large" in browser.run("document.getElementById('sentence').textContent")
    assert figures(browser) == expected(told(*words, "--wiring", "tor"))
    quiet(browser)


def test_a_fabric_that_cannot_be_drawn_still_tells_its_figures_and_fullest_links(
    browser: Browser, written: Callable[..., Path]
) -> None:
    words = ("fabric", "--nodes", "256", "--experts", "2048", "--batch", "32", "--lengths", "1", "--phase", "decode")
    browser.open(written(*words))
    assert figures(browser) == expected(told(*words))
    assert "too many links to be drawn" in browser.run("document.getElementById('legend').textContent")
    browser.run("document.querySelector('[data-link]').focus()")
    link = int(browser.run("document.activeElement.dataset.link"))
    browser.press("Enter")
    row = told(*words)["traffic"][0]
    load = next(load for load in row["loads"] if load["link"] == link)
    assert max(load["up_bytes"], load["down_bytes"]) == row["largest_link_bytes"]
    check_flows(browser, row, link)
    browser.press("Escape")
    assert browser.run("document.getElementById('panel-title').textContent") == "decode dispatch"
    quiet(browser)


def test_lost_parts_are_drawn_apart(browser: Browser, written: Callable[..., Path]) -> None:
    browser.open(written("fabric", "--planes", "2", "--lost", "leaf3", "--batch", "4", "--lengths", "8"))
    assert browser.run("[...document.querySelectorAll('.leaf.out text')].map((one) => one.textContent)") == ["leaf3"]
    quiet(browser)


def rates(browser: Browser) -> list[tuple[str, float]]:
    found = browser.run(
        "[...document.querySelectorAll('.pairs [data-value]')].map((one) => [one.dataset.name, +one.dataset.value])"
    )
    return [(name, rate) for name, rate in found]


@pytest.mark.parametrize("nics", ["best", "default"])
def test_rates_of_the_topo_page_are_those_of_the_json(topo: Browser, nics: str) -> None:
    choose(topo, nics=nics)
    pairing = told(*DEGRADED)["pairings"][0]
    assert rates(topo) == [(f"{pairing['host']} {pair['gpu']}", pair["gbps"]) for pair in pairing[nics]["pairs"]]
    assert topo.run("document.getElementById('verdict').textContent") == told(*DEGRADED)["domains"]["verdict"] + "."


def test_a_click_on_a_link_of_the_topo_page_tells_its_flows(topo: Browser) -> None:
    click(topo, '[data-choice="step:1"]')
    choose(topo, nics="default")
    number = topo.run("page.links.findIndex((link) => link.name === 'GPU 3 – PCIe switch 0000:46:00.0')")
    topo.run(
        f"document.querySelector('.link[data-id=\"{number}\"]').dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))"
    )
    pair = told(*DEGRADED)["pairings"][0]["default"]["pairs"][3]
    flows = topo.run(
        "[...document.querySelectorAll('#flows [data-value]')].map((one) => [one.dataset.up, +one.dataset.value])"
    )
    assert [up for up, _ in flows] == ["true"] * len(pair["nics"])
    assert 8 * sum(value for _, value in flows) == pytest.approx(pair["gbps"], abs=0.001)
    assert 8 * topo.run("+document.getElementById('link-up').dataset.value") == pytest.approx(pair["gbps"], abs=0.001)
    click(topo, '[data-choice="step:2"]')  # what arrives takes the same way down
    assert topo.run("+document.getElementById('link-up').dataset.value") == 0
    assert 8 * topo.run("+document.getElementById('link-down').dataset.value") == pytest.approx(pair["gbps"], abs=0.001)
    topo.press("Escape")
    assert topo.run("document.getElementById('flows')") is None


def test_all_steps_of_the_topo_page_can_be_gone_through(topo: Browser) -> None:
    names = []
    for _ in range(8):
        names.append(topo.run("document.querySelector('[aria-current=step]').textContent"))
        click(topo, "#next")
    assert names[0] == "1 wiring"
    assert names[-1] == "8 combine in"
    assert len(set(names)) == 8


@pytest.mark.parametrize("sample", ["gb200-nvl", "h200x2-vm", "hgx-h100-ib", "laptop", "p5-efa"])
def test_the_page_of_every_sample_opens_without_complaint(
    browser: Browser, written: Callable[..., Path], sample: str
) -> None:
    browser.open(written("topo", "--sample", sample))
    report = told("topo", "--sample", sample)
    count = sum(node["kind"] == "gpu" for node in report["graph"]["nodes"])
    assert browser.run("document.querySelectorAll('svg .gpu').length") == count
    assert "not your machine" in browser.run("document.getElementById('about').textContent")
    quiet(browser)
