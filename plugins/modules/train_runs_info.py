#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: train_runs_info
short_description: List the training runs of a user
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Lists all runs of C(gpumesh-train), as the user of the task, and prints a line for each.
  - Set O(record). O(volumes) is derived from it on the controller.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
options:
  run_dir:
    description: The parent directory of runs, as for M(gpumesh.cluster.train).
    type: str
    default: ""
  volumes:
    description: The mount points of the shared volumes.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: List the runs
  gpumesh.cluster.train_runs_info:
    record: cluster_record
  become: true
  become_user: alice
"""

RETURN = r"""
folder:
  description: The directory that contains the runs.
  type: str
  returned: success
runs:
  description: The runs, sorted by name.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: The name of the run.
      type: str
    summary:
      description: The run in one line, or why it cannot be read.
      type: str
      sample: "nano: job 41 on n1, n2, n3 · step 1200 of 20000 · loss 2.31 · 14.2 steps/s · last checkpoint 40 s ago"
    folder:
      description: The directory of the run.
      type: str
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths, runs, show, store
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings


def work(params: Dict[str, Any]) -> ModuleResult:
    """List the runs of the user."""
    run_host = runs.SubmitHost(run, paths.PROGRAM_PATH, params["volumes"])
    runs_dir = TrainSettings({**params, "stage_dir": ""}).runs_dir("")
    return ModuleResult(False, {"folder": runs_dir, "runs": _describe_runs(run_host, runs_dir)})


def _describe_runs(run_host: runs.SubmitHost, runs_dir: str) -> List[Dict[str, str]]:
    descriptions = []
    for run_name in store.run_names(runs_dir):
        directory = f"{runs_dir}/{run_name}"
        try:
            run_state, wait_reason = runs.inspect_run(run_host, runs.find_run(runs_dir, run_name))
            summary = show.run_values(run_state, wait_reason, directory)["summary"]
        except GpumeshError as failure:
            # The remaining runs are still listed.
            summary = f"{run_name}: {failure.message}"
        descriptions.append({"name": run_name, "summary": summary, "folder": directory})
    return descriptions


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "run_dir": {"type": "str", "default": ""},
            "volumes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()
