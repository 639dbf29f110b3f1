#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tailscale_device
short_description: Manage a device of a tailnet on its control server
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Deletes a device, or sets its tags, through the API of Tailscale or Headscale. Run it on a machine that can reach the
    API, such as the machine that runs Ansible, so that the API key is never on the device itself.
  - A host that comes back gets its own name if its old device was deleted; otherwise the new one is called C(name-1).
  - With O(record), the device is that of O(machine), and options that are not set come from the role
    P(gpumesh.cluster.mesh#role). A machine that never had an address in the tailnet is skipped.
  - "Reads these options of roles: C(mesh_api_ca_path), C(mesh_api_key), C(mesh_hostname), C(mesh_login_server),
    C(mesh_tags)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  machine:
    description: With O(record), the name of the machine. Defaults to the host of the task.
    type: str
  former_members:
    description: With O(record), former members that are no longer in it, as they were in it.
    type: list
    elements: dict
    default: []
  address:
    description: The address of the device in the tailnet. Required without O(record), whose address takes precedence.
    type: str
  name:
    description:
      - The first label of the device's name in the tailnet. The module fails if the device has another name, because the
        address is reported by the host itself. Required without O(record).
    type: str
  id:
    description: The ID of the device at the control server. If set, it must match as well.
    type: str
  api_key:
    description: A key for the API of the control server. Required without O(record).
    type: str
  login_server:
    description: The URL of a Headscale server. Defaults to Tailscale's own API.
    type: str
  state:
    description: V(absent) deletes the device. V(present) sets the tags of an existing one.
    type: str
    choices: [present, absent]
    default: present
  tags:
    description: The tags of the device. Required with O(state=present).
    type: list
    elements: str
  ca_path:
    description: A file with trusted certificates. Defaults to those of the system.
    type: path
"""

EXAMPLES = r"""
- name: Delete the device of a removed host
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
  description: The device as it was found, with its C(id), C(name), C(addresses) and C(tags). Null if there is none.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailnet_api import (
    DeviceIdentity,
    TailnetDevice,
    delete_device,
    ensure_tags,
    find_api,
    make_fetcher,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailscale import make_desired


def work(params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the tags of the device, or delete it."""
    desired_settings = make_desired({"tags": params["tags"], "login_server": params["login_server"]})
    api = find_api(desired_settings.login_server)
    fetch = make_fetcher(params["api_key"], params["ca_path"])
    sought_device = DeviceIdentity(params["address"], params["name"], params["id"] or "")
    if params["state"] == "absent":
        result = delete_device(api, fetch, sought_device, check_mode)
        device_after = None
    else:
        tags = desired_settings.tags or ()
        result = ensure_tags(api, fetch, sought_device, tags, check_mode)
        device_after = result.device._replace(tags=tags) if result.device else None
    device_fields = result.device._asdict() if result.device else None
    return ModuleResult(
        result.changed,
        {"device": device_fields},
        _format_device(result.device),
        _format_device(device_after),
        params["address"],
    )


def _format_device(device: Optional[TailnetDevice]) -> str:
    return "" if device is None else "".join(f"{key}: {value}\n" for key, value in device._asdict().items())


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "machine": {"type": "str"},
            "former_members": {"type": "list", "elements": "dict", "default": []},
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
