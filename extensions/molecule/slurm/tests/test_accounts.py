# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts and QOS in slurmdbd have the settings that are given, and a second run changes nothing.

Nothing is ever deleted there, so the names of these tests remain. Others do not use them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab_hosts import AnsibleRun, Lab
from slurm_members import LAB, SLURM_PLAYBOOK, WAIT_TIMEOUT, find_daemon_pids, read_job, submit_job, wait_until_idle

#: Values that slurmdbd shows in another form.
ORDINARY = {
    "MaxTRESPerUser": ["cpu=64", "gres/gpu=4"],
    "GraceTime": 120,
    "UsageFactor": 0.5,
    "UsageThreshold": 0.5,
    "LimitFactor": 2,
    "MaxWall": "UNLIMITED",
    "GrpWall": "90:30",
    "GrpTRES": "mem=512000M",
}
#: Each comes before the one that it needs.
UNORDERED = {
    "qos": {"proof_high": {"Preempt": "proof_low"}, "proof_low": {}},
    "accounts": {
        "proof_team": {"Parent": "proof_group", "MaxTRES": "cpu=8"},
        "proof_group": {"MaxTRES": "cpu=64,gres/gpu=4", "QOS": ["proof_high", "proof_low"], "DefaultQOS": "proof_low"},
    },
}


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


def result(run: AnsibleRun) -> dict[str, Any]:
    (found,) = [json.loads(line.partition("=> ")[2]) for line in run.output.splitlines() if "=> " in line]
    return dict(found)


def commands(lab: Lab, **given: Any) -> list[str]:
    """Set accounts and QOS. Returns the commands without the name of the program."""
    run = lab.run_module("s1", "gpumesh.cluster.slurm_accounts", cluster="slurm", **given)
    assert run.exit_status == 0, run.output
    return [command.partition("--immediate ")[2] for command in result(run)["commands"]]


@pytest.mark.release
def test_a_limit_that_is_no_longer_given_is_lifted(lab: Lab) -> None:
    assert len(commands(lab, qos={"proof": ORDINARY})) == 1
    assert commands(lab, qos={"proof": ORDINARY}) == []
    fewer = {**ORDINARY, "MaxTRESPerUser": "cpu=64"}
    lifted = "modify qos where name=proof set maxtresperuser=cpu=64,gres/gpu=-1"
    assert commands(lab, qos={"proof": fewer}) == [lifted]
    assert commands(lab, qos={"proof": fewer}) == []
    shown = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "where", "name=proof")
    assert lab.run("s1", *shown, "format=maxtresperuser").split() == ["cpu=64"]


def test_the_order_of_accounts_and_qos_does_not_matter(lab: Lab) -> None:
    assert len(commands(lab, **UNORDERED)) == 5
    # proof_team also shows the limit on GPUs, which it inherits.
    assert commands(lab, **UNORDERED) == []
    shown = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", "account=proof_team")
    assert lab.run("s1", *shown, "format=parentname,defaultqos").split() == ["proof_group|proof_low"]


def test_what_could_not_be_read_again_is_refused(lab: Lab) -> None:
    refused = lab.run_module(
        "s1", "gpumesh.cluster.slurm_accounts", cluster="slurm", accounts={"a": {"Description": "b|c"}}
    )
    assert refused.exit_status != 0
    assert "separates the columns of sacctmgr" in refused.flat_output


def test_an_account_whose_jobs_would_be_rejected_changes_nothing(lab: Lab) -> None:
    before = find_daemon_pids(lab)
    locked_out = {
        "slurm_conf": {"AccountingStorageEnforce": ["associations", "qos"]},
        "slurm_accounts": {"locked_out": {"QOS": ["proof_high", "proof_low"]}},
    }
    run = lab.run_playbook(SLURM_PLAYBOOK, "--diff", "--limit", "s1", "-e", json.dumps(locked_out))
    assert run.exit_status != 0
    assert "a job of locked_out without --qos gets the QOS normal" in run.flat_output, run.failure_report
    assert "Nothing has been changed" in run.flat_output
    assert run.changed == {"s1": 0}
    assert find_daemon_pids(lab) == before


def test_a_cancelled_job_is_completing_until_its_processes_have_ended(lab: Lab) -> None:
    def state() -> str:
        jobs = result(lab.run_module("s1", "gpumesh.cluster.slurm_info", gather=["jobs"]))["jobs"]
        return str(next(one["state"] for one in jobs if str(one["id"]) == number))

    wait_until_idle(lab)
    # It ignores SIGTERM, and Slurm would wait for KillWait.
    number = submit_job(lab, "trap '' TERM; touch /root/stubborn; sleep 4711", "--nodelist=s3")
    lab.wait_until(
        "the job runs", lambda: not lab.run("s3", "sh", "-c", "test -e /root/stubborn || echo no"), WAIT_TIMEOUT
    )
    lab.run("s1", "scancel", number)
    assert state() == "completing"
    lab.run("s3", "pkill", "-KILL", "-f", "^sleep 4711$")
    lab.wait_until("the job has ended", lambda: read_job(lab, number)["JobState"] == "CANCELLED", WAIT_TIMEOUT)
    assert state() == "cancelled"
    lab.run("s3", "rm", "-f", "/root/stubborn")
    wait_until_idle(lab)
