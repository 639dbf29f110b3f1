#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: daemon
short_description: Manage a daemon with systemd or supervisord
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs a packaged daemon, now and at boot, with the service manager of the host. With systemd, this is the packaged unit
    with a drop-in; otherwise, for example in a rented container, it is a program of supervisord.
  - A daemon that no package brings gets the unit in O(unit).
  - Installs and starts supervisord if necessary.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.daemon
  - gpumesh.cluster.internal
attributes:
  idempotent:
    support: partial
    details:
      - V(restarted) restarts the daemon on every run.
options:
  name:
    description: The name of the systemd unit without its suffix, and of supervisord's program.
    type: str
    required: true
  state:
    description:
      - V(started) restarts a running daemon only if its settings have changed or if files in O(reads) are newer. V(absent)
        stops and disables the daemon, and removes the files that this module has written.
    type: str
    choices: [started, restarted, absent]
    default: started
  command:
    description: The foreground command that supervisord runs. Required with supervisord unless O(state=absent).
    type: str
    default: ""
  user:
    description: The user as which supervisord runs the command.
    type: str
    default: root
  directories:
    description: Directories that supervisord creates for O(user) before each start, since C(/run) can be empty.
    type: list
    elements: str
    default: []
  environment:
    description: Environment variables that supervisord sets.
    type: dict
    default: {}
  drop_in:
    description: The content of a drop-in file for the packaged systemd unit.
    type: str
    default: ""
  unit:
    description:
      - The content of a whole systemd unit, for a daemon that no package brings. V(absent) removes it.
    type: str
    default: ""
  reads:
    description:
      - Files that the daemon reads when it starts. It is restarted if one of them is newer than the daemon, even if the file
        was written by a previous run that was interrupted.
    type: list
    elements: path
    default: []
  reload:
    description:
      - A command that makes a running daemon reload the files in O(reads) and distribute them. It runs before a restart,
        which is skipped if the command has already restarted the daemon.
    type: list
    elements: str
    default: []
  ready_path:
    description: Wait until this path exists, such as the daemon's socket.
    type: path
  ready_address:
    description: Wait until something listens on this address. Requires O(ready_port).
    type: str
  ready_port:
    description: The TCP port of O(ready_address).
    type: int
  ready_timeout:
    description: The maximum time to wait, in seconds.
    type: int
    default: 120
  unit_folder:
    description: The directory of systemd's units.
    type: path
    default: /etc/systemd/system
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
  description: The service manager, V(systemd) or V(supervisord).
  type: str
  returned: always
missing:
  description: In check mode, whether supervisord would have to be installed first.
  type: bool
  returned: always
restarted:
  description: Whether a running daemon was restarted, or would be in check mode.
  type: bool
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

_DEFAULT_PATHS = service.ServicePaths()


def work(module: AnsibleModule) -> ModuleResult:
    """Bring the daemon into the desired state."""
    params = module.params
    desired_daemon = service.Daemon(**{field_name: params[field_name] for field_name in service.Daemon._fields})
    service_paths = service.ServicePaths(
        params["unit_folder"], params["supervisor_config"], params["supervisor_programs"]
    )
    service_manager = service.service_manager(Tree())
    if service.supervisord_missing(service_manager):
        return ModuleResult(
            False, {"service_manager": service_manager, "missing": desired_daemon.state != "absent", "restarted": False}
        )
    readiness = service.ReadyCondition(params["ready_path"], params["ready_address"], params["ready_port"])
    daemon_plan = service.ensure_daemon(
        run, service_manager, desired_daemon, service_paths, readiness, params["ready_timeout"], module.check_mode
    )
    values = {"service_manager": service_manager, "missing": False, "restarted": daemon_plan.restarts_daemon}
    return ModuleResult(daemon_plan.changed, values, daemon_plan.before, daemon_plan.after, daemon_plan.settings_path)


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
            "unit": {"type": "str", "default": ""},
            "reads": {"type": "list", "elements": "path", "default": []},
            "reload": {"type": "list", "elements": "str", "default": []},
            "ready_path": {"type": "path"},
            "ready_address": {"type": "str"},
            "ready_port": {"type": "int"},
            "ready_timeout": {"type": "int", "default": 120},
            "unit_folder": {"type": "path", "default": _DEFAULT_PATHS.unit_directory},
            "supervisor_config": {"type": "path", "default": _DEFAULT_PATHS.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _DEFAULT_PATHS.supervisor_programs},
        },
        required_together=[("ready_address", "ready_port")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
