#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tracking
short_description: Run the MLflow server for the experiments of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs MLflow's tracking server on the member named in the cluster record, with Debian's PostgreSQL as its database
    and the artifacts on a volume of the cluster. MLflow is installed from the package index of the host's pip, with
    pinned hashes, in a separate environment.
  - On the other members, only the certificates against which they verify the server are written.
  - A host that runs the tracking server of another cluster is refused, and that server is never changed.
  - Set O(record). Most other options are derived from it on the controller.
  - "Reads these options of roles: C(tracking_ca_file), C(tracking_certificate_file), C(tracking_key_file),
    C(tracking_uid), C(tracking_unconfined), C(tracking_users_file)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: full
    details:
      - It lists the differences, but never the content of a file with a secret.
options:
  state:
    description:
      - V(certified) makes the certificate of the server on its host, or the next one in the year before it expires.
      - V(installed) only installs what the server needs, so that a host that cannot get it changes nothing else.
      - V(saved) stops the server and writes its database to the volume, for another member.
      - V(retired) removes a server that has moved to another member.
      - V(absent) removes the server; its database and the artifacts are kept.
    type: str
    choices: [certified, installed, present, saved, retired, absent]
    default: present
  pass_files:
    description: Whether the server gets the files in the options, with O(state=present).
    type: bool
    default: true
  cluster:
    description: The name of the cluster. Derived from O(record).
    type: str
  machine:
    description: The name of the member that runs the server. Derived from O(record).
    type: str
    default: ""
  serves:
    description: Whether this host runs the server. Derived from O(record).
    type: bool
    default: false
  address:
    description: The address on which the server listens. Derived from O(record).
    type: str
    default: ""
  port:
    description: The TCP port. Derived from O(record).
    type: int
    default: 0
  tls:
    description: Whether the server has a certificate. Derived from O(record).
    type: bool
    default: false
  own_certificate:
    description: Whether the server makes its certificate itself. Derived from O(record), and V(true) before the record
      has the certificate.
    type: bool
    default: false
  mount_point:
    description: The mount point of the volume of the artifacts. Derived from O(record).
    type: str
    default: ""
  uid:
    description: The UID and GID of the server's account, which owns the artifacts.
    type: int
    default: 875
  unconfined:
    description: Whether the server may run where the kernel cannot confine it to its artifacts and its database.
    type: bool
    default: false
  requirements:
    description: The packages, in the format of a pip requirements file. Derived on the controller.
    type: str
    default: ""
  users:
    description:
      - The content of C(tracking_users_file) as JSON, a list of objects with C(name), C(password) and C(administrator). A
        password that is null removes the user.
    type: str
  certificate:
    description: The content of C(tracking_certificate_file).
    type: str
  key:
    description: The content of C(tracking_key_file).
    type: str
  trust:
    description: The content of C(tracking_ca_file).
    type: str
"""

EXAMPLES = r"""
- name: Run the tracking server where the record says, with its users
  gpumesh.cluster.tracking:
    record: cluster_record
"""

RETURN = r"""
missing:
  description: The Debian packages that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: O(state=present), O(state=certified) and O(state=installed)
leftover:
  description: Whether this host has a server, which is not that of another cluster, although the record names another
    member, or none.
  type: bool
  returned: O(state=present)
restarted:
  description: The daemons that were restarted.
  type: list
  elements: str
  returned: O(state=present)
postgresql:
  description: The version of PostgreSQL on a member that has the server or would have it. Empty if unknown.
  type: str
  returned: O(state=present), in check mode
certificates:
  description: The certificates that clients have to trust, the current one and possibly the next one. Null if this host
    does not run the server, or the server does not make its certificate itself.
  type: list
  elements: str
  returned: O(state=certified)
