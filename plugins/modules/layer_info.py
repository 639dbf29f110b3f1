#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layer_info
short_description: How a host differs from what its cluster's record makes of it
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compares files and services with what the record makes of this host, all layers in one call.
  - Give O(record). The other options are derived from it on the controller, and from the options of the layers' roles.
  - Returns no content of a file, and of the munge key only a fingerprint.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
options:
  modules:
    description: The parameters of the modules of the layers that compare the host by themselves, by layer.
    type: dict
    default: {}
  files:
    description: What is expected of files. A file of which only the path is given has to be there.
    type: list
    elements: dict
    default: []
    suboptions:
      layer: {description: The layer that it belongs to., type: str, required: true}
      path: {description: Where it is., type: str, required: true}
      contains: {description: A text that has to be in it., type: str}
  services:
    description: Units that have to run, now and at boot. They are not compared where systemd is not the service manager.
    type: list
    elements: dict
    default: []
    suboptions:
      layer: {description: The layer that it belongs to., type: str, required: true}
      unit: {description: "Its name with the suffix, such as V(slurmd.service).", type: str, required: true}
      reads:
        description: Files that it reads when it starts, so it has to be younger than they are.
        type: list
        elements: str
        default: []
"""

EXAMPLES = r"""
- name: Compare this host with the record
  gpumesh.cluster.layer_info:
    record: "{{ cluster_record }}"
  register: layers
"""

RETURN = r"""
drift:
  description: What differs, in words, by layer. A layer of which nothing is there is V(not set up).
  type: dict
  returned: always
  sample: {slurm: slurmd.service does not run}
munge_key:
  description: Fingerprint of the host's munge key. Empty where there is none.
  type: str
  returned: always
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import layers
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import munge

_MUNGE_KEY = "/etc/munge/munge.key"


def work(params: Dict[str, Any]) -> Outcome:
    """Compare."""
    key = munge.read_state(_MUNGE_KEY).key
    return Outcome(
        False,
        {
            "drift": {
                **layers.compare_modules(run, params["modules"]),
                **layers.compare(run, params["files"], params["services"]),
            },
            "munge_key": munge.fingerprint(key) if key else "",
        },
    )


def main() -> None:
    """The module's entry point."""
    name = {"type": "str", "required": True}
    file_options = {
        "layer": name,
        "path": name,
        "contains": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "dict"},
            "modules": {"type": "dict", "default": {}},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file_options},
            "services": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "layer": name,
                    "unit": name,
                    "reads": {"type": "list", "elements": "str", "default": []},
                },
            },
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()
