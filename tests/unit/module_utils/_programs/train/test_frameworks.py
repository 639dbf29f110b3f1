# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The newest complete checkpoint in the layouts of torch, Trainer, accelerate, Lightning and DeepSpeed.

The callbacks run with the real frameworks, in the scenario work. The names of files are those that transformers 5.24,
accelerate 1.15 and torch 2.6 wrote with two ranks on CPUs, also for SHARDED_STATE_DICT, which accelerate's functions wrote:
Trainer under FSDP requires a GPU. FULL_STATE_DICT, Lightning's directories and DeepSpeed 0.18 are as their sources have it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    gpumesh_frameworks,
    gpumesh_run,
    rank_modules,
)


def write_archive(path: Path) -> Path:
    """A file as torch.save writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("archive/data.pkl", pickle.dumps({"step": 1}))
        written.writestr("archive/data/0", os.urandom(4096))
    return path


def write_safetensors(path: Path) -> Path:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(32))
    return path


def truncate(path: Path, left: int = 1) -> None:
    """Shorten a file, as a kill while it is written does."""
    path.write_bytes(path.read_bytes()[:-left])


def write_trainer(folder: Path, step: int) -> Path:
    """A checkpoint of Trainer."""
    place = folder / f"checkpoint-{step}"
    write_safetensors(place / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        write_archive(place / name)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    return place


def newest_name(folder: Path) -> str:
    found = gpumesh_frameworks.newest_checkpoint(str(folder))
    return "" if found is None else os.path.relpath(found, folder)


def test_no_checkpoint_is_returned_without_one(tmp_path: Path) -> None:
    assert newest_name(tmp_path / "none") == ""
    (tmp_path / "notes.txt").write_text("x", encoding="ascii")
    assert newest_name(tmp_path) == ""


def test_newest_checkpoint_is_chosen_by_step(tmp_path: Path) -> None:
    for step in (100, 1000, 90):
        write_trainer(tmp_path, step)
    assert newest_name(tmp_path) == "checkpoint-1000"


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: (place / "trainer_state.json").unlink(),
        lambda place: truncate(place / "trainer_state.json"),
        lambda place: (place / "model.safetensors").unlink(),
        lambda place: truncate(place / "model.safetensors"),
        lambda place: (place / "model.safetensors").write_bytes(b"\x00\x01"),
        lambda place: (place / "model.safetensors").write_bytes(b""),
        lambda place: truncate(place / "optimizer.pt"),
        lambda place: (place / "scheduler.pt").write_bytes(b""),
        lambda place: truncate(place / "rng_state_1.pth", 30),
    ],
)
def test_incomplete_trainer_checkpoint_is_skipped(tmp_path: Path, damage: object) -> None:
    write_trainer(tmp_path, 50)
    place = write_trainer(tmp_path, 100)
    assert newest_name(tmp_path) == "checkpoint-100"
    damage(place)  # type: ignore[operator]
    assert newest_name(tmp_path) == "checkpoint-50"


def test_other_files_are_not_checkpoints(tmp_path: Path) -> None:
    """What save_model, a logger and a saved optimizer leave in the directory of Trainer, all of it newer."""
    write_trainer(tmp_path, 500)
    os.utime(write_trainer(tmp_path, 1000), (1, 1))
    for name in ("training_args.bin", "pytorch_model.bin", "optim_1000.pt", "scheduler.pt"):
        write_archive(tmp_path / name)
    write_safetensors(tmp_path / "model.safetensors")
    (tmp_path / "runs" / "events").mkdir(parents=True)
    assert newest_name(tmp_path) == "checkpoint-1000"


@pytest.mark.parametrize("text", ["[]", "3", '{"w": 7}', '{"weight_map": []}', '{"w": {"data_offsets": [0]}}'])
def test_invalid_json_is_not_a_checkpoint(tmp_path: Path, text: str) -> None:
    write_trainer(tmp_path, 500)
    raw = text.encode()
    (write_trainer(tmp_path, 1000) / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(32))
    (write_trainer(tmp_path, 1500) / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert newest_name(tmp_path) in ("checkpoint-500", "checkpoint-1500")


def test_checkpoint_needs_all_shards(tmp_path: Path) -> None:
    write_trainer(tmp_path, 50)
    place = write_trainer(tmp_path, 100)
    (place / "model.safetensors").unlink()
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in parts:
        write_safetensors(place / name)
    index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(parts)}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert newest_name(tmp_path) == "checkpoint-100"
    (place / parts[1]).unlink()
    assert newest_name(tmp_path) == "checkpoint-50"


def test_lightning_and_torch_checkpoints(tmp_path: Path) -> None:
    write_archive(tmp_path / "epoch=0-step=500.ckpt")
    last = write_archive(tmp_path / "epoch=1-step=1000.ckpt")
    assert newest_name(tmp_path) == "epoch=1-step=1000.ckpt"
    truncate(last)
    assert newest_name(tmp_path) == "epoch=0-step=500.ckpt"
    # A name without a step: then, the time decides.
    os.utime(tmp_path / "epoch=0-step=500.ckpt", (1, 1))
    write_archive(tmp_path / "last.ckpt")
    assert newest_name(tmp_path) == "last.ckpt"


def test_legacy_torch_file_is_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "step_1.pt").write_bytes(pickle.dumps({"step": 1}))
    (tmp_path / "step_2.pt").write_bytes(pickle.dumps({"step": 2})[:-1])
    (tmp_path / "step_3.pt").write_bytes(b"")
    assert newest_name(tmp_path) == "step_1.pt"


def test_legacy_torch_file_with_trailing_tensors_is_accepted(tmp_path: Path) -> None:
    # As torch.save(..., _use_new_zipfile_serialization=False) writes them, also for DeepSpeed.
    content = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + bytes(64)
    (tmp_path / "step_1.pt").write_bytes(content)
    assert newest_name(tmp_path) == "step_1.pt"


def write_distributed(place: Path) -> Path:
    """A checkpoint of torch.distributed.checkpoint."""
    place.mkdir(parents=True)
    parts = ["__0_0.distcp", "__1_0.distcp"]
    for name in parts:
        (place / name).write_bytes(b"x")
    (place / ".metadata").write_bytes(pickle.dumps(parts))
    return place


def write_trainer_sharded(folder: Path, step: int) -> Path:
    """One of Trainer under FSDP with SHARDED_STATE_DICT."""
    place = write_trainer(folder, step)
    for name in ("model.safetensors", "optimizer.pt"):
        (place / name).unlink()
    write_distributed(place / "pytorch_model_fsdp_0")
    write_distributed(place / "optimizer_0")
    return place


def write_trainer_full(folder: Path, step: int) -> Path:
    """One of Trainer under FSDP with FULL_STATE_DICT."""
    place = write_trainer(folder, step)
    (place / "optimizer.pt").unlink()
    write_archive(place / "pytorch_model_fsdp.bin")
    write_archive(place / "optimizer.bin")
    return place


def write_deepspeed(folder: Path, tag: str) -> Path:
    """One of DeepSpeed with ZeRO-3."""
    for rank in (0, 1):
        write_archive(folder / tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        write_archive(folder / tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text(tag, encoding="ascii")
    return folder / tag


def write_trainer_deepspeed(folder: Path, step: int) -> Path:
    """One of Trainer with DeepSpeed's ZeRO-3."""
    place = write_trainer(folder, step)
    for name in ("model.safetensors", "optimizer.pt"):
        (place / name).unlink()
    write_deepspeed(place, f"global_step{step}")
    return place


