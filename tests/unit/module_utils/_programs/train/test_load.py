# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent measures, on real processes and sockets of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import load, processes


def test_longest_waiting_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = {10: {10: 0, 11: 0}, 20: {20: 5 * 10**9}, 21: {21: 0}}
    monkeypatch.setattr(processes, "run_delays", lambda pid: delays.get(pid, {}))
    held = load.CpuWait()
    groups = {0: [10], 1: [20, 21], 2: [30]}
    assert held.wait_shares(groups, 100.0) == {}
    delays[10] = {10: 10**9, 11: 4 * 10**9, 12: 9 * 10**9}
    delays[20] = {20: 6 * 10**9}
    # Thread 12 is new, and rank 2 has none.
    assert held.wait_shares(groups, 105.0) == {0: 0.8, 1: 0.2}


def test_kernel_reports_run_delay_of_threads() -> None:
    one = {min(os.sched_getaffinity(0))}
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin, start_new_session=True) for _number in range(2)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, one)
        groups = processes.members_by_group([process.pid for process in spinning])
        assert groups == {process.pid: [process.pid] for process in spinning}
        held = load.CpuWait()
        held.wait_shares(groups, time.monotonic())
        time.sleep(1.5)
        # They share one processor.
        assert min(held.wait_shares(groups, time.monotonic()).values()) > 0.25
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_missing_process_has_no_delays() -> None:
    assert processes.run_delays(2**22 + 1) == {}


def test_handshake_is_timed_while_peer_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listener = load.HandshakeListener("127.0.0.1", port)
    took = load.time_handshake("127.0.0.1", port)
    assert took is not None and 0 < took < 1000
    # If the port is in use, only the measurement is lost.
    load.HandshakeListener("127.0.0.1", port).close()
    listener.close()
    assert load.time_handshake("127.0.0.1", port) is None


def test_each_node_times_the_nodes_that_follow_it() -> None:
    assert load.choose_peers(["n1", "n2", "n3"], "n2") == ["n3", "n1"]
    many = [f"n{number}" for number in range(20)]
    assert load.choose_peers(many, "n18") == ["n19", *many[:7]]


def test_load_is_measured_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "EVALUATION_INTERVAL", 0.05)
    # Threads of other tests may end meanwhile.
    before = set(threading.enumerate())
    measuring = load.LoadMonitor({3: os.getpgrp()}, {"n2": "127.0.0.1"}, 1)
    samples = [measuring.take_sample()]

    def is_measured() -> bool:
        samples.append(measuring.take_sample())
        return bool(samples[-1] and samples[-1]["held"])

    wait_until("the load is measured", is_measured)
    sample = samples[-1]
    assert sample is not None and set(sample["held"]) == {3} and sample["trips"] == {}
    started = set(threading.enumerate()) - before
    assert started
    measuring.close()
    wait_until("its threads have ended", lambda: not any(thread.is_alive() for thread in started))
