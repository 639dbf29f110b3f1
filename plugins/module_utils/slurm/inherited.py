# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that Slurm has set for one job or step, and which must not affect another."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping

_INHERITED = re.compile(r"(?:SLURM|SLURMD|SBATCH|SRUN|SPANK)_(?!CONF)")


def inherited(variables: Mapping[str, str]) -> List[str]:
    """The names of the variables that belong to a job or step.

    The location of Slurm's configuration is not among them.
    """
    return sorted(name for name in variables if _INHERITED.match(name))


def without_job() -> Dict[str, str]:
    """The environment of this process without these variables."""
    gone = inherited(os.environ)
    return {name: value for name, value in os.environ.items() if name not in gone}


def unset_job() -> List[str]:
    """The arguments of ``env`` that remove them for a command."""
    return [word for name in inherited(os.environ) for word in ("-u", name)]
