#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tailscale_device
short_description: A device of a tailnet, at its control server
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Deletes a device, or sets its tags, by the API of Tailscale or Headscale. It runs where that is reached, such as on the
    machine that runs Ansible, so that the API key is never on the device itself.
  - A host that has left comes back under its own name once its old device is deleted; beside it, the new one would be
    called C(name-1).
  - With O(record), the device is that of O(machine), and what is not given is taken from the options of the role
    P(gpumesh.cluster.mesh#role). A machine that never had an address in the tailnet is skipped.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
options:
  machine:
    description: With O(record), the name of the machine. By default the host of the task.
    type: str
  left:
    description: With O(record), members that it does not have any more, as they were in it.
    type: list
    elements: dict
    default: []
  address:
    description: The device's address in the tailnet. Required without O(record), whose address for the machine wins.
    type: str
  name:
    description:
      - The first label of the device's name in the tailnet. A device of another name is left as it is, and that is an error,
        since an address is what a host says of itself. Required without O(record).
    type: str
  id:
    description: The device's ID at the control server, which then has to be the same too.
    type: str
  api_key:
    description: A key of the control server's API, sent in a header. Required without O(record).
    type: str
  login_server:
    description: URL of a Headscale. Without it, Tailscale's own API is meant.
    type: str
  state:
    description: V(absent) deletes the device. V(present) sets the tags of one that is there.
    type: str
    choices: [present, absent]
    default: present
  tags:
    description: What the device is to the tailnet's policy. Required with O(state=present).
    type: list
    elements: str
  ca_path:
    description: File of certificates to trust. Without it, those that the system trusts.
    type: path
"""

EXAMPLES = r"""
- name: Delete the device of a host that is gone
  gpumesh.cluster.tailscale_device:
    login_server: https://headscale.example.org
    api_key: "{{ lookup('ansible.builtin.env', 'HEADSCALE_API_KEY') }}"
    address: 100.64.0.7
    name: gpu3
    state: absent
  delegate_to: localhost

- name: Delete the device of a member
  gpumesh.cluster.tailscale_device:
    record: cluster_record
    machine: gpu3
    state: absent
  delegate_to: localhost
"""

RETURN = r"""
device:
  description: The device as it was found, with its C(id), C(name), C(addresses) and C(tags). Null where there is none.
  type: dict
  returned: success
  sample:
    id: "7"
    name: gpu3
    addresses: [100.64.0.7]
    tags: ["tag:gpu"]
"""

from typing import Any, Dict, Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailnet_api import (
    Device,
    Sought,
    absent,
    api_of,
    fetcher,
    present,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import make_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with


def work(given: Dict[str, Any], check_mode: bool) -> Outcome:
    """Do what the parameters say."""
    checked = make_desired({"tags": given["tags"], "login_server": given["login_server"]})
    api = api_of(checked.login_server)
    fetch = fetcher(given["api_key"], given["ca_path"])
    sought = Sought(given["address"], given["name"], given["id"] or "")
    if given["state"] == "absent":
        result = absent(api, fetch, sought, check_mode)
        after = None
    else:
        tags = checked.tags or ()
        result = present(api, fetch, sought, tags, check_mode)
        after = result.device._replace(tags=tags) if result.device else None
    device = result.device._asdict() if result.device else None
    return Outcome(result.changed, {"device": device}, _lines(result.device), _lines(after), given["address"])


def _lines(device: Optional[Device]) -> str:
    return "" if device is None else "".join(f"{key}: {value}\n" for key, value in device._asdict().items())


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "machine": {"type": "str"},
            "left": {"type": "list", "elements": "dict", "default": []},
            "address": {"type": "str"},
            "name": {"type": "str"},
            "id": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "login_server": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "tags": {"type": "list", "elements": "str"},
            "ca_path": {"type": "path"},
        },
        required_if=[("state", "present", ("tags",))],
        required_one_of=[("address", "record"), ("name", "record"), ("api_key", "record")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
