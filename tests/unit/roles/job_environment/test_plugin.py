# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin that sets the environment of jobs, compiled with the part of slurmstepd that it uses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[3] / "roles" / "job_environment" / "files" / "gpumesh_job_environment.c"
FAILURE = "error: gpumesh: the job environment is not set: "


class Stepd:
    """slurmstepd with the plugin, and the program that the plugin runs."""

    def __init__(self, folder: Path) -> None:
        self.program, self.path, plugin = folder / "program", folder / "slurmstepd", folder / "plugin.c"
        # Other users have to be able to run the program.
        for parent in (folder, *folder.parents[:3]):
            parent.chmod(parent.stat().st_mode | 0o055)
        text = SOURCE.read_text(encoding="utf-8")
        replaced = text.replace('"/etc/gpumesh/task_prolog"', f'"{self.program}"').replace(
            "TIMEOUT_S 20", "TIMEOUT_S 5"
        )
        assert replaced.count(str(self.program)) == 1 and "TIMEOUT_S 5\n" in replaced
        plugin.write_text(replaced, encoding="utf-8")
        flags = ["-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f'-DPLUGIN="{plugin}"']
        source = str(HERE / "slurmstepd" / "slurmstepd.c")
        subprocess.run(["gcc", *flags, f"-I{HERE / 'slurmstepd'}", "-o", str(self.path), source], check=True)

    def run(self, script: str, *ranks: int, **environment: str) -> list[str]:
        self.program.write_text(f"#!/bin/sh -p\n{script}\n", encoding="utf-8")
        self.program.chmod(0o755)
        command = [str(self.path), "7", *map(str, ranks or (0, 1))]
        environment = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert not done.stderr
        return done.stdout.splitlines()


@pytest.fixture(name="stepd", scope="module")
def _stepd(tmp_path_factory: pytest.TempPathFactory) -> Stepd:
    return Stepd(tmp_path_factory.mktemp("stepd"))


def printing(*records: str) -> str:
    return "printf '" + "".join(f"{record}\\0" for record in records) + "'"


def test_each_task_gets_its_own_variables_and_those_of_all(stepd: Stepd) -> None:
    script = printing("@all", "A=1=2", "OLD", "@3", "RANK=3", "@5", "RANK=5", "LINES=a\\nb", "@end")
    assert stepd.run(script, 3, 5) == [
        *("3: A=1=2", "3: unset OLD", "3: RANK=3"),
        *("5: A=1=2", "5: unset OLD", "5: RANK=5", "5: LINES=a", "b"),
    ]


def test_the_program_reads_the_step_and_nothing_else_of_the_user(stepd: Stepd) -> None:
    script = 'given=$(tr "\\0" "," | tr -d "\\n"); ' + printing(
        "@all", "GIVEN=%s", "ARGS=%s", "ENV=%s", "@0", "@1", "@end"
    )
    script += ' "$given" "$*" "$(env | cut -d= -f1 | sort | tr "\\n" ,)"'
    shown = stepd.run(script, LD_PRELOAD="", PYTHONPATH="/tmp", SLURM_CONF="/c", SLURMD_NODENAME="n1")
    assert "PYTHONPATH=/tmp," in shown[0]
    assert shown[1] == "0: ARGS=--step 7 0,1"
    assert set(shown[2].removeprefix("0: ENV=").strip(",").split(",")) <= {
        *("LC_ALL", "OLDPWD", "PATH", "PWD", "SHLVL", "SLURMD_NODENAME", "SLURM_CONF", "_")
    }


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (printing("@all", "A=1"), "program failed"),
        ("exit 1", "program failed"),
        (printing("@all", "A=1", "!late", "@end").replace("@all\\0", ""), None),
        (printing("!KeyError: X", "@end"), "KeyError: X"),
        (printing("@all", "A=1", "@end") + "; sleep 30", "takes too long"),
        ("head -c 70000000 /dev/zero", "too large"),
    ],
)
def test_nothing_is_set_if_the_program_fails(stepd: Stepd, script: str, reason: str | None) -> None:
    shown = stepd.run(script)
    assert not [line for line in shown if line.startswith(("0: ", "1: "))]
    assert all(line.startswith(FAILURE) for line in shown)
    if reason is not None:
        assert len(shown) == 1 and shown[0].endswith(reason)


def test_a_step_that_the_program_leaves_alone_is_no_failure(stepd: Stepd) -> None:
    assert stepd.run(printing("@end")) == []


def test_a_task_that_the_program_does_not_know_is_reported(stepd: Stepd) -> None:
    assert stepd.run(printing("@all", "@0", "RANK=0", "@end")) == ["0: RANK=0", f"{FAILURE}there is no task 1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root")
def test_the_program_is_the_user_for_good_and_cannot_be_taken_over(stepd: Stepd) -> None:
    script = 'ids=$(grep -E "^(Uid|Gid|CapPrm|SigBlk)" /proc/self/status | tr -s "\\t\\n" " "); fds=$(ls /proc/self/fd | wc -l); '
    script += printing("@all", "IDS=%s", "FDS=%s", "DUMPABLE=%s", "@0", "@1", "@end")
    script += ' "$ids" "$fds" "$(stat -c %u /proc/$$/mem)"'
    shown = stepd.run(script, STEP_UID="4242")
    # The real group differs from that of the user's other processes, so they cannot trace this one.
    zero = "0" * 16
    assert shown[0] == f"0: IDS=Uid: 4242 4242 4242 4242 Gid: 65534 4242 4242 4242 SigBlk: {zero} CapPrm: {zero} "
    assert shown[1:3] == ["0: FDS=4", "0: DUMPABLE=0"]
    # Neither do they trace that of a user whose own group is the usual one for this.
    shown = stepd.run(script, STEP_UID="65534")
    assert "Uid: 65534 65534 65534 65534 Gid: 65533 65534 65534 65534 " in shown[0]


def test_the_program_may_not_use_much_memory(stepd: Stepd) -> None:
    script = "limit=$(ulimit -v) cpu=$(ulimit -t); " + printing("@all", "LIMITS=%s %s", "@0", "@1", "@end")
    assert stepd.run(script + ' "$limit" "$cpu"') == ["0: LIMITS=1048576 60", "1: LIMITS=1048576 60"]


def test_a_node_without_a_task_of_the_step_has_nothing_to_do(stepd: Stepd) -> None:
    assert stepd.run(printing("@all", "A=1", "@0", "@1", "@end"), NO_TASKS="1") == []
