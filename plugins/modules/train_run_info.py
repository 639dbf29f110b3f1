#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: train_run_info
short_description: Show the progress of a training run
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the state of a run that M(gpumesh.cluster.train_run) has started. That module calls it while it waits.
  - If Slurm's controller does not respond, it is queried again for five minutes.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  folder:
    description: The directory of the run.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the progress of the run
  gpumesh.cluster.train_run_info:
    folder: /mnt/shared/gpumesh-runs/alice/nano
  become: true
  become_user: alice
"""

RETURN = r"""
ended:
  description: Whether the run has ended.
  type: bool
  returned: success
summary:
  description: The run in one line.
  type: str
  returned: success
  sample: "nano: job 41 on n1, n2, n3 · step 1200 of 20000 · loss 2.31 · 14.2 steps/s · last checkpoint 40 s ago"
folder:
  description: The directory of the run.
  type: str
  returned: success
run:
  description: The state of the run with its attempts, as in its C(run.json).
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths, runs, show, store


def work(folder: str) -> ModuleResult:
    """Return the state of the run."""
    run_directory = store.open_if_run(folder)
    if run_directory is None:
        raise InputError(f"There is no run in {folder}.", "Start it again.")
    run_state, wait_reason = runs.poll_run(runs.SubmitHost(run, paths.PROGRAM_PATH, ()), run_directory)
    return ModuleResult(False, show.run_values(run_state, wait_reason, folder))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(argument_spec={"folder": {"type": "str", "required": True}}, supports_check_mode=True)
    exit_with(module, lambda: work(module.params["folder"]))


if __name__ == "__main__":
    main()
