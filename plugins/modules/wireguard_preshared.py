#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wireguard_preshared
short_description: Generate the preshared keys of a host and its WireGuard peers
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns a preshared key for each pair of hosts. The host whose name sorts first generates it. A key that is in use is
    returned unchanged.
  - Nothing is changed on the host. Pass the keys to M(gpumesh.cluster.wireguard) at both ends, with
    O(gpumesh.cluster.wireguard#module:preshared_keys) or O(gpumesh.cluster.wireguard#module:preshared_results).
  - The keys are secret. Set C(no_log=true) on the task.
  - "Reads these options of roles: C(mesh_relays), C(mesh_rotate_preshared_keys)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  interface:
    description: The name of the interface. Required without O(record).
    type: str
  machine:
    description: The name of this host. Required without O(record).
    type: str
  peers:
    description:
      - The names of the peers. With O(record), these are the members of the play to which the host has a tunnel.
    type: list
    elements: str
    default: []
  renew:
    description: Whether to return new keys instead of those in use.
    type: bool
    default: false
seealso:
  - module: gpumesh.cluster.wireguard
"""

EXAMPLES = r"""
- name: Generate the keys of the pairs
  gpumesh.cluster.wireguard_preshared:
    record: cluster_record
  register: made
  no_log: true

- name: Set the keys at both ends
  gpumesh.cluster.wireguard:
    record: cluster_record
    preshared_results: made
"""

RETURN = r"""
preshared_keys:
  description: The keys that this host generates, by the peer's machine. Secret.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import RECORD
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.preshared import (
    generate_keys,
    keys_directory,
)


def work(module: AnsibleModule) -> ModuleResult:
    """Create or read the preshared keys for the peers."""
    params = module.params
    key_directory = keys_directory(DIRECTORY, params["interface"])
    return ModuleResult(
        False, {"preshared_keys": generate_keys(key_directory, params["machine"], params["peers"], params["renew"])}
    )


def main() -> None:
    """The module's entry point. The action turns the options about the record into the others."""
    module = AnsibleModule(
        argument_spec={
            **RECORD,
            **DERIVED_OPTION,
            "interface": {"type": "str"},
            "machine": {"type": "str"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "renew": {"type": "bool", "default": False},
        },
        required_one_of=[("interface", "record"), ("machine", "record")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
