# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that belong to a job, and are not passed on to another one."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.inherited import (
    environment_without_job,
    find_job_variables,
    unset_job_arguments,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job

JOB_VARIABLES = ["SBATCH_PARTITION", "SLURMD_NODENAME", "SLURM_JOB_ID", "SPANK_X", "SRUN_DEBUG"]
UNRELATED_VARIABLES = ["PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER"]


@pytest.fixture(autouse=True)
def _inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*JOB_VARIABLES, *UNRELATED_VARIABLES):
        monkeypatch.setenv(name, "x")


def test_variables_of_the_outer_job_are_removed() -> None:
    assert find_job_variables(dict.fromkeys([*UNRELATED_VARIABLES, *JOB_VARIABLES], "x")) == JOB_VARIABLES
    assert not set(environment_without_job()) & set(JOB_VARIABLES)
    assert set(environment_without_job()) >= set(UNRELATED_VARIABLES)
    assert unset_job_arguments() == [word for name in JOB_VARIABLES for word in ("-u", name)]


def test_session_step_environment_has_no_outer_job() -> None:
    assert job.clean_environment(3) == {**environment_without_job(), "GPUMESH_SESSION_PLACE": "3"}
