# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded of a rank, and how ranks compare their clocks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import rank_metadata
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    agent,
    gpumesh_profile,
    paths,
    profile,
    request,
    run_environment,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest

KEY = "0f" * 32
RANK_POSITION = run_environment.RankPosition(["n1", "n2"], "n2", 1, 2)


@pytest.mark.parametrize(
    ("text", "meant"), [("torch", "torch:5"), ("torch:12", "torch:12"), ("nsys", "nsys:10"), ("nsys:60", "nsys:60")]
)
def test_valid_profile_requests(text: str, meant: str) -> None:
    assert str(profile.parse_profile(text)) == meant


@pytest.mark.parametrize("text", ["perf", "torch:", "torch:0", "torch:101", "nsys:601", "torch:5:5", "torch:-1"])
def test_invalid_profile_requests(text: str) -> None:
    with pytest.raises(InputError):
        request.validate(RunRequest("nano", ["true"], "/x", profile=text))


def profile_environment(profiled: str, inherited: dict[str, str]) -> dict[str, str]:
    return run_environment.environment(
        inherited, RANK_POSITION, "nano", "/x/nano", 3, {}, "/tmp/l", profile_spec=profiled
    )


def test_profile_is_in_rank_environment() -> None:
    found = profile_environment("torch", {"GPUMESH_PROFILE": "nsys"})
    assert (found["GPUMESH_PROFILE"], found["GPUMESH_PROFILE_DIR"]) == ("torch:5", "/x/nano/profile/003")
    assert found["GPUMESH_PROFILE_NODES"] == "n1,n2"
    # Variables that the user has set for other jobs do not affect a run.
    assert not [
        name for name in profile_environment("", {"GPUMESH_PROFILE": "nsys"}) if name.startswith("GPUMESH_PROFILE")
    ]


def test_command_is_unchanged_without_nsight_systems() -> None:
    for asked in ("", "torch:5"):
        assert profile.rank_command(asked, ["python3", "x"], "/x", 3) == ["python3", "x"]
        assert profile.required_commands(asked) == []
    assert profile.required_commands("nsys") == ["nsys"]


def test_nsight_systems_records_without_stopping_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that records its commands. Like the real one, it starts the program, and ends as that does."""
    log, double = tmp_path / "log", tmp_path / "nsys"
    double.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\ncase $1 in launch) while case $1 in python*) false;; *) true;; esac; do shift; done\n'
        'exec "$@";; esac\n',
        encoding="ascii",
    )
    double.chmod(0o755)
    monkeypatch.setattr(profile, "NSYS_DELAY", 0)
    # The program runs until the recording of one second has ended.
    code = f"import pathlib, sys, time\nwhile '\\nstop ' not in pathlib.Path({str(log)!r}).read_text(): time.sleep(0.1)\nsys.exit(7)"
    argv = profile.rank_command("nsys:1", ["python3", "-c", code], str(tmp_path), 4)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert subprocess.run(argv, env={**os.environ, "PATH": path}, check=False, timeout=240).returncode == 7
    told = log.read_text(encoding="ascii").splitlines()
    session = next(word for word in told[0].split() + told[1].split() if word.startswith("--session")).partition("=")[2]
    assert [line for line in told if line.startswith("start")] == [
        f"start --session={session} --sample=none --cpuctxsw=none --force-overwrite=true --output={tmp_path}/rank-4"
    ]
    assert told[-1] == f"stop --session={session}"
    assert any(line.startswith(f"launch --session-new={session} ") for line in told)


def test_profile_is_complete_when_all_ranks_have_one(tmp_path: Path) -> None:
    for name in ("rank-0.json", "rank-0.trace.json.gz", "rank-1.trace.json.gz"):
        (tmp_path / name).touch()
    assert profile.is_complete(tmp_path, 1) and not profile.is_complete(tmp_path, 2)
    (tmp_path / "rank-1.qdstrm").touch()
    assert profile.is_complete(tmp_path, 2)
    assert not profile.is_complete(tmp_path / "none", 2)


RANK_PROGRAM = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, os.path.dirname({module!r}))
real = time.time_ns
time.time_ns = lambda: real() + int({offset})
import gpumesh_profile
variables = {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "GPUMESH_PROFILE_DIR": {folder!r}}}
neighbours = gpumesh_profile.Neighbours({rank}, 3, variables)
time.sleep({rank} * 0.1)
neighbours.open()
neighbours.measure()
neighbours.close()
Path({folder!r}, "{rank}").write_text(json.dumps([neighbours.clocks, neighbours.links, neighbours.recording]))
# Rank 0 is there for the others.
while not all(Path({folder!r}, str(rank)).exists() for rank in range(3)):
    time.sleep(0.05)
"""


