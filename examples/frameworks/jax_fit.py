"""JAX on several nodes under `gpumesh-train`.

    gpumesh-train --name jax --nodes 3 -- /mnt/shared/frameworks/bin/python jax_fit.py --steps 200

`jax.distributed.initialize` gets what `gpumesh-train` sets. Each rank has its part of the batch, and the model is on all.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

import gpumesh_run
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH, WIDTH, INTERVAL = 24, 8, 20


def loss_of(weights: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """How far a small network is from the sum of its inputs."""
    hidden = jnp.tanh(inputs @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - inputs.sum(1, keepdims=True)) ** 2)


@partial(jax.jit, donate_argnums=0)
def make_step(weights: dict[str, jax.Array], inputs: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """The weights after a step, and its loss. The ranks exchange their gradients in it."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, inputs)
    return jax.tree.map(lambda one, slope: one - 0.01 * slope, weights, gradient), loss


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        # Each rank has the GPU with its local number, or the processor.
        jax.distributed.initialize(address, world, rank, local_device_ids=int(os.environ["LOCAL_RANK"]))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    path = Path(os.environ.get("GPUMESH_CHECKPOINT_DIR", "."), "weights.npz")
    chance = np.random.default_rng(1)
    host = {"step": np.array(0), "in": chance.normal(size=(WIDTH, 32)), "out": chance.normal(size=(32, 1))}
    if rank == 0 and path.exists():
        with np.load(path) as stored:
            host = {name: stored[name] for name in host}
    # Rank 0 reads for all: the others may see the last checkpoint on a shared volume late.
    host = multihost_utils.broadcast_one_to_all(host)
    step = int(host.pop("step"))
    saved = step or None
    weights = jax.device_put(
        {name: np.float32(one) for name, one in host.items()}, NamedSharding(mesh, PartitionSpec())
    )
    while step < given.steps:
        whole = np.random.default_rng(step).normal(size=(BATCH, WIDTH)).astype(np.float32)
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        inputs = jax.make_array_from_callback(whole.shape, sharding, lambda index, whole=whole: whole[index])
        weights, loss = make_step(weights, inputs)
        step += 1
        stop = bool(multihost_utils.process_allgather(np.array(gpumesh_run.stopping())).any())
        if step % INTERVAL == 0 or stop:
            if rank == 0:
                draft = path.with_suffix(".new.npz")
                np.savez(draft, step=step, **{name: np.asarray(one) for name, one in weights.items()})
                draft.replace(path)
            saved = step
        gpumesh_run.progress(step, given.steps, float(loss), saved)
        if stop:
            break
    if rank == 0:
        print(f"{world} ranks: step {step}")


if __name__ == "__main__":
    main()
