# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as JUnit XML for CI servers: one suite per layer, one case per check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import (
    LAYERS,
    count,
)

#: Characters that XML 1.0 cannot represent, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _clean(text: Any) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text))


def render(verdict: Mapping[str, Any]) -> str:
    """The XML text, with its declaration."""
    totals = verdict["counts"]
    root = ElementTree.Element(
        "testsuites",
        name=_clean(verdict["cluster"]["name"]),
        tests=str(sum(totals.values())),
        failures=str(totals["fail"]),
        errors=str(totals["error"]),
        skipped=str(totals["skipped"]),
    )
    for layer in LAYERS:
        checks = [check for check in verdict["checks"] if check["id"].split(".")[0] == layer.id]
        if not checks:
            continue
        numbers = count(checks)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=layer.title,
            tests=str(len(checks)),
            failures=str(numbers["fail"]),
            errors=str(numbers["error"]),
            skipped=str(numbers["skipped"]),
            timestamp=verdict["generated_at"].rstrip("Z"),
        )
        for check in checks:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=_clean(f"{verdict['cluster']['name']}.{check['host'] or 'cluster'}"),
                name=_clean(f"{check['id']}: {check['purpose']}"),
            )
            if check["status"] == "pass":
                continue
            tag = {"fail": "failure", "error": "error", "skipped": "skipped"}[check["status"]]
            detail = ElementTree.SubElement(case, tag, message=_clean(check["reason"]))
            if check["status"] != "skipped":
                detail.text = _clean(
                    f"found {check['actual']} {check['unit']}, required {check['required']} {check['unit']}\n{check['remedy']}"
                )
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
