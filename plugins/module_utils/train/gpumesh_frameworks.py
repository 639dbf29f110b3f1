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
import glob
import importlib
import importlib.util
import json
import os
import pickle
import re
import signal
import struct
import sys
import zipfile
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

#: Files that torch.save, Trainer and Lightning write, as zip archives.
_ARCHIVES = (".pt", ".pth", ".ckpt", ".bin")
#: The step in a name, such as checkpoint-500, epoch=3-step=1000.ckpt, iter_0000500 or step_500.pt.
_STEP = re.compile(r"(?:checkpoint|step|iter(?:ation)?|ckpt|model)[-_=]?0*(\d+)(?!.*\d)", re.IGNORECASE)
#: torch.save writes these as well; on their own, they need not be checkpoints.
_PICKLES = (".pkl",)
#: How a file begins that old versions of torch.save wrote, and DeepSpeed has it write.
_OLD = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
#: A checkpoint of torch.distributed.checkpoint has this file, which is written last and names those with the tensors.
_METADATA = ".metadata"
_TENSORS = re.compile(rb"__\d+_\d+\.distcp")
#: Such checkpoints inside one of Trainer or accelerate, by FSDP with SHARDED_STATE_DICT.
_SHARDED = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")
#: DeepSpeed's files, and the one beside their directory that names it, which is written last.
_DEEPSPEED, _LATEST = "_states.pt", "latest"
#: What is in a checkpoint as well, and has no weights.
_OTHER = ("training_args", "optimizer", "scheduler", "sampler", "dl_state_dict")
#: Files beside checkpoints that are none: those, and what is left of a model after training.
_NO_CHECKPOINT = (*_OTHER, "optim", "sched", "rng_state", "random_states", "pytorch_model", "adapter_model")
#: Files of which there is one for each rank, or object.
_NUMBER = re.compile(
    r"(?<=^rng_state_)\d+(?=\.pth$)|(?<=^random_states_)\d+|(?<=^custom_checkpoint_)\d+|(?<=_rank)\d+(?=\.bin$)"
    r"|(?<=zero_pp_rank_)\d+"
)
#: What is never there without the other.
_PAIRS = {
    "optimizer.pt": "scheduler.pt",
    "pytorch_model_fsdp.bin": "optimizer.bin",
    "pytorch_model_fsdp_0": "optimizer_0",
    "optimizer_0": "pytorch_model_fsdp_0",
}


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
    """What may be checkpoints, with what they are sorted by: the step if all names have one, or else the time.

    Beside names with a step, one without is that of a checkpoint only if it looks like one: there are logs, and final models.
    """
    with contextlib.suppress(FileNotFoundError):
        entries = [
            entry
            for entry in os.scandir(directory)
            if entry.is_dir() or (entry.name.endswith(_ARCHIVES) and not entry.name.startswith(_NO_CHECKPOINT))
        ]
        found = [(entry, _STEP.search(entry.name)) for entry in entries]
        if any(step for _entry, step in found):
            found = [(entry, step) for entry, step in found if step or complete(entry.path)]
        numbered = all(step for _entry, step in found)
        for entry, step in found:
            with contextlib.suppress(OSError):
                yield (int(step.group(1)) if step and numbered else 0, entry.stat().st_mtime), entry.path