"""

import json
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import environment, server, settings

_DEFAULT_PATHS = service.ServicePaths()


def _certify(server_request: server.TrackingRequest, check_mode: bool) -> ModuleResult:
    if not server_request.serves or not server_request.server.own_certificate:
        return ModuleResult(False, {"certificates": None, "missing": []})
    if not find_program("openssl"):
        return ModuleResult(True, {"certificates": None, "missing": ["openssl"]})
    certificates_before = server_certificate.usable_certificates(run, server_request.server.identity)
    certificates_after = certificates_before if check_mode else server.ensure_certificates(run, server_request)
    return ModuleResult(
        certificates_after != certificates_before or (check_mode and not certificates_after),
        {"certificates": certificates_after or None, "missing": []},
    )


def _install(server_request: server.TrackingRequest, check_mode: bool) -> ModuleResult:
    missing_packages = _find_missing_packages()
    if missing_packages or check_mode:
        return ModuleResult(bool(missing_packages), {"missing": missing_packages})
    return ModuleResult(server.install_mlflow(run, server_request), {"missing": []})


def _find_missing_packages() -> List[str]:
    return [*server.missing_packages(), *([] if environment.can_create(run) else ["python3-venv"])]


def work(params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the desired state of the tracking layer."""
    server_request = server.parse_request(params)
    if params["state"] == "certified":
        return _certify(server_request, check_mode)
    if params["state"] == "installed":
        return _install(server_request, check_mode)
    if params["state"] == "saved":
        server.refuse_to_save(server_request)
        return ModuleResult(
            server.is_own_server(server_request) if check_mode else server.save_database(run, server_request), {}
        )
    if params["state"] in ("retired", "absent"):
        keeps_files = params["state"] == "absent"
        return ModuleResult(
            server.is_own_server(server_request)
            if check_mode
            else server.retire_server(run, server_request, keeps_files),
            {},
        )
    values: Dict[str, Any] = {"missing": [], "leftover": server.has_leftovers(server_request), "restarted": []}
    server.refuse_member(server_request)
    if server_request.serves:
        server.refuse_server(server_request)
        values["missing"] = _find_missing_packages()
    if check_mode:
        values["postgresql"] = server.postgresql_version(run, server_request)
    if values["missing"] or check_mode:
        change_lines = server.describe_differences(run, server_request)
    else:
        change_lines, values["restarted"] = server.apply_request(run, server_request)
    reported_lines = [
        change_line for change_line in change_lines if not values["leftover"] or change_line != server.STILL_HERE
    ]
    return ModuleResult(bool(reported_lines), values, "", "".join(f"{change_line}\n" for change_line in reported_lines))


def main() -> None:
    """The module's entry point."""
    text_option = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {
                "type": "str",
                "choices": ["certified", "installed", "present", "saved", "retired", "absent"],
                "default": "present",
            },
            "pass_files": {"type": "bool", "default": True},
            "cluster": {"type": "str"},
            "machine": text_option,
            "serves": {"type": "bool", "default": False},
            "address": text_option,
            "port": {"type": "int", "default": 0},
            "tls": {"type": "bool", "default": False},
            "own_certificate": {"type": "bool", "default": False},
            "mount_point": text_option,
            "uid": {"type": "int", "default": settings.DEFAULT_UID},
            "unconfined": {"type": "bool", "default": False},
            "requirements": text_option,
            # The users are passed as one text: Ansible hides passwords in a list by their text, and one with '@', a
            # quotation mark or a backslash looks different in the log, which has the list as Python writes it.
            "users": {"type": "str", "no_log": True},
            "certificate": {"type": "str"},
            "key": {"type": "str", "no_log": True},
            "trust": {"type": "str"},
            "supervisor_config": {"type": "path", "default": _DEFAULT_PATHS.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _DEFAULT_PATHS.supervisor_programs},
        },
        supports_check_mode=True,
    )
    if module.params["users"] is not None:
        module.params["users"] = json.loads(module.params["users"])
        # Passwords are also hidden in errors that quote them.
        module.no_log_values.update(user["password"] for user in module.params["users"] if user["password"])
    exit_with(module, lambda: work(module.params, module.check_mode), echo_arguments=False)


if __name__ == "__main__":
    main()
