"""Lightning's Trainer under `gpumesh-train`: two lines make it report, stop in time, and go on where it was.

    gpumesh-train --name lightning --nodes 3 -- /mnt/shared/frameworks/bin/python lightning_fit.py --steps 60

Lightning finds the ranks in the variables of Slurm.
"""

from __future__ import annotations

import argparse
import os
import sys

import gpumesh_run
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Model(lightning.LightningModule):
    """A layer that learns to answer with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
        """The loss of a batch of shape (n, 8)."""
        loss = self.layer(batch).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, _number: int) -> None:
        """The same without a gradient."""
        self.log("validation_loss", self.layer(batch).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.01)


def main() -> None:
    """Train, and print what the ranks have made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    lightning.seed_everything(1, verbose=False)
    folder = os.environ.get("GPUMESH_CHECKPOINT_DIR", "checkpoints")
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("NNODES", "1")),
        strategy="ddp",
        max_steps=given.steps,
        val_check_interval=20,
        limit_val_batches=5,
        log_every_n_steps=5,
        enable_progress_bar=False,
        logger=False,
        callbacks=[
            gpumesh_run.lightning(),
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=10, save_top_k=-1),
        ],
    )
    data = torch.randn(4000, 8, generator=torch.Generator().manual_seed(1))
    trainer.fit(
        Model(), DataLoader(data, batch_size=4), DataLoader(data[:40]), ckpt_path=gpumesh_run.newest_checkpoint(folder)
    )
    print(f"{trainer.world_size} ranks: step {trainer.global_step}")
    # gloo may abort a process while Python takes itself apart, or hang: the run would show a warning, or start again.
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
