# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train` as a file on this host."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import program


def part(params: Mapping[str, Any]) -> Part:
    """The desired program, by the parameters of the module train."""
    if params["state"] == "absent":
        return package.part(program.PATH, None)
    settings = {name: params[name] for name in ("volumes", "run_dir", "stage_dir")}
    return package.part(program.PATH, package.build(sys.executable, program.__name__, settings))


def differences(_run: Runner, params: Mapping[str, Any]) -> Differences:
    """How this host differs from the parameters of the module."""
    if not part(params).changed:
        return Differences([], False)
    there = os.path.lexists(program.PATH)
    return Differences([f"{program.PATH} {'differs' if there else 'is missing'}"], not there)
