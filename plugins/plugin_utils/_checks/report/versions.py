# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the versions that members report: those with the same GPUs at the same site should be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import CATALOGUE
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.checks import make_check
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Check

_CHECK_ID = "members.versions"
#: What a program that runs on several members needs in one version, and what is only worth to be shown.
_JUDGED_NAMES = {"driver": "the driver", "nccl": "the NCCL library"}
_SHOWN_NAMES = {"vbios": "the VBIOS", "kernel": "the kernel"}


def version_checks(record: Record, health_results: Mapping[str, Any] | None) -> list[Check]:
    """Return the comparison of all members that report GPUs; nothing if no two of them can be compared."""
    entry = next(entry for entry in CATALOGUE if entry.check_id == _CHECK_ID)
    groups: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for member in record["members"]:
        versions = ((health_results or {}).get(member["machine"]) or {}).get("versions") or {}
        if versions.get("models"):
            groups.setdefault((member.get("site"), *versions["models"]), {})[member["machine"]] = versions
    comparable_groups = [versions for versions in groups.values() if len(versions) > 1]
    if not comparable_groups:
        return []
    problems = [text for versions in comparable_groups for text in _describe_differences(versions, _JUDGED_NAMES)]
    remarks = [text for versions in comparable_groups for text in _describe_differences(versions, _SHOWN_NAMES)]
    status = "fail" if problems else "skipped" if remarks else "pass"
    differing_count = len(problems) + len(remarks)
    return [
        make_check(
            _CHECK_ID,
            entry.purpose,
            None,
            status,
            f"{differing_count} differ" if differing_count else "equal",
            "equal",
            "",
            " ".join([*problems, *remarks]),
            entry.remedy if problems else "",
        )
    ]


def _describe_differences(versions_by_machine: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Describe each version that is not the same on all members that report it, with the members that have a rare one."""
    sentences = []
    for key, name in names.items():
        texts = {
            machine: _format_version(versions[key])
            for machine, versions in versions_by_machine.items()
            if versions.get(key)
        }
        usual_text = Counter(texts.values()).most_common(1)[0][0] if texts else ""
        rare_texts = [f"{text} on {machine}" for machine, text in texts.items() if text != usual_text]
        if rare_texts:
            sentences.append(f"The version of {name} is {usual_text}, but {join_names(rare_texts)}.")
    return sentences


def _format_version(version: str | Sequence[str]) -> str:
    return version if isinstance(version, str) else join_names(version)
