# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which interfaces forward for sessions. What they forward is in tests/integration/session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import routing
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

MEMBERS = {"n1": "10.99.0.1", "n2": "10.99.0.2"}
HOST_SETTINGS = SessionSettings(
    "n1", "n1", "wg0", MEMBERS, ["10.192.0.0/10"], ["10.99.0.0/24", "10.0.0.0/24"], True, [], [], [], "/x", mesh="wg0"
)
DEFAULT = {"dst": "default", "gateway": "10.0.0.254", "dev": "eth0"}
LOCAL = [
    {"dst": "10.0.0.0/24", "dev": "eth1"},
    {"dst": "10.99.0.0/24", "dev": "wg0"},
    {"dst": "10.192.7.1", "dev": "gms000701"},
    {"type": "local", "dst": "10.0.0.1", "dev": "eth1", "table": "local"},
    {"type": "broadcast", "dst": "192.168.9.255", "dev": "eth2", "table": "local"},
    {"type": "unreachable", "dst": "172.16.0.0/12", "dev": "lo"},
]


@pytest.mark.parametrize(
    ("routes", "allow", "resolvers", "ways"),
    [
        ([], [], "", []),
        ([DEFAULT], [], "", ["eth0"]),
        ([DEFAULT, {"dst": "192.168.9.0/24", "dev": "eth2"}], [], "", ["eth0", "eth2"]),
        ([{"dst": "default", "nexthops": [{"dev": "eth3"}, {"dev": "eth4"}]}], [], "", ["eth3", "eth4"]),
        ([DEFAULT], ["10.99.0.2:5000"], "", ["eth0", "wg0"]),
        ([DEFAULT], [], "nameserver 10.0.0.53\nnameserver 127.0.0.53\nnameserver fe80::1\n", ["eth0", "eth1"]),
        # A route to less than a closed network is closed, one to more is not.
        ([{"dst": "10.99.0.0/25", "dev": "a"}, {"dst": "10.99.0.0/16", "dev": "b"}], [], "", ["b"]),
        # The name would have a meaning in nftables.
        ([{"dst": "default", "dev": "e*"}, {"dst": "default", "dev": "vlan.7@x"}], [], "", ["vlan.7@x"]),
    ],
)
def test_outward_interfaces_are_found(
    routes: list[dict[str, Any]], allow: list[str], resolvers: str, ways: list[str]
) -> None:
    assert routing.find_uplinks([*routes, *LOCAL], HOST_SETTINGS._replace(allow=allow), resolvers) == ways


class FakeRoutingHost:
    """Replies as ip, sysctl and nft do on a host whose interfaces do not forward, and records what is loaded."""

    def __init__(self, *routes: dict[str, Any], **settings: str) -> None:
        self.routes, self.settings, self.loaded = list(routes), settings, ""

    def __call__(self, argv: list[str], stdin: str = "", **_options: object) -> CommandResult:
        if argv[0] == "nft":
            self.loaded = stdin
        elif argv[0] == "sysctl" and "--write" in argv:
            self.settings.update(word.split("=") for word in argv[4:])  # type: ignore[arg-type]
        elif argv[0] == "sysctl":
            return CommandResult(0, self.settings.get(argv[3], "0"), "")
        elif "route" in argv:
            return CommandResult(0, json.dumps(self.routes), "")
        else:
            return CommandResult(0, json.dumps([{"ifname": "br0"}]), "")
        return CommandResult(0, "", "")

    def settle(self, path: Path) -> None:
        routing.ensure_forwarding(self, HOST_SETTINGS, "", str(path))


BRIDGE = {"dst": "default", "dev": "br0"}


def test_filtered_bridge_traffic_is_accepted(tmp_path: Path) -> None:
    host = FakeRoutingHost(*LOCAL, BRIDGE)
    host.settle(tmp_path / "state")
    assert "bridges {" not in host.loaded
    host.settings["net/bridge/bridge-nf-call-iptables"] = "1"
    host.settle(tmp_path / "state")
    assert 'bridges { "br0" . "br0" }' in host.loaded


def test_forwarding_of_a_relaying_tunnel_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers start with this configuration after the session has begun."""
    monkeypatch.setattr(routing, "_TUNNEL_CONFIG", str(tmp_path / "{}.conf"))
    setting = "net/ipv4/conf/br0/forwarding"
    host = FakeRoutingHost(*LOCAL, BRIDGE)
    host.settle(tmp_path / "state")
    assert host.settings[setting] == "1" and 'opened { "br0" }' in host.loaded
    (tmp_path / "br0.conf").write_text("PostUp = echo 1 > /proc/sys/net/ipv4/conf/%i/forwarding\n")
    host.settle(tmp_path / "state")
    assert "opened {" not in host.loaded
    host.routes = [DEFAULT]
    host.settle(tmp_path / "state")
    assert host.settings[setting] == "1"


def test_damaged_state_file_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"former": 7}')
    host = FakeRoutingHost(*LOCAL, DEFAULT)
    host.settle(tmp_path / "state")
    assert routing.read_state(str(tmp_path / "state")).former == {"eth0": "0"}
