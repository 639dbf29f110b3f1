#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: train
short_description: Install gpumesh-train and gpumesh-trace
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Installs the program C(gpumesh-train), a single file that requires only Python 3.8. It runs training programs as
    Slurm jobs that continue when a process crashes or hangs, or when a node fails.
  - Also installs C(gpumesh-trace), which shows where the time of such a run is spent, and the Python modules that
    programs of both can import, in C(/usr/local/lib/gpumesh/python).
  - Set O(record). O(volumes) is derived from it on the controller.
  - "Reads these options of roles: C(train_run_dir), C(train_stage_dir)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the programs. Runs and their directories are kept.
    type: str
    choices: [present, absent]
    default: present
  run_dir:
    description:
      - The parent directory of runs. C({user}) in it is replaced by the name of the user.
      - Empty means C({user}/runs) in the first of O(volumes).
    type: str
    default: ""
  stage_dir:
    description:
      - The directory on a local disk of each node for copies of data. C({user}) in it is replaced by the name of the user.
      - Its last component is created with mode 0700 if it does not exist. The parent directory must exist.
    type: str
    default: /var/tmp/gpumesh-{user}
  volumes:
    description: The mount points of the shared volumes.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install gpumesh-train and gpumesh-trace
  gpumesh.cluster.train:
    record: cluster_record
"""

RETURN = r"""
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [gpumesh-train]
path:
  description: The path of C(gpumesh-train).
  type: str
  returned: always
  sample: /usr/local/bin/gpumesh-train
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import apply


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **apply.OPTIONS},
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
