# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: clusters
short_description: Use cluster records as an inventory source
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates hosts and groups from cluster records, either in a local directory or on a manager over SSH.
  - "Creates for each cluster the groups C(<name>), C(<name>_members) with all its members, and C(<name>_manager).
    C(-) in names is replaced with C(_)."
  - Each host has the variables C(ansible_host), C(cluster_name), C(cluster_rank), C(cluster_address),
    C(cluster_interface), C(cluster_gpus), C(cluster_is_manager), C(cluster_site) and C(cluster_endpoint), and
    C(slurm_node=false) if it runs no jobs. For a host in several clusters, they are those of the last cluster by name;
    C(clusters) has those of all clusters.
  - The group of a cluster has the variables C(cluster_name), C(cluster_subnet), C(cluster_generation) and C(cluster_manager).
  - The name of the source file must be C(clusters.yml) or end in C(.clusters.yml).
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [gpumesh.cluster.clusters]
  path:
    description: The directory of the records, on this machine or on O(host).
    type: str
    default: /var/lib/gpumesh/clusters
  host:
    description:
      - The manager from which to read the records over SSH, as C(USER@HOST) or any name from the SSH configuration.
      - If not set, a local directory is read.
    type: str
    env:
      - name: GPUMESH_MANAGER
  port:
    description: The SSH port of O(host). By default, that of the SSH configuration.
    type: int
  private_key_file:
    description: The private key for O(host). By default, the SSH configuration and agent are used.
    type: path
    env:
      - name: ANSIBLE_PRIVATE_KEY_FILE
      - name: GPUMESH_PRIVATE_KEY_FILE
  ssh_common_args:
    description: Additional command-line options for C(ssh).
    type: str
    default: ""
    env:
      - name: ANSIBLE_SSH_COMMON_ARGS
      - name: GPUMESH_SSH_COMMON_ARGS
  become:
    description: Whether to read the records as root, with C(sudo -n). Root is the owner of the records.
    type: bool
    default: false
  timeout:
    description: The timeout for the manager in seconds.
    type: int
    default: 20
  names:
    description: Only include clusters with these names. By default, all are included.
    type: list
    elements: str
    default: []
  address:
    description:
      - The address to use as C(ansible_host).
      - V(own) is the member's own address in the subnet, V(cluster) is the address in the mesh, and V(none) leaves it to
        other inventory sources and name resolution.
    type: str
    choices: [own, cluster, none]
    default: own
"""

EXAMPLES = r"""
# clusters.yml: the records of a manager. For a directory with copies, set path: ./records instead of host.
plugin: gpumesh.cluster.clusters
host: root@gpu1.example.com
keyed_groups:
  - key: cluster_site
    prefix: site
