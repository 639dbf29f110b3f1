# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin that sets the environment of jobs, on n2 alone: the others have no compiler, and keep Slurm's task prolog.

The tests run in the order of the file; the last one leaves the cluster as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from lab_hosts import AnsibleRun, Lab

SLURM = "gpumesh.cluster.slurm"
COMPILER = ("gcc", "libc6-dev", "libslurm-dev")
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


@pytest.fixture(name="upgrade", scope="module")
def _upgrade(lab: Lab) -> Iterator[AnsibleRun]:
    """n2 gets a compiler, and then the plugin, while a job starts one step after the other there."""
    lab.await_idle("n1")
    lab.run("n2", "apt-get", "update", "--quiet")
    lab.run("n2", "apt-get", "install", "--yes", "--no-install-recommends", *COMPILER)
    step = "srun --quiet sh -c 'echo \"$SLURM_STEP_ID $RANK $MASTER_ADDR\"'"
    script = f"rm -f {OUTPUT}.end; until [ -e {OUTPUT}.end ]; do {step}; done"
    job = lab.run("n1", "sbatch", "--parsable", "--nodelist=n2", f"--output={OUTPUT}", f"--wrap={script}").strip()
    lab.wait_until("its first step has run", lambda: len(lab.run("n2", "cat", OUTPUT, check=False).split()) > 2)
    run = lab.run_playbook(SLURM)
    lab.run("n2", "touch", f"{OUTPUT}.end")
    lab.wait_until("the job has ended", lambda: not lab.run("n1", "squeue", "--noheader", f"--jobs={job}", check=False))
    yield run
    lab.run("n2", "rm", "-rf", OUTPUT, f"{OUTPUT}.end", "/srv/image", check=False)


def test_a_node_that_can_compile_the_plugin_has_no_task_prolog(lab: Lab, upgrade: AnsibleRun) -> None:
    assert upgrade.exit_status == 0, upgrade.failure_report
    assert (has_plugin(lab, "n2"), has_plugin(lab, "n3")) == (True, False)
    checks = {host: lab.run(host, HEALTH, "--show", check=False) for host in ("n2", "n3")}
    assert "pass slurm.job_plugin" in checks["n2"] and "containers" in checks["n3"]
    again = lab.run_playbook(SLURM)
    assert again.exit_status == 0 and set(again.changed.values()) == {0}, again.changes


def test_no_step_has_lost_its_environment_meanwhile(lab: Lab, upgrade: AnsibleRun) -> None:
    lines = [line.split() for line in lab.run("n2", "cat", OUTPUT).splitlines() if re.match(r"\d+( |$)", line)]
    assert len(lines) > 5
    assert {tuple(words[1:]) for words in lines} == {("0", lines[0][2])}


def test_tasks_of_both_kinds_of_nodes_form_one_world(lab: Lab, upgrade: AnsibleRun) -> None:
    values = '$SLURM_PROCID $RANK $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $WORLD_SIZE $(wc -l <"$GPUMESH_HOSTFILE")'
    step = (*AS_USER, "srun", "--chdir=/", "--nodelist=n2,n3", "--ntasks-per-node=2")
    lines = [line.split() for line in lab.run("n1", *step, "sh", "-c", f"echo {values}").splitlines()]
    assert sorted((words[0], words[1], words[2]) for words in lines) == [
        (str(rank), str(rank), str(rank % 2)) for rank in range(4)
    ]
    ((_address, _port, size, hosts),) = {tuple(words[3:]) for words in lines}
    assert (size, hosts) == ("4", "2")


def test_variables_of_the_user_are_kept(lab: Lab, upgrade: AnsibleRun) -> None:
    step = ("srun", "--nodelist=n2", "sh", "-c", "echo $MASTER_ADDR $RANK")
    assert lab.run("n1", "env", "MASTER_ADDR=mine", *step).split() == ["mine", "0"]
    nested = "MASTER_PORT=1 srun --overlap sh -c 'echo $MASTER_PORT $SLURM_STEP_ID $WORLD_SIZE'"
    words = lab.run("n1", "srun", "--nodelist=n2", "--ntasks=1", "sh", "-c", nested).split()
    assert (words[0], words[2]) == ("1", "1")


def test_a_step_in_a_container_has_the_environment(lab: Lab, upgrade: AnsibleRun) -> None:
    compile_on(lab, "n2", "/srv/image/show", CONTAINER_PROGRAM, "-static")
    compile_on(lab, "n2", "/usr/local/lib/container.so", CONTAINER_PLUGIN, "-fPIC", "-shared")
    entry = "/etc/slurm/plugstack.conf.d/pyxis.conf"
    lab.run("n2", "sh", "-c", f"echo optional /usr/local/lib/container.so >{entry}")
    try:
        step = (*AS_USER, "srun", "--chdir=/", "--nodelist=n2", "--ntasks=2", "/show")
        lines = lab.run("n1", "env", "ENTER_CONTAINER=1", *step).splitlines()
    finally:
        lab.run("n2", "rm", "-f", entry, "/usr/local/lib/container.so", "/usr/local/lib/container.so.c")
    ranks, addresses, sizes, missing = zip(*(line.split() for line in lines), strict=True)
    assert (sorted(ranks), set(sizes), set(missing)) == (["0", "1"], {"2"}, {"-1"})
    assert "(null)" not in addresses


def test_a_missing_plugin_takes_the_node_out_of_service_until_there_is_another_way(
    lab: Lab, upgrade: AnsibleRun
) -> None:
    lab.run("n2", "rm", LIBRARY)
    lab.run("n2", HEALTH, check=False)
    lab.wait_until("n2 is drained", lambda: state_of(lab, "n2").startswith("drain"))
    assert f"{LIBRARY} is missing" in state_of(lab, "n2") or "Jobs get no environment" in state_of(lab, "n2")
    lab.run("n2", "apt-get", "purge", "--yes", "--autoremove", *COMPILER)
    run = lab.run_playbook(SLURM)
    assert run.exit_status == 0, run.failure_report
    assert not has_plugin(lab, "n2")
    lab.run("n2", HEALTH, check=False)
    lab.await_idle("n1")
    assert lab.run("n1", "srun", "--nodelist=n2", "sh", "-c", "echo $RANK").split() == ["0"]
