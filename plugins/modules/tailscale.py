#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tailscale
short_description: A host's login to a tailnet, and its settings there
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Logs the host in at any control server, Tailscale's or Headscale, and changes only those settings that differ.
  - A host that is logged in needs no key. One whose key has expired logs in again and keeps its name and address.
  - The key reaches C(tailscale) in a file that only root can read and that is gone afterwards; it is in no command line,
    result, diff or message.
  - It gets to a host only where the host has to log in, or to do so again for its tags.
  - Where C(tailscaled) is not installed or does not run, nothing is done, and RV(running) says so.
  - With O(record), what is not given is taken from the options of the role P(gpumesh.cluster.mesh#role), and O(peers) are all
    other members.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
options:
  state:
    description:
      - V(absent) logs the host out, if this module logged it in. A login that was there before is left alone.
    type: str
    choices: [present, absent]
    default: present
  auth_key:
    description:
      - A key with which a host may log in, of Tailscale or Headscale, or the secret of an OAuth client of Tailscale.
      - Used only where the host has to log in, or where a key of Tailscale is to change its tags.
    type: str
  login:
    description:
      - Whether to log in where that is needed. With V(false) nothing is done there, and RV(login_needed) says so.
    type: bool
    default: true
  login_server:
    description:
      - URL of the control server. Without it, where the host is logged in, else Tailscale's own.
      - A host that is logged in elsewhere is left there and refused.
    type: str
  hostname:
    description: Name in the tailnet. Without it, as it is; at the first login the host's own name.
    type: str
  tags:
    description:
      - What the host is to the tailnet's policy, such as V(tag:gpu).
      - Tailscale gives the tags that the host asks for as far as the key's owner may. Headscale gives those of the key;
        to have others there, create the key with them, or set them with M(gpumesh.cluster.tailscale_device).
    type: list
    elements: str
  advertise_routes:
    description: Networks behind this host that it offers to the others. The tailnet's policy has to approve them.
    type: list
    elements: str
  accept_routes:
    description: Use the networks that others offer.
    type: bool
  accept_dns:
    description: Use the tailnet's name servers.
    type: bool
  ssh:
    description: Let the daemon answer SSH from the tailnet, as its policy says.
    type: bool
  ephemeral:
    description:
      - With the secret of an OAuth client, let the control server forget the host once it is gone for a while. Other keys
        are made ephemeral, or not, where they are created.
    type: bool
    default: false
  timeout:
    description: Seconds that the login may take.
    type: int
    default: 60
  peers:
    description: Addresses in the tailnet of which to report how they are reached.
    type: list
    elements: str
    default: []
  probe:
    description: Prove how O(peers) are reached by packets. Without it, what the daemon remembers is reported.
    type: bool
    default: false
  forget:
    description:
      - With O(state=absent), drop the host's identity, so that it comes back as a new device. To be done once its device is
        deleted and C(tailscaled) has ended; beside the old device the new one would be called C(name-1).
    type: bool
    default: false
  supervisor_programs:
    description:
      - Folder of the programs of supervisord, where the module M(gpumesh.cluster.daemon) has put tailscaled
        on a host without systemd.
    type: path
    default: /etc/supervisor/conf.d
seealso:
  - module: gpumesh.cluster.tailscale_device
"""

EXAMPLES = r"""
- name: Log in
  gpumesh.cluster.tailscale:
    login_server: https://headscale.example.org
    auth_key: "{{ lookup('ansible.builtin.env', 'TS_AUTHKEY') }}"
    hostname: gpu1

- name: Log a member in as the options of the role say
  gpumesh.cluster.tailscale:
    record: cluster_record
    auth_key: "{{ mesh_auth_key }}"

- name: Offer a network, and see which way the packets go
  gpumesh.cluster.tailscale:
    advertise_routes: [10.1.0.0/16]
    peers: [100.64.0.2]
    probe: true

- name: Log out
  gpumesh.cluster.tailscale:
    state: absent
"""

RETURN = r"""
ready:
  description: Whether the host is in the tailnet, with its tags, and C(tailscaled) starts at boot.
  type: bool
  returned: with O(record)
registration:
  description: What the cluster record has to learn of the host, for O(gpumesh.cluster.cluster_member#module:registered).
  type: dict
  returned: with O(record), when its address is not the one in the record
flags:
  description: The options with which C(tailscaled) is to run on this host, beside its port.
  type: list
  elements: str
  returned: with O(record)
  sample: [--tun=tailscale0]
installed:
  description: Whether C(tailscale) and C(tailscaled) are there.
  type: bool
  returned: success
running:
  description: Whether C(tailscaled) answers.
  type: bool
  returned: success
boot:
  description: Whether a service of systemd or supervisord starts C(tailscaled) at boot.
  type: bool
  returned: success
tun_device:
  description: Whether the host can have an interface. Without, the tailnet is reached through a SOCKS proxy only.
  type: bool
  returned: success
tun:
  description: Whether the running daemon has an interface.
  type: bool
  returned: success
backend_state:
  description: What the daemon says of itself, empty where it does not answer.
  type: str
  returned: success
  sample: Running
version:
  description: The version of the running daemon.
  type: str
  returned: success
  sample: 1.94.1
id:
  description: The device's ID at the control server.
  type: str
  returned: success
  sample: nQXAf5AKe621CNTRL
name:
  description: The host's name in the tailnet. It differs from O(hostname) where another device has that one.
  type: str
  returned: success
  sample: gpu1
addresses:
  description:
    - The host's addresses in the tailnet; none where it is not logged in. With O(state=absent), those that it had, so that
      its device can be deleted, now or later.
  type: list
  elements: str
  returned: success
  sample: [100.64.0.1, "fd7a:115c:a1e0::1"]
tags:
  description: The tags that the control server has given the host.
  type: list
  elements: str
  returned: success
login_needed:
  description: Whether the host has to log in, or to do so again for its tags. After a login it need not.
  type: bool
  returned: success
tags_differ:
  description: Whether these are others than O(tags).
  type: bool
  returned: success
managed:
  description: Whether this module logged the host in; only then O(state=absent) logs it out.
  type: bool
  returned: success
key_expiry:
  description: When the host has to log in again; empty for never.
  type: str
  returned: success
  sample: "2027-05-01T08:00:00Z"
health:
  description: What the daemon complains of.
  type: list
  elements: str
  returned: success
peers:
  description:
    - For each of O(peers) its C(name), its C(path), the C(endpoint) where packets go directly and the C(relay).
    - C(path) is C(direct), C(relayed) by DERP, C(idle) where no packet went lately, C(offline), C(none) where no answer came,
      or C(unknown) where the tailnet has no such address.
  type: dict
  returned: success
  sample:
    100.64.0.2:
      name: gpu2
      path: direct
      endpoint: 203.0.113.20:41641
      relay: ""
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places, starts_at_boot
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailnet import (
    Host,
    absent,
    has_tun,
    paths,
    present,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import NOBODY, login_key, make_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    host = Host(run, module.check_mode, given["timeout"])
    places = Places(supervisor_programs=given["supervisor_programs"])
    if given["state"] == "absent":
        result = absent(host, given["forget"])
    else:
        key = login_key(given["auth_key"], given["ephemeral"], given["tags"]) if given["auth_key"] else None
        result = present(host, make_desired(given), key, given["login"])
    status = result.status or NOBODY
    if status.state == "Running" and given["hostname"] not in (None, status.name):
        module.warn(
            f"This host is called {status.name} in its tailnet, because another device has the name "
            f"{given['hostname']}. Delete that one, or rename this one there."
        )
    return Outcome(
        result.changed,
        {
            "installed": find("tailscale") is not None and find("tailscaled") is not None,
            "running": result.status is not None,
            "boot": starts_at_boot("tailscaled", runs_systemd(), places),
            "tun_device": has_tun(),
            "tun": status.tun,
            "backend_state": status.state,
            "version": status.version,
            "id": status.id,
            "name": status.name,
            "addresses": list(result.addresses),
            "tags": list(status.tags),
            "login_needed": result.login_needed,
            "tags_differ": result.tags_differ,
            "managed": result.managed,
            "key_expiry": status.key_expiry,
            "health": list(status.health),
            "peers": paths(host, status, given["peers"], given["probe"]),
        },
        result.before,
        result.after,
        "tailnet",
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "auth_key": {"type": "str", "no_log": True},
            "login": {"type": "bool", "default": True},
            "login_server": {"type": "str"},
            "hostname": {"type": "str"},
            "tags": {"type": "list", "elements": "str"},
            "advertise_routes": {"type": "list", "elements": "str"},
            "accept_routes": {"type": "bool"},
            "accept_dns": {"type": "bool"},
            "ssh": {"type": "bool"},
            "ephemeral": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 60},
            "peers": {"type": "list", "elements": "str", "default": []},
            "probe": {"type": "bool", "default": False},
            "forget": {"type": "bool", "default": False},
            "supervisor_programs": {"type": "path", "default": Places().supervisor_programs},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
