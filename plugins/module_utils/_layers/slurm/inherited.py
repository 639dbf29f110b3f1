# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that Slurm has set for one job or step, and which must not affect another."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping

_JOB_VARIABLE = re.compile(r"(?:SLURM|SLURMD|SBATCH|SRUN|SPANK)_(?!CONF)")


def find_job_variables(variables: Mapping[str, str]) -> List[str]:
    """Return the names of the variables that belong to a job or step.

    The location of Slurm's configuration is not among them.
    """
    return sorted(name for name in variables if _JOB_VARIABLE.match(name))


def environment_without_job() -> Dict[str, str]:
    """Return the environment of this process without the variables of a job."""
    job_variables = find_job_variables(os.environ)
    return {name: value for name, value in os.environ.items() if name not in job_variables}


def unset_job_arguments() -> List[str]:
    """Return the arguments of ``env`` that remove the variables of a job for a command."""
    return [argument for name in find_job_variables(os.environ) for argument in ("-u", name)]
