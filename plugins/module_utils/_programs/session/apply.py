# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply what sessions need to this host."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, apply_changes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import PUSH_OPTIONS, missing_contents
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import install, node
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    DEFAULT_STORAGE_DIR,
    PROGRAM_PATH,
)

_TEXT_OPTION = {"type": "str", "default": ""}
_STRINGS_OPTION = {"type": "list", "elements": "str", "default": []}
#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "machine": _TEXT_OPTION,
    "manager": _TEXT_OPTION,
    "interface": _TEXT_OPTION,
    "members": {"type": "dict", "default": {}},
    "pools": _STRINGS_OPTION,
    "closed": _STRINGS_OPTION,
    "nat": {"type": "bool", "default": True},
    "allow": _STRINGS_OPTION,
    "volumes": _STRINGS_OPTION,
    "mounts_allowed": _STRINGS_OPTION,
    "storage": {"type": "str", "default": DEFAULT_STORAGE_DIR},
    "mesh": _TEXT_OPTION,
    **PUSH_OPTIONS,
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the files and the nftables table, and remove what ended sessions have left."""
    missing_packages = install.missing_requirements() if params["state"] == "present" else []
    values: Dict[str, Any] = {"missing": missing_packages, "outdated": [], "path": PROGRAM_PATH, "swept": []}
    if missing_packages:
        install.parse_settings(params)
        return ModuleResult(
            check_mode,
            values,
            "",
            "".join(f"{package_name}\n" for package_name in missing_packages) if check_mode else "",
        )
    layer_changes = list(install.plan_changes(run, params).values())
    values["outdated"] = missing_contents(layer_changes)
    if values["outdated"] and not check_mode:
        return ModuleResult(False, values)
    if params["state"] == "present" and not check_mode:
        install.refuse_unfit_host(run, params["machine"])
        values["swept"] = node.clean_up(run, params["machine"])
    applied_result = apply_changes(layer_changes, values, check_mode)
    return applied_result._replace(changed=applied_result.changed or bool(values["swept"]))
