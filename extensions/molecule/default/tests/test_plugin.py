# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin that sets the environment of jobs. n1, the manager, has compiled it; n2 has no compiler, as it was bare.

The tests run in the order of the file; the last one leaves the cluster as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_hosts import Lab

SLURM = "gpumesh.cluster.slurm"
NO_PLUGIN = ("-e", "slurm_job_plugin=false")
LIBRARY = "/usr/local/lib/gpumesh/gpumesh_job_environment.so"
HEALTH = "/usr/local/sbin/gpumesh-node-health"
OUTPUT = "/var/tmp/steps"
AS_USER = ("setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups")
#: Enters a container as pyxis does: in the process of a task, as its user, after all other plugins.
CONTAINER_PLUGIN = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <unistd.h>
#include <slurm/spank.h>
SPANK_PLUGIN(container, 1)
int slurm_spank_task_init(spank_t spank, int count, char **words) {
    char enter[8];
    (void)count, (void)words;
    if (spank_getenv(spank, "ENTER_CONTAINER", enter, sizeof enter))
        return 0;
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) || chroot("/srv/image") || chdir("/") ? -1 : 0;
}
"""
#: The only program in the container.
CONTAINER_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    printf("%s %s %s %d\n", getenv("RANK"), getenv("MASTER_ADDR"), getenv("WORLD_SIZE"), access("/etc", F_OK));
    return 0;
}
"""


def compile_on(lab: Lab, host: str, path: str, source: str, *flags: str) -> None:
    script = 'mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1.c"; path=$1; shift 2; gcc "$@" -o "$path" "$path.c"'
    lab.run(host, "sh", "-ec", script, "sh", path, source, *flags)


def has_plugin(lab: Lab, host: str) -> bool:
    """Whether the node has the plugin in place of the task prolog that the controller serves."""
    files = ("/etc/slurm/node/slurm.conf", "/etc/slurm/plugstack.conf.d/gpumesh.conf")
    prolog, plugins = (lab.run(host, "cat", path, check=False) for path in files)
    assert ('TaskProlog=""' in prolog) == (LIBRARY in plugins)
    return LIBRARY in plugins


def state_of(lab: Lab, node: str) -> str:
    return lab.run("n1", "sinfo", "--noheader", f"--nodes={node}", "--format=%T %E").strip()


def read_plugin_drift(lab: Lab) -> set[str]:
    """The members on which the playbook show finds that Slurm differs."""
    run = lab.run_playbook("gpumesh.cluster.show", "-e", "show_output=json")
    (cluster,) = [cluster for cluster in run.shown_clusters if cluster["name"] == "default"]
    return {member["machine"] for member in cluster["members"] if "slurm" in member["drift"]}


