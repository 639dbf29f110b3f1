# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples as they are shipped, run as they say: they read nothing but what the cluster sets in a job.

PyTorch is Debian's. `torchrun.sbatch` needs a volume that the nodes share, and runs in the scenario train.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_hosts import ROOT, Lab
from slurm_members import LAB, TRAINERS, wait_for_job, wait_until_idle

pytestmark = pytest.mark.once

ON_ALL = ("--nodes=3", "--ntasks-per-node=1", f"--nodelist={','.join(TRAINERS)}")
EXAMPLES = "/srv/examples"
MLFLOW = "/srv/mlflow"
#: MLflow's client and what its SQLite store takes.
REQUIREMENTS = ("mlflow-skinny==3.17.2", "sqlalchemy==2.1.9", "alembic==1.20.1")
#: What the store has: the number of its values, the least and the greatest, and the world size.
ASK = """
import json, sqlite3
ask = sqlite3.connect("/root/mlflow/mlflow.db").execute
values = ask("select count(*), min(value), max(value) from metrics").fetchone()
print(json.dumps([*values, *ask("select value from params where key = 'world_size'").fetchone()]))
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


@pytest.fixture(name="environment", scope="module")
def _environment(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Where the libraries are, as arguments of env(1)."""
    mlflow = tmp_path_factory.mktemp("mlflow")
    version = lab.run("s1", "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    of_hosts = ("--python-version", version, "--only-binary=:all:", "--target", str(mlflow))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *of_hosts, *REQUIREMENTS], check=True)

    def prepare(machine: str) -> None:
        lab.copy(mlflow, machine, MLFLOW)
        lab.copy(ROOT / "examples", machine, EXAMPLES)

    with ThreadPoolExecutor(len(TRAINERS)) as pool:
        list(pool.map(prepare, TRAINERS))
    wait_until_idle(lab)
    return [f"PYTHONPATH={MLFLOW}", "GIT_PYTHON_REFRESH=quiet"]


def test_training_as_a_batch_job(lab: Lab, environment: list[str]) -> None:
    folder = f"{EXAMPLES}/ddp"
    script = ("sbatch", "--parsable", ON_ALL[-1], f"--chdir={folder}", "--output=/root/ddp", "train.sbatch")
    number = lab.run("s1", "env", f"--chdir={folder}", *environment, *script).strip()
    done = wait_for_job(lab, number, "COMPLETED")
    said = lab.read(done["BatchHost"], "/root/ddp").decode().splitlines()
    end = re.fullmatch(r"3 processes on cpu: loss ([\d.]+) -> ([\d.]+), weights equal on all ranks", said[-1])
    assert end, said
    assert float(end[2]) < float(end[1])


def test_a_profile_of_each_rank(lab: Lab, environment: list[str]) -> None:
    program = ("python3", f"{EXAMPLES}/profiling/profile_steps.py", "--output", "/root/traces")
    said = lab.run("s1", "env", *environment, "srun", "--label", *ON_ALL, *program, timeout=600)
    assert "gloo:all_reduce" in said
    assert sorted(re.findall(r"^(\d): rank \1: /root/traces/rank\1.json$", said, re.MULTILINE)) == ["0", "1", "2"], said
    names = set()
    for machine in TRAINERS:
        for path in lab.run(machine, "find", "/root/traces", "-type", "f").split():
            names.add(Path(path).name)
            assert json.loads(lab.read(machine, path))["traceEvents"]
    assert names == {"rank0.json", "rank1.json", "rank2.json"}


def test_an_experiment_that_rank_0_tracks(lab: Lab, environment: list[str]) -> None:
    program = ("python3", f"{EXAMPLES}/tracking/track.py", "--store", "/root/mlflow")
    said = lab.run("s1", "env", *environment, "srun", *ON_ALL, *program, timeout=600)
    assert "logged 20 steps to sqlite:////root/mlflow/mlflow.db" in said.splitlines()
    stores = [machine for machine in TRAINERS if "mlflow.db" in lab.run(machine, "ls", "/root/mlflow", check=False)]
    assert len(stores) == 1
    count, lowest, highest, world_size = json.loads(lab.run(stores[0], "python3", "-c", ASK))
    # The mean of 1, 1/2 and 1/3 at the first step, of 1/20, 1/21 and 1/22 at the last.
    assert (count, round(highest, 4), round(lowest, 4)) == (20, 0.6111, 0.0477)
    assert world_size == "3"
