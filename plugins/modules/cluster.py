#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create, change, copy or delete a cluster record."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster
short_description: Create, change, copy or delete a cluster record
version_added: 1.0.0
description:
  - The cluster record is the single source of truth of a cluster. It is a JSON file on the manager, and every member has
    a copy.
  - Run it on the manager to create or change a cluster, or on a member with O(state=replica) to write the copy there.
  - Every change increases the generation by one and adds an entry to the history. If nothing differs, nothing is written.
  - The record names the version of this collection that changed it last. An older version refuses to change it.
  - The file is written under a lock and replaced atomically. A damaged file is refused and not changed.
  - "Reads these options of roles: C(cluster_actor), C(cluster_older_version), C(cluster_trusted_copy)."
author:
  - The gpumesh authors (@gpumesh)
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record
  - gpumesh.cluster.record.change
  - gpumesh.cluster.record.members
options:
  name:
    description:
      - The name of the cluster. A lower-case letter, then at most 39 lower-case letters, digits, C(-) or C(_).
    type: str
    required: true
  state:
    description:
      - V(present) creates the cluster or changes the existing one; members are added and updated, never removed.
      - V(replica) replaces the host's copy with O(record). O(force) and O(actor) default to the values of
        C(cluster_trusted_copy) and C(cluster_actor) of the role P(gpumesh.cluster.cluster#role).
      - V(absent) deletes the host's file; with O(record), only if it belongs to the same cluster.
    type: str
    choices:
      - present
      - replica
      - absent
    default: present
  subnet:
    description:
      - The network that the members share, as C(ADDRESS/MASK) with or without host bits. Required to create a cluster.
      - The same as that of the mesh for machines that share no other network.
      - The subnet of a cluster cannot be changed.
    type: str
  manager:
    description: The machine that manages the cluster, one of its members. Required to create a cluster.
    type: str
  mesh:
    description: The network between the members. Keys that are not set keep their value.
    type: dict
    suboptions:
      backend:
        description: How the members are connected. The default for a new cluster is V(wireguard).
        type: str
        choices:
          - none
          - wireguard
          - tailscale
      subnet:
        description: The range of the mesh addresses. The default for a new cluster is V(10.99.0.0/16).
        type: str
      port:
        description: The UDP port of the tunnels. The default for a new cluster is V(51820).
        type: int
      interface:
        description: The tunnel interface. The default for a new cluster is V(gpumesh0).
        type: str
      mtu:
        description: The MTU of the tunnel interface. By default the mesh layer measures it.
        type: int
  storage:
    description: The shared storage.
    type: dict
    suboptions:
      volumes:
        description:
          - All volumes of the cluster, each with C(name), C(server) (a member), C(path) and C(mount_point), and the
            options of the storage layer.
          - A volume without C(server) and C(path) is an existing file system that is not managed by the cluster.
        type: list
        elements: dict
        required: true
  tracking:
    description:
      - The tracking server of the members' experiments. Only for an existing cluster.
    type: dict
    suboptions:
      enabled:
        description: Whether experiments are tracked.
        type: bool
        default: true
      server:
        description: The member that runs the server. Initially the manager.
        type: str
      port:
        description: The TCP port of the server. Initially V(5000).
        type: int
      volume:
        description: The volume of the artifacts, which cannot be changed. Initially the first writable volume.
        type: str
      tls:
        description: Whether the server has a certificate. Initially false.
        type: bool
      certificates:
        description: The certificates that the server has made for itself, in PEM format.
        type: list
        elements: str
  keys_changed:
    description:
      - Record that the keys of removed machines are no longer in use.
    type: bool
    default: false
  record:
    description: The record to copy, as returned by this module. Required for O(state=replica).
    type: dict
  machine:
    description:
      - The name of this host in O(record). If set with O(state=replica), a record that newly conflicts with another
        cluster of this host is refused, for example with the port or the interface of its mesh.
    type: str
  registration:
    description:
      - The name of the variable in which M(gpumesh.cluster.cluster_registration) is registered. It gives O(subnet),
        O(manager), O(mesh), O(members), O(joining) and, for a new cluster, O(storage). The host is not contacted if
        nothing has to be written. The returned record must belong to this cluster and manager.
      - It is read on the controller and not sent to the host.
    type: str
seealso:
  - module: gpumesh.cluster.cluster_member
  - module: gpumesh.cluster.cluster_info
"""

EXAMPLES = r"""
- name: Create a cluster of two machines
  gpumesh.cluster.cluster:
    name: lab
    subnet: 192.168.1.11/24
    manager: gpu1
    members:
      - machine: gpu1
        address: 192.168.1.11
        interface: eno1
        gpus: 8
      - machine: gpu2
        address: 192.168.1.12
        interface: eno1
        gpus: 8
  register: registered

- name: Write a copy to the other machine
  gpumesh.cluster.cluster:
    name: lab
    state: replica
    record: "{{ registered.record }}"
  delegate_to: gpu2

- name: Delete the record
  gpumesh.cluster.cluster:
    name: lab
    state: absent
"""

RETURN = r"""
record:
  description:
    - The record as it is now or, in check mode, as it would be. Null after a deletion.
  returned: success, its digest is not among O(known_digests), and O(state) is not V(replica)
  type: dict
  sample:
    schema_version: 6
    id: 7c9e6679742540de944be07fc1f90ae7
    name: lab
    generation: 1
    subnet: 192.168.1.0/24
    manager: gpu1
    collection_version: 1.0.0
    members:
      - machine: gpu1
        address: 192.168.1.11
        interface: eno1
        site: default
        lan_address: null
        endpoint: null
        joined_at: "2026-11-20T20:31:00Z"
        gpus: 8
        mesh:
          address: 10.99.0.1
          public_key: null
        ssh_host_keys: []
        ssh_public_key: null
    mesh:
      backend: wireguard
      subnet: 10.99.0.0/16
      port: 51820
      interface: gpumesh0
      mtu: null
    storage:
      volumes: []
    tracking: null
    history:
      - generation: 1
        at: "2026-11-20T20:31:00Z"
        by: root@gpu1
        change: create
        detail: created on 192.168.1.0/24 with manager gpu1 and member gpu1
digest:
  description: The SHA-256 digest that identifies the record. Null after a deletion.
  returned: success
  type: str
  sample: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
generation:
  description: The generation of the record. Null after a deletion.
  returned: success
  type: int
  sample: 4
previous_generation:
  description: The previous generation. Null if there was no record.
  returned: success
  type: int
  sample: 3
changes:
  description: The changes, each with its kind, a text and the machines that it concerns.
  returned: success
  type: list
  elements: dict
  sample:
    - kind: join
      detail: machine gpu3 joined
      machines:
        - gpu3
path:
  description: The file of the record.
  returned: success
  type: str
  sample: /var/lib/gpumesh/clusters/lab.json
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, derive, interface, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with


def work(params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Carry out one request."""
    record_store = interface.open_store(params, params["name"])
    actor = interface.actor_name(params)
    known_digests = params["known_digests"]
    if params["state"] == "replica":
        applied_change = apply.replace_copy(
            record_store, params["record"], params["force"], actor, check_mode, params["machine"]
        )
        known_digests = [derive.record_digest(applied_change.after)] if applied_change.after else []
    elif params["state"] == "absent":
        applied_change = apply.cluster_absent(record_store, params["record"], params["force"], actor, check_mode)
    else:
        request = apply.ClusterRequest(
            subnet=params["subnet"],
            manager=params["manager"],
            mesh=params["mesh"],
            volumes=params["storage"]["volumes"] if params["storage"] else None,
            tracking=params["tracking"],
            keys_changed=params["keys_changed"],
            older_version=params["older_version"],
            members=params["members"] or [],
            joining=params["joining"],
        )
        applied_change = apply.cluster_present(record_store, request, actor, check_mode)
    return interface.build_result(applied_change, record_store, known_digests)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "replica", "absent"], "default": "present"},
            "subnet": {"type": "str"},
            "manager": {"type": "str"},
            "mesh": {
                "type": "dict",
                "options": {
                    "backend": {"type": "str", "choices": list(model.BACKENDS)},
                    "subnet": {"type": "str"},
                    "port": {"type": "int"},
                    "interface": {"type": "str"},
                    "mtu": {"type": "int"},
                },
            },
            "storage": {
                "type": "dict",
                "options": {"volumes": {"type": "list", "elements": "dict", "required": True}},
            },
            "tracking": {
                "type": "dict",
                "options": {
                    "enabled": {"type": "bool", "default": True},
                    "server": {"type": "str"},
                    "port": {"type": "int"},
                    "volume": {"type": "str"},
                    "tls": {"type": "bool"},
                    "certificates": {"type": "list", "elements": "str"},
                },
            },
            "keys_changed": {"type": "bool", "default": False, "no_log": False},
            "members": interface.MEMBERS_OPTION,
            "joining": interface.JOINING_OPTION,
            "record": {"type": "dict"},
            "machine": {"type": "str"},
            "registration": {"type": "str"},
            **interface.CHANGE_OPTIONS,
        },
        required_if=[("state", "replica", ("record",))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode), echo_arguments=False)


if __name__ == "__main__":
    main()
