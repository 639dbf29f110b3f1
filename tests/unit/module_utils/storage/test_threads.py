# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads of the kernel's NFS server, for the connections of all members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import threads

BARE = threads.Host(None, None, 8, {})


class Server:
    """A host whose server runs with 8 threads. ``told`` are the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.running = folder / "threads"
        self.running.write_text("8\n")
        self.path = folder / "nfs.conf.d" / "zz-gpumesh.conf"
        (folder / "exports.d").mkdir()

    def __call__(self, argv: Sequence[str], **_options: Any) -> Completed:
        self.told.append(" ".join(argv))
        self.running.write_text(f"{argv[-1]}\n")
        return Completed(0, "", "")

    def export(self, cluster: str, members: int) -> None:
        clients = " ".join(f"10.99.0.{number}(rw,fsid=1)" for number in range(members))
        (self.folder / "exports.d" / f"gpumesh-{cluster}.exports").write_text(f'"/srv/a (b)" {clients}\n' * 2)

    def bring(self, cluster: str, connections: int) -> threads.Plan:
        """A run of the cluster, after which another one has nothing to do."""
        found = []
        for _time in range(2):
            own = self.folder / "exports.d" / f"gpumesh-{cluster}.exports"
            host = threads.look(str(own), [str(self.folder / "nfs.conf")], str(self.path), str(self.running))
            found.append(threads.make_plan(cluster, connections, host, str(self.path)))
            threads.apply(self, found[-1])
        assert not found[1].changed
        return found[0]


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.parametrize(
    ("connections", "number"), [(0, -3), (220, 8), (221, 9), (224, 9), (240, 9), (241, 10), (380, 16), (4000, 197)]
)
def test_the_kernel_allows_twenty_connections_for_each_thread(connections: int, number: int) -> None:
    assert threads.needed(connections) == number
    assert (number + 3) * 20 >= connections > (number + 2) * 20 or not connections


@pytest.mark.parametrize(
    ("connections", "configured", "number"),
    [
        (220, None, None),
        # Not below the default of current versions, whichever is installed.
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
def test_only_what_is_not_enough_is_changed(connections: int, configured: int | None, number: int | None) -> None:
    text, count = threads.text_for("lab", connections, BARE._replace(configured=configured))
    assert (text is None, count or None) == (number is None, number)
    if text:
        assert threads.threads_in([text]) == number


def test_a_large_cluster_raises_the_number_now_and_at_boot_until_it_leaves(server: Server) -> None:
    assert not server.bring("lab", 220).changed
    assert not server.path.parent.exists()
    plan = server.bring("lab", 400)
    assert threads.as_diff(plan)[1].endswith("[nfsd]\nthreads=17\nnfsd: 17 threads\n")
    assert server.told == ["rpc.nfsd 17"]
    # Fewer members need fewer at the next boot, but nothing is taken from a server that runs.
    assert server.bring("lab", 300).live is None
    assert "threads=16" in server.path.read_text()
    server.bring("lab", 0)
    assert not server.path.exists()
    assert server.told == ["rpc.nfsd 17"]


@pytest.mark.parametrize("text", ["", "0\n"])
def test_a_server_that_does_not_run_reads_the_file_at_its_start(server: Server, text: str) -> None:
    server.running.write_text(text)
    assert server.bring("lab", 400).live is None
    assert "threads=17" in server.path.read_text()
    assert server.told == []


def test_clusters_that_one_host_serves_are_counted_together(server: Server) -> None:
    server.export("lab", 30)
    assert not server.bring("lab", 120).changed
    # The other one has not been written, since it is small: its members are counted in its exports.
    server.export("two", 50)
    assert server.bring("two", 800).changed
    assert server.told == ["rpc.nfsd 43"]
    assert "# cluster lab: 120 connections\n# cluster two: 800 connections\n" in server.path.read_text()
    # Each run knows its own cluster better than the others do, and leaves the lines of these alone.
    server.bring("lab", 60)
    assert "# cluster lab: 60 connections\n# cluster two: 800 connections\n" in server.path.read_text()
    assert not server.bring("two", 800).changed
    assert not server.bring("lab", 60).changed
    server.bring("two", 0)
    (server.folder / "exports.d" / "gpumesh-two.exports").unlink()
    server.bring("lab", 60)
    assert not server.path.exists()


def test_a_cluster_that_the_host_does_not_serve_changes_nothing(server: Server) -> None:
    server.export("two", 100)
    assert not server.bring("lab", 0).changed
    assert not server.bring("two", 200).changed
    server.bring("two", 400)
    assert not server.bring("lab", 0).changed


def test_what_others_have_set_counts(server: Server) -> None:
    (server.folder / "nfs.conf").write_text("[exportd]\nthreads=1\n[nfsd]\n# threads=8\nthreads = 12\n")
    assert threads.threads_in([(server.folder / "nfs.conf").read_text()]) == 12
    assert not server.bring("lab", 300).changed
    server.path.parent.mkdir()
    (server.path.parent / "local.conf").write_text('[ nfsd ]\nTHREADS="32" ; many\n')
    assert not server.bring("lab", 700).changed
    server.bring("lab", 1000)
    assert "threads=47" in server.path.read_text()
    assert threads.threads_in(["", "[nfsd]\nthreads=x\n", "[mountd]\nthreads=5\n"]) is None


def test_settings_in_another_encoding_are_read(server: Server) -> None:
    (server.folder / "nfs.conf").write_bytes("# Größe\n[nfsd]\nthreads=32\n".encode("latin-1"))
    assert not server.bring("lab", 700).changed
