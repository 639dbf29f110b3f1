# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `gpumesh_run` has for other people's training loops: callbacks, and the newest checkpoint that is complete.

    gpumesh_run.hf()                   for the Trainer of Hugging Face
    gpumesh_run.lightning()            for the Trainer of Lightning
    gpumesh_run.newest_checkpoint()    for any program that stores checkpoints in the layout of one of them, or of torch

It requires only Python. The frameworks are imported when a callback is made.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import struct
import sys
import zipfile
from typing import Any, Iterator, List, Optional, Tuple

#: Files that torch.save, Trainer and Lightning write, as zip archives.
_ARCHIVES = (".pt", ".pth", ".ckpt", ".bin")
#: The step in a name, such as checkpoint-500, epoch=3-step=1000.ckpt, iter_0000500 or step_500.pt.
_STEP = re.compile(r"(?:checkpoint|step|iter(?:ation)?|ckpt|model)[-_=]?0*(\d+)(?!.*\d)", re.IGNORECASE)
#: A checkpoint of torch.distributed.checkpoint has this file, which is written last.
_METADATA = ".metadata"


# --- Checkpoints


def newest_checkpoint(directory: str) -> Optional[str]:
    """The path of the newest checkpoint in a directory that is complete; None if there is none.

    A checkpoint during which the program was killed is passed over. If torch.distributed has been initialised, rank 0
    chooses for all ranks, which may see the latest files on a shared volume at different times. Otherwise, each rank
    chooses.
    """
    distributed = _distributed()
    if distributed is None:
        return _newest(directory)
    chosen = [_newest(directory) if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(chosen, src=0)
    return chosen[0]


def _newest(directory: str) -> Optional[str]:
    candidates = sorted(_candidates(directory), reverse=True)
    return next((path for _order, path in candidates if complete(path)), None)


def _candidates(directory: str) -> Iterator[Tuple[Tuple[int, float], str]]:
    """What may be checkpoints, with what they are sorted by: the step if all names have one, or else the time."""
    with contextlib.suppress(FileNotFoundError):
        entries = [entry for entry in os.scandir(directory) if entry.is_dir() or entry.name.endswith(_ARCHIVES)]
        found = [(entry, _STEP.search(entry.name)) for entry in entries]
        numbered = all(step for _entry, step in found)
        for entry, step in found:
            with contextlib.suppress(OSError):
                yield (int(step.group(1)) if step and numbered else 0, entry.stat().st_mtime), entry.path


def complete(path: str) -> bool:
    """Whether nothing of a checkpoint is missing: a file of torch or Lightning, or a directory.

    A directory is one of Trainer, which has trainer_state.json, or of torch.distributed.checkpoint. Files are not read as
    a whole: an archive that was cut off has no directory at its end.
    """
    try:
        if os.path.isdir(path):
            return _complete_directory(path)
        return _whole(path)
    except (OSError, ValueError):
        return False


def _complete_directory(path: str) -> bool:
    names = os.listdir(path)
    files = [os.path.join(path, name) for name in names]
    if _METADATA in names:
        return os.path.getsize(os.path.join(path, _METADATA)) > 0
    if "trainer_state.json" not in names:
        return False
    with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as stream:
        json.load(stream)
    shards = _shards(path, names)
    weights = [
        name for name in names if name.endswith((".safetensors", ".bin")) and not name.startswith("training_args")
    ]
    return bool(weights or shards) and set(shards) <= set(names) and all(_whole(file) for file in files)


def _shards(path: str, names: List[str]) -> List[str]:
    """The files with the weights of a model that was too large for one. Raises OSError, ValueError."""
    found: List[str] = []
    for name in names:
        if name.endswith(".index.json"):
            with open(os.path.join(path, name), encoding="utf-8") as stream:
                found += set(json.load(stream).get("weight_map", {}).values())
    return found


def _whole(path: str) -> bool:
    """Whether a file that has a length or an end of its own is not cut off. Raises OSError."""
    if path.endswith(".safetensors"):
        return _whole_safetensors(path)
    if not path.endswith(_ARCHIVES):
        return True
    with open(path, "rb") as stream:
        if stream.read(2) != b"PK":
            # What old versions wrote is a pickle, which ends with a full stop.
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"."
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return bool(archive.namelist())
    return False


def _whole_safetensors(path: str) -> bool:
    """Raises OSError, ValueError."""
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            return False
        length = struct.unpack("<Q", start)[0]
        if length > size:
            return False
        header = json.loads(stream.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return bool(size == 8 + length + max(ends, default=0))


# --- Callbacks


def _distributed() -> Any:
    """torch.distributed, if the program has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    ready: bool = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _any_rank(flag: bool, device: Any) -> bool:
    """Whether the flag is set on any rank: all have to save and stop after the same step."""
    distributed = _distributed()
    if distributed is None:
        return flag
    torch = sys.modules["torch"]
    flags = torch.tensor([int(flag)], device=device)
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)
    return bool(flags.item())


def hf(run: Any) -> Any:
    """A callback for the Trainer of Hugging Face, which reports the progress, and saves and stops when it is time.

    ``run``: the module gpumesh_run. Each rank needs one: Trainer(..., callbacks=[gpumesh_run.hf()]).
    """
    base = importlib.import_module("transformers").TrainerCallback

    class Report(base):  # type: ignore[misc,valid-type]
        """Its methods have the names and parameters that Trainer calls."""

        def __init__(self) -> None:
            self._loss: Optional[float] = None
            self._saved: Optional[int] = None

        def _report(self, state: Any) -> None:
            if state.global_step:
                run.progress(state.global_step, state.max_steps, self._loss, self._saved)

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_more: Any) -> None:
            """The loss is known only when it is logged."""
            self._loss = (logs or {}).get("loss", self._loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> Any:
            """After a step of the optimizer."""
            self._report(state)
            if _any_rank(run.stopping(), args.device):
                control.should_save = control.should_training_stop = True
            return control

        def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
            """A step of an evaluation is a sign of life."""
            self._report(state)

        def on_save(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
            """A checkpoint is complete."""
            self._saved = state.global_step
            self._report(state)

    return Report()


def lightning(run: Any) -> Any:
    """A callback for the Trainer of Lightning, which reports the progress, and saves and stops when it is time.

    ``run``: the module gpumesh_run. Each rank needs one: Trainer(..., callbacks=[gpumesh_run.lightning()]). What it saves
    when it stops is in GPUMESH_CHECKPOINT_DIR.
    """
    name = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    base = importlib.import_module(name).Callback

    class Report(base):  # type: ignore[misc,valid-type]
        """Its methods have the names and parameters that Trainer calls."""

        def __init__(self) -> None:
            self._saving: Optional[int] = None
            self._saved: Optional[int] = None

        def _report(self, trainer: Any) -> None:
            steps = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
            loss = trainer.callback_metrics.get("train_loss", trainer.callback_metrics.get("loss"))
            if trainer.global_step:
                run.progress(
                    trainer.global_step,
                    int(steps) if steps != float("inf") else None,
                    None if loss is None else float(loss),
                    self._saved,
                )

        def on_train_start(self, _trainer: Any, _module: Any) -> None:
            """Lightning's own handler would have Slurm start the job again, and end this one."""
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGUSR1, run.warn)

        def on_save_checkpoint(self, trainer: Any, _module: Any, _checkpoint: Any) -> None:
            """A checkpoint is about to be written."""
            self._saving = trainer.global_step

        def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _number: int) -> None:
            """After a batch."""
            self._saved = self._saving
            self._report(trainer)
            if trainer.strategy.reduce_boolean_decision(run.stopping(), all=False) and not trainer.should_stop:
                folder = os.environ.get("GPUMESH_CHECKPOINT_DIR", trainer.default_root_dir)
                trainer.save_checkpoint(os.path.join(folder, f"step={trainer.global_step}.ckpt"))
                self._saved = trainer.global_step
                self._report(trainer)
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, _module: Any) -> None:
            """The last checkpoint has been written."""
            self._saved = self._saving
            self._report(trainer)

        def on_validation_batch_end(self, trainer: Any, *_given: Any, **_more: Any) -> None:
            """A batch of a validation is a sign of life."""
            self._report(trainer)

    return Report()
