# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Support of `gpumesh_run` for training frameworks: callbacks, and the newest checkpoint that is complete.

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
_ARCHIVE_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
#: The pattern of the step in a name, such as checkpoint-500, epoch=3-step=1000.ckpt, iter_0000500 or step_500.pt.
_STEP_PATTERN = re.compile(r"(?:checkpoint|step|iter(?:ation)?|ckpt|model)[-_=]?0*(\d+)(?!.*\d)", re.IGNORECASE)
#: Suffixes that torch.save uses as well; such files need not be checkpoints on their own.
_PICKLE_SUFFIXES = (".pkl",)
#: The first bytes of a file in the old format of torch.save, which DeepSpeed still uses.
_LEGACY_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
#: The file of torch.distributed.checkpoint that is written last and names the files with the tensors.
_METADATA_FILE = ".metadata"
_TENSOR_FILE = re.compile(rb"__\d+_\d+\.distcp")
#: Directories of torch.distributed.checkpoint in a checkpoint of Trainer or accelerate: FSDP with SHARDED_STATE_DICT.
_SHARDED_DIRECTORY = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")
#: The suffix of DeepSpeed's files, and the file beside their directory that names it, which is written last.
_DEEPSPEED_SUFFIX, _LATEST_FILE = "_states.pt", "latest"
#: Prefixes of files in a checkpoint that contain no weights.
_WEIGHTLESS_PREFIXES = ("training_args", "optimizer", "scheduler", "sampler", "dl_state_dict")
#: Prefixes of files beside checkpoints that are not checkpoints: files without weights, and the model after training.
_NON_CHECKPOINT_PREFIXES = (
    *_WEIGHTLESS_PREFIXES,
    "optim",
    "sched",
    "rng_state",
    "random_states",
    "pytorch_model",
    "adapter_model",
)
#: The number in the name of a file that exists once for each rank or object.
_RANK_NUMBER = re.compile(
    r"(?<=^rng_state_)\d+(?=\.pth$)|(?<=^random_states_)\d+|(?<=^custom_checkpoint_)\d+|(?<=_rank)\d+(?=\.bin$)"
    r"|(?<=zero_pp_rank_)\d+"
)
#: Files that never exist without another one.
_PAIRED_FILES = {
    "optimizer.pt": "scheduler.pt",
    "pytorch_model_fsdp.bin": "optimizer.bin",
    "pytorch_model_fsdp_0": "optimizer_0",
    "optimizer_0": "pytorch_model_fsdp_0",
}


# --- Checkpoints


