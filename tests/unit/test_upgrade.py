# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make upgrade` sees each kind of loss and what an older version leaves behind, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import host_state
import pytest

from ansible_collections.gpumesh.cluster.tests.upgrade.evidence import (
    SlurmJobState,
    UserWork,
    find_leftovers,
    find_losses,
    find_restarts,
    find_standstill,
    mask_lines,
)

RUNS, WAITS = SlurmJobState("RUNNING", "0", "12:00", "812"), SlurmJobState("PENDING", "0", "Unknown", "")
BEFORE = UserWork(
    run_state="running",
    attempt_jobs=(4,),
    training_step=10,
    tracked_steps=(1, 2, 3),
    process_by_container={"main1": "5 gpu1 900", "sub1": "5 gpu2 901"},
    state_by_job={"runs": RUNS, "waits": WAITS},
    identity_by_run={"before": {"run_id": "a1", "status": "FINISHED"}},
    shell_by_host={"gpu1": "700", "gpu4": "701"},
)
AFTER = BEFORE._replace(training_step=30, tracked_steps=(1, 2, 3, 4))


def test_what_goes_on_is_no_loss() -> None:
    assert find_losses(BEFORE, AFTER) == [] and find_standstill(BEFORE, AFTER) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attempt_jobs": (4, 4)}, "the training run is running in the jobs (4, 4)"),
        ({"attempt_jobs": (9,)}, "the training run is running in the jobs (9,)"),
        ({"run_state": "failed"}, "the training run is failed"),
        ({"training_step": 9}, "the training run went back from step 10 to 9"),
        ({"tracked_steps": (1, 3, 4)}, "no longer has 1 points of the run: [2]"),
        (
            {"process_by_container": {"main1": "5 gpu1 900", "sub1": "5 gpu2 999"}},
            "container sub1 was 5 gpu2 901 and is 5 gpu2 999",
        ),
        ({"process_by_container": {"main1": "5 gpu1 900"}}, "container sub1 was 5 gpu2 901 and is None"),
        ({"state_by_job": {"runs": RUNS._replace(restarts="1"), "waits": WAITS}}, "job runs was"),
        ({"state_by_job": {"runs": RUNS._replace(process_id="999"), "waits": WAITS}}, "job runs was"),
        ({"state_by_job": {"runs": RUNS, "waits": WAITS._replace(state="CANCELLED")}}, "job waits was"),
        ({"identity_by_run": {}}, "tracked run before was"),
        ({"identity_by_run": {"before": {"run_id": "b2", "status": "FINISHED"}}}, "tracked run before was"),
        ({"shell_by_host": {"gpu1": "700", "gpu4": "ended: 255"}}, "login on gpu4 was 701 and is ended: 255"),
    ],
)
def test_each_loss_is_found_alone(changed: Mapping[str, Any], words: str) -> None:
    (found,) = find_losses(BEFORE, AFTER._replace(**changed))
    assert words in found


def test_a_run_that_stands_still_and_a_server_without_new_points_are_found() -> None:
    assert len(find_standstill(BEFORE, AFTER._replace(training_step=10))) == 1
    assert len(find_standstill(BEFORE, AFTER._replace(tracked_steps=(1, 2, 3)))) == 1


def test_a_daemon_that_is_another_process_was_restarted() -> None:
    before = {"gpu1": {"slurmctld": "1", "slurmd": "2"}, "gpu2": {"slurmd": "3"}}
    after = {"gpu1": {"slurmctld": "1", "slurmd": "9"}, "gpu2": {"slurmd": ""}}
    assert find_restarts(before, after) == ["slurmd on gpu1", "slurmd on gpu2"]
    assert find_restarts(before, before) == []


def host(files: Mapping[str, str], units: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"files": files, "packaged": ["/usr/bin/slurmd"], "enabled units": [*units]}


KEY, OTHER = (f"0o100600 0 0 {digit * 64}" for digit in "ab")
SHARED_FILES = {"/etc/munge/munge.key": KEY, "/etc/gpumesh/tracking/own.key": KEY, "/etc/slurm/slurm.conf": KEY}


@pytest.mark.parametrize(
    ("upgraded", "expected"),
    [
        # Each cluster has keys of its own, and its users and jobs write files.
        (host({**SHARED_FILES, "/etc/munge/munge.key": OTHER, "/etc/gpumesh/tracking/own.key": OTHER}), []),
        (host({**SHARED_FILES, "/home/alice/notes": KEY, "/var/spool/slurmd/job4": KEY}), []),
        (host({**SHARED_FILES, "/etc/slurm/slurm.conf": OTHER}), ["/etc/slurm/slurm.conf"]),
        (host({**SHARED_FILES, "/usr/local/bin/gpumesh-former": KEY}), ["/usr/local/bin/gpumesh-former"]),
        (host({**SHARED_FILES, "/etc/gpumesh/tracking/former.key": KEY}), ["/etc/gpumesh/tracking/former.key"]),
        (host({**SHARED_FILES, "/etc/gpumesh/tracking/own.key": OTHER.replace("600", "644")}), ["own.key"]),
        (host({"/etc/munge/munge.key": KEY, "/etc/slurm/slurm.conf": KEY}), ["own.key"]),
        (host(SHARED_FILES, ("gpumesh-former.service",)), ["gpumesh-former.service"]),
    ],
)
def test_what_a_new_host_does_not_have_is_left_behind(upgraded: dict[str, Any], expected: list[str]) -> None:
    found = find_leftovers(host_state.find_differences(host(SHARED_FILES), upgraded))
    assert len(found) == len(expected)
    assert all(words in line for words, line in zip(expected, found))


def test_a_text_is_compared_without_keys_and_the_generation() -> None:
    old, new = (
        f'"GPUMESH_GENERATION": "{generation}"\nssh-ed25519 AAAA{key} root@gpu1\n'
        for generation, key in ((3, "b+/"), (4, "c="))
    )
    assert mask_lines(old) == mask_lines(new)
    assert mask_lines(f"{new}ssh-rsa AAAAd former\n") == [*mask_lines(old), "ssh-rsa (own) former"]
