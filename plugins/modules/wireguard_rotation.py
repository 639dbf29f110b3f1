#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wireguard_rotation
short_description: Perform a step of a WireGuard key rotation without packet loss
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Replaces the key of a host while its sessions continue. All members must complete each step before the next one.
  - After the last step, register the new public keys in the cluster record and run M(gpumesh.cluster.wireguard) on all
    members.
  - With O(record), fails if members are missing from the play, and skips a host that has no tunnel yet.
  - "Reads these options of roles: C(mesh_relays)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.mesh.tunnel
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each run generates a new key.
options:
  step:
    description:
      - V(prepare) generates the host's next key and returns the public key.
      - V(arm) requires O(peers) with their next keys. A background process waits for at most an hour for the announcement
        of each peer to replace its key; it listens inside the tunnel on the UDP port after O(listen_port).
      - V(switch) switches to the next key in step with the peers. Run it on one host at a time, with C(throttle=1). It fails
        without changing anything if a peer with a session does not answer.
    type: str
    choices: [prepare, arm, switch]
    required: true
  prepared:
    description:
      - With O(record) and O(step=arm), the variable in which each host of the play has registered O(step=prepare).
    type: str
seealso:
  - module: gpumesh.cluster.wireguard
"""

EXAMPLES = r"""
- name: Generate the next key of each member
  gpumesh.cluster.wireguard_rotation:
    record: cluster_record
    step: prepare
  register: next_key

- name: Wait for the peers' announcements in the background
  gpumesh.cluster.wireguard_rotation:
    record: cluster_record
    step: arm
    prepared: next_key

- name: Switch to the next key, one member at a time
  gpumesh.cluster.wireguard_rotation:
    record: cluster_record
    step: switch
  register: next_key
  throttle: 1
"""

RETURN = r"""
next_public_key:
  description: The public key of the next key pair. Null in check mode if it would be generated.
  type: str
  returned: with O(step=prepare)
public_key:
  description: The current public key of the host.
  type: str
  returned: with O(step=switch), not in check mode
registration:
  description: The values to register in the cluster record, for O(gpumesh.cluster.cluster_member#module:registered).
  type: dict
  returned: with O(record), when its key is not the one in the record
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import WireguardHost
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import (
    RECORD,
    ROTATION_OPTIONS,
    TUNNEL,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.rotation import (
    arm_host,
    prepare_key,
    switch_key,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import make_desired


def work(module: AnsibleModule) -> ModuleResult:
    """Perform one step of the key rotation."""
    params = module.params
    tunnel_host = WireguardHost(run, module.check_mode)
    if params["step"] == "prepare":
        changed, next_key = prepare_key(tunnel_host, params["interface"])
        return ModuleResult(changed, {"next_public_key": next_key})
    desired_tunnel = make_desired(params["interface"], params["address"], params["listen_port"], 0, params["peers"])
    if params["step"] == "arm":
        return ModuleResult(arm_host(tunnel_host, desired_tunnel), {})
    if tunnel_host.check_mode:
        return ModuleResult(True, {})
    switch_result = switch_key(tunnel_host, desired_tunnel)
    for late_peer in switch_result.late_peers:
        module.warn(f"No new session yet with {late_peer}; the next run corrects this.")
    return ModuleResult(True, {"public_key": switch_result.public_key})


def main() -> None:
    """The module's entry point. The action turns the options about the record into the others."""
    module = AnsibleModule(
        argument_spec={**RECORD, **DERIVED_OPTION, **TUNNEL, **ROTATION_OPTIONS},
        required_by={"peers": ("address",)},
        required_one_of=[("interface", "record")],
        supports_check_mode=True,
    )
    if module.params["step"] != "prepare" and module.params["peers"] is None:
        module.fail_json(msg=f"step={module.params['step']} requires peers or record.")
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
