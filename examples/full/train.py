"""Train a small GPT on texts of Debian, whatever happens to processes and nodes.

    python3 prepare.py /mnt/shared/corpus
    gpumesh-train --name gpt --nodes 3 --code . --stage /mnt/shared/corpus -- python3 train.py --steps 2000

A run that was interrupted gives the same model as one that was not, to the bit, as long as the number of ranks is the same. With
fewer ranks the batch stays the same; each rank makes more passes for it.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ending
import torch
import torch.distributed as dist
from checkpoint import Writer, agreed
from data import Corpus, fingerprint, sample_at, share, verify
from log import Log
from model import Block, Gpt, Shape, rate
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

try:
    import gpumesh_run  # gpumesh-train puts it there.
except ImportError:
    gpumesh_run = None

#: All of the state on each rank, on the CPU.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Training:
    """The state of a run: everything that a checkpoint has."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        self._given = given
        self._device = device
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._corpus = Corpus(given.data, given.length)
        #: Steps that were made, samples that were read, and which.
        self.step = self._position = self._read = 0
        self.loss = float("nan")
        # The same weights on all ranks, then other random numbers on each.
        torch.manual_seed(given.seed)
        shape = Shape(given.length, given.layers, given.heads, given.width, given.dropout)
        self._model = self._wrapped(Gpt(shape).to(device))
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=given.rate, betas=(0.9, 0.95), weight_decay=0.1
        )
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: rate(step, given.steps, given.warm_up)
        )
        self._settle()
        self._reseed()

    def _settle(self) -> None:
        """Two passes that change nothing.

        DDP chooses after the first one which gradients it adds up together, and in which order. So without them the first step
        after a restart would be another one than without the restart, in the last bits.
        """
        nothing = torch.zeros(1, self._given.length, dtype=torch.long, device=self._device)
        for _pass in range(2):
            self._model(nothing, nothing).backward()
        self._optimizer.zero_grad()

    def _wrapped(self, model: Gpt) -> Any:
        if self._given.fsdp:
            half = MixedPrecision(torch.bfloat16, torch.float32, torch.float32) if self._half else None
            return FullyShardedDataParallel(
                model,
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                mixed_precision=half,
                device_id=self._device if self._device.type == "cuda" else None,
                use_orig_params=True,
            )
        return DistributedDataParallel(model)

    @property
    def _half(self) -> bool:
        return self._device.type == "cuda" and bool(torch.cuda.is_bf16_supported())

    def _reseed(self) -> None:
        torch.manual_seed((self._given.seed * 1_000_003 + self.step) * 65_537 + self._rank)

    def content(self) -> bytes:
        """The state of all ranks, for a checkpoint. All ranks call it."""
        model, optimizer = get_state_dict(self._model, self._optimizer, options=_WHOLE)
        random: list[Any] = [None] * self._ranks
        own = (torch.get_rng_state(), torch.cuda.get_rng_state() if self._device.type == "cuda" else None)
        dist.all_gather_object(random, own)
        if self._rank:
            return b""
        state = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self._scheduler.state_dict(),
            "random": random,
            "step": self.step,
            "position": self._position,
            "read": self._read,
            "loss": self.loss,
        }
        stream = io.BytesIO()
        torch.save(state, stream)
        return stream.getvalue()

    def load(self, content: bytes) -> None:
        """Go on from a checkpoint."""
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_WHOLE,
        )
        self._scheduler.load_state_dict(state["scheduler"])
        self.step, self._position, self._read = state["step"], state["position"], state["read"]
        self.loss = state["loss"]
        if len(state["random"]) == self._ranks:
            on_cpu, on_gpu = state["random"][self._rank]
            torch.set_rng_state(on_cpu)
            if on_gpu is not None and self._device.type == "cuda":
                torch.cuda.set_rng_state(on_gpu)
        else:
            self._reseed()

    def make_step(self, stopping: bool) -> bool:
        """One step of all ranks; whether one of them was told to stop."""
        given, corpus = self._given, self._corpus
        parts = share(self._position, given.batch, self._rank, self._ranks, given.most)
        tokens = given.batch * given.length
        self._optimizer.zero_grad()
        total = 0.0
        for number, positions in enumerate(parts, start=1):
            # A part without samples counts nothing, but the other ranks wait for it.
            chosen = [sample_at(position, corpus.samples) for position in positions or [self._position]]
            weight = 1.0 if positions else 0.0
            raw = bytearray(b"".join(corpus.sample(sample) for sample in chosen))
            samples = torch.frombuffer(raw, dtype=torch.uint8).view(len(chosen), -1).to(self._device).long()
            alone = self._model.no_sync() if number < len(parts) else nullcontext()
            half = torch.autocast("cuda", torch.bfloat16) if self._half and not given.fsdp else nullcontext()
            with alone:
                with half:
                    losses = self._model(samples[:, :-1], samples[:, 1:]) * weight
                # The mean over the ranks of this is the mean over all samples of the batch.
                (losses * (self._ranks / tokens)).backward()
            total += losses.item()
        self._clip()
        self._optimizer.step()
        self._scheduler.step()
        mine = [position for positions in parts for position in positions]
        told = torch.tensor(
            [total, float(stopping), float(fingerprint(mine, corpus.samples))], dtype=torch.float64, device=self._device
        )
        dist.all_reduce(told)
        self.step += 1
        self._position += given.batch
        self._read += int(told[2].item())
        self.loss = told[0].item() / tokens
        return bool(told[1].item() > 0)

    def _clip(self) -> None:
        if self._given.fsdp:
            self._model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)

    def note(self) -> str:
        """A line of the log of losses."""
        made = {
            "step": self.step,
            "loss": self.loss,
            "rate": self._scheduler.get_last_lr()[0],
            "ranks": self._ranks,
            "attempt": int(os.environ.get("GPUMESH_ATTEMPT", "1")),
            "time": time.time(),
        }
        return json.dumps(made) + "\n"

    def complete(self) -> bool:
        """Whether each sample was read that was to be read, and none twice."""
        return self._read == fingerprint(list(range(self._position)), self._corpus.samples)