cache: true
cache_plugin: ansible.builtin.jsonfile
# Not in /tmp or /var/tmp, where every user can create this directory first.
cache_connection: ~/.cache/gpumesh-inventory
"""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.inventory.helpers import get_group_vars
from ansible.inventory.host import Host
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

try:
    from ansible.template import trust_as_template
except ImportError:
    # Before ansible-core 2.19, nothing has to be trusted.
    def trust_as_template(value: Any) -> Any:
        """Return the value itself."""
        return value


from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.silence import (
    Question,
    explain_unreachable_host,
    format_error,
)

#: This program prints every record of a directory as one JSON list. It needs only Python on the manager.
_READER_PROGRAM = (
    "import glob, json, os, sys;"
    "print(sys.argv[2] + json.dumps([[path, open(path, encoding='utf-8').read()]"
    " for path in sorted(glob.glob(os.path.join(sys.argv[1], '*.json')))]))"
)
#: The reader prints this mark first. The startup files of the login shell may have printed something before.
_OUTPUT_MARK = "gpumesh records: "

#: ssh itself exits with this status; any other status is that of the remote command.
_SSH_EXIT_STATUS = 255
#: The options of this plugin that replace the variables of a host.
_OPTION_NAMES = {
    "ansible_host": "host",
    "ansible_port": "port",
    "ansible_ssh_private_key_file": "private_key_file",
    "ansible_ssh_common_args": "ssh_common_args",
}


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Hosts and groups from cluster records."""

    NAME = "gpumesh.cluster.clusters"

    def verify_file(self, path: str) -> bool:
        """Accept only files that are named after this plugin: a directory may contain other sources, too."""
        file_name = os.path.basename(path)
        has_plugin_name = file_name in ("clusters.yml", "clusters.yaml") or file_name.endswith(
            (".clusters.yml", ".clusters.yaml")
        )
        return has_plugin_name and bool(super().verify_file(path))

    def parse(self, inventory: InventoryData, loader: DataLoader, path: str, cache: bool = True) -> None:
        """Add the hosts and groups of all records to the inventory."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        records = self._load_records(path, cache)
        _refuse_shared_group(records)
        for record in records:
            self._add_cluster(record)

    def _load_records(self, source_path: str, cache_allowed: bool) -> list[Record]:
        cache_key = self.get_cache_key(source_path)
        use_cache = self.get_option("cache") and cache_allowed
        record_files: list[list[str]] | None = None
        if use_cache:
            record_files = self._cache.get(cache_key)
        if record_files is None:
            record_files = self._read_record_files(source_path)
            if self.get_option("cache"):
                self._cache[cache_key] = record_files
        selected_names = self.get_option("names")
        records = []
        for record_path, record_text in record_files:
            try:
                record = _parse_record(record_path, record_text)
            except AnsibleParserError:
                # On a manager, the file of a record has the name of its cluster.
                if selected_names and Path(record_path).stem not in selected_names:
                    continue
                raise
            if not selected_names or record["name"] in selected_names:
                records.append(record)
        return records

    def _read_record_files(self, source_path: str) -> list[list[str]]:
        """Return the path and the text of every record."""
        manager_host = self.get_option("host")
        if manager_host is None:
            records_directory = os.path.join(os.path.dirname(os.path.abspath(source_path)), self.get_option("path"))
            if not os.path.isdir(records_directory):
                raise AnsibleParserError(
                    f"{source_path}: {records_directory} is not a directory of cluster records. Set path or host; in "
                    "AWX, select a credential of the type 'gpumesh manager' for this inventory source."
                )
            return self._run_reader(source_path, ["python3", "-c", _READER_PROGRAM, records_directory, _OUTPUT_MARK])
        # A shell on the manager reads this line, so every argument is quoted.
        remote_command = ["python3", "-c", _READER_PROGRAM, self.get_option("path"), _OUTPUT_MARK]
        if self.get_option("become"):
            remote_command = ["sudo", "-n", *remote_command]
        key_path, ssh_port = self.get_option("private_key_file") or "", self.get_option("port")
        ssh_arguments = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.get_option('timeout')}"]
        ssh_arguments += [*(["-p", str(ssh_port)] if ssh_port else []), *(["-i", key_path] if key_path else [])]
        ssh_arguments += shlex.split(self.get_option("ssh_common_args"))
        # ssh supports jump hosts, agents, tokens and certificates in the same way as the runs that follow.
        return self._run_reader(
            source_path,
            ["ssh", *ssh_arguments, "--", manager_host, shlex.join(remote_command)],
            Question(manager_host, tuple(ssh_arguments), key_path),
        )

    def _run_reader(
        self, source_path: str, reader_command: list[str], question: Question | None = None
    ) -> list[list[str]]:
        """Return what the reader prints. ``question``: how the manager is reached, to explain a failure."""
        failure_prefix = f"{source_path}: the records of {question.host if question else 'this machine'} cannot be read"
        try:
            completed = run(reader_command, timeout=self.get_option("timeout") + 10, check=False)
        except CommandError as failure:
            raise AnsibleParserError(f"{failure_prefix}: {printable(str(failure))}") from failure
        stderr_tail = printable(completed.stderr.strip()[-400:])
        if question is not None and completed.rc == _SSH_EXIT_STATUS:
            explanation = format_error(explain_unreachable_host(question))
            for variable_name, option_name in _OPTION_NAMES.items():
                explanation = explanation.replace(variable_name, option_name)
            raise AnsibleParserError(f"{failure_prefix}: {explanation} ssh said: {stderr_tail}")
        if completed.rc != 0:
            raise AnsibleParserError(
                f"{failure_prefix}: {stderr_tail}. Check that the account can read the directory (become: true)."
            )
        reader_output = completed.stdout.partition(_OUTPUT_MARK)[2].partition("\n")[0]
        try:
            record_files: list[list[str]] = json.loads(reader_output)
        except ValueError as failure:
            output_start = completed.stdout.strip()[:400]
            raise AnsibleParserError(
                f"{failure_prefix}: its account does not run the reader, but a program that printed {output_start!r}. Check its login shell."
            ) from failure
        return record_files

    def _add_cluster(self, record: Record) -> None:
        for member in record["members"]:
            self._refuse_redefinition(record, member["machine"])
        cluster_group = derive.inventory_group(record["name"])
        for group_name in (cluster_group, f"{cluster_group}_members", f"{cluster_group}_manager"):
            self.inventory.add_group(group_name)
        for child_group in (f"{cluster_group}_members", f"{cluster_group}_manager"):
            self.inventory.add_child(cluster_group, child_group)
        group_variables = {
            "cluster_name": record["name"],
            "cluster_subnet": record["subnet"],
            "cluster_generation": record["generation"],
            "cluster_manager": record["manager"],
        }
        for variable_name, value in group_variables.items():
            self.inventory.set_variable(cluster_group, variable_name, _unmark(value))
        for machine, member_view in derive.member_views(record).items():
            self.inventory.add_host(machine, group=f"{cluster_group}_members")
            if member_view["manager"]:
                self.inventory.add_host(machine, group=f"{cluster_group}_manager")
            self._set_host_variables(record, machine, member_view)

    def _refuse_redefinition(self, record: Record, machine: str) -> None:
        """Refuse a member that is something else in another source, since a record gives its members an address."""
        existing_host = self.inventory.hosts.get(machine)
        if machine in self.inventory.groups:
            conflict = "is a group"
        elif existing_host is not None and self._connection_name(existing_host) in ("local", "ansible.builtin.local"):
            conflict = "is the machine that runs Ansible"
        else:
            return
        raise AnsibleParserError(
            f"The record of cluster '{record['name']}' has a member {machine}, which {conflict} in another source of the "
            "inventory. Rename one of them, or omit one source."
        )

    @staticmethod
    def _connection_name(host: Host) -> str:
        return str({**get_group_vars(host.get_groups()), **host.vars}.get("ansible_connection", ""))

    def _set_host_variables(self, record: Record, machine: str, member_view: derive.MemberView) -> None:
        member = membership.find_member(record, machine)
        member_variables: dict[str, Any] = {
            "cluster_rank": member_view["rank"],
            "cluster_address": member_view["address"],
            "cluster_interface": member_view["interface"],
            "cluster_gpus": member_view["gpus"],
            "cluster_is_manager": member_view["manager"],
            "cluster_site": member_view["site"],
            "cluster_endpoint": member_view["endpoint"] or "",
        }
        host_address = {"own": member["address"], "cluster": member_view["address"]}.get(self.get_option("address"))
        if host_address is not None:
            member_variables["ansible_host"] = host_address
        if not member_view["slurm_node"]:
            member_variables["slurm_node"] = False
        inventory_host = self.inventory.get_host(machine)
        clusters = {**inventory_host.vars.get("clusters", {}), record["name"]: dict(member_view)}
        for variable_name, value in {**member_variables, "clusters": clusters}.items():
            self.inventory.set_variable(machine, variable_name, _unmark(value))
        strict = self.get_option("strict")
        composed_variables = {**inventory_host.get_vars(), "cluster_name": record["name"]}
        self._set_composite_vars(self.get_option("compose"), composed_variables, machine, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), composed_variables, machine, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), composed_variables, machine, strict=strict)


def _unmark(value: Any) -> Any:
    """Remove the unsafe mark, which `ansible-inventory` prints, from the texts in a value.

    AWX would treat the mark as the value. A text that could be a template keeps the mark.
    """
    if isinstance(value, dict):
        return {_unmark(key): _unmark(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_unmark(element) for element in value]
    return trust_as_template(value) if isinstance(value, str) and "{" not in value else value


def _refuse_shared_group(records: Sequence[Record]) -> None:
    """Refuse names with the same group, which would have the members of both clusters."""
    names_by_group: dict[str, str] = {}
    for record in records:
        name = names_by_group.setdefault(derive.inventory_group(record["name"]), record["name"])
        if name != record["name"]:
            raise AnsibleParserError(
                f"The clusters '{name}' and '{record['name']}' would both be the group {derive.inventory_group(name)}. Set names "
                "to the one to use."
            )


def _parse_record(record_path: str, record_text: str) -> Record:
    try:
        return model.parse(json.loads(record_text))
    except (GpumeshError, ValueError) as damage:
        raise AnsibleParserError(f"The cluster record {record_path} is invalid: {damage}.") from damage
