# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever text a user or a record contains: it is accepted, or refused with a message. Nothing else may happen.

test_wrong_output.py covers the output of programs.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.units import parse_size
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import rules
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailscale, wireguard
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts, conf, hostlist
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import storage
from ansible_collections.gpumesh.cluster.tests.support.broken_input import assert_endures

KEY = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
VOLUME: dict[str, Any] = {
    "name": "data",
    "server": "n1",
    "path": "/srv/data",
    "mount_point": "/data",
    "read_only": False,
    "recovery": "soft",
    "options": ["noatime", "rsize=1048576"],
    "link": "lan",
    "owner": "root",
    "group": "users",
    "mode": "1777",
    "quota": "500G",
}
ENTRIES: list[dict[str, Any]] = [
    {
        "machine": f"n{number}",
        "address": f"10.0.0.{number}",
        "interface": "eth0",
        "site": "here",
        "lan_address": f"192.168.0.{number}",
        "endpoint": f"gw{number}.example.com:51820",
        "gpus": number,
        "mesh": {"address": f"10.99.0.{number}", "public_key": KEY if number == 1 else None},
        "ssh_host_keys": ["ssh-ed25519 " + "A" * 40],
        "ssh_public_key": "ssh-ed25519 " + "B" * 40,
    }
    for number in (1, 2)
]


def made(volumes: list[dict[str, Any]]) -> model.Record:
    created = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, ENTRIES, STAMP)
    return plan.commit(plan.Draft(plan.set_storage(created.record, volumes).record, created.changes), STAMP)


RECORD = made([VOLUME, {"name": "lustre", "mount_point": "/lustre", "filesystem": "lustre"}])


def plain(text: str) -> None:
    """Harmless wherever a record's values are written: a single word that is not an option."""
    assert text.isascii() and text.isprintable() and text.split() == [text] and not text.startswith("-")
    assert not set(text) & set("\"'`$\\;&|<>(){}*?!#%,")


def is_address(text: str) -> None:
    plain(text)
    parsed = ipaddress.ip_address(text)
    assert not (parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified)


def is_subnet(text: str) -> None:
    plain(text)
    assert not ipaddress.ip_network(text).is_loopback


def is_endpoint(text: str) -> None:
    plain(text)
    host, port = wireguard.split_endpoint(text)
    assert 0 < port < 65536
    if not set(host) <= set("0123456789.:abcdef"):
        # As getaddrinfo does, which once raised an exception on all members.
        host.encode("idna")


def is_path(text: str) -> None:
    plain(text)
    assert os.path.normpath(text) == text


VALUES: list[tuple[Callable[[str], str], tuple[str, ...], Callable[[str], Any]]] = [
    (values.cluster_name, ("lab", "a-b_c9"), plain),
    (values.machine_name, ("n1", "gpu-1.example.com", "10.0.0.7", "A_b"), plain),
    (values.site_name, ("here", "dc-1.a"), plain),
    (values.interface_name, ("eth0", "bond0.100", "br-lan"), plain),
    (values.mesh_interface_name, ("gpumesh0", "wg0"), wireguard.check_interface_name),
    (values.volume_name, ("data", "team-a"), plain),
    (values.subnet, ("10.0.0.7/24", "fd00::/64"), is_subnet),
    (values.address, ("10.0.0.7", "fd00::7"), is_address),
    (values.host_name, ("gw.example.com", "203.0.113.10"), plain),
    (values.endpoint, ("gw.example.com:51820", "203.0.113.10:51820", "[2001:db8::1]:51820"), is_endpoint),
    (values.wireguard_key, (KEY,), lambda key: wireguard.check_public_key(key, "n1")),
    (values.ssh_key, ("ssh-ed25519 " + "A" * 60 + "== me@here",), lambda key: None),
    (values.absolute_path, ("/srv/data", "/srv/a.b/c+d"), is_path),
    (values.mount_point, ("/data", "/home/a"), is_path),
    (values.timestamp, ("2026-11-20T20:31:00Z",), plain),
    (values.printable_line, ("alice@n1",), lambda text: text.encode()),
]


@pytest.mark.parametrize(("check", "good", "proves"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_value_of_the_record(
    check: Callable[[str], str], good: tuple[str, ...], proves: Callable[[str], Any]
) -> None:
    assert_endures(check, good, (ValueError,), proves)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (values.endpoint, "gw..example.com:51820"),
        (values.endpoint, ".example.com:51820"),
        (values.endpoint, "gw.example.com.:51820"),
        (values.endpoint, "a" * 64 + ".com:51820"),
        (values.endpoint, "1.2.3:51820"),
        (values.endpoint, "999.1.1.1:51820"),
        (values.endpoint, "localhost:51820"),
        (values.endpoint, "gw:\u0663"),
        (values.address, "fd00::1%a\nb"),
        (values.address, "::ffff:127.0.0.1"),
        (values.subnet, "0.0.0.0/0"),
        (values.subnet, "::/0"),
        (values.mesh_interface_name, "lo"),
        (values.mesh_interface_name, "all"),
        (values.interface_name, "eth0@if7"),
        (values.mount_point, "/etc"),
        (values.mount_point, "/"),
        (values.mount_point, "/usr/bin/x"),
        (values.mount_point, "//etc/"),
    ],
)
def test_what_cannot_be_applied_is_refused(check: Callable[[str], str], text: str) -> None:
    with pytest.raises(ValueError, match="."):
        check(text)


