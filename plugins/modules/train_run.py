#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: train_run
short_description: Start, attach to, resume or cancel a training run
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Starts a run of C(gpumesh-train), which M(gpumesh.cluster.train) installs, as the user of the task.
  - If there is already a run with this name, it is resumed if it has failed or was cancelled, and left unchanged
    otherwise. A run with the same name but another command is refused.
  - Requests that cannot work are refused before anything is submitted, such as a directory that is not on a shared
    volume, more nodes than can be used, or a command or a directory that does not exist on a node.
  - Set O(record). O(volumes) is derived from it on the controller.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
options:
  name:
    description: The name of the run.
    type: str
    required: true
  state:
    description:
      - V(present) starts the run, attaches to it or resumes it. V(cancelled) cancels it and waits until its supervisor
        has ended; the run keeps its directory and can be resumed.
    type: str
    choices: [present, cancelled]
    default: present
  command:
    description:
      - The command that each process executes. It is split into words as by a shell, but not run by a shell.
      - Required to start a run.
    type: str
    default: ""
  wait:
    description: Whether to wait until the run has ended, and to fail if it fails.
    type: bool
    default: true
  directory:
    description: The directory in which the command starts. It must exist on all nodes, unless there is O(code).
    type: str
    default: /
  code:
    description:
      - A directory on the host to copy into the run, of at most 256 MiB, without C(.git) and C(__pycache__). All
        attempts use the copy, including those after the run is resumed.
      - The command starts in the copy, in the subdirectory that corresponds to O(directory) if that is inside the
        original.
    type: str
    default: ""
  stage:
    description:
      - A directory on a shared volume that each node copies to its own disk before the processes start. The variable
        E(GPUMESH_STAGE_DIR) contains the path of the copy. An existing copy is reused.
    type: str
    default: ""
  stage_dir:
    description: The directory on each node for copies of O(stage), as for M(gpumesh.cluster.train).
    type: str
    default: /var/tmp/gpumesh-{user}
  run_dir:
    description: The parent directory of runs, as for M(gpumesh.cluster.train).
    type: str
    default: ""
  nodes:
    description: The number of nodes.
    type: int
    default: 1
  min_nodes:
    description: The minimum number of nodes with which the run continues when others fail. V(0) means all of them.
    type: int
    default: 0
  spare:
    description: The number of additional nodes to hold as replacements for nodes that fail.
    type: int
    default: 0
  gpus_per_node:
    description: The number of GPUs per node. V(0) means none.
    type: int
    default: 0
  ranks_per_node:
    description: The number of ranks (processes) per node. V(0) means one for each GPU, or one if there are none.
    type: int
    default: 0
  time:
    description: The time limit of one job, such as V(12h), V(90m) or V(2d), or in Slurm's format. The run continues in
      another job.
    type: str
    default: ""
  partition:
    description: The partition. Empty means the default partition.
    type: str
    default: ""
  sbatch:
    description: Additional options for C(sbatch), each as C(--option=value).
    type: list
    elements: str
    default: []
  max_restarts:
    description: The number of failures since the last new checkpoint after which the run fails.
    type: int
    default: 10
  hang_timeout:
    description: The time without a sign of life after which the run is restarted, in seconds. Before the first step,
      120 seconds are added.
    type: float
    default: 900
  volumes:
    description: The mount points of the shared volumes.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Start a run, and wait for its end
  gpumesh.cluster.train_run:
    record: cluster_record
    name: nano
    command: python3 train.py --steps 20000
    directory: /mnt/shared/nano
    nodes: 3
    gpus_per_node: 8

- name: Cancel the run
  gpumesh.cluster.train_run:
    record: cluster_record
    name: nano
    state: cancelled
"""

RETURN = r"""
action:
  description: The action that was taken, or would be taken in check mode.
  type: str
  returned: success
  sample: started, attached, resumed, cancelled, none
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

import shlex
from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths, runs, show, store
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    ENDED_STATES,
    HANG_TIMEOUT,
    RunRequest,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.request import check_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings


