"""A loop with accelerate under `gpumesh-train`: Accelerator finds the ranks in the environment, without a launcher.

    gpumesh-train --name loop --nodes 3 -- /mnt/shared/frameworks/bin/python accelerate_loop.py --steps 200

`save_state` writes a directory, which gets its name when all ranks have written their part.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import gpumesh_run
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, set_seed
from torch.utils.data import DataLoader, TensorDataset

INTERVAL = 20


def newest(folder: Path) -> Path | None:
    """The last complete checkpoint, which rank 0 chooses for all."""
    chosen = [max(folder.glob("step-*[0-9]"), key=lambda path: int(path.name[5:]), default=None)]
    return broadcast_object_list(chosen)[0]


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save a checkpoint under another name first."""
    draft = folder / f"step-{step}.new"
    accelerator.save_state(str(draft))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process and not (folder / f"step-{step}").exists():
        draft.rename(folder / f"step-{step}")


def main() -> None:
    """Train, and print what the ranks have made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    folder = Path(os.environ.get("GPUMESH_CHECKPOINT_DIR", "checkpoints"))
    cpu = not torch.cuda.is_available()
    # On processors, accelerate starts no exchange between ranks unless it is told with what.
    accelerator = Accelerator(cpu=cpu, kwargs_handlers=[InitProcessGroupKwargs("gloo")] if cpu else None)
    set_seed(1)
    inputs = torch.randn(4000, 8, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), data)
    step, saved, stop = 0, None, False
    resumed = newest(folder)
    if resumed:
        accelerator.load_state(str(resumed))
        step = saved = int(resumed.name[5:])
    while step < given.steps and not stop:
        data.set_epoch(step // len(data))
        # In the middle of an epoch, without what has been read of it.
        for batch, target in accelerator.skip_first_batches(data, step % len(data)):
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            flag = torch.tensor(int(gpumesh_run.stopping()), device=accelerator.device)
            # All ranks save and stop after the same step.
            stop = bool(accelerator.reduce(flag, "sum"))
            if step % INTERVAL == 0 or stop:
                save(accelerator, folder, step)
                saved = step
            gpumesh_run.progress(step, given.steps, loss.item(), saved)
            if stop or step == given.steps:
                break
    accelerator.print(f"{accelerator.num_processes} ranks: step {step}")
    # gloo may abort a process while Python takes itself apart, or hang: the run would show a warning, or start again.
    accelerator.wait_for_everyone()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