def settled(record: model.Record) -> None:
    """An accepted record can be written, read back, and converted to what all layers apply."""
    assert model.parse(json.loads(json.dumps(record))) == record
    for member in record["members"]:
        storage.list_mounts(record, member["machine"])
        storage.render_exports(record, member["machine"])
    for member in record["members"]:
        if member["endpoint"]:
            wireguard.split_endpoint(member["endpoint"])
    if record["mesh"]["backend"] == "wireguard":
        wireguard.check_interface_name(record["mesh"]["interface"])


def test_a_record_of_another_host() -> None:
    assert_endures(model.parse, (RECORD,), (GpumeshError,), settled)


def test_what_a_user_says_of_members() -> None:
    assert_endures(
        lambda given: plan.commit(plan.join(RECORD, given, STAMP), STAMP), (ENTRIES,), (GpumeshError,), settled
    )


def test_what_a_user_says_of_volumes() -> None:
    volumes = RECORD["storage"]["volumes"]
    assert_endures(
        lambda given: plan.commit(plan.set_storage(RECORD, given), STAMP), (volumes,), (GpumeshError,), settled
    )


def test_what_a_user_says_of_a_mesh() -> None:
    meshes = ({"backend": "wireguard", "subnet": "10.98.0.0/16", "port": 51821, "interface": "wg0", "mtu": 1400},)
    assert_endures(lambda given: plan.commit(plan.set_mesh(RECORD, given), STAMP), meshes, (GpumeshError,), settled)


def make_tunnel(text: str) -> None:
    peer = {"machine": "n2", "public_key": KEY, "endpoint": "gw.example.com:1", "allowed_ips": ["10.99.0.2/32"]}
    for key in peer:
        with contextlib.suppress(GpumeshError):
            wrong = {**peer, key: [text] if key == "allowed_ips" else text}
            text_of = wireguard.render_conf(
                wireguard.make_desired("gpumesh0", "10.99.0.1/16", 51820, 1420, [wrong]), "/etc/wireguard/k"
            )
            assert text_of.count("[Peer]") == 1


TEXTS: list[tuple[str, Callable[[Any], Any], tuple[Any, ...]]] = [
    ("machine_names", parse_machine_names, ("gpu1, gpu2 gpu3",)),
    ("split_endpoint", wireguard.split_endpoint, ("gw.example.com:51820", "[2001:db8::1]:51820")),
    ("expand", hostlist.expand_hostlist, ("n[1-3,5],m", "a[01-03]b[1-2]")),
    ("compress", lambda text: hostlist.compress_hostlist(text.split()), ("n1 n2 n03",)),
    ("size_of", lambda text: parse_size("data", text), ("500G", "1.5TiB")),
    ("value_text", lambda text: conf.format_value("Key", text), ("a,b",)),
    ("check_key", conf.check_key, ("SlurmctldPort",)),
    ("conf.parse", conf.parse_settings, ("ClusterName=lab\nNodeName=n[1-3] CPUs=2 # x\nInclude /etc/x\n",)),
    ("parse_pairs", conf.parse_pairs, ("NodeName=n1 CPUs=2 OS=Linux 6.1 #1 Reason=a b",)),
    ("meaning", lambda text: accounts.normalise_setting("MaxWall", text), ("2-12:30:00", "1:00")),
    ("parse_table", lambda text: accounts.parse_table(text, ["a", "b"]), ("x|y\nz|w",)),
    ("ports", lambda text: rules._merge_ports([text]), ("6817-6819", "2049")),
    ("networks", lambda text: rules._parse_networks([text]), ("10.1.0.0/16", "fd00::/64")),
    ("addresses", lambda text: rules._parse_addresses([text]), ("10.1.0.1", "fd00::1")),
    ("hostname", lambda text: tailscale.make_desired({"hostname": text}), ("gpu1",)),
    ("tags", lambda text: tailscale.make_desired({"tags": [text]}), ("tag:gpu",)),
    ("routes", lambda text: tailscale.make_desired({"advertise_routes": [text]}), ("10.1.0.0/16",)),
    ("server", lambda text: tailscale.make_desired({"login_server": text}), ("https://headscale.example.org",)),
    ("tunnel", make_tunnel, ("n2", KEY, "gw.example.com:1", "10.99.0.2/32")),
]


@pytest.mark.parametrize(("name", "take", "good"), TEXTS, ids=[name for name, _take, _good in TEXTS])
def test_a_text_of_a_user(name: str, take: Callable[[Any], Any], good: tuple[Any, ...]) -> None:
    assert_endures(take, good, GpumeshError)