def work(module: AnsibleModule) -> ModuleResult:
    """Start or resume the run, attach to it, or cancel it."""
    params = module.params
    run_host = runs.SubmitHost(run, paths.PROGRAM_PATH, params["volumes"])
    if params["state"] == "cancelled":
        return cancel(run_host, params["name"], TrainSettings(params).runs_dir(""), module.check_mode)
    run_request = parse_request(params, TrainSettings(params), may_create=not module.check_mode)
    run_directory = store.open_if_run(run_request.folder)
    if run_directory is None:
        if module.check_mode:
            runs.check_request(run_host, run_request)
            return _run_result("started", TrainingRun(run_request.name), "", run_request.folder)
        return _run_result("started", runs.start_run(run_host, run_request), "", run_request.folder)
    if run_directory.read_request().command != run_request.command:
        raise InputError(
            f"The run '{run_request.name}' in {run_request.folder} was started with a different command.",
            "Use the same command, or another name.",
        )
    run_state, wait_reason = runs.inspect_run(run_host, run_directory)
    if run_state.state in ("failed", "cancelled"):
        resumed_run = run_state if module.check_mode else runs.resume_run(run_host, run_directory)[0]
        return _run_result("resumed", resumed_run, "", run_request.folder)
    return _run_result(
        "none" if run_state.state in ENDED_STATES else "attached", run_state, wait_reason, run_request.folder
    )


def cancel(run_host: runs.SubmitHost, name: str, runs_dir: str, check_mode: bool) -> ModuleResult:
    """Cancel the run, unless it has ended. Raises GpumeshError if there is none."""
    check_name(name)
    run_directory = store.open_if_run(f"{runs_dir}/{name}")
    if run_directory is None:
        raise InputError(
            f"There is no run '{name}' in {runs_dir}.",
            "The playbook runs lists the runs of a user: correct train_name.",
        )
    run_state, wait_reason = runs.inspect_run(run_host, run_directory)
    action = "none" if run_state.state in ENDED_STATES else "cancelled"
    if not check_mode:
        # Even a run that has ended may have left a job.
        run_state, wait_reason = runs.cancel_run(run_host, run_directory), ""
    return _run_result(action, run_state, wait_reason, str(run_directory.path))


def parse_request(params: Mapping[str, Any], program_settings: TrainSettings, may_create: bool = False) -> RunRequest:
    """Parse the parameters. ``may_create``: the directory of the runs may be created. Raises GpumeshError."""
    try:
        command = tuple(shlex.split(params["command"]))
    except ValueError as failure:
        raise InputError(
            f"The command cannot be split into words: {failure}.", "Close its quotation marks."
        ) from failure
    request_options = {option_name: value for option_name, value in params.items() if option_name in RunRequest._fields}
    request_options.update(
        ranks=params["ranks_per_node"],
        command=command,
        folder=f"{program_settings.runs_dir('', may_create)}/{params['name']}",
        min_nodes=params["min_nodes"] or params["nodes"],
        sbatch=tuple(params["sbatch"]),
        stage_dir=program_settings.staging_dir("") if params["stage"] else "",
    )
    return RunRequest(**request_options)


def _run_result(action: str, run_state: TrainingRun, wait_reason: str, directory: str) -> ModuleResult:
    values = {"action": action, **show.run_values(run_state, wait_reason, directory)}
    changed = action in ("started", "resumed", "cancelled")
    return ModuleResult(changed, values, "", f"{values['summary']}\n" if changed else "")


def main() -> None:
    """The module's entry point."""
    text_option: Any = {"type": "str", "default": ""}
    count_option: Any = {"type": "int", "default": 0}
    strings_option: Any = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "cancelled"], "default": "present"},
            "command": text_option,
            "wait": {"type": "bool", "default": True},
            "directory": {"type": "str", "default": "/"},
            "code": text_option,
            "stage": text_option,
            "stage_dir": {"type": "str", "default": paths.STAGE_DIR},
            "run_dir": text_option,
            "nodes": {"type": "int", "default": 1},
            "min_nodes": count_option,
            "spare": count_option,
            "gpus_per_node": count_option,
            "ranks_per_node": count_option,
            "time": text_option,
            "partition": text_option,
            "sbatch": strings_option,
            "max_restarts": {"type": "int", "default": 10},
            "hang_timeout": {"type": "float", "default": HANG_TIMEOUT},
            "volumes": strings_option,
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), keep_umask=True)


if __name__ == "__main__":
    main()
