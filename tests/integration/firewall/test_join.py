# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine joins a cluster with firewalls: the roles over SSH, on hosts with tables and files of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.rules import TABLE_NAME
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import NamespaceHost, SshTestbed, create_network

#: A script after which the roles write to memory of this host.
ISOLATION_SCRIPT = """
mount -t tmpfs none /mnt && mkdir /mnt/etc /mnt/etc.work /mnt/lib /mnt/lib.work
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/etc.work none /etc
mount -t overlay -o lowerdir=/var/lib,upperdir=/mnt/lib,workdir=/mnt/lib.work none /var/lib
mount -t tmpfs none /run && mkdir /run/sshd
rm -rf /etc/gpumesh /var/lib/gpumesh
exec "$@"
"""
CLUSTER_OPTIONS = {"cluster_name": "lab", "cluster_subnet": "10.50.0.0/24", "mesh_backend": "none"}


@pytest.fixture(name="farm")
def _farm(tmp_path: Path) -> Iterator[SshTestbed]:
    with create_network() as namespace_network:
        yield SshTestbed(
            namespace_network, 4, tmp_path, wrapper=["unshare", "--mount", "sh", "-e", "-c", ISOLATION_SCRIPT, "sh"]
        )


def include_role(name: str, entry: str = "main") -> dict[str, Any]:
    return {"ansible.builtin.include_role": {"name": f"gpumesh.cluster.{name}", "tasks_from": entry}}


def run_tasks(farm: SshTestbed, *tasks: dict[str, Any], **variables: Any) -> str:
    completed = farm.run_play(tasks, **CLUSTER_OPTIONS, **variables)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def read_table(host: NamespaceHost) -> str:
    return host.run("nft", "--stateless", "list", "table", "inet", TABLE_NAME)


def test_machine_joins_members_with_firewalls(farm: SshTestbed) -> None:
    first, second, joining, outsider = farm.members
    firewall_options = {"firewall_enabled": True}
    limit_arguments = ["--limit", "n1,n2,n3"]
    farm.arguments = limit_arguments
    run_tasks(
        farm, include_role("cluster"), include_role("firewall"), cluster_machines=["n1", "n2"], **firewall_options
    )
    before = read_table(first)
    assert joining.address not in before
    # Another cluster on the machine that joins closes the same ports to the members.
    other_cluster = {"cluster": "other", "members": [joining.address], "tcp_ports": ["22", "2049", "32768-60999"]}
    other_cluster_task = {"gpumesh.cluster.firewall": other_cluster, "when": "inventory_hostname == 'n3'"}
    run_tasks(farm, other_cluster_task)
    farm.arguments = [*limit_arguments, "--check"]
    run_tasks(farm, include_role("cluster", "register"), cluster_join_only=True, cluster_machines=["n3"])
    assert read_table(first) == before
    # A machine that is in the inventory and does not join is not let in.
    farm.arguments = []
    run_tasks(farm, include_role("cluster", "register"), cluster_join_only=True, cluster_machines=["n3"])
    for host in (first, second):
        assert f"{joining.address} timeout 10m30s" in read_table(host)
        assert outsider.address not in read_table(host)
    farm.arguments = limit_arguments
    run_tasks(farm, include_role("cluster", "load"), include_role("firewall"), **firewall_options)
    for host in (first, second, joining):
        assert "timeout 10m" not in read_table(host)
        assert "10.50.0.1-10.50.0.3" in read_table(host)
