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
from traces import Scene

SIZES = (8, 64)
SECONDS, MIB = 60, 4096
DETAILS = 10_000
#: The analysis: numbers of ranks, steps with two collectives each, and the maximum exponent.
FEW, MANY, STEPS, EXPONENT = 64, 256, 250, 1.5


def memory(group: int) -> float:
    """Return the memory of a process group in MiB; shared memory counts once."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                lines = (path / "smaps_rollup").read_text().splitlines()
                found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return found / 1024


def measure(ranks: int, folder: Path) -> tuple[float, float, float]:
    """Return the elapsed seconds, the CPU seconds, and the peak memory in MiB."""
    Scene(ranks=ranks, gpu=True, per_node=8, details=DETAILS).write(folder)
    path = folder / "gpumesh-trace"
    path.write_bytes(build_zipapp(sys.executable, program.__name__, {"volumes": [], "run_dir": "", "library": ""}))
    path.chmod(0o755)
    begun, before, most = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
    process = subprocess.Popen([path, folder], stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        most = max(most, memory(process.pid))
        time.sleep(0.2)
    assert process.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, used, most


def analysis(ranks: int, folder: Path, probes: bool) -> float:
    """Return the CPU seconds of the analysis. Each collective waits for another rank."""
    traces = load_traces(
        find_sources(Scene(ranks=ranks, steps=STEPS, jitter=2.0, per_node=8, probes=probes).write(folder))
    ).traces
    before = time.process_time()
    analyse("bench", traces)
    return time.process_time() - before


def exponent(probes: bool) -> float:
    """Return the exponent with which the time of the analysis grows with the number of ranks."""
    seconds = []
    for ranks in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(analysis(ranks, Path(folder), probes))
    found = math.log(seconds[1] / seconds[0]) / math.log(MANY / FEW)
    clocks = "compared clocks" if probes else "clocks by collectives"
    print(f"analysis, {clocks}: {FEW} ranks {seconds[0]:.1f} s, {MANY} ranks {seconds[1]:.1f} s, exponent {found:.2f}")
    return found


def main() -> int:
    """Print one line per size."""
    within = True
    for ranks in [int(given) for given in sys.argv[1:]] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            seconds, used, mib = measure(ranks, Path(folder))
        print(f"{ranks:>5} ranks: {seconds:6.1f} s, {used:6.1f} s CPU, {mib:6.0f} MiB")
        within = within and (ranks > 64 or (seconds <= SECONDS and mib <= MIB))
    within = max(exponent(True), exponent(False)) <= EXPONENT and within
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
