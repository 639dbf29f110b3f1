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

CLUSTER_SIZES = (250, 500, 1000)
SECONDS_LIMIT, MEMORY_LIMIT_MIB = 60, 2048


def measure_report(member_count: int) -> dict[str, float]:
    """Return the CPU seconds of each step, and the peak memory in MiB, by name."""
    record = samples.record(member_count, ("a", "b", "c"))
    members = [
        {"machine": member["machine"], "address": member["mesh"]["address"], "interface": "gpumesh0"}
        for member in record["members"]
    ]
    sample_results = probes.healthy_results(2)
    listen, probe = sample_results["listen"]["n1"], sample_results["probe"]["n1"]["probe"]
    results = {"listen": {member["machine"]: listen for member in members}, "probe": {}}
    for member in members:
        route = {"dev": "gpumesh0", "prefsrc": member["address"], "gateway": None, "error": None}
        peer_result = {
            **probe["peers"][0],
            "route": route,
            "source": member["address"],
            "seen": member["address"],
            "macs": None,
        }
        probe_result = {
            **probe,
            "machine": member["machine"],
            "address": member["address"],
            "own_macs": [member["machine"]],
        }
        probe_result["peers"] = [{**peer_result, "machine": peer["machine"]} for peer in members if peer is not member]
        results["probe"][member["machine"]] = {"probe": probe_result}
    seconds_by_step = {}

    def time_step(name: str, function):
        started_at = time.process_time()
        result = function()
        seconds_by_step[name] = time.process_time() - started_at
        return result

    reachability = time_step("pairs", lambda: judge_pairs(results, members))
    machines = [member["machine"] for member in members]
    health = {machine: {"checks": samples.checks(samples.record(1))[5:-1]} for machine in machines}
    gathered = {"queried": machines, "answered": machines, "reachability": reachability, "health": health}
    verdict = time_step("verdict", lambda: evidence.judge_cluster(record, gathered, "2026-11-20T20:31:00Z"))
    time_step("json", lambda: json.dumps(verdict, indent=2))
    for render in (html, terminal, prometheus, junit):
        time_step(render.__name__.rsplit(".", 1)[-1], lambda render=render: render.render(verdict))
    assert verdict["reachability"]["summary"]["counts"]["pass"] == member_count * (member_count - 1)
    return {**seconds_by_step, "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> int:
    """Print one line per size."""
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        print(json.dumps(measure_report(int(sys.argv[2]))))
        return 0
    within_limits = True
    for member_count in [int(argument) for argument in sys.argv[1:]] or CLUSTER_SIZES:
        argv = [sys.executable, __file__, "--one", str(member_count)]
        seconds_by_step = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        mib = seconds_by_step.pop("MiB")
        total_seconds = sum(seconds_by_step.values())
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in seconds_by_step.items())
        print(f"{member_count:>5} members: {total_seconds:6.1f} s, {mib:6.0f} MiB ({parts})")
        within_limits = within_limits and (
            member_count > 1000 or (total_seconds <= SECONDS_LIMIT and mib <= MEMORY_LIMIT_MIB)
        )
    return 0 if within_limits else 1


if __name__ == "__main__":
    sys.exit(main())