def of_rank_0(value: int | None) -> int | None:
    """The value of rank 0, on all ranks."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def train(training: Training, given: argparse.Namespace, told: Callable[[int, float, int | None], None]) -> None:
    """Make the steps that are left, unless the rank is told to stop."""
    writer = Writer(given.checkpoints, given.keep)
    first = dist.get_rank() == 0
    content = agreed(given.checkpoints, dist.get_rank(), of_rank_0)
    if content is not None:
        training.load(content)
        writer.saved = training.step
    log = Log(given.log if first else Path(os.devnull))
    while training.step < given.steps:
        stop = training.make_step(gpumesh_run is not None and gpumesh_run.stopping())
        log.write(training.note())
        if stop or training.step % given.interval == 0 or training.step == given.steps:
            content = training.content()
            if first:
                writer.save(training.step, content)
        told(training.step, training.loss, writer.saved if first else None)
        if stop:
            break
    writer.finish(given.patience)
    log.close()
    told(training.step, training.loss, writer.saved if first else None)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a small GPT over all ranks, from the last checkpoint on.")
    default = Shape()
    folder = Path(os.environ.get("GPUMESH_RUN_DIR", "."))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GPUMESH_STAGE_DIR", "data")))
    parser.add_argument("--checkpoints", type=Path, default=folder / "checkpoints")
    parser.add_argument("--log", type=Path, default=folder / "loss.jsonl", help="a line for each step")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=48, help="samples of a step, of all ranks together")
    parser.add_argument("--most", type=int, default=16, help="samples that a rank takes at the same time")
    parser.add_argument("--interval", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that are kept")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for the last checkpoint to be written")
    parser.add_argument("--rate", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--warm-up", type=int, default=100, help="steps up to it")
    parser.add_argument("--length", type=int, default=default.length)
    parser.add_argument("--layers", type=int, default=default.layers)
    parser.add_argument("--heads", type=int, default=default.heads)
    parser.add_argument("--width", type=int, default=default.width)
    parser.add_argument("--dropout", type=float, default=default.dropout)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fsdp", action="store_true", help="for models that are too large for one GPU")
    return parser.parse_args()


def main() -> None:
    """Train on all ranks."""
    ending.prepare()
    given = arguments()
    given.checkpoints.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # What has no implementation on a GPU that gives the same to the bit is used all the same, with a warning.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    if given.fsdp and device.type == "cpu":
        sys.exit("--fsdp needs GPUs")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    verify(given.data)
    training = Training(given, device)

    def told(step: int, loss: float, saved: int | None) -> None:
        if gpumesh_run is not None:
            gpumesh_run.progress(step, given.steps, loss=loss, checkpoint=saved)

    train(training, given, told)
    if dist.get_rank() == 0:
        samples = "each sample once" if training.complete() else "SAMPLES ARE MISSING OR WERE READ TWICE"
        print(
            f"{dist.get_world_size()} ranks on {device.type}: step {training.step}, loss {training.loss!r}, {samples}"
        )
    # What DDP has wrapped refers to itself and to the process group, and must not outlive that.
    del training
    gc.collect()
    dist.destroy_process_group()
    ending.complete()


if __name__ == "__main__":
    main()