def newest_checkpoint(directory: str) -> Optional[str]:
    """Return the path of the newest complete checkpoint in a directory; None if there is none.

    A checkpoint during which the program was killed is skipped. If torch.distributed has been initialised, rank 0
    chooses for all ranks, which may see the latest files on a shared volume at different times. Otherwise, each rank
    chooses.
    """
    distributed = _torch_distributed()
    if distributed is None:
        return _find_newest(directory)
    chosen_path = [_find_newest(directory) if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(chosen_path, src=0)
    return chosen_path[0]


def _find_newest(directory: str) -> Optional[str]:
    candidates = sorted(_find_candidates(directory), reverse=True)
    return next((path for _order, path in candidates if complete(path)), None)


def _find_candidates(directory: str) -> Iterator[Tuple[Tuple[int, float], str]]:
    """Yield possible checkpoints with their sort keys: the step if all names have one, or else the time.

    Beside names with a step, a name without one counts only if its checkpoint is complete: logs and final models may
    lie there too.
    """
    with contextlib.suppress(FileNotFoundError):
        entries = [
            entry
            for entry in os.scandir(directory)
            if entry.is_dir()
            or (entry.name.endswith(_ARCHIVE_SUFFIXES) and not entry.name.startswith(_NON_CHECKPOINT_PREFIXES))
        ]
        step_matches = [(entry, _STEP_PATTERN.search(entry.name)) for entry in entries]
        if any(step_match for _entry, step_match in step_matches):
            step_matches = [
                (entry, step_match) for entry, step_match in step_matches if step_match or complete(entry.path)
            ]
        all_numbered = all(step_match for _entry, step_match in step_matches)
        for entry, step_match in step_matches:
            with contextlib.suppress(OSError):
                yield (
                    (int(step_match.group(1)) if step_match and all_numbered else 0, entry.stat().st_mtime),
                    entry.path,
                )


def complete(path: str) -> bool:
    """Whether a checkpoint is complete: a file of torch or Lightning, or a directory.

    A directory may be written by Trainer, with trainer_state.json, by accelerate's save_state, with
    random_states_*.pkl, by torch.distributed.checkpoint, by DeepSpeed, or by Lightning with one of the last two. Files
    are not read as a whole: a truncated archive has no directory at its end. Two omissions cannot be noticed: what the
    last rank writes after rank 0, and the custom_checkpoint_*.pkl of the first checkpoint.
    """
    try:
        if os.path.isdir(path):
            return _is_complete_directory(path)
        return _is_whole(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # JSON of another structure raises the last three.
        return False


def _is_complete_directory(path: str) -> bool:
    """Whether a directory is a complete checkpoint. Raises OSError, ValueError."""
    file_names = set(os.listdir(path))
    if not _has_no_gap(file_names) or not all(_is_whole(os.path.join(path, name)) for name in file_names):
        return False
    if _METADATA_FILE in file_names:
        return _is_complete_distributed(path, file_names)
    if any(name.endswith(_DEEPSPEED_SUFFIX) for name in file_names):
        return _is_complete_deepspeed(path, file_names)
    part_directories = {name for name in file_names if _SHARDED_DIRECTORY.fullmatch(name)}
    if _LATEST_FILE in file_names or any(name.startswith("global_step") for name in file_names):
        part_directories.add(_deepspeed_tag(path))
    if "trainer_state.json" in file_names:
        with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as stream:
            json.load(stream)
    elif "random_states_0.pkl" in file_names:
        # Rank 0 writes this file after the weights, while the other ranks write only their own such file.
        if not _custom_files(path) <= file_names:
            return False
    elif not path.endswith(".ckpt"):
        return False
    shard_files = _find_shards(path, file_names)
    weight_files = [
        name
        for name in file_names
        if name.endswith((".safetensors", ".bin")) and not name.startswith(_WEIGHTLESS_PREFIXES)
    ]
    return (
        bool(weight_files or shard_files or part_directories)
        and set(shard_files) <= file_names
        and all(partner in file_names for name, partner in _PAIRED_FILES.items() if name in file_names)
        and all(_is_complete_directory(os.path.join(path, part)) for part in part_directories)
    )


def _has_no_gap(file_names: Set[str]) -> bool:
    """Whether files of ranks are there for each number up to the highest, the same for all of DeepSpeed's kinds."""
    numbers_by_kind: Dict[str, Set[int]] = {}
    for name in file_names:
        number_match = _RANK_NUMBER.search(name)
        if number_match:
            numbers_by_kind.setdefault(_RANK_NUMBER.sub("", name, count=1), set()).add(int(number_match.group()))
    kinds = {tuple(sorted(numbers)) for kind, numbers in numbers_by_kind.items() if kind.endswith(_DEEPSPEED_SUFFIX)}
    return len(kinds) < 2 and all(
        max(rank_numbers) - min(rank_numbers) + 1 == len(rank_numbers) for rank_numbers in numbers_by_kind.values()
    )


def _is_complete_distributed(path: str, file_names: Set[str]) -> bool:
    """Whether a checkpoint of torch.distributed.checkpoint is complete. Raises OSError."""
    with open(os.path.join(path, _METADATA_FILE), "rb") as stream:
        metadata = stream.read()
    tensor_sizes = [
        os.path.getsize(os.path.join(os.fsencode(path), name)) for name in set(_TENSOR_FILE.findall(metadata))
    ]
    # Lightning writes meta.pt afterwards.
    return metadata.endswith(b".") and all(tensor_sizes) and ("meta.pt" in file_names or not path.endswith(".ckpt"))


def _is_complete_deepspeed(path: str, file_names: Set[str]) -> bool:
    """Whether DeepSpeed's file ``latest`` names this directory, or a later one. Raises OSError."""
    if not any(name.endswith("model_states.pt") for name in file_names):
        return False
    directory_name, latest_name = os.path.basename(path), _deepspeed_tag(os.path.dirname(path))
    own_step, latest_step = (_STEP_PATTERN.search(name) for name in (directory_name, latest_name))
    if directory_name == latest_name or own_step is None or latest_step is None:
        return directory_name == latest_name
    return int(own_step.group(1)) < int(latest_step.group(1))


def _deepspeed_tag(path: str) -> str:
    """Return the name of the directory that DeepSpeed wrote last. Raises OSError."""
    with open(os.path.join(path, _LATEST_FILE), encoding="utf-8") as stream:
        return stream.read().strip()


def _custom_files(path: str) -> Set[str]:
    """Return the files of objects that the program has registered with accelerate, as in the other checkpoints.

    accelerate writes them last.
    """
    matching_paths = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "*", "custom_checkpoint_*.pkl"))
    return {os.path.basename(name) for name in matching_paths}


