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
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, Host, network

#: A script after which the roles write to memory of this host.
APART = """
mount -t tmpfs none /mnt && mkdir /mnt/etc /mnt/etc.work /mnt/lib /mnt/lib.work
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/etc.work none /etc
mount -t overlay -o lowerdir=/var/lib,upperdir=/mnt/lib,workdir=/mnt/lib.work none /var/lib
mount -t tmpfs none /run && mkdir /run/sshd
rm -rf /etc/gpumesh /var/lib/gpumesh
exec "$@"
"""
SUBNET = {"cluster_name": "lab", "cluster_subnet": "10.50.0.0/24", "mesh_backend": "none"}


@pytest.fixture(name="farm")
def _farm(tmp_path: Path) -> Iterator[Farm]:
    with network() as net:
        yield Farm(net, 4, tmp_path, wrapper=["unshare", "--mount", "sh", "-e", "-c", APART, "sh"])


def role(name: str, entry: str = "main") -> dict[str, Any]:
    return {"ansible.builtin.include_role": {"name": f"gpumesh.cluster.{name}", "tasks_from": entry}}


def changed(farm: Farm, *tasks: dict[str, Any], **variables: Any) -> str:
    done = farm.play(tasks, **SUBNET, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(host: Host) -> str:
    return host.run("nft", "--stateless", "list", "table", "inet", TABLE_NAME)


def test_a_machine_joins_members_that_have_firewalls(farm: Farm) -> None:
    one, two, three, outsider = farm.members
    restricted = {"firewall_enabled": True}
    only = ["--limit", "n1,n2,n3"]
    farm.arguments = only
    changed(farm, role("cluster"), role("firewall"), cluster_machines=["n1", "n2"], **restricted)
    before = table(one)
    assert three.address not in before
    # Another cluster on the machine that joins closes the same ports to the members.
    other = {"cluster": "other", "members": [three.address], "tcp_ports": ["22", "2049", "32768-60999"]}
    at_three = {"gpumesh.cluster.firewall": other, "when": "inventory_hostname == 'n3'"}
    changed(farm, at_three)
    farm.arguments = [*only, "--check"]
    changed(farm, role("cluster", "register"), cluster_join_only=True, cluster_machines=["n3"])
    assert table(one) == before
    # A machine that is in the inventory and does not join is not let in.
    farm.arguments = []
    changed(farm, role("cluster", "register"), cluster_join_only=True, cluster_machines=["n3"])
    for host in (one, two):
        assert f"{three.address} timeout 10m30s" in table(host)
        assert outsider.address not in table(host)
    farm.arguments = only
    changed(farm, role("cluster", "load"), role("firewall"), **restricted)
    for host in (one, two, three):
        assert "timeout 10m" not in table(host)
        assert "10.50.0.1-10.50.0.3" in table(host)
