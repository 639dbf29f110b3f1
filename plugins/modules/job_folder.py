#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_folder
short_description: A small file system for what jobs write on a node
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Mounts a tmpfs with a limit of size and of files over a folder that every user may write to, so that no job fills the
    file system that the folder is in. With systemd it is mounted at each boot, else by each run.
  - The hostfiles of jobs that run now stay where they are.
  - In a container that may not mount, the folder stays as it is, with a warning.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  path:
    description: The folder, which has to be there.
    type: path
    default: /run/gpumesh/jobs
  state:
    description: V(absent) unmounts it, with all that is in it.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Let no job fill /run
  gpumesh.cluster.job_folder:
"""

RETURN = r"""
limited:
  description: Whether it is a file system of its own.
  type: bool
  returned: success
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import job_folder
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import parse_mountinfo

#: Of capabilities(7); without it, nothing can be mounted.
_CAP_SYS_ADMIN = 21
_UNLIMITED = "Nothing can be mounted in this container, so a job can fill the file system of {path}: {trouble}"


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _may_mount() -> bool:
    found = re.search(r"(?m)^CapEff:\s*([0-9a-f]+)$", _read("/proc/self/status"))
    return found is None or bool(int(found.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def work(module: AnsibleModule) -> Outcome:
    """Look, plan, apply."""
    path, present = module.params["path"], module.params["state"] == "present"
    systemd = os.path.isdir("/run/systemd/system")
    host = job_folder.read(path, parse_mountinfo(_read("/proc/self/mountinfo")), systemd)
    plan = job_folder.make_plan(path, host, present)
    trouble = ""
    if plan.mount and not _may_mount():
        trouble = "it lacks CAP_SYS_ADMIN."
    elif plan.changed and not module.check_mode:
        trouble = job_folder.apply(run, plan, path)
    if trouble:
        module.warn(_UNLIMITED.format(path=path, trouble=trouble))
        return Outcome(False, {"limited": False})
    unit = job_folder.unit_text(path) if present and systemd else ""
    return Outcome(
        plan.changed,
        {"limited": present},
        host.unit + ("" if host.mounted else f"# {path} is not mounted\n"),
        unit + ("" if present else f"# {path} is not mounted\n"),
        path,
    )


def main() -> None:
    """The module's entry."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/run/gpumesh/jobs"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
