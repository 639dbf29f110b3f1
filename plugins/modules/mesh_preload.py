#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_preload
short_description: Make the tailnet available as an interface in a container without TUN
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compiles a library and adds it to C(/etc/ld.so.preload), so that every program loads it. It is placed between
    programs and the C library, and makes the tailnet appear to them as an interface of the host.
  - The library is tested before it is activated, and again afterwards. If a test fails, the list of libraries is
    restored.
  - Running programs do not load it until they are restarted. Statically linked programs never do.
  - Set O(record) on a task for a member. The other options are derived from it on the controller, which installs gcc if it
    is missing.
  - "Reads these options of roles: C(mesh_proxy_port)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the library.
    type: str
    choices: [present, absent]
    default: present
  source:
    description: The source of the library, in C. Required without O(record).
    type: str
  address:
    description: The IPv4 address of the host in the tailnet. Required without O(record).
    type: str
  subnet:
    description: The IPv4 network of the tailnet. Required without O(record).
    type: str
  interface:
    description: The name of the interface that programs see. Required without O(record).
    type: str
  proxy_address:
    description: The address of the SOCKS5 proxy of C(tailscaled).
    type: str
    default: 127.0.0.2
  proxy_port:
    description: The port of the proxy.
    type: int
    default: 1055
  api_socket:
    description: The socket on which C(tailscaled) reports to whom a connection belongs.
    type: path
    default: /run/tailscale/tailscaled.sock
seealso:
  - module: gpumesh.cluster.tailscale
"""

EXAMPLES = r"""
- name: Present the tailnet to programs as an interface
  gpumesh.cluster.mesh_preload:
    record: cluster_record

- name: Remove the library
  gpumesh.cluster.mesh_preload:
    state: absent
"""

RETURN = r"""
library:
  description: The path of the library. Empty with O(state=absent).
  returned: success
  type: str
  sample: /usr/local/lib/gpumesh/libgpumesh-pod-0123456789abcdef.so
missing:
  description: The programs that are missing on the host. Nothing is changed while any are missing.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preload


def work(module: AnsibleModule) -> ModuleResult:
    """Build and install the library, or remove it."""
    preload_paths = preload.PreloadPaths()
    desired_library = preload.make_library(module.params) if module.params["state"] == "present" else None
    preload_plan = preload.plan_preload(desired_library, preload_paths)
    missing_programs = preload.missing_packages(preload_plan)
    if not module.check_mode and not missing_programs:
        preload.apply_plan(run, desired_library, preload_paths, preload_plan)
    values = {"library": preload_plan.library_path or "", "missing": missing_programs}
    return ModuleResult(
        preload_plan.changed, values, preload_plan.list_before, preload_plan.list_after, preload_paths.preload_list
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "source": {"type": "str"},
            "address": {"type": "str"},
            "subnet": {"type": "str"},
            "interface": {"type": "str"},
            "proxy_address": {"type": "str", "default": "127.0.0.2"},
            "proxy_port": {"type": "int", "default": 1055},
            "api_socket": {"type": "path", "default": "/run/tailscale/tailscaled.sock"},
        },
        required_if=[("state", "present", ("source", "address", "subnet", "interface"))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), echo_arguments=False)


if __name__ == "__main__":
    main()
