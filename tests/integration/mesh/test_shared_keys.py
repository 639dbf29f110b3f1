# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preshared keys between two real WireGuard interfaces: both ends take them, and no packet is lost meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

#: Does the work of the module wireguard in a namespace, with the configuration in a folder of its own.
PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import interface, keys, preshared, rotation, wireguard
asked = json.load(sys.stdin)
host = interface.Host(run, asked["check"], asked["folder"])
name = asked["interface"]
if asked["do"] == "key":
    result = keys.ensure_key(host.key_path(name), run, False).public_key
elif asked["do"] == "offer":
    result = preshared.offer(host.preshared_path(name), asked["machine"], asked["peers"])
elif asked["do"] == "absent":
    result = interface.absent(host, name).changed
else:
    desired = wireguard.make_desired(name, asked["address"], 51820, 1420, asked["peers"])
    if asked["do"] == "replace":
        for peer in preshared.equip(host.preshared_path(name), desired).peers:
            rotation.replace(host, name, peer)
        result = True
    else:
        made = interface.present(
            host, name, desired, preshared_keys=asked["keys"], preshared_without=asked["without"]
        )
        result = {"changed": made.changed, "shown": made.before + made.after, "conf": host.conf_path(name)}
json.dump(result, sys.stdout)
"""


def call(*argv: str, stdin: str | None = None) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}{done.stdout}"
    return done.stdout


class End:
    """One end of the pair."""

    def __init__(self, machine: str, number: int, folder: Path) -> None:
        self.machine, self.number = machine, number
        self.folder = folder / machine
        self.folder.mkdir()
        unique = uuid4().hex[:6]
        self.namespace = f"gmpsk{unique}"
        # wireguard-go's socket is in a folder that the namespaces share, so each interface has a name of its own.
        self.interface = f"gm{unique}"
        self.address = f"10.99.7.{number}"
        self.peer: dict[str, Any] = {}

    def run(self, *argv: str, stdin: str | None = None) -> str:
        return call("ip", "netns", "exec", self.namespace, *argv, stdin=stdin)

    def ask(self, do: str, check: bool = False, **more: Any) -> Any:
        asked = {
            "do": do,
            "check": check,
            "folder": str(self.folder),
            "interface": self.interface,
            "machine": self.machine,
            "address": f"{self.address}/24",
            "peers": [self.peer],
            "keys": None,
            "without": [],
            **more,
        }
        return json.loads(self.run(sys.executable, "-c", PROGRAM, stdin=json.dumps(asked)))

    def shared(self) -> str:
        """The preshared key that the running interface has."""
        return self.run("wg", "show", self.interface, "preshared-keys").split()[1]


Pair = tuple[End, End]


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    a, b = End("a", 1, tmp_path), End("b", 2, tmp_path)
    try:
        for end in (a, b):
            call("ip", "netns", "add", end.namespace)
            call("ip", "-n", end.namespace, "link", "set", "lo", "up")
        call(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            a.namespace,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            b.namespace,
        )
        for end, other in ((a, b), (b, a)):
            call("ip", "-n", end.namespace, "address", "add", f"10.9.7.{end.number}/24", "dev", "eth0")
            call("ip", "-n", end.namespace, "link", "set", "eth0", "up")
            end.run("wireguard-go", end.interface)
            other.peer = {
                "machine": end.machine,
                "public_key": end.ask("key"),
                "endpoint": f"10.9.7.{end.number}:51820",
                "allowed_ips": [f"{end.address}/32"],
            }
        for end in (a, b):
            end.ask("present")
        a.run("ping", "-c", "1", "-W", "30", b.address)
        yield a, b
    finally:
        for end in (a, b):
            subprocess.run(
                ["ip", "-n", end.namespace, "link", "delete", end.interface], check=False, capture_output=True
            )
            subprocess.run(["ip", "netns", "delete", end.namespace], check=False, capture_output=True)


def share(a: End, b: End) -> str:
    """What the role does: a, which sorts first, makes the key, and both get it."""
    assert b.ask("offer", peers=["a"]) == {}
    key = a.ask("offer", peers=["b"])["b"]
    a.ask("present", keys={"b": key})
    b.ask("present", keys={"a": key})
    return str(key).strip()


def unshare(a: End, b: End) -> None:
    for end, other in ((a, "b"), (b, "a")):
        assert end.ask("present", check=True, without=[other])["changed"]
        assert end.shared() != "(none)"
        assert end.ask("present", without=[other])["changed"]
        assert not end.ask("present", without=[other])["changed"]


def test_both_ends_take_the_key_and_give_it_up_and_no_packet_is_lost(pair: Pair) -> None:
    a, b = pair
    ping = subprocess.Popen(
        ["ip", "netns", "exec", a.namespace, "ping", "-i", "0.1", "-W", "30", b.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ping.stdout is not None
    ping.stdout.readline()
    key = share(a, b)
    assert a.shared() == b.shared() == key
    time.sleep(2)
    unshare(a, b)
    assert a.shared() == b.shared() == "(none)"
    assert not list(a.folder.glob("*.preshared")) + list(b.folder.glob("*.preshared"))
    time.sleep(2)
    ping.send_signal(2)
    output = ping.communicate(timeout=60)[0]
    sent, received = (int(count) for count in re.findall(r"(\d+) packets transmitted, (\d+) received", output)[0])
    # The last one may have been on its way when ping was stopped.
    assert received >= sent - 1 >= 10, output


def test_a_new_session_needs_the_key(pair: Pair) -> None:
    a, b = pair
    share(a, b)
    # A peer that is taken away has no session any more; it comes back with its key and makes a new one.
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        assert end.ask("present")["changed"]
    a.run("ping", "-c", "1", "-W", "60", b.address)
    # With another key at one end there is no session.
    other = call("wg", "genpsk")
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    a.ask("present", keys={"b": other})
    b.ask("present")
    wrong = subprocess.run(
        ["ip", "netns", "exec", a.namespace, "ping", "-c", "1", "-W", "3", b.address], check=False, capture_output=True
    )
    assert wrong.returncode != 0
    # The next run of the role on both sets it right: the end that makes the key decides.
    assert share(a, b) == other.strip()
    a.run("ping", "-c", "1", "-W", "60", b.address)
    # Without one, a new session needs none.
    unshare(a, b)
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        end.ask("present")
    a.run("ping", "-c", "1", "-W", "60", b.address)


def test_a_second_run_changes_nothing_and_what_was_taken_away_comes_back(pair: Pair) -> None:
    a, b = pair
    key = share(a, b)
    assert share(a, b) == key
    for end, other in ((a, "b"), (b, "a")):
        assert not end.ask("present")["changed"]
        assert not end.ask("present", keys={other: key})["changed"]
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "preshared-key", "/dev/null")
        assert end.shared() == "(none)"
        assert end.ask("present")["changed"]
        assert end.shared() == key


def test_the_key_is_in_a_file_of_root_and_nowhere_else(pair: Pair) -> None:
    a, b = pair
    key = a.ask("offer", peers=["b"])["b"].strip()
    assert a.ask("present", check=True, keys={"b": key})["changed"]
    assert a.shared() == "(none)"
    result = a.ask("present", keys={"b": key})
    assert key not in result["shown"]
    assert key not in Path(result["conf"]).read_text(encoding="utf-8")
    holders = [path for path in a.folder.rglob("*") if path.is_file() and key in path.read_text(encoding="utf-8")]
    assert [path.stat().st_mode & 0o777 for path in holders] == [0o600]
    assert holders[0].parent.stat().st_mode & 0o777 == 0o700
    # The configuration names the file, so that the tunnel has the key at the next boot too.
    assert f"preshared-key {holders[0]}" in Path(result["conf"]).read_text(encoding="utf-8")
    a.ask("absent")
    assert not holders[0].exists()
    assert b.shared() == "(none)"


def test_a_new_public_key_keeps_the_pairs_key(pair: Pair) -> None:
    a, b = pair
    key = share(a, b)
    new = call("wg", "genkey")
    public = call("wg", "pubkey", stdin=new).strip()
    a.peer = {**a.peer, "public_key": public}
    a.ask("replace")
    shown = a.run("wg", "show", a.interface, "preshared-keys").split()
    assert shown == [public, key]
