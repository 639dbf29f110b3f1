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

TASKS, RUNS = 20, 3
FILTER = {"ansible.builtin.debug": {"msg": "{{ ['gpu1', 'gpu2'] | gpumesh.cluster.hostlist }}"}}


def cost(folder: Path, *tasks: dict[str, Any]) -> float:
    """Return the CPU time in seconds of a play with these tasks, the minimum of several runs."""
    book = folder / "play.yml"
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "connection": "local", "tasks": tasks}]))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    argv = [program, "-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}", str(book)]
    times = []
    for _run in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True, timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def main() -> int:
    """Print a table of both. Returns 1 if loading the filters early does not halve the cost."""
    first = {"gpumesh.cluster.cluster_info": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        late = (cost(folder, *[FILTER] * TASKS) - cost(folder)) / TASKS
        early = (cost(folder, first, *[FILTER] * TASKS) - cost(folder, first)) / TASKS
    print(f"{'filters loaded':<18} {'ms a task':>10}")
    print(f"{'in each worker':<18} {late * 1000:>10.0f}")
    print(f"{'before the fork':<18} {early * 1000:>10.0f}")
    print(f"ratio {late / early:.1f}")
    return 0 if late > 2 * early else 1


if __name__ == "__main__":
    sys.exit(main())
