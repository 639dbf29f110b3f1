#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: munge
short_description: Run munged with the key of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes the munge key of the cluster to a file that only munged can read, and runs munged with it. munged is restarted
    only if it has not read the key yet, or does not accept the credential of the manager.
  - Verifies that the host accepts a credential of the manager, and fails if its clock differs from that of the manager.
  - Refuses a host whose munge belongs to another cluster, because a host can have only one.
  - Set O(record). The other options are derived from it and from the options of the role P(gpumesh.cluster.munge#role) on
    the controller, which installs munge if it is missing. First run it for the manager, without O(manager), then on each
    member with the result.
  - "Reads these options of roles: C(munge_key_file), C(munge_rotate_key)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: partial
    details:
      - Shows packages and daemons, but never the key.
  idempotent:
    support: partial
    details:
      - With O(rotate=true), every run generates a new key.
options:
  state:
    description:
      - V(absent) stops munged, now and at boot, and removes the key. Nothing is changed if the cluster has not set up
        munge on the host.
    type: str
    choices: [present, absent]
    default: present
  manager:
    description: The result of this module for the manager, whose failure is the failure of this task. If not set, this
      task is the one for the manager.
    type: dict
  cluster:
    description: The name of the cluster.
    type: str
  cluster_id:
    description: The ID of the cluster in the record.
    type: str
  content:
    description: The key in base64. If not set, an existing key is kept.
    type: str
  generate:
    description: Whether to generate a key if there is none.
    type: bool
    default: false
  rotate:
    description: Whether to replace the key with a new one.
    type: bool
    default: false
  replace:
    description: Whether O(content) may replace another key that the cluster has set.
    type: bool
    default: true
  sign:
    description:
      - Return the key as RV(content) and a RV(credential) that munged has signed. Use it only in a task with C(no_log).
    type: bool
    default: false
  verify:
    description: A credential of the manager that munged must accept.
    type: str
  manager_name:
    description: The manager, for messages.
    type: str
    default: ""
  controller_time:
    description: The controller's time in seconds since 1970, for RV(clock_ahead).
    type: float
  manager_clock_ahead:
    description: The value of RV(clock_ahead) on the manager.
    type: float
  start:
    description: Whether to run munged. With V(false), only the key may be changed on the host.
    type: bool
    default: true
  path:
    description: The key file.
    type: path
    default: /etc/munge/munge.key
  user:
    description: The account that munged runs as.
    type: str
    default: munge
  socket:
    description: The socket on which munged listens.
    type: path
    default: /run/munge/munge.socket.2
  folder:
    description: The directory of the cluster records.
    type: path
    default: /var/lib/gpumesh/clusters
"""

EXAMPLES = r"""
- name: Run munge on the manager, with the cluster's key
  gpumesh.cluster.munge:
    record: cluster_record
  register: manager
  delegate_to: "{{ cluster_record.manager }}"
  run_once: true
  no_log: true

- name: Run munge on every member, with the same key
  gpumesh.cluster.munge:
    record: cluster_record
    manager: "{{ manager }}"
"""

RETURN = r"""
fingerprint:
  description: A fingerprint of the key, from which the key cannot be derived. Empty if there is no key.
  type: str
  returned: always
  sample: 6b7cf7ab3b7b9cf1
missing:
  description: The packages that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: O(state=present)
clock_ahead:
  description: Seconds by which this host's clock was ahead of O(controller_time), including the time of the connection.
  type: float
  returned: with O(controller_time)
content:
  description: The key in base64. Empty if there is none, as in check mode on a fresh host.
  type: str
  returned: with O(sign=true)
credential:
  description: A credential signed by munged. Empty if munged does not answer.
  type: str
  returned: with O(sign=true)
reason:
  description: The error of munged if it did not sign a credential. Otherwise empty.
  type: str
  returned: with O(sign=true)
restarted:
  description: Whether a running munged was restarted, or would have been.
  type: bool
  returned: O(state=present)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge_apply


def main() -> None:
    """The module's entry point."""
    owner_names = ("cluster", "cluster_id")
    module = AnsibleModule(
        argument_spec={
            # The action of the same name reads these two.
            "record": {"type": "raw"},
            "manager": {"type": "dict", "no_log": True},
            **DERIVED_OPTION,
            **munge_apply.OPTIONS,
        },
        required_if=[("state", "present", owner_names), ("state", "absent", owner_names)],
        mutually_exclusive=[("content", "rotate"), ("content", "generate"), ("sign", "verify")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: munge_apply.work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
