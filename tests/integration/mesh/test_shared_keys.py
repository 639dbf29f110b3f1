# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preshared keys between two real WireGuard interfaces: both ends take them, and no packet is lost meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

from namespaces import run_checked
from tunnel_pair import TunnelEnd, TunnelPair
from waiting import wait_until


def share_key(a: TunnelEnd, b: TunnelEnd) -> str:
    """Do what the role does: a, which sorts first, creates the key, and both get it."""
    assert b.run_module("offer", peers=["a"]) == {}
    key = a.run_module("offer", peers=["b"])["b"]
    a.run_module("present", keys={"b": key})
    b.run_module("present", keys={"a": key})
    return str(key).strip()


def remove_key(a: TunnelEnd, b: TunnelEnd) -> None:
    for end, peer_name in ((a, "b"), (b, "a")):
        assert end.run_module("present", check_mode=True, without=[peer_name])["changed"]
        assert end.read_preshared_key() != "(none)"
        assert end.run_module("present", without=[peer_name])["changed"]
        assert not end.run_module("present", without=[peer_name])["changed"]


def answered_pings(ping_log: Path) -> set[int]:
    """Return the numbers of the pings that were answered."""
    return {0, *(int(number) for number in re.findall(r"bytes from .* icmp_seq=(\d+) ", ping_log.read_text("utf-8")))}


def await_answers(ping_log: Path) -> None:
    """Wait until some more pings are answered."""
    last_answered = max(answered_pings(ping_log))
    wait_until("20 more pings are answered", lambda: max(answered_pings(ping_log)) >= last_answered + 20)


def test_key_is_added_and_removed_without_losing_packets(pair: TunnelPair, tmp_path: Path) -> None:
    a, b = pair
    ping_log = tmp_path / "pings"
    argv = ["ip", "netns", "exec", a.namespace, "ping", "-i", "0.1", "-W", "30", b.address]
    with ping_log.open("wb") as stream, subprocess.Popen(argv, stdout=stream) as ping:
        try:
            await_answers(ping_log)
            key = share_key(a, b)
            assert a.read_preshared_key() == b.read_preshared_key() == key
            await_answers(ping_log)
            remove_key(a, b)
            assert a.read_preshared_key() == b.read_preshared_key() == "(none)"
            assert not list(a.directory.glob("*.preshared")) + list(b.directory.glob("*.preshared"))
            await_answers(ping_log)
        finally:
            ping.send_signal(signal.SIGINT)
    # Pings after the last answered one may have been on their way when ping was stopped.
    answered_numbers = answered_pings(ping_log)
    assert set(range(1, max(answered_numbers))) - answered_numbers == set()


def test_new_session_requires_the_key(pair: TunnelPair) -> None:
    a, b = pair
    share_key(a, b)
    # A peer that is taken away has no session any more; it comes back with its key and makes a new one.
    for end in (a, b):
        end.run_command("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        assert end.run_module("present")["changed"]
    a.run_command("ping", "-c", "1", "-w", "60", b.address)
    # A session is impossible with another key at one end.
    other_key = run_checked("wg", "genpsk")
    for end in (a, b):
        end.run_command("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    a.run_module("present", keys={"b": other_key})
    b.run_module("present")
    failed_ping = subprocess.run(
        ["ip", "netns", "exec", a.namespace, "ping", "-c", "1", "-W", "3", b.address], check=False, capture_output=True
    )
    assert failed_ping.returncode != 0
    # The next run of the role on both corrects it: the end that creates the key decides.
    assert share_key(a, b) == other_key.strip()
    a.run_command("ping", "-c", "1", "-w", "60", b.address)
    # A new session needs no key after its removal.
    remove_key(a, b)
    for end in (a, b):
        end.run_command("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        end.run_module("present")
    a.run_command("ping", "-c", "1", "-w", "60", b.address)


def test_second_run_changes_nothing_and_removed_key_is_restored(pair: TunnelPair) -> None:
    a, b = pair
    key = share_key(a, b)
    assert share_key(a, b) == key
    for end, peer_name in ((a, "b"), (b, "a")):
        assert not end.run_module("present")["changed"]
        assert not end.run_module("present", keys={peer_name: key})["changed"]
        end.run_command("wg", "set", end.interface, "peer", end.peer["public_key"], "preshared-key", "/dev/null")
        assert end.read_preshared_key() == "(none)"
        assert end.run_module("present")["changed"]
        assert end.read_preshared_key() == key


def test_key_is_only_in_a_file_of_root(pair: TunnelPair) -> None:
    a, b = pair
    key = a.run_module("offer", peers=["b"])["b"].strip()
    assert a.run_module("present", check_mode=True, keys={"b": key})["changed"]
    assert a.read_preshared_key() == "(none)"
    result = a.run_module("present", keys={"b": key})
    assert key not in result["shown"]
    assert key not in Path(result["conf"]).read_text(encoding="utf-8")
    key_files = [path for path in a.directory.rglob("*") if path.is_file() and key in path.read_text(encoding="utf-8")]
    assert [path.stat().st_mode & 0o777 for path in key_files] == [0o600]
    assert key_files[0].parent.stat().st_mode & 0o777 == 0o700
    # The configuration names the file, so that the tunnel has the key at the next boot too.
    assert f"preshared-key {key_files[0]}" in Path(result["conf"]).read_text(encoding="utf-8")
    a.run_module("absent")
    assert not key_files[0].exists()
    assert b.read_preshared_key() == "(none)"


def test_new_public_key_keeps_the_preshared_key(pair: TunnelPair) -> None:
    a, b = pair
    key = share_key(a, b)
    private_key = run_checked("wg", "genkey")
    public_key = run_checked("wg", "pubkey", stdin=private_key).strip()
    a.peer = {**a.peer, "public_key": public_key}
    a.run_module("replace")
    peer_and_key = a.run_command("wg", "show", a.interface, "preshared-keys").split()
    assert peer_and_key == [public_key, key]
