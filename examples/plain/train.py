"""A training program that needs nothing but Python, to see a run go on when a host dies.

    gpumesh-train --name demo --nodes 3 --min-nodes 2 -- python3 train.py

The ranks fit a curve through noisy points: each takes its share of the points of a step, and rank 0 adds up the gradients
over TCP, which is what NCCL or Gloo would do. Rank 0 saves a checkpoint every 20 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import time
from pathlib import Path
from typing import TextIO

import gpumesh_run  # gpumesh-train puts it there.

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CHECKPOINT = Path(os.environ["GPUMESH_CHECKPOINT_DIR"], "curve.json")
BATCH, INTERVAL, RATE = 60, 20, 0.5


class Peers:
    """Connections between rank 0 and each of the others."""

    def __init__(self) -> None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if RANK == 0:
            with socket.create_server(address) as server:
                connections = [server.accept()[0] for _rank in range(WORLD_SIZE - 1)]
        else:
            connections = [connect(address)]
        self.streams = [connection.makefile("rw", encoding="ascii") for connection in connections]

    def sum(self, values: list[float]) -> list[float]:
        """Add up the values of all ranks. Every rank gets the sums. Raises EOFError if a rank has gone."""
        if RANK > 0:
            self.send(values)
            return self.receive(self.streams[0])
        shares = [values, *(self.receive(stream) for stream in self.streams)]
        sums = [math.fsum(column) for column in zip(*shares)]
        self.send(sums)
        return sums

    def send(self, values: list[float]) -> None:
        """Send values to each connected rank."""
        for stream in self.streams:
            print(json.dumps(values), file=stream, flush=True)

    @staticmethod
    def receive(stream: TextIO) -> list[float]:
        """Receive the values of a rank. Raises EOFError if it has gone."""
        line = stream.readline()
        if not line:
            raise EOFError("another rank has gone")
        return json.loads(line)


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to rank 0, which may not listen yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(address, 5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            return connection


def gradients(step: int, weights: list[float]) -> list[float]:
    """The sums of the gradients and of the squared errors over this rank's share of the points of a step."""
    points = random.Random(step)
    sums = [0.0] * (len(weights) + 1)
    for number in range(BATCH):
        x, noise = points.uniform(-1, 1), points.gauss(0, 0.05)
        if number % WORLD_SIZE != RANK:
            continue
        error = sum(weight * x**power for power, weight in enumerate(weights)) - math.sin(3 * x) - noise
        for power in range(len(weights)):
            sums[power] += error * x**power
        sums[-1] += error * error
    return sums


def main() -> None:
    """Train from the last checkpoint on."""
    parser = argparse.ArgumentParser(description="Fit a curve over all ranks, from the last checkpoint on.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds before each step, to have time to look")
    arguments = parser.parse_args()
    step, weights = 0, [0.0] * 6
    if CHECKPOINT.exists():
        saved_state = json.loads(CHECKPOINT.read_text(encoding="ascii"))
        step, weights = saved_state["step"], saved_state["weights"]
    peers, saved_step, loss = Peers(), step or None, math.nan
    while step < arguments.steps:
        time.sleep(arguments.pause)
        *sums, error_sum, stop_count = peers.sum([*gradients(step, weights), float(gpumesh_run.stopping())])
        weights = [weight - RATE * gradient / BATCH for weight, gradient in zip(weights, sums)]
        step, loss = step + 1, error_sum / BATCH
        if step % INTERVAL == 0 or step == arguments.steps or stop_count:
            if RANK == 0:
                # Under another name first: a checkpoint is whole, or it is not there.
                draft = CHECKPOINT.with_suffix(".new")
                draft.write_text(json.dumps({"step": step, "weights": weights}), encoding="ascii")
                draft.replace(CHECKPOINT)
            saved_step = step
        gpumesh_run.progress(step, arguments.steps, loss=loss, checkpoint=saved_step if RANK == 0 else None)
        if stop_count:
            return
    if RANK == 0:
        print(f"{WORLD_SIZE} ranks: loss {loss:.6f}")


if __name__ == "__main__":
    main()
