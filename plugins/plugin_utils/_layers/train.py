# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a host needs to run training programs, from the record. Pure, except for the programs' sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    SCHEDULER,
    Layer,
    Options,
    Ports,
    never_repeated,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    collect_sources,
    source_digests,
)

ROLE_OPTIONS = ("train_run_dir", "train_stage_dir")


def writable_volumes(record: model.Record, machine: str) -> list[str]:
    """Return the mount points of the writable shared volumes on a member."""
    return [volume["mount_point"] for volume in derive.mounted_volumes(record, machine) if not volume.get("read_only")]


@cache
def program_sources() -> ProgramSources:
    """The contents of the files that the module train installs, without the settings of a host."""
    program_entries = {paths.PROGRAM_NAME: paths.ENTRY_MODULE, paths.TRACE_NAME: paths.TRACE_ENTRY_MODULE}
    # These modules import nothing of the collection.
    module_sources = {
        f"{name}.py": collect_sources(entry)[entry].encode() for name, entry in paths.IMPORTABLE_MODULES.items()
    }
    return {
        **{name: bundle_program(entry) for name, entry in program_entries.items()},
        **module_sources,
    }


def desired_parameters(
    record: model.Record, machine: str, options: Mapping[str, Any], state: str = "present"
) -> dict[str, Any]:
    """The parameters of the module train. ``options``: those of ROLE_OPTIONS."""
    settings = {
        "volumes": writable_volumes(record, machine),
        "run_dir": options["train_run_dir"],
        "stage_dir": options["train_stage_dir"],
    }
    return {"state": state, **settings, "digests": source_digests(program_sources()) if state == "present" else {}}


def describe_run(module_result: Mapping[str, Any], machine: str) -> str:
    """Describe the state of a run, and where its files are. ``module_result``: that of train_run on the machine."""
    lines = [
        module_result["summary"],
        f"Its files, with the output of all processes, are in {module_result['folder']} on {machine}.",
    ]
    if not module_result["ended"]:
        lines.append("It goes on without this play: the playbook runs shows it, and train_state=cancelled cancels it.")
    return "\n".join(lines)


def run_artifacts(run_name: str, module_result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the artifacts about a run for the next job of a workflow. ``module_result``: that of train_run."""
    run_status = module_result["run"]
    return {
        "gpumesh_train_name": run_name,
        "gpumesh_train_state": run_status["state"],
        "gpumesh_train_step": run_status.get("step"),
        "gpumesh_train_loss": run_status.get("loss"),
        "gpumesh_train_attempts": len(run_status.get("attempts") or []),
        "gpumesh_train_folder": module_result.get("folder"),
    }


def _run_ports(_record: model.Record, _options: Options) -> Ports:
    return Ports(tcp=[f"{paths.MASTER_PORTS[0]}-{paths.MASTER_PORTS[-1]}"])


LAYER = Layer(
    "train",
    SCHEDULER,
    options=ROLE_OPTIONS,
    desired_parameters=desired_parameters,
    connects=True,
    claim="slurm",
    ports=_run_ports,
    repeats=never_repeated,
)
