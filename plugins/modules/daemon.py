#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: daemon
short_description: One daemon under systemd or supervisord
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs a packaged daemon, now and at boot, under what runs as PID 1. Under systemd it is the packaged unit with lines of
    ours on top, else a program of supervisord, as in a rented container.
  - Installs supervisord where it is missing, and starts it where it does not run.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
attributes:
  idempotent:
    support: partial
    details:
      - V(restarted) restarts at every run.
options:
  name:
    description: Name of the systemd unit without its suffix, and of the program under supervisord.
    type: str
    required: true
  state:
    description:
      - V(started) restarts a daemon only when its settings have changed or it is older than what it O(reads). V(absent)
        stops it, now and at boot, and removes what this module has written.
    type: str
    choices: [started, restarted, absent]
    default: started
  command:
    description: What supervisord runs, in the foreground. Needed there unless it is to be V(absent).
    type: str
    default: ""
  user:
    description: The account that supervisord runs it as.
    type: str
    default: root
  directories:
    description: Folders that supervisord makes for O(user) before each start, since C(/run) may be empty then.
    type: list
    elements: str
    default: []
  environment:
    description: Variables that supervisord gives it.
    type: dict
    default: {}
  drop_in:
    description: Text that systemd adds to the packaged unit.
    type: str
    default: ""
  reads:
    description:
      - Files that it reads when it starts. A daemon that is older than one of them is restarted, also where a run that
        was cut off has written the file.
    type: list
    elements: path
    default: []
  reload:
    description:
      - Command that has a running daemon take O(reads) over and hand them on. It comes before a restart, which is left out
        where the daemon has begun anew by it.
    type: list
    elements: str
    default: []
  ready_path:
    description: Return only when this path is there, such as the daemon's socket.
    type: path
  ready_address:
    description: Return only when somebody listens there. O(ready_port) is needed with it.
    type: str
  ready_port:
    description: The TCP port of O(ready_address).
    type: int
  ready_timeout:
    description: Seconds to wait for it at most.
    type: int
    default: 120
  unit_folder:
    description: Folder of systemd's units.
    type: path
    default: /etc/systemd/system
  supervisor_config:
    description: Configuration of supervisord. Without it, the variable C(daemon_supervisor_config) of the host counts.
    type: path
    default: /etc/supervisor/supervisord.conf
  supervisor_programs:
    description:
      - Folder of the programs that this configuration includes. Without it, the variable C(daemon_supervisor_programs) of the
        host counts.
    type: path
    default: /etc/supervisor/conf.d
"""

EXAMPLES = r"""
- name: Run munged
  gpumesh.cluster.daemon:
    name: munge
    command: /usr/sbin/munged --foreground
    user: munge
    directories: [/run/munge]
    ready_path: /run/munge/munge.socket.2
"""

RETURN = r"""
service_manager:
  description: What runs it, V(systemd) or V(supervisord).
  type: str
  returned: always
missing:
  description: Whether supervisord would have to be installed first, in check mode.
  type: bool
  returned: always
restarted:
  description: Whether a running daemon was replaced by a new one, or would have been.
  type: bool
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

_PLACES = daemon.Places()


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    wanted = daemon.Daemon(**{name: given[name] for name in daemon.Daemon._fields})
    places = daemon.Places(given["unit_folder"], given["supervisor_config"], given["supervisor_programs"])
    manager = daemon.service_manager(Tree())
    if daemon.supervisord_missing(manager):
        return Outcome(False, {"service_manager": manager, "missing": wanted.state != "absent", "restarted": False})
    plan = daemon.make_plan(run, manager, wanted, places)
    if not module.check_mode:
        daemon.apply(run, manager, wanted, places, plan)
        if wanted.state != "absent":
            ready = daemon.Ready(given["ready_path"], given["ready_address"], given["ready_port"])
            daemon.wait_until_ready(wanted.name, ready, given["ready_timeout"])
    values = {"service_manager": manager, "missing": False, "restarted": plan.restarts}
    return Outcome(plan.changed, values, plan.before, plan.after, plan.path)


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "restarted", "absent"], "default": "started"},
            "command": {"type": "str", "default": ""},
            "user": {"type": "str", "default": "root"},
            "directories": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "drop_in": {"type": "str", "default": ""},
            "reads": {"type": "list", "elements": "path", "default": []},
            "reload": {"type": "list", "elements": "str", "default": []},
            "ready_path": {"type": "path"},
            "ready_address": {"type": "str"},
            "ready_port": {"type": "int"},
            "ready_timeout": {"type": "int", "default": 120},
            "unit_folder": {"type": "path", "default": _PLACES.units},
            "supervisor_config": {"type": "path", "default": _PLACES.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _PLACES.supervisor_programs},
        },
        required_together=[("ready_address", "ready_port")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
