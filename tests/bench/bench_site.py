# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A second run of site against pings, on the hosts of the lab (`make lab` first).

    python tests/bench/bench_site.py [LAB]

Prints the ratios without a verdict: on a busy machine they say more about the machine. Also prints the tasks that each
host has been through, skipped ones included: what a run costs grows with them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from lab_hosts import ROOT, Lab


def main() -> None:
    """Time one run between two pings."""
    lab = Lab(sys.argv[1] if len(sys.argv) > 1 else "lab")
    settings = [ROOT / "inventories" / "lab"] if lab.name == "lab" else []
    first_ping = lab.measure_ping()
    site_run = lab.run_playbook("gpumesh.cluster.site", inventories=settings)
    ping_seconds = (first_ping + lab.measure_ping()) / 2
    print(
        f"site: {site_run.seconds:.1f} s in {site_run.play_count} plays, exit {site_run.exit_status}; one ping: {ping_seconds:.2f} s"
    )
    print(f"ratio to one ping: {site_run.seconds / ping_seconds:.1f} (limit: 12)")
    for host, ok_count, skipped_count in re.findall(
        r"^(\S+) +: ok=(\d+).*?skipped=(\d+)", site_run.output, re.MULTILINE
    ):
        print(
            f"tasks of {host}: {int(ok_count) + int(skipped_count)}, of which {skipped_count} skipped (limits: manager 55, member 32)"
        )


if __name__ == "__main__":
    main()