class StepLoop:
    """A job on a node, which starts one step after the other."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.lab, self.node = lab, node
        step = "srun --quiet sh -c 'echo \"step $RANK $MASTER_ADDR\"'"
        script = f"rm -f {OUTPUT}.end; until [ -e {OUTPUT}.end ]; do {step}; done"
        self.job = lab.run(
            "n1", "sbatch", "--parsable", f"--nodelist={node}", f"--output={OUTPUT}", f"--wrap={script}"
        ).strip()
        self.await_steps(2)

    def count_steps(self) -> int:
        return self.lab.run(self.node, "cat", OUTPUT, check=False).count("step")

    def await_steps(self, count: int) -> None:
        wanted = self.count_steps() + count
        self.lab.wait_until("steps have run", lambda: self.count_steps() >= wanted)

    def end(self) -> list[str]:
        """Return the lines of its steps."""
        self.await_steps(2)
        self.lab.run(self.node, "touch", f"{OUTPUT}.end")
        query = ("squeue", "--noheader", f"--jobs={self.job}")
        self.lab.wait_until("the job has ended", lambda: not self.lab.run("n1", *query, check=False))
        return self.lab.run(self.node, "cat", OUTPUT).splitlines()


@pytest.fixture(name="changeover", scope="module")
def _changeover(lab: Lab) -> Iterator[list[str]]:
    """The lines of a job on n2 that ran while n2 and n3 changed to the task prolog, and n2 back to the plugin."""
    lab.await_idle("n1")
    steps = StepLoop(lab, "n2")
    run = lab.run_playbook(SLURM, *NO_PLUGIN, "--limit", "n2,n3")
    assert run.exit_status == 0, run.failure_report
    assert [has_plugin(lab, host) for host in ("n1", "n2", "n3")] == [True, False, False]
    steps.await_steps(2)
    run = lab.run_playbook(SLURM, "--limit", "n2")
    assert run.exit_status == 0, run.failure_report
    yield steps.end()
    lab.run("n2", "rm", "-rf", OUTPUT, f"{OUTPUT}.end", check=False)
    lab.run("n1", "rm", "-rf", "/srv/image", check=False)


def test_the_manager_compiles_the_plugin_and_the_others_copy_it(lab: Lab) -> None:
    assert [has_plugin(lab, host) for host in ("n1", "n2", "n3")] == [True, True, True]
    assert len({lab.read(host, LIBRARY) for host in ("n1", "n2", "n3")}) == 1
    assert "gcc" not in lab.run("n2", "sh", "-c", "command -v gcc || true")
    assert "pass slurm.job_plugin" in lab.run("n2", HEALTH, "--show", check=False)


def test_no_step_loses_its_environment_when_a_node_changes_over(lab: Lab, changeover: list[str]) -> None:
    assert len(changeover) > 6 and len(set(changeover)) == 1, set(changeover)
    word, rank, address = changeover[0].split()
    assert (word, rank) == ("step", "0") and address.count(".") == 3
    assert [has_plugin(lab, host) for host in ("n1", "n2", "n3")] == [True, True, False]
    assert "containers" in lab.run("n3", HEALTH, "--show", check=False)


def test_tasks_of_both_kinds_of_nodes_form_one_world(lab: Lab, changeover: list[str]) -> None:
    values = '$SLURM_PROCID $RANK $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $WORLD_SIZE $(wc -l <"$GPUMESH_HOSTFILE")'
    step = (*AS_USER, "srun", "--chdir=/", "--nodelist=n2,n3", "--ntasks-per-node=2")
    lines = [line.split() for line in lab.run("n1", *step, "sh", "-c", f"echo {values}").splitlines()]
    assert sorted((words[0], words[1], words[2]) for words in lines) == [
        (str(rank), str(rank), str(rank % 2)) for rank in range(4)
    ]
    ((_address, _port, size, hosts),) = {tuple(words[3:]) for words in lines}
    assert (size, hosts) == ("4", "2")


def test_variables_of_the_user_are_kept(lab: Lab, changeover: list[str]) -> None:
    step = ("srun", "--nodelist=n2", "sh", "-c", "echo $MASTER_ADDR $RANK")
    assert lab.run("n1", "env", "MASTER_ADDR=mine", *step).split() == ["mine", "0"]
    nested = "MASTER_PORT=1 srun --overlap sh -c 'echo $MASTER_PORT $SLURM_STEP_ID $WORLD_SIZE'"
    words = lab.run("n1", "srun", "--nodelist=n2", "--ntasks=1", "sh", "-c", nested).split()
    assert (words[0], words[2]) == ("1", "1")


def test_a_step_in_a_container_has_the_environment(lab: Lab, changeover: list[str]) -> None:
    compile_on(lab, "n1", "/srv/image/show", CONTAINER_PROGRAM, "-static")
    compile_on(lab, "n1", "/usr/local/lib/container.so", CONTAINER_PLUGIN, "-fPIC", "-shared")
    entry = "/etc/slurm/plugstack.conf.d/pyxis.conf"
    lab.run("n1", "sh", "-c", f"echo optional /usr/local/lib/container.so >{entry}")
    try:
        step = (*AS_USER, "srun", "--chdir=/", "--nodelist=n1", "--ntasks=2", "/show")
        lines = lab.run("n1", "env", "ENTER_CONTAINER=1", *step).splitlines()
    finally:
        lab.run("n1", "rm", "-f", entry, "/usr/local/lib/container.so", "/usr/local/lib/container.so.c")
    ranks, addresses, sizes, missing = zip(*(line.split() for line in lines), strict=True)
    assert (sorted(ranks), set(sizes), set(missing)) == (["0", "1"], {"2"}, {"-1"})
    assert "(null)" not in addresses


def test_a_damaged_plugin_takes_the_node_out_of_service_until_site_has_repaired_it(
    lab: Lab, changeover: list[str]
) -> None:
    lab.run("n2", "truncate", "--size=100", LIBRARY)
    lab.run("n2", HEALTH, check=False)
    lab.wait_until("n2 is drained", lambda: state_of(lab, "n2").startswith("drain"))
    assert "Jobs get no environment" in state_of(lab, "n2")
    assert read_plugin_drift(lab) == {"n2"}
    # n3, which has the option of the inventory again, gets the plugin as well.
    run = lab.run_playbook("gpumesh.cluster.site", "-e", "check_level=quick")
    assert run.exit_status == 0, run.failure_report
    assert [has_plugin(lab, host) for host in ("n1", "n2", "n3")] == [True, True, True]
    assert state_of(lab, "n2").startswith("idle"), "it has checked itself again"
    assert lab.run("n1", "srun", "--nodelist=n2", "sh", "-c", "echo $RANK").split() == ["0"]
