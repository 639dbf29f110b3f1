# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The newest complete checkpoint in the layouts of torch, Trainer, Lightning and torch.distributed.checkpoint.

The callbacks run with the real frameworks, in the scenario work.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import gpumesh_frameworks, gpumesh_run, profile


def archive(path: Path) -> Path:
    """A file as torch.save writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("archive/data.pkl", pickle.dumps({"step": 1}))
        written.writestr("archive/data/0", os.urandom(4096))
    return path


def safetensors(path: Path) -> Path:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(32))
    return path


def cut(path: Path, left: int = 1) -> None:
    """Shorten a file, as a kill while it is written does."""
    path.write_bytes(path.read_bytes()[:-left])


def trainer(folder: Path, step: int) -> Path:
    """A checkpoint of Trainer."""
    place = folder / f"checkpoint-{step}"
    safetensors(place / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        archive(place / name)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    return place


def newest(folder: Path) -> str:
    found = gpumesh_frameworks.newest_checkpoint(str(folder))
    return "" if found is None else os.path.relpath(found, folder)


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") == ""
    (tmp_path / "notes.txt").write_text("x", encoding="ascii")
    assert newest(tmp_path) == ""


def test_the_step_in_the_name_decides_and_not_the_alphabet_or_the_time(tmp_path: Path) -> None:
    for step in (100, 1000, 90):
        trainer(tmp_path, step)
    assert newest(tmp_path) == "checkpoint-1000"


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: (place / "trainer_state.json").unlink(),
        lambda place: cut(place / "trainer_state.json"),
        lambda place: (place / "model.safetensors").unlink(),
        lambda place: cut(place / "model.safetensors"),
        lambda place: (place / "model.safetensors").write_bytes(b"\x00\x01"),
        lambda place: (place / "model.safetensors").write_bytes(b""),
        lambda place: cut(place / "optimizer.pt"),
        lambda place: (place / "scheduler.pt").write_bytes(b""),
        lambda place: cut(place / "rng_state_1.pth", 30),
    ],
)
def test_a_checkpoint_of_trainer_during_which_it_was_killed_is_passed_over(tmp_path: Path, damage: object) -> None:
    trainer(tmp_path, 50)
    place = trainer(tmp_path, 100)
    assert newest(tmp_path) == "checkpoint-100"
    damage(place)  # type: ignore[operator]
    assert newest(tmp_path) == "checkpoint-50"


def test_all_parts_of_a_large_model_have_to_be_there(tmp_path: Path) -> None:
    trainer(tmp_path, 50)
    place = trainer(tmp_path, 100)
    (place / "model.safetensors").unlink()
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in parts:
        safetensors(place / name)
    index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(parts)}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert newest(tmp_path) == "checkpoint-100"
    (place / parts[1]).unlink()
    assert newest(tmp_path) == "checkpoint-50"


def test_checkpoints_of_lightning_and_torch(tmp_path: Path) -> None:
    archive(tmp_path / "epoch=0-step=500.ckpt")
    last = archive(tmp_path / "epoch=1-step=1000.ckpt")
    assert newest(tmp_path) == "epoch=1-step=1000.ckpt"
    cut(last)
    assert newest(tmp_path) == "epoch=0-step=500.ckpt"
    # A name without a step: then, the time decides.
    os.utime(tmp_path / "epoch=0-step=500.ckpt", (1, 1))
    archive(tmp_path / "last.ckpt")
    assert newest(tmp_path) == "last.ckpt"


def test_a_file_of_an_old_version_of_torch_is_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "step_1.pt").write_bytes(pickle.dumps({"step": 1}))
    (tmp_path / "step_2.pt").write_bytes(pickle.dumps({"step": 2})[:-1])
    (tmp_path / "step_3.pt").write_bytes(b"")
    assert newest(tmp_path) == "step_1.pt"


def test_a_distributed_checkpoint_is_complete_with_its_metadata(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "__0_0.distcp").write_bytes(b"x")
    (tmp_path / "step-1" / ".metadata").write_bytes(b"x")
    assert newest(tmp_path) == "step-1"


def test_the_module_is_there_in_every_rank_and_imports_nothing_of_ours() -> None:
    assert "gpumesh_frameworks.py" in profile.modules()
    assert "ansible_collections" not in profile.modules()["gpumesh_frameworks.py"]
    assert callable(gpumesh_run.hf) and callable(gpumesh_run.lightning) and callable(gpumesh_run.newest_checkpoint)
