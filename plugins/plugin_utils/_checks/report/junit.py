# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as JUnit XML for CI servers: one suite per layer, one case per check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import SECTIONS, count_statuses

#: Characters that XML 1.0 cannot represent, not even as a reference.
_FORBIDDEN_CHARACTERS = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _replace_forbidden(text: Any) -> str:
    return _FORBIDDEN_CHARACTERS.sub("\ufffd", str(text))


def render(verdict: Mapping[str, Any]) -> str:
    """Render the XML text, with its declaration."""
    total_counts = verdict["counts"]
    root = ElementTree.Element(
        "testsuites",
        name=_replace_forbidden(verdict["cluster"]["name"]),
        tests=str(sum(total_counts.values())),
        failures=str(total_counts["fail"]),
        errors=str(total_counts["error"]),
        skipped=str(total_counts["skipped"]),
    )
    for section in SECTIONS:
        section_checks = [check for check in verdict["checks"] if check["id"].split(".")[0] == section.id]
        if not section_checks:
            continue
        section_counts = count_statuses(section_checks)
        test_suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=section.title,
            tests=str(len(section_checks)),
            failures=str(section_counts["fail"]),
            errors=str(section_counts["error"]),
            skipped=str(section_counts["skipped"]),
            timestamp=verdict["generated_at"].rstrip("Z"),
        )
        for check in section_checks:
            test_case = ElementTree.SubElement(
                test_suite,
                "testcase",
                classname=_replace_forbidden(f"{verdict['cluster']['name']}.{check['host'] or 'cluster'}"),
                name=_replace_forbidden(f"{check['id']}: {check['purpose']}"),
            )
            if check["status"] == "pass":
                continue
            outcome_tag = {"fail": "failure", "error": "error", "skipped": "skipped"}[check["status"]]
            detail = ElementTree.SubElement(test_case, outcome_tag, message=_replace_forbidden(check["reason"]))
            if check["status"] != "skipped":
                detail.text = _replace_forbidden(
                    f"found {check['actual']} {check['unit']}, required {check['required']} {check['unit']}\n{check['remedy']}"
                )
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
