#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tailscale
short_description: Manage a host's login to a tailnet, and its settings there
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Logs the host in at a control server, Tailscale's or Headscale, and changes only settings that differ.
  - A host that is already logged in needs no key. A host whose key has expired logs in again and keeps its name and
    address, and so does one whose key ends within 30 days, with O(renew).
  - The key is passed to C(tailscale) in a file that only root can read and that is deleted afterwards; it does not appear in
    any command line, result, diff or message.
  - The key is sent only to hosts that have to log in, or to log in again for their tags.
  - If C(tailscaled) is not installed or not running, nothing is done, and RV(running) is false.
  - With O(record), options that are not set come from the role P(gpumesh.cluster.mesh#role), and O(peers) are all other
    members.
  - "Reads these options of roles: C(mesh_accept_dns), C(mesh_accept_routes), C(mesh_advertise_routes),
    C(mesh_auth_key_file), C(mesh_ephemeral), C(mesh_hostname), C(mesh_login_server), C(mesh_proxy_port), C(mesh_ssh),
    C(mesh_tags), C(mesh_userspace), C(mesh_userspace_nodes)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
options:
  state:
    description:
      - V(absent) logs the host out if this module logged it in. Earlier logins are kept.
    type: str
    choices: [present, absent]
    default: present
  auth_key:
    description:
      - An auth key of Tailscale or Headscale, or the secret of an OAuth client of Tailscale.
      - Used only if the host has to log in, or if a key of Tailscale has to change its tags.
    type: str
  login:
    description:
      - Whether to log in if required. With V(false), a host that has to log in is not changed, and RV(login_needed) is true.
    type: bool
    default: true
  renew:
    description:
      - Whether to replace the key of the host in the tailnet if it ends within 30 days and O(auth_key) is set. The host
        keeps its addresses and connections; packets are lost for a few seconds. All peers that it reached before are
        reached afterwards.
      - If the control server refuses O(auth_key), the host keeps the key that it has, and RV(renewal_failure) says why.
      - Do this on one host at a time.
    type: bool
    default: false
  login_server:
    description:
      - The URL of the control server. Defaults to that of the current login, or else to Tailscale's own.
      - A host that is logged in at another server is refused and not changed.
    type: str
  hostname:
    description: The name in the tailnet. Defaults to the current name or, at the first login, to the host's own name.
    type: str
  tags:
    description:
      - The tags of the host for the policy of the tailnet, such as V(tag:gpu).
      - Tailscale assigns the requested tags if the owner of the key may set them. Headscale assigns those of the key; for
        others, create the key with them, or set them with M(gpumesh.cluster.tailscale_device).
    type: list
    elements: str
  advertise_routes:
    description: Networks behind this host to advertise. The policy of the tailnet must approve them.
    type: list
    elements: str
  accept_routes:
    description: Whether to use the networks that others advertise.
    type: bool
  accept_dns:
    description: Whether to use the name servers of the tailnet.
    type: bool
  ssh:
    description: Whether the daemon accepts SSH connections from the tailnet, according to its policy.
    type: bool
  ephemeral:
    description:
      - With the secret of an OAuth client, whether to register an ephemeral device, which the control server removes after
        it has been offline for a while. For other keys this is set when they are created.
    type: bool
    default: false
  timeout:
    description: The timeout of the login in seconds.
    type: int
    default: 60
  peers:
    description: Addresses in the tailnet whose paths are reported.
    type: list
    elements: str
    default: []
  probe:
    description: Whether to probe the paths to O(peers) with packets. Otherwise the state of the daemon is reported.
    type: bool
    default: false
  forget:
    description:
      - With O(state=absent), delete the host's identity, so that it comes back as a new device. Do this once its device is
        deleted and C(tailscaled) has stopped; otherwise the new device would be called C(name-1).
    type: bool
    default: false
  supervisor_programs:
    description:
      - The directory of the programs of supervisord, in which the module M(gpumesh.cluster.daemon) has configured
        tailscaled on a host without systemd.
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

- name: Log a member in with the options of the role
  gpumesh.cluster.tailscale:
    record: cluster_record
    auth_key: "{{ mesh_auth_key }}"

- name: Advertise a network, and show the paths to peers
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
  description:
    - Whether the host is in the tailnet, with its tags, and C(tailscaled) starts at boot.
    - A pod is ready only if C(tailscaled) runs with RV(flags), which its programs depend on.
  type: bool
  returned: with O(record)
flags_differ:
  description: Whether the host is a pod whose C(tailscaled) was started without one of RV(flags).
  type: bool
  returned: with O(record)
registration:
  description: The values to register in the cluster record, for O(gpumesh.cluster.cluster_member#module:registered).
  type: dict
  returned: with O(record), when its address is not the one in the record
library:
  description: The state for M(gpumesh.cluster.mesh_preload), V(present) on a pod.
  type: str
  returned: with O(record), on a pod or a host without TUN that has an address
  sample: present
flags:
  description: The options for C(tailscaled) on this host, in addition to its port.
  type: list
  elements: str
  returned: with O(record)
  sample: [--tun=tailscale0]
installed:
  description: Whether C(tailscale) and C(tailscaled) are installed.
  type: bool
  returned: success
release:
  description: The codename of the release with whose packages the host works, as a repository calls it.
  type: str
  returned: success
  sample: trixie
running:
  description: Whether C(tailscaled) answers.
  type: bool
  returned: success
command:
  description: The command line with which root has started C(tailscaled) on this host; empty if it does not run.
  type: list
  elements: str
  returned: success
  sample: [tailscaled, --port=41641, --tun=tailscale0]
boot:
  description: Whether a service of systemd or supervisord starts C(tailscaled) at boot.
  type: bool
  returned: success
tun_device:
  description: Whether the host can have a TUN interface. If not, the tailnet is reached only through a SOCKS proxy.
  type: bool
  returned: success
tun:
  description: Whether the running daemon has an interface.
  type: bool
  returned: success
backend_state:
  description: The state that the daemon reports, empty if it does not answer.
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
  description: The host's name in the tailnet. It differs from O(hostname) if another device has that name.
  type: str
  returned: success
  sample: gpu1
addresses:
  description:
    - The host's addresses in the tailnet; none if it is not logged in. With O(state=absent), its former addresses, so that
      its device can be deleted.
  type: list
  elements: str
  returned: success
  sample: [100.64.0.1, "fd7a:115c:a1e0::1"]
tags:
  description: The tags that the control server has assigned to the host.
  type: list
  elements: str
  returned: success
login_needed:
  description: Whether the host has to log in, or to log in again for its tags. False after a login.
  type: bool
  returned: success
tags_differ:
  description: Whether the tags differ from O(tags).
  type: bool
  returned: success
renewal_due:
  description: Whether the key of the host ends within 30 days, and was not replaced.
  type: bool
  returned: success
renewal_failure:
  description: Why the key could not be replaced; empty if that was not tried.
  type: str
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
  description: The health warnings of the daemon.
  type: list
  elements: str
  returned: success
peers:
  description:
    - For each of O(peers), its C(name), its C(path), the C(endpoint) of a direct path, and the C(relay).
    - C(path) is C(direct), C(relayed) through DERP, C(idle) if no packets were sent recently, C(offline), C(none) if
      there was no answer, or C(unknown) if the tailnet has no such address.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import (
    ServicePaths,
    find_command_lines,
    starts_at_boot,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.releases import read_codename
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailnet import (
    TailnetHost,
    ensure_login,
    ensure_logout,
    has_tun,
    measure_paths,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailscale import (
    NO_STATUS,
    format_login_key,
    make_desired,
)


def work(module: AnsibleModule) -> ModuleResult:
    """Log the host in to the tailnet with its settings, or log it out."""
    params = module.params
    tailnet_host = TailnetHost(run, module.check_mode, params["timeout"])
    service_paths = ServicePaths(supervisor_programs=params["supervisor_programs"])
    if params["state"] == "absent":
        result = ensure_logout(tailnet_host, params["forget"])
    else:
        node_key = (
            format_login_key(params["auth_key"], params["ephemeral"], params["tags"]) if params["auth_key"] else None
        )
        result = ensure_login(
            tailnet_host, make_desired(params), node_key, params["login"], params["renew"], params["peers"]
        )
    tailnet_status = result.daemon_status or NO_STATUS
    if tailnet_status.backend_state == "Running" and params["hostname"] not in (None, tailnet_status.host_label):
        module.warn(
            f"This host is called {tailnet_status.host_label} in its tailnet, because another device has the name "
            f"{params['hostname']}. Delete that one, or rename this one there."
        )
    return ModuleResult(
        result.changed,
        {
            "installed": find_program("tailscale") is not None and find_program("tailscaled") is not None,
            "release": read_codename(Tree()),
            "running": result.daemon_status is not None,
            "command": next(iter(find_command_lines(Tree(), "tailscaled")), []),
            "boot": starts_at_boot("tailscaled", runs_systemd(), service_paths),
            "tun_device": has_tun(),
            "tun": tailnet_status.uses_tun,
            "backend_state": tailnet_status.backend_state,
            "version": tailnet_status.version,
            "id": tailnet_status.node_id,
            "name": tailnet_status.host_label,
            "addresses": list(result.addresses),
            "tags": list(tailnet_status.tags),
            "login_needed": result.login_needed,
            "tags_differ": result.tags_differ,
            "renewal_due": result.renewal_due,
            "renewal_failure": result.renewal_failure,
            "managed": result.managed_login,
            "key_expiry": tailnet_status.key_expiry,
            "health": list(tailnet_status.health_messages),
            "peers": measure_paths(tailnet_host, tailnet_status, params["peers"], params["probe"]),
        },
        result.diff_before,
        result.diff_after,
        "tailnet",
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "auth_key": {"type": "str", "no_log": True},
            "login": {"type": "bool", "default": True},
            "renew": {"type": "bool", "default": False},
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
            "supervisor_programs": {"type": "path", "default": ServicePaths().supervisor_programs},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
