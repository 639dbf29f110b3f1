# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program whose ranks need each other in every step, as those of PyTorch do, without PyTorch.

    trainer.py STEPS SECONDS [--work SECONDS] [--waiting] [--payload BYTES] [--saving SECONDS] [--times] [--track]
               [--hurry FILE] [--abort] [--starting SECONDS] [--validating SECONDS] [--busy]

In each step, a rank sleeps for some seconds and then computes for some seconds. Optionally, it reports how long it
waits for the others, sends additional data to rank 0, takes longer to save a checkpoint, and tracks its weight. As soon as
a file exists, it no longer sleeps. Rank 1 may abort at its exit, as a destructor of a library may do. Before
the first step, and in each 15th step on rank 0 while the others wait, it may take longer; with --busy, it says so.

In each step, the ranks divide 12 samples, which are numbers, among themselves, and rank 0 adds up the results. The last
line of rank 0 has the resulting weight and the sum of all samples read, which shows whether one was read twice or left
out.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import socket
import struct
import time
from pathlib import Path

import gpumesh_run
import gpumesh_track

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CHECKPOINT = Path(os.environ["GPUMESH_CHECKPOINT_DIR"], "latest.json")
BATCH, INTERVAL, VALIDATED = 12, 10, 15


def connect() -> list[socket.socket]:
    """Connect rank 0 with each of the others. Rank 0 gets one connection per rank, all others get one to rank 0."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        with socket.create_server(address) as server:
            return [server.accept()[0] for _rank in range(SIZE - 1)]
    while True:
        try:
            connection = socket.create_connection(address, 5)
        except OSError:
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            return [connection]


def receive(peer: socket.socket) -> tuple[float, float]:
    data = b""
    while len(data) < 16:
        part = peer.recv(16 - len(data))
        if not part:
            raise RuntimeError("Connection closed by peer")
        data += part
    return struct.unpack("!dd", data)


def drain(peer: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(peer.recv(min(size, 1 << 16))) or size


def all_reduce(peers: list[socket.socket], gradient: float, samples: float, payload: int) -> tuple[float, float]:
    if RANK == 0:
        for peer in peers:
            drain(peer, payload)
        # Sorted, so that the sum is the same to the bit in whatever order the values arrive.
        received = sorted(receive(peer) for peer in peers)
        gradient, samples = gradient + sum(pair[0] for pair in received), samples + sum(pair[1] for pair in received)
        for peer in peers:
            peer.sendall(struct.pack("!dd", gradient, samples))
        return gradient, samples
    peers[0].sendall(bytes(payload) + struct.pack("!dd", gradient, samples))
    return receive(peers[0])


def work(seconds: float) -> None:
    """Use that many seconds of CPU time, however long it takes to get them."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def save(state: dict[str, float], seconds: float) -> bool:
    """Write to another name first. If the volume is full, the last checkpoint is kept, and the next one is tried again."""
    draft, text = CHECKPOINT.with_suffix(".new"), json.dumps(state)
    try:
        with draft.open("w", encoding="ascii") as stream:
            for half in (text[: len(text) // 2], text[len(text) // 2 :]):
                stream.write(half)
                stream.flush()
                time.sleep(seconds / 2)
            os.fsync(stream.fileno())
    except OSError as failure:
        print(f"step {state['step']} is not saved: {failure}")
        return False
    draft.replace(CHECKPOINT)
    return True


def pause(what: str, seconds: float, said: bool) -> contextlib.AbstractContextManager[None]:
    """For work that takes so long. ``said``: gpumesh-train is told."""
    return gpumesh_run.busy(what, 3 * seconds) if said and seconds else contextlib.nullcontext()


def validate(step: int, seconds: float, said: bool) -> None:
    if RANK == 0 and step % VALIDATED == 0:
        with pause("validation", seconds, said):
            time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--work", type=float, default=0.0)
    parser.add_argument("--waiting", action="store_true")
    parser.add_argument("--payload", type=int, default=0)
    parser.add_argument("--saving", type=float, default=0.0)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--track", action="store_true")
    parser.add_argument("--hurry", type=Path)
    parser.add_argument("--abort", action="store_true")
    parser.add_argument("--starting", type=float, default=0.0)
    parser.add_argument("--validating", type=float, default=0.0)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    if given.abort and RANK == 1:
        atexit.register(os.abort)
    steps = given.steps
    state = {"step": 0, "weight": 100.0, "samples": 0.0}
    if CHECKPOINT.exists():
        state = json.loads(CHECKPOINT.read_text(encoding="ascii"))
    saved = state["step"] or None
    print(f"rank {RANK} of {SIZE} begins at step {state['step']}")
    with pause("start", given.starting, given.busy):
        time.sleep(given.starting)
    peers = connect()
    begun = time.monotonic()
    while state["step"] < steps:
        mine = [state["step"] * BATCH + number for number in range(BATCH)][RANK::SIZE]
        gradient = sum(state["weight"] * (1 + sample % 7) for sample in mine)
        with gpumesh_run.waiting() if given.waiting else contextlib.nullcontext():
            gradient, samples = all_reduce(peers, gradient, float(sum(mine)), given.payload)
        state = {
            "step": state["step"] + 1,
            "weight": state["weight"] - 1e-4 * gradient,
            "samples": state["samples"] + samples,
        }
        if not (given.hurry and given.hurry.exists()):
            time.sleep(given.seconds)
        work(given.work)
        stopping = gpumesh_run.stopping()
        validate(state["step"], given.validating, given.busy)
        if RANK == 0 and (stopping or state["step"] % INTERVAL == 0):
            with pause("checkpoint", given.saving, given.busy):
                saved = state["step"] if save(state, given.saving) else saved
        if given.track:
            gpumesh_track.log(state["step"], loss=state["weight"])
        gpumesh_run.progress(state["step"], steps, loss=state["weight"], checkpoint=saved)
        if stopping:
            print(f"stops at step {state['step']}")
            return
    if given.times:
        print(f"steps-took {time.monotonic() - begun:.3f}")
    print(f"weight {state['weight']!r} samples {state['samples']!r}")


if __name__ == "__main__":
    main()
