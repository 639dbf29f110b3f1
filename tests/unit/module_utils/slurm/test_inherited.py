# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that belong to a job, and are not passed on to another one."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.inherited import inherited, unset_job, without_job

OURS = ["SBATCH_PARTITION", "SLURMD_NODENAME", "SLURM_JOB_ID", "SPANK_X", "SRUN_DEBUG"]
OTHERS = ["PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER"]


@pytest.fixture(autouse=True)
def _inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OURS, *OTHERS):
        monkeypatch.setenv(name, "x")


def test_what_belongs_to_another_job_is_not_handed_on() -> None:
    assert inherited(dict.fromkeys([*OTHERS, *OURS], "x")) == OURS
    assert not set(without_job()) & set(OURS)
    assert set(without_job()) >= set(OTHERS)
    assert unset_job() == [word for name in OURS for word in ("-u", name)]


def test_a_step_of_a_session_has_the_environment_without_it_and_its_place() -> None:
    assert job.clean_environment(3) == {**without_job(), "GPUMESH_SESSION_PLACE": "3"}
