# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads of the kernel's NFS server, for the connections of all members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import threads

DEFAULT_STATE = threads.NfsdState(None, None, 8, {})


class NfsServer:
    """A host whose server runs with 8 threads. ``commands`` are those that were run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []
        self.running = folder / "threads"
        self.running.write_text("8\n")
        self.path = folder / "nfs.conf.d" / "zz-gpumesh.conf"
        (folder / "exports.d").mkdir()

    def __call__(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        self.commands.append(" ".join(argv))
        self.running.write_text(f"{argv[-1]}\n")
        return CommandResult(0, "", "")

    def export(self, cluster: str, members: int) -> None:
        clients = " ".join(f"10.99.0.{number}(rw,fsid=1)" for number in range(members))
        (self.folder / "exports.d" / f"gpumesh-{cluster}.exports").write_text(f'"/srv/a (b)" {clients}\n' * 2)

    def apply_plan(self, cluster: str, connections: int) -> threads.ThreadsPlan:
        """A run of the cluster, after which another one has nothing to do."""
        found = []
        for _time in range(2):
            own = self.folder / "exports.d" / f"gpumesh-{cluster}.exports"
            host = threads.read_nfsd_state(str(own), [str(self.folder / "nfs.conf")], str(self.path), str(self.running))
            found.append(threads.plan_threads(cluster, connections, host, str(self.path)))
            threads.apply_threads_plan(self, found[-1])
        assert not found[1].changed
        return found[0]


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> NfsServer:
    return NfsServer(tmp_path)


@pytest.mark.parametrize(
    ("connections", "number"), [(0, -3), (220, 8), (221, 9), (224, 9), (240, 9), (241, 10), (380, 16), (4000, 197)]
)
def test_required_threads(connections: int, number: int) -> None:
    assert threads.required_threads(connections) == number
    assert (number + 3) * 20 >= connections > (number + 2) * 20 or not connections


@pytest.mark.parametrize(
    ("connections", "configured", "number"),
    [
        (220, None, None),
        # The number is not below the default of current versions, whichever is installed.
        (221, None, 16),
        (400, None, 17),
        (400, 16, 17),
        (400, 17, None),
        (400, 64, None),
        (240, 4, 9),
        (60, 1, None),
        (0, None, None),
    ],
)
def test_sufficient_threads_are_not_changed(connections: int, configured: int | None, number: int | None) -> None:
    text, count = threads.render_threads_config(
        "lab", connections, DEFAULT_STATE._replace(configured_threads=configured)
    )
    assert (text is None, count or None) == (number is None, number)
    if text:
        assert threads.parse_threads([text]) == number


def test_large_cluster_raises_the_thread_count_until_it_leaves(server: NfsServer) -> None:
    assert not server.apply_plan("lab", 220).changed
    assert not server.path.parent.exists()
    plan = server.apply_plan("lab", 400)
    assert threads.format_threads_diff(plan)[1].endswith("[nfsd]\nthreads=17\nnfsd: 17 threads\n")
    assert server.commands == ["rpc.nfsd 17"]
    # Fewer members need fewer at the next boot, but nothing is taken from a server that runs.
    assert server.apply_plan("lab", 300).live_threads is None
    assert "threads=16" in server.path.read_text()
    server.apply_plan("lab", 0)
    assert not server.path.exists()
    assert server.commands == ["rpc.nfsd 17"]


@pytest.mark.parametrize("text", ["", "0\n"])
def test_stopped_server_only_gets_the_file(server: NfsServer, text: str) -> None:
    server.running.write_text(text)
    assert server.apply_plan("lab", 400).live_threads is None
    assert "threads=17" in server.path.read_text()
    assert server.commands == []


def test_connections_of_all_clusters_are_added(server: NfsServer) -> None:
    server.export("lab", 30)
    assert not server.apply_plan("lab", 120).changed
    # The other one has not been written, since it is small: its members are counted in its exports.
    server.export("two", 50)
    assert server.apply_plan("two", 800).changed
    assert server.commands == ["rpc.nfsd 43"]
    assert "# cluster lab: 120 connections\n# cluster two: 800 connections\n" in server.path.read_text()
    # Each run knows its own cluster better than the others do, and leaves the lines of these alone.
    server.apply_plan("lab", 60)
    assert "# cluster lab: 60 connections\n# cluster two: 800 connections\n" in server.path.read_text()
    assert not server.apply_plan("two", 800).changed
    assert not server.apply_plan("lab", 60).changed
    server.apply_plan("two", 0)
    (server.folder / "exports.d" / "gpumesh-two.exports").unlink()
    server.apply_plan("lab", 60)
    assert not server.path.exists()


def test_unserved_cluster_changes_nothing(server: NfsServer) -> None:
    server.export("two", 100)
    assert not server.apply_plan("lab", 0).changed
    assert not server.apply_plan("two", 200).changed
    server.apply_plan("two", 400)
    assert not server.apply_plan("lab", 0).changed


def test_thread_count_of_the_administrator_is_respected(server: NfsServer) -> None:
    (server.folder / "nfs.conf").write_text("[exportd]\nthreads=1\n[nfsd]\n# threads=8\nthreads = 12\n")
    assert threads.parse_threads([(server.folder / "nfs.conf").read_text()]) == 12
    assert not server.apply_plan("lab", 300).changed
    server.path.parent.mkdir()
    (server.path.parent / "local.conf").write_text('[ nfsd ]\nTHREADS="32" ; many\n')
    assert not server.apply_plan("lab", 700).changed
    server.apply_plan("lab", 1000)
    assert "threads=47" in server.path.read_text()
    assert threads.parse_threads(["", "[nfsd]\nthreads=x\n", "[mountd]\nthreads=5\n"]) is None


def test_settings_in_another_encoding_are_read(server: NfsServer) -> None:
    (server.folder / "nfs.conf").write_bytes("# Größe\n[nfsd]\nthreads=32\n".encode("latin-1"))
    assert not server.apply_plan("lab", 700).changed
