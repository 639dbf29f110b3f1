# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/toy with a stand-in for PyTorch, which these machines do not have: from which step the ranks go on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

TOY = Path(__file__).parents[3] / "examples" / "toy" / "train.py"


@pytest.mark.parametrize(("others", "same"), [([200, 200], True), ([100, 200], False), ([0, 200], False)])
def test_ranks_with_checkpoints_of_different_steps_do_not_train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: list[int], same: bool
) -> None:
    torch = MagicMock()
    torch.load.return_value = {"network": {}, "optimizer": {}, "step": 200, "loss": 0.5}
    torch.distributed.get_world_size.return_value = 3
    wrap = torch.nn.parallel.DistributedDataParallel

    def all_gather_object(found: list[Any], own: int) -> None:
        found[:] = [*others, own]

    torch.distributed.all_gather_object = all_gather_object
    for name in ("torch", "torch.distributed", "torch.nn", "torch.nn.parallel"):
        module = torch
        for part in name.split(".")[1:]:
            module = getattr(module, part)
        monkeypatch.setitem(sys.modules, name, module)
    train = runpy.run_path(str(TOY))["train"]
    path = tmp_path / "toy.pt"
    path.touch()
    if same:
        assert train(200, "cpu", path) == 0.5 and wrap.called
        return
    with pytest.raises(SystemExit, match=r"checkpoints of different steps: \[\d+, 200, 200\]"):
        train(2000, "cpu", path)
    assert not wrap.called
