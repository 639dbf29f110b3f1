"""Hugging Face's Trainer under `gpumesh-train`: two lines make it report, stop in time, and go on where it was.

    gpumesh-train --name hf --nodes 3 -- /mnt/shared/frameworks/bin/python hf.py --steps 60

The model is made from a configuration, so that nothing is downloaded. Checkpoints are not written in one step by Trainer:
the newest complete one is chosen.
"""

from __future__ import annotations

import argparse
import os
import sys

import gpumesh_run
import torch
from torch.utils.data import Dataset, Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

WORDS, LENGTH = 50, 16


class Sequences(Dataset):
    """Sequences in which each word follows from the one before."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(LENGTH) * (1 + number % 7) + number) % WORDS
        return {"input_ids": words, "labels": words}


def main() -> None:
    """Train, and print what the ranks have made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    set_seed(1)
    cpu = not torch.cuda.is_available()
    folder = os.environ.get("GPUMESH_CHECKPOINT_DIR", "checkpoints")
    trainer = Trainer(
        GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2)),
        TrainingArguments(
            folder,
            max_steps=given.steps,
            save_steps=10,
            save_total_limit=3,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=20,
            use_cpu=cpu,
            ddp_backend="gloo" if cpu else None,
            disable_tqdm=True,
            report_to=[],
        ),
        train_dataset=Sequences(),
        eval_dataset=Subset(Sequences(), range(20)),
        callbacks=[gpumesh_run.hf()],
    )
    trainer.train(resume_from_checkpoint=gpumesh_run.newest_checkpoint(folder))
    print(f"{trainer.args.world_size} ranks: step {trainer.state.global_step}")
    # gloo may abort a process while Python takes itself apart, or hang: the run would show a warning, or start again.
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
