# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two real WireGuard interfaces with a tunnel between them, each in its own network namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from namespaces import create_joined_namespaces, run_checked

#: A program that does what the module wireguard does, in a namespace and with a configuration directory of its own.
MODULE_PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import interface, keys, preshared, rotation, wireguard
asked = json.load(sys.stdin)
host = interface.WireguardHost(run, asked["check"], asked["folder"])
name = asked["interface"]
if asked["do"] == "key":
    result = keys.ensure_key(host.key_path(name), run, False).public_key
elif asked["do"] == "offer":
    result = preshared.generate_keys(host.preshared_path(name), asked["machine"], asked["peers"])
elif asked["do"] == "absent":
    result = interface.remove_interface(host, name).changed
else:
    desired = wireguard.make_desired(name, asked["address"], 51820, 1420, asked["peers"])
    if asked["do"] == "replace":
        for peer in preshared.add_preshared_keys(host.preshared_path(name), desired).peers:
            rotation.replace_peer(host, name, peer)
        result = True
    else:
        made = interface.ensure_interface(
            host, name, desired, preshared_keys=asked["keys"], preshared_without=asked["without"]
        )
        result = {"changed": made.changed, "shown": made.diff_before + made.diff_after, "conf": host.conf_path(name)}
json.dump(result, sys.stdout)
"""


class TunnelEnd:
    """One end of the pair."""

    def __init__(self, machine: str, host_number: int, directory: Path) -> None:
        self.machine, self.host_number = machine, host_number
        self.directory = directory / machine
        self.directory.mkdir()
        unique_suffix = uuid4().hex[:6]
        self.namespace = f"gmpsk{unique_suffix}"
        # wireguard-go's socket is in a directory that the namespaces share, so each interface has a name of its own.
        self.interface = f"gm{unique_suffix}"
        self.address = f"10.99.7.{host_number}"
        self.peer: dict[str, Any] = {}

    def run_command(self, *argv: str, stdin: str | None = None) -> str:
        return run_checked("ip", "netns", "exec", self.namespace, *argv, stdin=stdin)

    def run_module(self, action: str, check_mode: bool = False, **extra_inputs: Any) -> Any:
        inputs = {
            "do": action,
            "check": check_mode,
            "folder": str(self.directory),
            "interface": self.interface,
            "machine": self.machine,
            "address": f"{self.address}/24",
            "peers": [self.peer],
            "keys": None,
            "without": [],
            **extra_inputs,
        }
        return json.loads(self.run_command(sys.executable, "-c", MODULE_PROGRAM, stdin=json.dumps(inputs)))

    def read_preshared_key(self) -> str:
        """Return the preshared key of the running interface."""
        return self.run_command("wg", "show", self.interface, "preshared-keys").split()[1]


TunnelPair = tuple[TunnelEnd, TunnelEnd]


@contextmanager
def create_tunnel(directory: Path) -> Iterator[TunnelPair]:
    """Set up both ends, which can reach each other. Their configurations and keys are below ``directory``."""
    a, b = TunnelEnd("a", 1, directory), TunnelEnd("b", 2, directory)
    with create_joined_namespaces(a.namespace, b.namespace):
        try:
            for end, opposite in ((a, b), (b, a)):
                run_checked("ip", "-n", end.namespace, "address", "add", f"10.9.7.{end.host_number}/24", "dev", "eth0")
                run_checked("ip", "-n", end.namespace, "link", "set", "eth0", "up")
                end.run_command("wireguard-go", end.interface)
                opposite.peer = {
                    "machine": end.machine,
                    "public_key": end.run_module("key"),
                    "endpoint": f"10.9.7.{end.host_number}:51820",
                    "allowed_ips": [f"{end.address}/32"],
                }
            for end in (a, b):
                end.run_module("present")
            a.run_command("ping", "-c", "1", "-w", "60", b.address)
            yield a, b
        finally:
            for end in (a, b):
                subprocess.run(
                    ["ip", "-n", end.namespace, "link", "delete", end.interface], check=False, capture_output=True
                )
