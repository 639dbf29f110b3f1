#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: session_run
short_description: Start or stop a session of containers
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Starts containers with roles on their own private network, as a Slurm job of the user of the task, which cannot be
    root. There is never a second session with the same name and user.
  - Requires what the role P(gpumesh.cluster.session#role) installs.
  - Requests that cannot work are refused before anything is submitted.
  - "Reads these options of roles: C(session_allow), C(session_enabled), C(session_mounts_allowed), C(session_nat),
    C(session_storage_dir), C(session_subnets)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
options:
  name:
    description: The name of the session.
    type: str
    required: true
  state:
    description: V(present) starts the session, and V(absent) stops it.
    type: str
    choices: [present, absent]
    default: present
  roles:
    description:
      - A list of roles. Each has a C(name), an C(image) and, optionally, C(replicas), C(command), C(cpus), C(memory),
        C(gpus), C(per_node), C(mounts) and C(env). One role must be called C(main).
      - A string is parsed as YAML.
      - They are not logged, since their environment may contain secrets.
    type: raw
    default: []
  time:
    description:
      - The time limit of the session, such as V(8h), V(90m) or V(3d), or in Slurm's format, such as V(0-08:00:00).
        Fetching images does not count towards it, but must finish within 30 minutes.
      - A number is refused, since YAML reads C(8:00:00) without quotes as 28800.
    type: raw
    default: ""
  network:
    description: V(host) makes the containers use the network of their nodes, for RDMA at full speed, without names of
      their own.
    type: str
    choices: [private, host]
    default: private
  partition:
    description: The Slurm partition. Empty means the default partition.
    type: str
    default: ""
  ports:
    description:
      - Ports of the first container to publish on the manager's cluster address over ssh. V(9000:8888) publishes port
        8888 of the container as port 9000 of the manager.
      - A string is parsed as ports separated by spaces.
    type: raw
    default: []
  retry:
    description: Whether to start the session again if one of its nodes fails.
    type: bool
    default: true
  wait:
    description: Whether to wait until the containers run.
    type: bool
    default: true
  settings:
    description: The settings with which C(gpumesh-session) is installed. The action derives them from the record.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Start a session
  gpumesh.cluster.session_run:
    record: cluster_record
    name: demo
    roles:
      - {name: main, image: docker.io/library/debian:13, gpus: 1}
      - {name: sub, replicas: 3, image: docker.io/library/debian:13, gpus: 1}
    time: 8h
  become: true
  become_user: alice
"""

RETURN = r"""
job:
  description: The Slurm job of the session; 0 if there is none.
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
log:
  description: The file with the output of the containers. Empty if the session was not started by this task.
  type: str
  returned: success
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

import json
from typing import Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    PROGRAM_PATH,
    SessionSettings,
)


def work(module: AnsibleModule) -> ModuleResult:
    """Start the session, or stop it."""
    params = module.params
    running_session = job.find_own_session(run, params["name"])
    if params["state"] == "absent":
        if running_session is not None and not module.check_mode:
            job.cancel(run, running_session.job_id)
        return _session_result(running_session is not None, None, params["name"])
    if running_session is not None:
        return _session_result(False, running_session, params["name"], running_session.job_id)
    spec_options = {
        option_name: params[option_name] for option_name in ("name", "time", "network", "partition", "retry", "ports")
    }
    roles = params["roles"]
    desired_session = spec.parse_spec({**spec_options, "roles": json.loads(roles) if isinstance(roles, str) else roles})
    session_settings = SessionSettings(**params["settings"])
    if module.check_mode:
        sessions.refuse_session(run, PROGRAM_PATH, desired_session, session_settings)
        return _session_result(True, None, params["name"])
    started_session = sessions.start_session(run, PROGRAM_PATH, desired_session, session_settings)
    return _session_result(
        True,
        job.query_session(run, started_session.job_id),
        params["name"],
        started_session.job_id,
        started_session.log_path,
    )


def _session_result(
    changed: bool, session: Optional[job.QueuedSession], session_name: str, job_id: int = 0, log_path: str = ""
) -> ModuleResult:
    """Return the result of the module. ``job_id``: that of the session's job, 0 for none."""
    values = {**sessions.session_values(session, session_name, job_id), "log": log_path}
    return ModuleResult(changed, values, "", f"{values['summary']}\n" if changed else "")


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "roles": {"type": "raw", "default": [], "no_log": True},
            "time": {"type": "raw", "default": ""},
            "network": {"type": "str", "choices": ["private", "host"], "default": "private"},
            "partition": {"type": "str", "default": ""},
            "ports": {"type": "raw", "default": []},
            "retry": {"type": "bool", "default": True},
            "wait": {"type": "bool", "default": True},
            "settings": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), keep_umask=True)


if __name__ == "__main__":
    main()
