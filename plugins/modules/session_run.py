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
    description: V(followed) only reports the state of a session. The action uses it while it waits.
    type: str
    choices: [present, absent, followed]
    default: present
  job:
    description: The Slurm job of the session, for O(state=followed).
    type: int
    default: 0
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
      - A number is refused, since YAML takes C(8:00:00) without quotes for 28800.
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
line:
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import PATH, Settings


def work(module: AnsibleModule) -> Outcome:
    """Start the session, stop it, or look at it."""
    given = module.params
    if given["state"] == "followed":
        return _outcome(False, job.follow(run, given["job"]), given["name"], given["job"])
    found = job.own(run, given["name"])
    if given["state"] == "absent":
        if found is not None and not module.check_mode:
            job.cancel(run, found.job)
        return _outcome(found is not None, None, given["name"])
    if found is not None:
        return _outcome(False, found, given["name"], found.job)
    asked = {name: given[name] for name in ("name", "time", "network", "partition", "retry", "ports")}
    roles = given["roles"]
    wanted = spec.parse({**asked, "roles": json.loads(roles) if isinstance(roles, str) else roles})
    settings = Settings(**given["settings"])
    if module.check_mode:
        sessions.refuse(run, PATH, wanted, settings)
        return _outcome(True, None, given["name"])
    started = sessions.start(run, PATH, wanted, settings)
    return _outcome(True, job.follow(run, started.job), given["name"], started.job, started.log)


def _outcome(changed: bool, found: Optional[job.Session], name: str, number: int = 0, log: str = "") -> Outcome:
    """``number``: of the job that is meant, 0 for none."""
    line, why = sessions.line(found, name), sessions.failure(found) if number else ""
    stage = "failed" if why else "ended" if found is None or found.over else found.stage
    host = found.host if found else ""
    values = {"job": number, "line": line, "session_state": stage, "reason": why, "log": log, "host": host}
    return Outcome(changed, values, "", f"{line}\n" if changed else "")


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent", "followed"], "default": "present"},
            "job": {"type": "int", "default": 0},
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
    exit_with(module, lambda: work(module), own_umask=True)


if __name__ == "__main__":
    main()