def complete(path: str) -> bool:
    """Whether nothing of a checkpoint is missing: a file of torch or Lightning, or a directory.

    A directory is one of Trainer, with trainer_state.json, of accelerate's save_state, with random_states_*.pkl, of
    torch.distributed.checkpoint, of DeepSpeed, or of Lightning with one of the last two. Files are not read as a whole: an
    archive that was cut off has no directory at its end. What the last rank writes after rank 0 cannot be missed, nor can
    the custom_checkpoint_*.pkl of the first checkpoint.
    """
    try:
        if os.path.isdir(path):
            return _complete_directory(path)
        return _whole(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # The last ones for JSON of another shape.
        return False


def _complete_directory(path: str) -> bool:
    """Raises OSError, ValueError."""
    names = set(os.listdir(path))
    if not _no_gap(names) or not all(_whole(os.path.join(path, name)) for name in names):
        return False
    if _METADATA in names:
        return _complete_distributed(path, names)
    if any(name.endswith(_DEEPSPEED) for name in names):
        return _complete_deepspeed(path, names)
    parts = {name for name in names if _SHARDED.fullmatch(name)}
    if _LATEST in names or any(name.startswith("global_step") for name in names):
        parts.add(_tag(path))
    if "trainer_state.json" in names:
        with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as stream:
            json.load(stream)
    elif "random_states_0.pkl" in names:
        # Rank 0 writes it after the weights, while the others have only theirs to write.
        if not _custom(path) <= names:
            return False
    elif not path.endswith(".ckpt"):
        return False
    shards = _shards(path, names)
    weights = [name for name in names if name.endswith((".safetensors", ".bin")) and not name.startswith(_OTHER)]
    return (
        bool(weights or shards or parts)
        and set(shards) <= names
        and all(other in names for name, other in _PAIRS.items() if name in names)
        and all(_complete_directory(os.path.join(path, part)) for part in parts)
    )


def _no_gap(names: Set[str]) -> bool:
    """Whether there is one for each number up to the highest, and for the same ones of all of DeepSpeed's kinds."""
    found: Dict[str, Set[int]] = {}
    for name in names:
        number = _NUMBER.search(name)
        if number:
            found.setdefault(_NUMBER.sub("", name, count=1), set()).add(int(number.group()))
    kinds = {tuple(sorted(numbers)) for kind, numbers in found.items() if kind.endswith(_DEEPSPEED)}
    return len(kinds) < 2 and all(max(one) - min(one) + 1 == len(one) for one in found.values())


def _complete_distributed(path: str, names: Set[str]) -> bool:
    """Whether one of torch.distributed.checkpoint is complete. Raises OSError."""
    with open(os.path.join(path, _METADATA), "rb") as stream:
        metadata = stream.read()
    sizes = [os.path.getsize(os.path.join(os.fsencode(path), name)) for name in set(_TENSORS.findall(metadata))]
    # Lightning writes a file of its own afterwards.
    return metadata.endswith(b".") and all(sizes) and ("meta.pt" in names or not path.endswith(".ckpt"))


def _complete_deepspeed(path: str, names: Set[str]) -> bool:
    """Whether DeepSpeed has noted that it has written this directory, or a later one. Raises OSError."""
    if not any(name.endswith("model_states.pt") for name in names):
        return False
    own, latest = os.path.basename(path), _tag(os.path.dirname(path))
    steps = [_STEP.search(name) for name in (own, latest)]
    return own == latest or (all(steps) and int(steps[0].group(1)) < int(steps[1].group(1)))  # type: ignore[union-attr]


def _tag(path: str) -> str:
    """The directory that DeepSpeed wrote last. Raises OSError."""
    with open(os.path.join(path, _LATEST), encoding="utf-8") as stream:
        return stream.read().strip()


def _custom(path: str) -> Set[str]:
    """What programs have registered with accelerate, which writes it last: as many files as in the other checkpoints."""
    found = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "*", "custom_checkpoint_*.pkl"))
    return {os.path.basename(name) for name in found}


def _shards(path: str, names: Set[str]) -> List[str]:
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
    if not path.endswith(_ARCHIVES + _PICKLES) or os.path.isdir(path):
        return True
    with open(path, "rb") as stream:
        start = stream.read(len(_OLD))
        if start == _OLD:
            # The tensors follow, and no end.
            return True
        if start[:2] != b"PK":
            # A pickle ends with a full stop.
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

    ``run``: the module gpumesh_run. Each rank needs one: Trainer(..., callbacks=[gpumesh_run.hf()]). It sets the option
    logging_nan_inf_filter to False, so that a loss that is not a number is logged as it is, and can be reported.
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

        def on_train_begin(self, args: Any, _state: Any, _control: Any, **_more: Any) -> None:
            """Otherwise, Trainer would log other numbers in place of a loss that is not one."""
            args.logging_nan_inf_filter = False

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
