"""A script in the manner of nanoGPT under `gpumesh-train`: one `ckpt.pt`, and `--init_from=resume` to go on from it.

    gpumesh-train --name nano --nodes 3 -- python3 nano.py --init_from=auto --max_iters=200

Lines that were added for `gpumesh-train` end with a comment. The other change is that a checkpoint is written under
another name first: nanoGPT overwrites its only one, and a kill meanwhile would lose the run.
"""

from __future__ import annotations

import argparse
import os

import gpumesh_run  # gpumesh
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH = 64, 32


class Model(torch.nn.Module):
    """A layer of attention, which predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, 32)
        self.places = torch.nn.Embedding(LENGTH, 32)
        self.block = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(32, WORDS)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss."""
        length = words.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        seen = self.words(words) + self.places(torch.arange(length, device=words.device))
        logits = self.head(self.block(seen, src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(number: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences of a step and a rank, which depend on nothing else."""
    chance = torch.Generator().manual_seed(number)
    start = torch.randint(WORDS, (8, 1), generator=chance)
    words = (start + torch.arange(LENGTH + 1) * (1 + start % 5)) % WORDS
    return words[:, :-1].to(device), words[:, 1:].to(device)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_from", choices=("scratch", "resume", "auto"), default="scratch")
    parser.add_argument("--out_dir", default=os.environ.get("GPUMESH_CHECKPOINT_DIR", "out"))  # gpumesh
    parser.add_argument("--max_iters", type=int, default=200)
    parser.add_argument("--eval_interval", type=int, default=20)
    given = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    if world > 1:
        init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(1337)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    iter_num = saved = 0
    path = os.path.join(given.out_dir, "ckpt.pt")
    if given.init_from == "resume" or (given.init_from == "auto" and gpumesh_run.newest_checkpoint(given.out_dir)):
        checkpoint = torch.load(path, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        iter_num = saved = checkpoint["iter_num"]
    trained = DistributedDataParallel(model) if world > 1 else model
    while iter_num < given.max_iters:
        loss = trained(*batch(iter_num * world + rank, device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        iter_num += 1
        stop = torch.tensor(int(gpumesh_run.stopping()), device=device)  # gpumesh
        if world > 1:
            torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)  # gpumesh: all stop after the same step
        if iter_num % given.eval_interval == 0 or stop:
            if rank == 0:
                os.makedirs(given.out_dir, exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
                torch.save(state, path + ".new")
                os.replace(path + ".new", path)
                print(f"iter {iter_num}: loss {loss.item():.4f}")
            saved = iter_num if rank == 0 else saved
        gpumesh_run.progress(iter_num, given.max_iters, loss.item(), saved or None)  # gpumesh
        if stop:
            break
    if rank == 0:
        print(f"{world} ranks: step {iter_num}")
    if world > 1:
        destroy_process_group()


if __name__ == "__main__":
    main()
