# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a task that uses a filter of this collection, with the filters loaded before the workers are forked.

    python tests/bench/bench_filters.py

Plays without tasks and with 20 such tasks run only on this machine, once as they are and once after the task with which
the playbooks begin (`cluster_info`). Prints the CPU time of the controller for each task: the difference divided by 20,
the minimum of three runs. Exits 1 if loading the filters early does not halve it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TASK_COUNT, RUN_COUNT = 20, 3
FILTER_TASK = {"ansible.builtin.debug": {"msg": "{{ ['gpu1', 'gpu2'] | gpumesh.cluster.hostlist }}"}}


def measure_cost(directory: Path, *tasks: dict[str, Any]) -> float:
    """Return the CPU time in seconds of a play with these tasks, the minimum of several runs."""
    playbook_path = directory / "play.yml"
    playbook_path.write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "connection": "local", "tasks": tasks}])
    )
    ansible_playbook = str(Path(sys.executable).with_name("ansible-playbook"))
    argv = [
        ansible_playbook,
        "-i",
        "localhost,",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        str(playbook_path),
    ]
    cpu_times = []
    for _run in range(RUN_COUNT):
        usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True, timeout=300)
        usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_times.append(usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime)
    return min(cpu_times)


def main() -> int:
    """Print a table of both. Returns 1 if loading the filters early does not halve the cost."""
    preload_task = {"gpumesh.cluster.cluster_info": {}}
    with tempfile.TemporaryDirectory() as directory_name:
        directory = Path(directory_name)
        late_seconds = (measure_cost(directory, *[FILTER_TASK] * TASK_COUNT) - measure_cost(directory)) / TASK_COUNT
        early_seconds = (
            measure_cost(directory, preload_task, *[FILTER_TASK] * TASK_COUNT) - measure_cost(directory, preload_task)
        ) / TASK_COUNT
    print(f"{'filters loaded':<18} {'ms a task':>10}")
    print(f"{'in each worker':<18} {late_seconds * 1000:>10.0f}")
    print(f"{'before the fork':<18} {early_seconds * 1000:>10.0f}")
    print(f"ratio {late_seconds / early_seconds:.1f}")
    return 0 if late_seconds > 2 * early_seconds else 1


if __name__ == "__main__":
    sys.exit(main())
