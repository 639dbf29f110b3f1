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
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.mesh
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

- name: Switch to the next key, one member after the other
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import Host
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD, ROTATION_OPTIONS, TUNNEL
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.rotation import arm, prepare, switch
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import make_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DERIVED_OPTION


def work(module: AnsibleModule) -> Outcome:
    """Take the step."""
    given = module.params
    host = Host(run, module.check_mode)
    if given["step"] == "prepare":
        changed, next_key = prepare(host, given["interface"])
        return Outcome(changed, {"next_public_key": next_key})
    desired = make_desired(given["interface"], given["address"], given["listen_port"], 0, given["peers"])
    if given["step"] == "arm":
        return Outcome(arm(host, desired), {})
    if host.check_mode:
        return Outcome(True, {})
    switched = switch(host, desired)
    for late in switched.late:
        module.warn(f"No new session yet with {late}; the next run corrects this.")
    return Outcome(True, {"public_key": switched.public_key})


def main() -> None:
    """The module's entry point. What belongs to the record is the action's: it is turned into the other options."""
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
