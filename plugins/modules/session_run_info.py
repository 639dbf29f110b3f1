#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: session_run_info
short_description: Show the state of a session of containers
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the state of a session that M(gpumesh.cluster.session_run) has started. That module calls it while it waits.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  name:
    description: The name of the session.
    type: str
    required: true
  job:
    description: The Slurm job of the session.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Show the state of the session
  gpumesh.cluster.session_run_info:
    name: demo
    job: 41
"""

RETURN = r"""
job:
  description: The Slurm job of the session.
  type: int
  returned: success
summary:
  description: The session in one line.
  type: str
  returned: success
  sample: "demo: job 41, main:1, sub:3 · running on n1, n2, n3"
host:
  description: The node with the log. Empty while the session has no nodes.
  type: str
  returned: success
  sample: n1
session_state:
  description: The state of the session.
  type: str
  returned: success
  sample: waiting, fetching, starting, running, ended, failed
reason:
  description: Why the session failed.
  type: str
  returned: success
  sample: "The image docker.io/library/debain:13 cannot be fetched: manifest unknown. Correct its name."
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, sessions


def work(session_name: str, job_id: int) -> ModuleResult:
    """Return the state of the session."""
    return ModuleResult(False, sessions.session_values(job.query_session(run, job_id), session_name, job_id))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"name": {"type": "str", "required": True}, "job": {"type": "int", "required": True}},
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params["name"], module.params["job"]))


if __name__ == "__main__":
    main()
