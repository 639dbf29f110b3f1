# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records and hosts for tests of the mesh: a host on which ip and wg use an interface in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

FIXTURES = Path(__file__).parent / "fixtures"


def key(name: str) -> str:
    """A public key of the right form, always the same for a name."""
    return base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()


def member(
    machine: str, number: int, site: str = "default", endpoint: str | None = None, address: str | None = None
) -> dict[str, Any]:
    """A member of a record. Without an ``address`` it shares only the mesh."""
    inside = f"10.99.{number // 256}.{number % 256}"
    return {
        "machine": machine,
        "address": address or inside,
        "site": site,
        "endpoint": endpoint,
        "mesh": {"address": inside, "public_key": key(machine)},
    }


def record(*members: Mapping[str, Any], manager: str = "", mtu: int | None = None) -> dict[str, Any]:
    """The parts of a cluster record that the mesh uses."""
    return {
        "name": "lab",
        "manager": manager or members[0]["machine"],
        "members": list(members),
        "mesh": {
            "backend": "wireguard",
            "subnet": "10.99.0.0/16",
            "port": 51820,
            "interface": "gpumesh0",
            "mtu": mtu,
        },
    }


class FakeWireguardHost:
    """Runs ip and wg on one interface in memory, and records all command lines."""

    def __init__(self, kind: str = "tun") -> None:
        self.kind = kind
        self.up = False
        self.private = ""
        self.port = 0
        self.mtu = 1420
        self.addresses: list[str] = []
        self.routes: list[str] = []
        self.peers: dict[str, dict[str, Any]] = {}
        self.commands: list[tuple[str, ...]] = []
        self.generated_keys = 0
        #: 1 if the peers create a new session once this host has a new key.
        self.sessions_after_key = 0

    def start(self, conf: str, private: str) -> None:
        """Do what wg-quick does."""
        self.up, self.private = True, private
        keepalives: dict[str, int] = {}
        for line in conf.splitlines():
            name, _equals, value = (part.strip() for part in line.partition("="))
            if name == "Address":
                self.addresses = [value]
            elif name == "ListenPort":
                self.port = int(value)
            elif name == "MTU":
                self.mtu = int(value)
            elif name == "PostUp" and value.startswith("ip route replace"):
                self.routes.append(value.split()[3])
            elif name == "PostUp" and "persistent-keepalive" in value:
                arguments = value.split()
                keepalives = {
                    arguments[i + 1]: int(arguments[i + 3])
                    for i, argument in enumerate(arguments)
                    if argument == "peer"
                }
        self._configure(conf)
        for public_key, seconds in keepalives.items():
            self.peers[public_key]["keepalive"] = seconds

    def run(
        self, argv: Sequence[str], stdin: str | None = None, timeout: float = 30.0, check: bool = True, **_more: object
    ) -> CommandResult:
        """The Runner of this host."""
        self.commands.append(tuple(argv))
        arguments = list(argv)
        if arguments[:2] == ["wg", "genkey"]:
            self.generated_keys += 1
            return CommandResult(0, key(f"private {self.generated_keys}") + "\n", "")
        if arguments[:2] == ["wg", "pubkey"]:
            if len((stdin or "").strip()) != 44:
                raise CommandError(argv, "exited 1", rc=1, stderr="wg: Key is not the correct length or format")
            return CommandResult(0, key((stdin or "").strip()) + "\n", "")
        if arguments[:3] == ["wg", "show", "all"]:
            return CommandResult(0, "wg9\t51999\n", "")
        if arguments[:2] == ["wg", "show"]:
            return CommandResult(0, self._dump(), "")
        if arguments[:2] == ["wg", "addconf"]:
            self._configure(stdin or "")
        elif arguments[:2] == ["wg", "set"]:
            self._set(arguments[3:])
        elif arguments[0] == "ip":
            return self._ip(arguments[1:])
        return CommandResult(0, "", "")

    def _ip(self, arguments: list[str]) -> CommandResult:
        if "address" in arguments and "show" in arguments:
            if not self.up:
                return CommandResult(1, "", 'Device "gpumesh0" does not exist.')
            info = [
                {"local": cidr_address.split("/")[0], "prefixlen": int(cidr_address.split("/")[1]), "scope": "global"}
                for cidr_address in self.addresses
            ]
            link = {"mtu": self.mtu, "flags": ["UP"], "linkinfo": {"info_kind": self.kind}, "addr_info": info}
            return CommandResult(0, json.dumps([link]), "")
        if "route" in arguments and "show" in arguments:
            entries = [{"dst": route} for route in self.routes] if "-4" in arguments else []
            return CommandResult(0, json.dumps(entries), "")
        if arguments[:2] == ["link", "add"]:
            return CommandResult(2, "", "Error: Unknown device type.")
        self._ip_change(arguments)
        return CommandResult(0, "", "")

    def _ip_change(self, arguments: list[str]) -> None:
        if arguments[:2] == ["link", "set"] and "mtu" in arguments:
            self.mtu = int(arguments[-1])
        elif arguments[:2] == ["link", "delete"]:
            self.up = False
        elif arguments[:2] == ["address", "add"]:
            self.addresses.append(arguments[2])
        elif arguments[:2] == ["address", "delete"]:
            self.addresses.remove(arguments[2])
        elif arguments[:2] == ["route", "replace"]:
            self.routes.append(arguments[2])
        elif arguments[:2] == ["route", "delete"]:
            self.routes.remove(arguments[2])

    def _set(self, arguments: list[str]) -> None:
        if arguments[0] == "private-key":
            self.private = Path(arguments[1]).read_text(encoding="utf-8").strip()
            for peer in self.peers.values():
                peer["handshake"] += self.sessions_after_key
        elif arguments[0] == "listen-port":
            self.port = int(arguments[1])
        while arguments and arguments[0] == "peer":
            assert arguments[2] == "remove"
            del self.peers[arguments[1]]
            arguments = arguments[3:]

    def _configure(self, conf: str) -> None:
        peer: dict[str, Any] = {}
        for line in conf.splitlines():
            name, _equals, value = (part.strip() for part in line.partition("="))
            if name == "PublicKey":
                peer = self.peers.setdefault(value, {"endpoint": None, "allowed": [], "handshake": 0, "keepalive": 0})
            elif name == "AllowedIPs":
                peer["allowed"] = value.split(", ")
                for other_peer in self.peers.values():
                    if other_peer is not peer:
                        other_peer["allowed"] = [
                            network for network in other_peer["allowed"] if network not in peer["allowed"]
                        ]
            elif name == "Endpoint":
                peer["endpoint"] = value
            elif name == "PersistentKeepalive":
                peer["keepalive"] = 0 if value == "off" else int(value)

    def _dump(self) -> str:
        lines = [f"{self.private or '(none)'}\t{key(self.private) if self.private else '(none)'}\t{self.port}\toff"]
        for public_key, peer in self.peers.items():
            fields = [
                public_key,
                "(none)",
                peer["endpoint"] or "(none)",
                ",".join(peer["allowed"]) or "(none)",
                str(peer["handshake"]),
                "1",
                "2",
                str(peer["keepalive"] or "off"),
            ]
            lines.append("\t".join(fields))
        return "\n".join(lines) + "\n"
