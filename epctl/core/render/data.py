"""A doctor's report for machines: JSON, JUnit XML, Prometheus text file, Nagios line."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from epctl.core.check import AREAS, Finding
from epctl.core.doctor import Report
from epctl.core.jsontext import dump
from epctl.core.render import View
from epctl.core.render.safe import plain


def json(report: Report, _: View) -> str:
    """The report itself; its `schema` names the format."""
    return dump(report).decode()


def junit(report: Report, _: View) -> str:
    """One test suite per area. A failed check of severity fail is a failure; warn and info pass with the text in system-out;
    unknown and skipped are skipped, with the reason."""
    root = ET.Element("testsuites", name=f"epctl doctor {plain(report.host)}")
    properties = ET.SubElement(root, "properties")
    for name, value in (("source", report.source), ("origin", report.origin.name), ("verdict", report.summary.verdict)):
        ET.SubElement(properties, "property", name=name, value=plain(value))
    for area, title in AREAS.items():
        mine = [finding for finding in report.findings if finding.area == area]
        if mine:
            root.append(_suite(area, title, mine))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _suite(area: str, title: str, findings: list[Finding]) -> ET.Element:
    failures = sum(_fails(finding) for finding in findings)
    skipped = sum(finding.status in ("unknown", "skipped") for finding in findings)
    suite = ET.Element(
        "testsuite", name=title, tests=str(len(findings)), failures=str(failures), errors="0", skipped=str(skipped)
    )
    for finding in findings:
        case = ET.SubElement(suite, "testcase", classname=f"epctl.doctor.{area}", name=finding.id)
        evidence = "\n".join(plain(line) for line in finding.evidence)
        if _fails(finding):
            entry = ET.SubElement(case, "failure", type=finding.severity, message=finding.title)
            entry.text = f"{evidence}\nwhy: {finding.why}\nfix: {finding.fix}"
        elif finding.status in ("unknown", "skipped"):
            ET.SubElement(case, "skipped", message=f"{finding.status}: {evidence}")
        elif finding.status == "failed":
            ET.SubElement(
                case, "system-out"
            ).text = f"{finding.severity}: {finding.title}\n{evidence}\nfix: {finding.fix}"
    return suite


def _fails(finding: Finding) -> bool:
    return finding.status == "failed" and finding.severity == "fail"


_HELP = {
    "epctl_doctor_info": "Where the facts come from: live, recorded, or a packaged sample (not a machine of yours).",
    "epctl_doctor_findings": "Failed checks by severity.",
    "epctl_doctor_checks": "Checks by status.",
    "epctl_doctor_check_failed": "1 for a check that failed, 0 for one that passed; checks that saw nothing are absent.",
    "epctl_doctor_rung": "Capability ladder: 1 there, 0 not there, -1 unknown.",
    "epctl_doctor_nvlink_gbs": "Sum of active NVLinks of a GPU, GB/s in one direction.",
    "epctl_doctor_rdma_nominal_gbps": "Line rate of the RDMA ports paired with a GPU, Gb/s.",
}


def prometheus(report: Report, _: View) -> str:
    """For the text-file collector of node_exporter."""
    host = _label(report.host)
    rows: dict[str, list[str]] = {name: [] for name in _HELP}
    summary = report.summary
    origin = f'source="{report.source}",origin="{_label(report.origin.name)}",verdict="{summary.verdict}"'
    rows["epctl_doctor_info"].append(f'{{host="{host}",{origin}}} 1')
    for severity in ("fail", "warn", "info"):
        rows["epctl_doctor_findings"].append(f'{{host="{host}",severity="{severity}"}} {getattr(summary, severity)}')
    for status in ("passed", "skipped", "unknown"):
        rows["epctl_doctor_checks"].append(f'{{host="{host}",status="{status}"}} {getattr(summary, status)}')
    for finding in report.findings:
        if finding.status in ("failed", "passed"):
            labels = f'host="{host}",id="{finding.id}",area="{finding.area}",severity="{finding.severity}"'
            rows["epctl_doctor_check_failed"].append(f"{{{labels}}} {int(finding.status == 'failed')}")
    for rung in report.ladder:
        state = {"yes": 1, "no": 0, "unknown": -1}[rung.state]
        rows["epctl_doctor_rung"].append(f'{{host="{host}",rung="{_label(rung.rung)}"}} {state}')
    for gpu in report.capabilities.gpus:
        for name, value in (
            ("epctl_doctor_nvlink_gbs", gpu.nvlink_gbs),
            ("epctl_doctor_rdma_nominal_gbps", gpu.rdma_nominal_gbps),
        ):
            if isinstance(value, float):
                rows[name].append(f'{{host="{host}",gpu="{gpu.gpu}"}} {value:g}')
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n" + "".join(f"{name}{row}\n" for row in rows[name])
        for name, text in _HELP.items()
        if rows[name]
    )


def _label(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


NAGIOS = {
    "failed": "CRITICAL",
    "warnings": "WARNING",
    "incomplete": "UNKNOWN",
    "not_measured": "UNKNOWN",
    "healthy": "OK",
    "not_applicable": "OK",
}
"""Verdict → the word of the Nagios plugin guidelines. The exit code stays epctl's own."""


def nagios(report: Report, _: View) -> str:
    """One status line with performance data, then one line a failed check."""
    summary = report.summary
    wrong = [finding for finding in report.findings if finding.status == "failed" and finding.severity != "info"]
    first = "; ".join(finding.id for finding in wrong[:5]) or "no failed check"
    sample = " (SAMPLE)" if report.source == "sample" else ""
    numbers = f"fail={summary.fail} warn={summary.warn} passed={summary.passed} unknown={summary.unknown}"
    head = f"EPCTL {NAGIOS[summary.verdict]}{sample}: {plain(report.host).replace('|', '/')}: {first} | {numbers}"
    lines = [
        f"{finding.id} {finding.severity}: {finding.title}: {plain('; '.join(finding.evidence)).replace('|', '/')}"
        for finding in wrong
    ]
    return "\n".join([head, *lines]) + "\n"
