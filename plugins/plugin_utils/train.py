# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a host needs to run training programs, from the record. Pure, except for the sources of the programs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import paths
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.programs import Contents, digests


def volumes(record: model.Record, machine: str) -> list[str]:
    """The mount points of the writable shared volumes on a member."""
    return [volume["mount_point"] for volume in derive.volumes_of(record, machine) if not volume.get("read_only")]


@cache
def contents() -> Contents:
    """The contents of the files that the module train installs, without the settings of a host."""
    programs = {paths.NAME: paths.ENTRY, paths.TRACE_NAME: paths.TRACE_ENTRY}
    # They import nothing of the collection.
    modules = {f"{name}.py": package.sources(entry)[entry].encode() for name, entry in paths.MODULES.items()}
    return {**{name: package.bundle(entry) for name, entry in programs.items()}, **modules}


def desired(
    record: model.Record, machine: str, run_dir: str, state: str = "present", stage_dir: str = paths.STAGE
) -> dict[str, Any]:
    """The parameters of the module train."""
    settings = {"volumes": volumes(record, machine), "run_dir": run_dir, "stage_dir": stage_dir}
    return {"state": state, **settings, "digests": digests(contents()) if state == "present" else {}}


def artifacts(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The artifacts about a run for the next job of a workflow. ``result``: that of the module train_run."""
    run = result["run"]
    return {
        "gpumesh_train_name": name,
        "gpumesh_train_state": run["state"],
        "gpumesh_train_step": run.get("step"),
        "gpumesh_train_loss": run.get("loss"),
        "gpumesh_train_attempts": len(run.get("attempts") or []),
        "gpumesh_train_folder": result.get("folder"),
    }