def free_master_port() -> int:
    """One with a free clock port: nothing listens there."""
    while True:
        port = random.randrange(25_000, 29_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", gpumesh_profile.clock_port(port))):
            return port


def test_clock_port_is_a_job_port_and_not_an_agent_port() -> None:
    clocks = {port: gpumesh_profile.clock_port(port) for port in [*paths.MASTER_PORTS, *range(15_000, 25_000)]}
    assert all(15_000 <= port < 25_000 for port in clocks.values())
    assert not [port for port, clock in clocks.items() if clock in (port, port - agent._PROBE_PORT_OFFSET)]


def test_ranks_measure_clocks_and_links(tmp_path: Path) -> None:
    """Each is a process with its own clock."""
    offsets = {0: 0, 1: 5_000_000_000, 2: -40_000_000}
    port = free_master_port()
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RANK_PROGRAM.format(
                    module=gpumesh_profile.__file__, offset=offset, rank=rank, port=port, folder=str(tmp_path)
                ),
            ]
        )
        for rank, offset in offsets.items()
    ]
    assert [rank.wait(240) for rank in ranks] == [0, 0, 0]
    found: dict[int, Any] = {rank: json.loads((tmp_path / str(rank)).read_text()) for rank in offsets}
    assert found[0][0] == []
    for rank in (1, 2):
        assert len(found[rank][0]) == 2
        for clock in found[rank][0]:
            assert abs(clock["ahead"] + offsets[rank]) <= clock["error"] < 100_000_000
    assert {rank: [link["to"] for link in found[rank][1]] for rank in offsets} == {0: [1], 1: [2], 2: [0]}
    assert all(found[rank][1][0]["mbits"] > 10 and found[rank][1][0]["ms"] > 0 for rank in offsets)
    assert len({found[rank][2] for rank in offsets}) == 1 and found[0][2]


def test_each_recording_has_its_own_id(tmp_path: Path) -> None:
    exported, found = tmp_path / "exported", []
    for _recording in range(2):
        variables = {"RANK": "0", "WORLD_SIZE": "2", "GPUMESH_PROFILE_DIR": str(tmp_path)}
        recorder = gpumesh_profile.Recorder(1, str(tmp_path), variables)
        recorder._finished = True
        exported.write_text("{}", encoding="ascii")
        recorder._save_trace(str(exported))
        found.append(
            rank_metadata.parse_metadata(json.loads((tmp_path / "rank-0.json").read_text(encoding="utf-8"))).recording
        )
    assert all(found) and found[0] != found[1]


def test_clock_server_stops_when_all_ranks_have_left() -> None:
    server = gpumesh_profile.ClockServer(("127.0.0.1", 0), 2, KEY, rank_count=3)
    peers = [gpumesh_profile.PeerConnection(server.address, KEY) for _peer in range(2)]
    assert peers[0].ask("nonsense") == ""
    for number, peer in enumerate(peers, 1):
        # A rank that says it twice ends nothing for the other.
        peer.ask(f"bye {number}")
        peer.ask(f"bye {number}")
        peer.close()
    server.join(240)
    assert not server.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, 1)


def test_nothing_is_sent_to_a_foreign_service() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _peer = listening.accept()
            with connection:
                # The nonce of another service, which cannot prove anything. Only the proof of one connection is sent.
                connection.sendall(b"hello\nhello\n")
                while not heard or heard[-1]:
                    heard.append(connection.recv(1000))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(gpumesh_profile.ForeignPeerError):
            gpumesh_profile.PeerConnection(listening.getsockname()[:2], KEY)
        thread.join(240)
    said = b"".join(heard)
    assert said.count(b"\n") == 1 and KEY.encode() not in said


def test_invalid_variables_do_not_stop_the_program(tmp_path: Path) -> None:
    code = "import gpumesh_run\nfor step in range(9): gpumesh_run.progress(step)\nprint('done')"
    wrong = {
        "GPUMESH_PROFILE": "torch:x",
        "RANK": "\u0663",
        "WORLD_SIZE": "-1",
        "MASTER_PORT": "x",
        "MASTER_ADDR": "x y",
    }
    path = str(Path(gpumesh_profile.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **wrong, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "no profile: No module named 'torch'" in done.stderr


def test_program_continues_without_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpumesh_profile, "_PEER_TIMEOUT", 0.2)
    port = free_master_port()
    gpumesh_profile.write_key(str(tmp_path))
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GPUMESH_PROFILE_DIR": str(tmp_path)}
    neighbours = gpumesh_profile.Neighbours(1, 2, variables)
    begun = time.monotonic()
    neighbours.measure()
    neighbours.close()
    assert time.monotonic() - begun < 120
    assert (neighbours.clocks, neighbours.links, neighbours.recording) == ([], [], "")
    assert "clocks and links are not measured" in capsys.readouterr().err