def _find_shards(path: str, file_names: Set[str]) -> List[str]:
    """Return the files with the weights of a model that was too large for one file. Raises OSError, ValueError."""
    shard_names: List[str] = []
    for name in file_names:
        if name.endswith(".index.json"):
            with open(os.path.join(path, name), encoding="utf-8") as stream:
                shard_names += set(json.load(stream).get("weight_map", {}).values())
    return shard_names


def _is_whole(path: str) -> bool:
    """Whether a file is not truncated, as far as its format shows its length or end. Raises OSError."""
    if path.endswith(".safetensors"):
        return _is_whole_safetensors(path)
    if not path.endswith(_ARCHIVE_SUFFIXES + _PICKLE_SUFFIXES) or os.path.isdir(path):
        return True
    with open(path, "rb") as stream:
        leading_bytes = stream.read(len(_LEGACY_MAGIC))
        if leading_bytes == _LEGACY_MAGIC:
            # The tensors follow, and nothing marks the end.
            return True
        if leading_bytes[:2] != b"PK":
            # A pickle ends with a full stop.
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"."
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return bool(archive.namelist())
    return False


def _is_whole_safetensors(path: str) -> bool:
    """Whether a file of safetensors is not truncated. Raises OSError, ValueError."""
    file_size = os.path.getsize(path)
    with open(path, "rb") as stream:
        length_field = stream.read(8)
        if len(length_field) < 8:
            return False
        header_length = struct.unpack("<Q", length_field)[0]
        if header_length > file_size:
            return False
        header = json.loads(stream.read(header_length))
    tensor_ends = [tensor["data_offsets"][1] for tensor_name, tensor in header.items() if tensor_name != "__metadata__"]
    return bool(file_size == 8 + header_length + max(tensor_ends, default=0))


# --- Callbacks


