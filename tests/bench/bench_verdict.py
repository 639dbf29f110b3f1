# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the members' results about each other to the report, by the number of members: CPU time and memory.

    python tests/bench/bench_verdict.py [MEMBERS ...]        # 250 500 1000

Each size runs in its own process, because of the memory. The probe results are invented, and all pairs share their
inner parts: how much of that a run holds is up to Ansible. Exits 1 if 1,000 members take more than 60 s or 2 GiB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import (
    judge_reachability as judge_pairs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import (
    evidence,
    html,
    junit,
    prometheus,
    terminal,
)
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks import test_reachability_verdicts as probes
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

SIZES = (250, 500, 1000)
SECONDS, MIB = 60, 2048


def measure(number: int) -> dict[str, float]:
    """Return the CPU seconds of each step, and the peak memory in MiB, by name."""
    record = samples.record(number, ("a", "b", "c"))
    members = [
        {"machine": member["machine"], "address": member["mesh"]["address"], "interface": "gpumesh0"}
        for member in record["members"]
    ]
    found = probes.healthy_results(2)
    listen, probe = found["listen"]["n1"], found["probe"]["n1"]["probe"]
    results = {"listen": {one["machine"]: listen for one in members}, "probe": {}}
    for one in members:
        route = {"dev": "gpumesh0", "prefsrc": one["address"], "gateway": None, "error": None}
        whole = {**probe["peers"][0], "route": route, "source": one["address"], "seen": one["address"], "macs": None}
        own = {**probe, "machine": one["machine"], "address": one["address"], "own_macs": [one["machine"]]}
        own["peers"] = [{**whole, "machine": other["machine"]} for other in members if other is not one]
        results["probe"][one["machine"]] = {"probe": own}
    times = {}

    def step(name: str, work):
        begin = time.process_time()
        done = work()
        times[name] = time.process_time() - begin
        return done

    reachability = step("pairs", lambda: judge_pairs(results, members))
    machines = [one["machine"] for one in members]
    health = {machine: {"checks": samples.checks(samples.record(1))[5:-1]} for machine in machines}
    gathered = {"queried": machines, "answered": machines, "reachability": reachability, "health": health}
    verdict = step("verdict", lambda: evidence.judge_cluster(record, gathered, "2026-11-20T20:31:00Z"))
    step("json", lambda: json.dumps(verdict, indent=2))
    for render in (html, terminal, prometheus, junit):
        step(render.__name__.rsplit(".", 1)[-1], lambda render=render: render.render(verdict))
    assert verdict["reachability"]["summary"]["counts"]["pass"] == number * (number - 1)
    return {**times, "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> int:
    """Print one line per size."""
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        print(json.dumps(measure(int(sys.argv[2]))))
        return 0
    within = True
    for number in [int(given) for given in sys.argv[1:]] or SIZES:
        argv = [sys.executable, __file__, "--one", str(number)]
        times = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        mib = times.pop("MiB")
        total = sum(times.values())
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in times.items())
        print(f"{number:>5} members: {total:6.1f} s, {mib:6.0f} MiB ({parts})")
        within = within and (number > 1000 or (total <= SECONDS and mib <= MIB))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
