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
    C(cluster_interface), C(cluster_gpus), C(cluster_is_manager), C(cluster_site) and C(cluster_endpoint). For a host
    in several clusters, they are those of the last cluster by name; C(clusters) has those of all clusters.
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
    # Before ansible-core 2.19 nothing has to be trusted.
    def trust_as_template(value: Any) -> Any:
        """The value itself."""
        return value


from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.silence import Question, why_silent, worded

#: Prints every record of a folder as one JSON list. One call of Python, so that nothing has to be installed there.
_READER = (
    "import glob, json, os, sys;"
    "print(sys.argv[2] + json.dumps([[path, open(path, encoding='utf-8').read()]"
    " for path in sorted(glob.glob(os.path.join(sys.argv[1], '*.json')))]))"
)
#: What it prints first. Files that the account's shell reads at its start may have printed something before.
_MARK = "gpumesh records: "

#: The exit status of ssh itself; any other one is that of the far side's command.
_SSH_FAILED = 255
#: What says here what the variables say of a host.
_OPTIONS = {
    "ansible_host": "host",
    "ansible_port": "port",
    "ansible_ssh_private_key_file": "private_key_file",
    "ansible_ssh_common_args": "ssh_common_args",
}


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Hosts and groups from cluster records."""

    NAME = "gpumesh.cluster.clusters"

    def verify_file(self, path: str) -> bool:
        """Only files that are named after this plugin: a folder may hold other sources too."""
        name = os.path.basename(path)
        named = name in ("clusters.yml", "clusters.yaml") or name.endswith((".clusters.yml", ".clusters.yaml"))
        return named and bool(super().verify_file(path))

    def parse(self, inventory: InventoryData, loader: DataLoader, path: str, cache: bool = True) -> None:
        """Fill the inventory."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        records = self._records(path, cache)
        _refuse_one_group(records)
        for record in records:
            self._add(record)

    def _records(self, source: str, cache: bool) -> list[Record]:
        key = self.get_cache_key(source)
        use_cache = self.get_option("cache") and cache
        files: list[list[str]] | None = None
        if use_cache:
            files = self._cache.get(key)
        if files is None:
            files = self._read(source)
            if self.get_option("cache"):
                self._cache[key] = files
        wanted = self.get_option("names")
        records = []
        for path, text in files:
            try:
                record = _parsed(path, text)
            except AnsibleParserError:
                # A manager's file has the name of its cluster.
                if wanted and Path(path).stem not in wanted:
                    continue
                raise
            if not wanted or record["name"] in wanted:
                records.append(record)
        return records

    def _read(self, source: str) -> list[list[str]]:
        """Path and text of every record."""
        host = self.get_option("host")
        if host is None:
            folder = os.path.join(os.path.dirname(os.path.abspath(source)), self.get_option("path"))
            if not os.path.isdir(folder):
                raise AnsibleParserError(f"{source}: {folder} is not a directory of cluster records. Set path or host.")
            return self._run(source, ["python3", "-c", _READER, folder, _MARK])
        # The far side's shell reads this line, so every word of it is quoted.
        remote = ["python3", "-c", _READER, self.get_option("path"), _MARK]
        if self.get_option("become"):
            remote = ["sudo", "-n", *remote]
        key, port = self.get_option("private_key_file") or "", self.get_option("port")
        arguments = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.get_option('timeout')}"]
        arguments += [*(["-p", str(port)] if port else []), *(["-i", key] if key else [])]
        arguments += shlex.split(self.get_option("ssh_common_args"))
        # By ssh itself, which knows jump hosts, agents, tokens and certificates as the runs that follow do.
        return self._run(
            source, ["ssh", *arguments, "--", host, shlex.join(remote)], Question(host, tuple(arguments), key)
        )

    def _run(self, source: str, argv: list[str], question: Question | None = None) -> list[list[str]]:
        """What the reader prints. ``question``: how the manager is reached, in case that it is silent."""
        told = f"{source}: the records of {question.host if question else 'this machine'} cannot be read"
        try:
            done = run(argv, timeout=self.get_option("timeout") + 10, check=False)
        except CommandError as failure:
            raise AnsibleParserError(f"{told}: {printable(str(failure))}") from failure
        said = printable(done.stderr.strip()[-400:])
        if question is not None and done.rc == _SSH_FAILED:
            why = worded(why_silent(question))
            for variable, option in _OPTIONS.items():
                why = why.replace(variable, option)
            raise AnsibleParserError(f"{told}: {why} ssh said: {said}")
        if done.rc != 0:
            raise AnsibleParserError(f"{told}: {said}. Check that the account can read the directory (become: true).")
        printed = done.stdout.partition(_MARK)[2].partition("\n")[0]
        try:
            files: list[list[str]] = json.loads(printed)
        except ValueError as failure:
            begin = done.stdout.strip()[:400]
            raise AnsibleParserError(
                f"{told}: its account runs another program than the reader, which printed {begin!r}. Check its shell."
            ) from failure
        return files

    def _add(self, record: Record) -> None:
        for member in record["members"]:
            self._refuse_redefinition(record, member["machine"])
        base = derive.group(record["name"])
        for group in (base, f"{base}_members", f"{base}_manager"):
            self.inventory.add_group(group)
        for child in (f"{base}_members", f"{base}_manager"):
            self.inventory.add_child(base, child)
        shared = {
            "cluster_name": record["name"],
            "cluster_subnet": record["subnet"],
            "cluster_generation": record["generation"],
            "cluster_manager": record["manager"],
        }
        for name, value in shared.items():
            self.inventory.set_variable(base, name, _plain(value))
        for machine, view in derive.member_views(record).items():
            self.inventory.add_host(machine, group=f"{base}_members")
            if view["manager"]:
                self.inventory.add_host(machine, group=f"{base}_manager")
            self._describe(record, machine, view)

    def _refuse_redefinition(self, record: Record, machine: str) -> None:
        """A record gives hosts an address. What means something else to other sources must not get one."""
        known = self.inventory.hosts.get(machine)
        if machine in self.inventory.groups:
            what = "is a group"
        elif known is not None and self._connection(known) in ("local", "ansible.builtin.local"):
            what = "is the machine that runs Ansible"
        else:
            return
        raise AnsibleParserError(
            f"The record of cluster '{record['name']}' has a member {machine}, which {what} in another source of the "
            "inventory. Rename one of them, or omit one source."
        )

    @staticmethod
    def _connection(host: Host) -> str:
        return str({**get_group_vars(host.get_groups()), **host.vars}.get("ansible_connection", ""))

    def _describe(self, record: Record, machine: str, view: derive.MemberView) -> None:
        member = derive.member_of(record, machine)
        variables: dict[str, Any] = {
            "cluster_rank": view["rank"],
            "cluster_address": view["address"],
            "cluster_interface": view["interface"],
            "cluster_gpus": view["gpus"],
            "cluster_is_manager": view["manager"],
            "cluster_site": view["site"],
            "cluster_endpoint": view["endpoint"] or "",
        }
        reach = {"own": member["address"], "cluster": view["address"]}.get(self.get_option("address"))
        if reach is not None:
            variables["ansible_host"] = reach
        known = self.inventory.get_host(machine)
        clusters = {**known.vars.get("clusters", {}), record["name"]: dict(view)}
        for name, value in {**variables, "clusters": clusters}.items():
            self.inventory.set_variable(machine, name, _plain(value))
        strict = self.get_option("strict")
        merged = {**known.get_vars(), "cluster_name": record["name"]}
        self._set_composite_vars(self.get_option("compose"), merged, machine, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), merged, machine, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), merged, machine, strict=strict)


def _plain(value: Any) -> Any:
    """A value whose texts `ansible-inventory` prints as texts, and not as marked unsafe: AWX would take the mark for the
    value. A text that could be a template keeps the mark."""
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return trust_as_template(value) if isinstance(value, str) and "{" not in value else value


def _refuse_one_group(records: Sequence[Record]) -> None:
    """Refuse names that are the same group: the members of both would be in it."""
    known: dict[str, str] = {}
    for record in records:
        name = known.setdefault(derive.group(record["name"]), record["name"])
        if name != record["name"]:
            raise AnsibleParserError(
                f"The clusters '{name}' and '{record['name']}' would both be the group {derive.group(name)}. Set names "
                "to the one that you want."
            )


def _parsed(path: str, text: str) -> Record:
    try:
        return model.parse(json.loads(text))
    except (GpumeshError, ValueError) as damage:
        raise AnsibleParserError(f"The cluster record {path} is invalid: {damage}.") from damage
