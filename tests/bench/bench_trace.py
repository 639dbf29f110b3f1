# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpumesh-trace by the number of ranks: elapsed time, CPU time, and the memory of all of its processes together.

    python tests/bench/bench_trace.py [RANKS ...]        # 8 64

Each rank has a trace of 50,000 events, 11 MB before compression. Then the CPU time of the analysis of 500 collectives
by the number of ranks, and its exponent: 1 is proportional. Exits 1 if 64 ranks take more than 60 s or 4 GiB, or if the
exponent is more than 1.5.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.load import find_sources, load_traces

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from program_builds import build_zipapp
from traces import TraceScenario

RANK_COUNTS = (8, 64)
SECONDS_LIMIT, MEMORY_LIMIT_MIB = 60, 4096
DETAIL_COUNT = 10_000
#: The analysis: numbers of ranks, steps with two collectives each, and the maximum exponent.
FEW_RANKS, MANY_RANKS, STEP_COUNT, MAX_EXPONENT = 64, 256, 250, 1.5


def group_memory(process_group: int) -> float:
    """Return the memory of a process group in MiB; shared memory counts once."""
    total_kib = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[2]) == process_group:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total_kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total_kib / 1024


def measure_program(rank_count: int, directory: Path) -> tuple[float, float, float]:
    """Return the elapsed seconds, the CPU seconds, and the peak memory in MiB."""
    TraceScenario(ranks=rank_count, on_gpu=True, ranks_per_node=8, detail_count=DETAIL_COUNT).write(directory)
    program_path = directory / "gpumesh-trace"
    program_path.write_bytes(
        build_zipapp(sys.executable, program.__name__, {"volumes": [], "run_dir": "", "library": ""})
    )
    program_path.chmod(0o755)
    started_at, usage_before, peak_memory = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
    process = subprocess.Popen([program_path, directory], stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        peak_memory = max(peak_memory, group_memory(process.pid))
        time.sleep(0.2)
    assert process.returncode == 0
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    return time.monotonic() - started_at, cpu_seconds, peak_memory


def analysis_seconds(rank_count: int, directory: Path, probes: bool) -> float:
    """Return the CPU seconds of the analysis. Each collective waits for another rank."""
    traces = load_traces(
        find_sources(
            TraceScenario(
                ranks=rank_count, steps=STEP_COUNT, jitter_ms=2.0, ranks_per_node=8, clock_probes=probes
            ).write(directory)
        )
    ).traces
    started_at = time.process_time()
    analyse("bench", traces)
    return time.process_time() - started_at


def growth_exponent(probes: bool) -> float:
    """Return the exponent with which the time of the analysis grows with the number of ranks."""
    seconds = []
    for ranks in (FEW_RANKS, MANY_RANKS):
        with tempfile.TemporaryDirectory() as directory:
            seconds.append(analysis_seconds(ranks, Path(directory), probes))
    measured_exponent = math.log(seconds[1] / seconds[0]) / math.log(MANY_RANKS / FEW_RANKS)
    clocks = "compared clocks" if probes else "clocks by collectives"
    print(
        f"analysis, {clocks}: {FEW_RANKS} ranks {seconds[0]:.1f} s, {MANY_RANKS} ranks {seconds[1]:.1f} s, exponent {measured_exponent:.2f}"
    )
    return measured_exponent


def main() -> int:
    """Print one line per size."""
    within_limits = True
    for rank_count in [int(argument) for argument in sys.argv[1:]] or RANK_COUNTS:
        with tempfile.TemporaryDirectory() as directory:
            seconds, cpu_seconds, mib = measure_program(rank_count, Path(directory))
        print(f"{rank_count:>5} ranks: {seconds:6.1f} s, {cpu_seconds:6.1f} s CPU, {mib:6.0f} MiB")
        within_limits = within_limits and (rank_count > 64 or (seconds <= SECONDS_LIMIT and mib <= MEMORY_LIMIT_MIB))
    within_limits = max(growth_exponent(True), growth_exponent(False)) <= MAX_EXPONENT and within_limits
    return 0 if within_limits else 1


if __name__ == "__main__":
    sys.exit(main())
