# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preshared keys between two real WireGuard interfaces: both ends take them, and no packet is lost meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

from namespaces import call
from tunnel_pair import End, Pair


def share(a: End, b: End) -> str:
    """Do what the role does: a, which sorts first, creates the key, and both get it."""
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


def answered(pings: Path) -> set[int]:
    """Return the numbers of the pings that were answered."""
    return {0, *(int(number) for number in re.findall(r"bytes from .* icmp_seq=(\d+) ", pings.read_text("utf-8")))}


def await_answers(pings: Path) -> None:
    """Wait until some more pings are answered."""
    last, end = max(answered(pings)), time.monotonic() + 120
    while max(answered(pings)) < last + 20:
        assert time.monotonic() < end, pings.read_text("utf-8")
        time.sleep(0.1)


def test_both_ends_take_the_key_and_give_it_up_and_no_packet_is_lost(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    pings = tmp_path / "pings"
    argv = ["ip", "netns", "exec", a.namespace, "ping", "-i", "0.1", "-W", "30", b.address]
    with pings.open("wb") as stream, subprocess.Popen(argv, stdout=stream) as ping:
        try:
            await_answers(pings)
            key = share(a, b)
            assert a.shared() == b.shared() == key
            await_answers(pings)
            unshare(a, b)
            assert a.shared() == b.shared() == "(none)"
            assert not list(a.folder.glob("*.preshared")) + list(b.folder.glob("*.preshared"))
            await_answers(pings)
        finally:
            ping.send_signal(signal.SIGINT)
    # Pings after the last answered one may have been on their way when ping was stopped.
    found = answered(pings)
    assert set(range(1, max(found))) - found == set()


def test_a_new_session_needs_the_key(pair: Pair) -> None:
    a, b = pair
    share(a, b)
    # A peer that is taken away has no session any more; it comes back with its key and makes a new one.
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        assert end.ask("present")["changed"]
    a.run("ping", "-c", "1", "-w", "60", b.address)
    # A session is impossible with another key at one end.
    other = call("wg", "genpsk")
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    a.ask("present", keys={"b": other})
    b.ask("present")
    wrong = subprocess.run(
        ["ip", "netns", "exec", a.namespace, "ping", "-c", "1", "-W", "3", b.address], check=False, capture_output=True
    )
    assert wrong.returncode != 0
    # The next run of the role on both corrects it: the end that creates the key decides.
    assert share(a, b) == other.strip()
    a.run("ping", "-c", "1", "-w", "60", b.address)
    # A new session needs no key after its removal.
    unshare(a, b)
    for end in (a, b):
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
    for end in (a, b):
        end.ask("present")
    a.run("ping", "-c", "1", "-w", "60", b.address)


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