def write_accelerate(folder: Path, step: int) -> Path:
    """One of accelerate's save_state."""
    place = folder / f"step-{step}"
    write_safetensors(place / "model.safetensors")
    more = ("optimizer.bin", "scheduler.bin", "custom_checkpoint_0.pkl", "random_states_0.pkl", "random_states_1.pkl")
    for name in more:
        write_archive(place / name)
    return place


def write_accelerate_sharded(folder: Path, step: int) -> Path:
    """One of accelerate's save_state under FSDP."""
    place = write_accelerate(folder, step)
    for name in ("model.safetensors", "optimizer.bin"):
        (place / name).unlink()
    write_distributed(place / "pytorch_model_fsdp_0")
    write_distributed(place / "optimizer_0")
    return place


def write_lightning_sharded(folder: Path, step: int) -> Path:
    """One of Lightning's under FSDP, which is a directory."""
    place = write_distributed(folder / f"step={step}.ckpt")
    write_archive(place / "meta.pt")
    return place


def write_lightning_deepspeed(folder: Path, step: int) -> Path:
    """One of Lightning's with DeepSpeed, which is a directory."""
    place = folder / f"step={step}.ckpt"
    write_deepspeed(place, "checkpoint")
    return place


#: How each is written, and what may be missing or cut off after a kill.
LAYOUTS = {
    write_distributed: (".metadata", "__1_0.distcp"),
    write_trainer_sharded: (
        "pytorch_model_fsdp_0/.metadata",
        "pytorch_model_fsdp_0/__1_0.distcp",
        "pytorch_model_fsdp_0",
        "optimizer_0/.metadata",
        "optimizer_0/__0_0.distcp",
        "optimizer_0",
        "trainer_state.json",
    ),
    write_trainer_full: ("optimizer.bin", "trainer_state.json"),
    write_trainer_deepspeed: (
        "latest",
        "global_step100",
        "global_step100/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "global_step100/zero_pp_rank_1_mp_rank_00_model_states.pt",
        "global_step100/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "trainer_state.json",
    ),
    write_accelerate: ("model.safetensors", "random_states_0.pkl", "custom_checkpoint_0.pkl"),
    write_accelerate_sharded: (
        "pytorch_model_fsdp_0",
        "optimizer_0",
        "optimizer_0/.metadata",
        "custom_checkpoint_0.pkl",
    ),
    write_lightning_sharded: (".metadata", "meta.pt", "__0_0.distcp"),
    write_lightning_deepspeed: ("latest", "checkpoint/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
}
#: What cannot be cut off, since it is a directory, or has nothing by which to see it.
DIRECTORY_PARTS = ("pytorch_model_fsdp_0", "optimizer_0", "global_step100", "latest", "__0_0.distcp", "__1_0.distcp")


def write_checkpoint(write: Any, folder: Path, step: int) -> Path:
    """Write a checkpoint of a step."""
    return Path(write(folder / f"step-{step}") if write is write_distributed else write(folder, step))


@pytest.mark.parametrize(
    ("write", "missing"), [(write, missing) for write, parts in LAYOUTS.items() for missing in parts]
)
def test_checkpoint_with_missing_part_is_skipped(tmp_path: Path, write: Any, missing: str) -> None:
    before = write_checkpoint(write, tmp_path, 50)
    place = write_checkpoint(write, tmp_path, 100)
    assert newest_name(tmp_path) == place.name
    damaged = place / missing
    if damaged.is_dir():
        shutil.rmtree(damaged)
    else:
        damaged.unlink()
    assert newest_name(tmp_path) == before.name


@pytest.mark.parametrize(
    ("write", "part"),
    [(write, part) for write, parts in LAYOUTS.items() for part in parts if not part.endswith(DIRECTORY_PARTS)],
)
def test_checkpoint_with_truncated_file_is_skipped(tmp_path: Path, write: Any, part: str) -> None:
    before = write_checkpoint(write, tmp_path, 50)
    place = write_checkpoint(write, tmp_path, 100)
    truncate(place / part)
    assert newest_name(tmp_path) == before.name
    (place / part).write_bytes(b"")
    assert newest_name(tmp_path) == before.name


def test_deepspeed_checkpoint_is_complete_once_latest_names_it(tmp_path: Path) -> None:
    assert newest_name(tmp_path) == ""
    write_deepspeed(tmp_path, "global_step9")
    write_deepspeed(tmp_path, "global_step10")
    assert newest_name(tmp_path) == "global_step10"
    # The last rank has not yet written its part.
    write_archive(tmp_path / "global_step11" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    write_archive(tmp_path / "global_step11" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert newest_name(tmp_path) == "global_step10"
    truncate(tmp_path / "global_step10" / "zero_pp_rank_1_mp_rank_00_model_states.pt")
    assert newest_name(tmp_path) == "global_step9"


def test_checkpoint_needs_a_file_of_every_rank(tmp_path: Path) -> None:
    for step in (50, 100):
        write_archive(write_accelerate(tmp_path, step) / "random_states_2.pkl")
    (tmp_path / "step-100" / "random_states_1.pkl").unlink()
    assert newest_name(tmp_path) == "step-50"


def test_checkpoint_needs_weights(tmp_path: Path) -> None:
    place = write_accelerate(tmp_path, 50)
    (place / "model.safetensors").unlink()
    assert newest_name(tmp_path) == ""
    write_archive(place / "pytorch_model.bin")
    assert newest_name(tmp_path) == "step-50"


def test_module_is_standalone_and_available_in_every_rank() -> None:
    assert "gpumesh_frameworks.py" in rank_modules.module_sources()
    assert "ansible_collections" not in rank_modules.module_sources()["gpumesh_frameworks.py"]
    assert callable(gpumesh_run.hf) and callable(gpumesh_run.lightning) and callable(gpumesh_run.newest_checkpoint)