def _torch_distributed() -> Any:
    """Return torch.distributed, if the program has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized: bool = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_initialized else None


def _on_any_rank(flag: bool, device: Any) -> bool:
    """Whether the flag is set on any rank. All ranks have to save and stop after the same step."""
    distributed = _torch_distributed()
    if distributed is None:
        return flag
    torch = sys.modules["torch"]
    flag_tensor = torch.tensor([int(flag)], device=device)
    distributed.all_reduce(flag_tensor, op=distributed.ReduceOp.MAX)
    return bool(flag_tensor.item())


def hf(run: Any) -> Any:
    """Return a callback for Hugging Face's Trainer, which reports the progress, and saves and stops when it is time.

    ``run``: the module gpumesh_run. Each rank needs a callback: Trainer(..., callbacks=[gpumesh_run.hf()]). The
    callback sets the option logging_nan_inf_filter to False, so that a loss that is not a number is logged as it is,
    and can be reported.
    """
    callback_class = importlib.import_module("transformers").TrainerCallback

    class TrainerProgressCallback(callback_class):  # type: ignore[misc,valid-type]
        """A callback whose methods have the names and parameters that Trainer calls."""

        def __init__(self) -> None:
            self._loss: Optional[float] = None
            self._saved: Optional[int] = None

        def _report_progress(self, state: Any) -> None:
            if state.global_step:
                run.progress(state.global_step, state.max_steps, self._loss, self._saved)

        def on_train_begin(self, args: Any, _state: Any, _control: Any, **_extra_arguments: Any) -> None:
            """Have Trainer log a loss that is not a number as it is, instead of other numbers."""
            args.logging_nan_inf_filter = False

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_extra_arguments: Any) -> None:
            """Remember the loss, which is known only when it is logged."""
            self._loss = (logs or {}).get("loss", self._loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **_extra_arguments: Any) -> Any:
            """Report a step of the optimizer, and save and stop when it is time."""
            self._report_progress(state)
            if _on_any_rank(run.stopping(), args.device):
                control.should_save = control.should_training_stop = True
            return control

        def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_extra_arguments: Any) -> None:
            """Report a step of an evaluation, which is a sign of life."""
            self._report_progress(state)

        def on_save(self, _args: Any, state: Any, _control: Any, **_extra_arguments: Any) -> None:
            """Report a complete checkpoint."""
            self._saved = state.global_step
            self._report_progress(state)

    return TrainerProgressCallback()


def lightning(run: Any) -> Any:
    """Return a callback for the Trainer of Lightning, which reports the progress, and saves and stops when it is time.

    ``run``: the module gpumesh_run. Each rank needs a callback: Trainer(..., callbacks=[gpumesh_run.lightning()]). The
    checkpoint that it saves before it stops is in GPUMESH_CHECKPOINT_DIR.
    """
    package_name = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    callback_class = importlib.import_module(package_name).Callback

    class LightningProgressCallback(callback_class):  # type: ignore[misc,valid-type]
        """A callback whose methods have the names and parameters that Trainer calls."""

        def __init__(self) -> None:
            self._saving: Optional[int] = None
            self._saved: Optional[int] = None

        def _report_progress(self, trainer: Any) -> None:
            total_steps = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
            training_loss = trainer.callback_metrics.get("train_loss", trainer.callback_metrics.get("loss"))
            if trainer.global_step:
                run.progress(
                    trainer.global_step,
                    int(total_steps) if total_steps != float("inf") else None,
                    None if training_loss is None else float(training_loss),
                    self._saved,
                )

        def on_train_start(self, _trainer: Any, _module: Any) -> None:
            """Replace Lightning's signal handler, which would have Slurm requeue the job, and end this run of it."""
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGUSR1, run.warn)

        def on_save_checkpoint(self, trainer: Any, _module: Any, _checkpoint: Any) -> None:
            """Remember the step of the checkpoint that is about to be written."""
            self._saving = trainer.global_step

        def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _batch_index: int) -> None:
            """Report a batch, and save and stop when it is time."""
            self._saved = self._saving
            self._report_progress(trainer)
            if trainer.strategy.reduce_boolean_decision(run.stopping(), all=False) and not trainer.should_stop:
                checkpoint_directory = os.environ.get("GPUMESH_CHECKPOINT_DIR", trainer.default_root_dir)
                trainer.save_checkpoint(os.path.join(checkpoint_directory, f"step={trainer.global_step}.ckpt"))
                self._saved = trainer.global_step
                self._report_progress(trainer)
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, _module: Any) -> None:
            """Report the last checkpoint, which has been written."""
            self._saved = self._saving
            self._report_progress(trainer)

        def on_validation_batch_end(self, trainer: Any, *_batch_arguments: Any, **_named_arguments: Any) -> None:
            """Report a batch of a validation, which is a sign of life."""
            self._report_progress(trainer)

    return LightningProgressCallback()
