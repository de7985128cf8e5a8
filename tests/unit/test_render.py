"""Every format says the same of a report, and nothing of a tool's output steers a terminal or an XML reader."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core import doctor
from epctl.core.check import Check, Seen, bad, good, registered, unread
from epctl.core.context import Context
from epctl.core.doctor import Report, examine
from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.fix_script import script
from epctl.core.render import FORMATS, View, renderer
from epctl.core.render.safe import plain
from epctl.core.snapshot.software import Distribution
from epctl.core.verdict import exit_code
from tests.support.nodes import edit, ib_node

EVIL = "mlx5\x1b[31m_0\x9b2J\x07\r\n\u202egpj.exe <script>&amp; `rm -rf /` |x| \x00 \ud800"


def check(id: str, severity: str, *seen: Seen) -> Check:  # noqa: A002
    made = Check(
        id,
        "rdma",
        "fail",
        f"title of {id}",
        "why",
        "do this",
        "https://example.org/1",
        lambda _: seen,
        commands=(f"fix {id}",),
    )
    return msgspec.structs.replace(made, severity=severity)


@pytest.fixture
def report() -> Report:
    checks = (
        check("A-FAIL", "fail", bad(f"seen {EVIL}"), bad("and more")),
        check("B-WARN", "warn", bad("slow")),
        check("C-GOOD", "fail", good("fine")),
        check("D-UNKNOWN", "fail", unread("a file", Absent("permission", EVIL))),
        check("E-SKIPPED", "fail"),
    )
    return examine(edit(ib_node(), "host.hostname", f"node {EVIL}"), checks, ("epctl",))


@pytest.mark.parametrize("name", FORMATS)
def test_no_control_character_of_a_tool_reaches_the_output(report: Report, name: str) -> None:
    text = renderer(name)(report, View())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    assert not re.search(r"[\x80-\x9f\u202a-\u202e\ud800-\udfff]", text)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_names_the_failed_checks(report: Report, name: str) -> None:
    text = renderer(name)(report, View())
    assert "A-FAIL" in text
    assert "B-WARN" in text


def test_json_is_the_report(report: Report) -> None:
    found = json.loads(renderer("json")(report, View()))
    assert found["schema"] == {"name": "epctl.doctor", "version": 1}
    assert found["source"] == "sample"
    assert [entry["id"] for entry in found["findings"]] == ["A-FAIL", "B-WARN", "D-UNKNOWN", "C-GOOD", "E-SKIPPED"]
    assert found["summary"] == {
        "failed": 2,
        "blind": [],
        "fail": 1,
        "warn": 1,
        "info": 0,
        "passed": 1,
        "skipped": 1,
        "unknown": 1,
        "verdict": "failed",
    }
    assert {"rung", "state", "gate", "fix", "applies"} == set(found["ladder"][0])
    assert {"id", "area", "severity", "status", "title", "evidence", "fix", "reference"} <= set(found["findings"][0])


def test_junit_counts_failures_and_skips(report: Report) -> None:
    suite = ET.fromstring(renderer("junit")(report, View())).find("testsuite")  # noqa: S314 - our own output
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["A-FAIL"]


def test_prometheus_lines_follow_the_text_format(report: Report) -> None:
    for line in renderer("prometheus")(report, View()).splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) [a-z_]+ .+|[a-z_]+\{([a-z_]+=\"(?:[^\"\\]|\\.)*\",?)+\} -?[0-9.e+]+", line
        ), line


def test_nagios_has_one_status_line_and_performance_data(report: Report) -> None:
    first = renderer("nagios")(report, View()).splitlines()[0]
    assert first.startswith("EPCTL CRITICAL (SAMPLE): node")
    assert first.count("|") == 1, "a host's name must not add performance data"
    assert "fail=1 warn=1 passed=1 unknown=1" in first


def test_text_fits_80_columns_and_marks_a_sample(report: Report) -> None:
    text = renderer("text")(report, View())
    assert max(map(len, (line for line in text.splitlines() if not line.startswith(("  see ", "   $ "))))) <= 80
    assert "SAMPLE unit-test" in text
    assert text.index("FAIL A-FAIL") < text.index("WARN B-WARN") < text.index("Could not be read")
    assert "D-UNKNOWN" in text
    assert text.rstrip().endswith("1 failed, 1 warnings, 0 notes, 1 passed, 1 unknown, 1 skipped")


def test_the_fix_script_runs_nothing(report: Report) -> None:
    lines = script(report).splitlines()
    assert "# fix A-FAIL" in lines
    assert [line for line in lines if line and not line.startswith("#")] == []


@pytest.mark.parametrize(
    ("severities", "strict", "code"),
    [
        (("fail",), False, 1),
        (("fail",), True, 1),
        (("warn",), False, 0),
        (("warn",), True, 3),
        (("info",), True, 0),
        ((), True, 0),
    ],
)
def test_exit_codes_are_those_of_the_conventions(severities: tuple[str, ...], strict: bool, code: int) -> None:
    checks = [check(f"X-{i}", severity, bad("seen")) for i, severity in enumerate(severities)]
    assert exit_code(examine(ib_node(), [*checks, check("OK", "fail", good("fine"))]).summary, strict=strict) == code


def test_a_node_of_which_nothing_could_be_read_is_not_called_healthy() -> None:
    report = examine(ib_node(), [check("X", "fail", unread("all", Absent("permission"))), check("Y", "fail")])
    assert report.summary.verdict == "not_measured"
    assert exit_code(report.summary, strict=False) == 4


def test_a_check_with_a_bug_is_unknown_and_says_so() -> None:
    def broken(_: Context) -> list[Seen]:
        raise ZeroDivisionError("division by zero")

    one = msgspec.structs.replace(check("BUG", "fail"), look=broken)
    finding = examine(ib_node(), [one]).findings[0]
    assert finding.status == "unknown"
    assert "ZeroDivisionError" in finding.evidence[0]


def test_markdown_of_a_tool_mentions_nobody_and_links_nowhere() -> None:
    node = edit(ib_node(), "host.hostname", "@octocat see https://example.org/x or www.example.org")
    text = renderer("markdown")(examine(node, []), View()).splitlines()[0]
    assert "@octocat" not in text
    assert "https://" not in text
    assert "www." not in text


@pytest.mark.parametrize("sign", ["\u061c", "\u200b", "\u2060", "\ufeff", "\U000e0041"])
def test_invisible_characters_are_shown(sign: str) -> None:
    assert plain(f"a{sign}b") == "a?b"


def test_an_error_shows_names_without_control_characters() -> None:
    told = str(EpctlError("x\x1b]0;pwned\x07y does not exist", "\x9b2J", "\u202e\n"))
    assert "x?]0;pwned?y" in told
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told)
    assert told.count("\n") == 2


@pytest.mark.parametrize(
    "version", ["9" * 5000, "2." + "9" * 4400, "1!" + "9" * 5000, "\u0661.\u0662", "v13.0 built by me"]
)
def test_no_version_stops_the_doctor(version: str) -> None:
    node = edit(ib_node(), "software.nccl_effective", version)
    node = edit(node, "software.distributions", (Distribution("deep-ep", version),))
    examine(node, registered().values())


def test_a_bug_in_the_ladder_is_told_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("division by zero")

    for name in ("detect", "ladder", "capabilities", "at_a_glance"):
        monkeypatch.setattr(doctor, name, broken)
    found = examine(ib_node(), [check("X", "fail", bad("seen"))])
    assert [finding.status for finding in found.findings] == ["failed"]
    assert sum("ZeroDivisionError" in line for line in found.at_a_glance) == 4
    for name in FORMATS:
        assert renderer(name)(found, View())
