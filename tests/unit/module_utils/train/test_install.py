# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on a host: what differs from the parameters is what the module would change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences
from ansible_collections.gpumesh.cluster.plugins.module_utils.layers import NOT_SET_UP, compare_modules
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import install, program

WANTED = {"state": "present", "volumes": ["/mnt/shared"], "run_dir": "", "stage_dir": "/var/tmp/gpumesh-{user}"}


def test_a_host_is_compared_with_the_program_that_the_module_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bin" / "gpumesh-train"
    monkeypatch.setattr(program, "PATH", str(path))
    assert compare_modules(run, {"train": WANTED}) == {"train": NOT_SET_UP}
    install.part(WANTED).apply()
    assert install.differences(run, WANTED) == Differences([], False)
    assert compare_modules(run, {"train": {**WANTED, "run_dir": "/mnt/other"}}) == {"train": f"{path} differs"}
    path.chmod(0o644)
    assert install.differences(run, WANTED) == Differences([f"{path} differs"], False)
    install.part({**WANTED, "state": "absent"}).apply()
    assert not path.exists()
