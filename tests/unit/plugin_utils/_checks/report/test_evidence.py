# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import evidence, html, prometheus, terminal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.rdma import RdmaLimits
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.view import build_page, collect_findings
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

GENERATED_AT = "2026-11-20T20:31:00Z"
SINFO = "n1|idle|10.99.0.1|none\nn2|idle|10.99.0.2|none\nn3|idle|10.99.0.3|none\n"

with open(os.path.join(os.path.dirname(evidence.__file__), "verdict.schema.json"), encoding="utf-8") as stream:
    SCHEMA = json.load(stream)


def healthy_evidence() -> dict[str, Any]:
    """The results of a run on a healthy cluster of three."""
    machines = ["n1", "n2", "n3"]
    return {
        "queried": machines,
        "answered": machines,
        "reachability": {"pairs": samples.pairs(samples.record(3))},
        "health": {machine: {"checks": [samples.check("health.disk", machine)]} for machine in machines},
        "slurm": {"rc": 0, "stdout": SINFO},
        "job": {"rc": 0, "cmd": ["srun", "-N3", "hostname"], "stdout": "n2\nn1\nn3"},
    }


def judge_evidence(evidence_of_run: dict[str, Any], **options: Any) -> dict[str, Any]:
    verdict = evidence.judge_cluster(samples.record(3), evidence_of_run, GENERATED_AT, **options)
    jsonschema.validate(json.loads(json.dumps(verdict)), SCHEMA)
    return verdict


def failing_checks(verdict: dict[str, Any]) -> list[str]:
    return sorted(f"{c['id']}@{c['host']}" for c in verdict["checks"] if c["status"] in ("fail", "error"))


def test_a_healthy_cluster_passes() -> None:
    verdict = judge_evidence(healthy_evidence())
    assert failing_checks(verdict) == []
    assert verdict["status"] == "pass"
    assert verdict["jobs"][0]["command"] == "srun -N3 hostname"


def test_no_evidence_is_never_a_pass() -> None:
    verdict = judge_evidence({})
    assert verdict["status"] == "fail"
    assert failing_checks(verdict)[:3] == ["members.answer@n1", "members.answer@n2", "members.answer@n3"]


def test_a_stopped_member_fails_exactly_its_pairs() -> None:
    found = healthy_evidence()
    found["answered"] = ["n1", "n2"]
    del found["health"]["n3"]
    found["reachability"]["pairs"] = [p for p in found["reachability"]["pairs"] if "n3" not in (p["from"], p["to"])]
    verdict = judge_evidence(found)
    broken = [(p["from"], p["to"]) for p in verdict["reachability"]["pairs"] if p["status"] == "fail"]
    assert broken == [("n1", "n3"), ("n2", "n3"), ("n3", "n1"), ("n3", "n2")]
    assert "members.answer@n3" in failing_checks(verdict)
    assert [c["status"] for c in verdict["checks"] if c["id"] == "health.node"] == ["skipped"]


def test_a_member_outside_the_run_is_skipped_and_named() -> None:
    found = healthy_evidence()
    found["queried"] = found["answered"] = ["n1", "n2"]
    del found["health"]["n3"]
    found["reachability"]["pairs"] = [p for p in found["reachability"]["pairs"] if "n3" not in (p["from"], p["to"])]
    verdict = judge_evidence(found)
    assert verdict["status"] == "pass"
    assert [c["reason"] for c in verdict["checks"] if c["id"] == "members.answer" and c["host"] == "n3"] == [
        "n3 is not among the hosts of this run."
    ]
    assert {p["status"] for p in verdict["reachability"]["pairs"] if "n3" in (p["from"], p["to"])} == {"skipped"}


def test_a_member_without_jobs_is_not_missed_in_slurm() -> None:
    found = healthy_evidence()
    found["slurm"]["stdout"] = SINFO.replace("n1|idle|10.99.0.1|none\n", "")
    found["job"]["stdout"] = "n2\nn3"
    record = samples.record(3)
    record["members"][0]["slurm_node"] = False
    verdict = evidence.judge_cluster(record, found, GENERATED_AT)
    assert (verdict["status"], failing_checks(dict(verdict))) == ("pass", [])
    assert [check["host"] for check in verdict["checks"] if check["id"] == "slurm.node"] == ["n2", "n3"]
    (job,) = [check for check in verdict["checks"] if check["id"] == "slurm.job"]
    assert (job["actual"], job["required"]) == ("2 nodes", "2 nodes")
    # All others of its checks are made.
    assert [check["host"] for check in verdict["checks"] if check["id"] == "health.disk"] == ["n1", "n2", "n3"]


def test_a_member_that_is_to_run_no_jobs_is_no_node() -> None:
    record = samples.record(3)
    record["members"][2]["slurm_node"] = False
    verdict = evidence.judge_cluster(record, healthy_evidence(), GENERATED_AT)
    (check,) = [check for check in verdict["checks"] if check["id"] == "slurm.node" and check["status"] == "fail"]
    assert (check["host"], check["reason"]) == ("n3", "n3 is to run no jobs, but is still a node.")


def test_an_interrupted_withdrawal_is_explained() -> None:
    found = healthy_evidence()
    line = "n3|drained|10.99.0.3|gpumesh: is to run no jobs"
    found["slurm"]["stdout"] = SINFO.replace("n3|idle|10.99.0.3|none", line)
    (check,) = [check for check in judge_evidence(found)["checks"] if check["status"] == "fail"]
    assert "takes n3 out of Slurm was not completed" in check["remedy"]
    assert "scontrol update nodename=n3 state=resume" in check["remedy"]


def test_what_a_userspace_only_member_cannot_do_is_skipped() -> None:
    found = healthy_evidence()
    # When its play ends before it is queried.
    found["answered"] = ["n1", "n2"]
    found["userspace_only"] = ["n3"]
    del found["health"]["n3"]
    found["slurm"]["stdout"] = SINFO.replace("n3|idle|10.99.0.3|none\n", "")
    found["job"]["stdout"] = "n1\nn2"
    found["reachability"]["pairs"] = [p for p in found["reachability"]["pairs"] if "n3" not in (p["from"], p["to"])]
    verdict = judge_evidence(found)
    assert verdict["status"] == "pass"
    said = {c["id"]: c["reason"] for c in verdict["checks"] if c["host"] == "n3" and c["status"] == "skipped"}
    alone = "n3 is a userspace-only member: others can connect to it, but it can only connect through a proxy."
    assert {said[name] for name in ("members.answer", "slurm.node", "health.node")} == {alone}
    assert {p["status"] for p in verdict["reachability"]["pairs"] if "n3" in (p["from"], p["to"])} == {"skipped"}
    assert [c["required"] for c in verdict["checks"] if c["id"] == "slurm.job"] == ["2 nodes"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n3|down*|10.99.0.3|Not responding", "The node is down*: Not responding."),
        ("n3|drained|10.99.0.3|gpumesh: disk", "The node is drained: gpumesh: disk."),
        ("n3|idle*|10.99.0.3|none", "The node is idle*."),
        ("n3|idle|10.77.0.13|none", "slurmctld connects to n3 at 10.77.0.13 instead of 10.99.0.3."),
        ("", "slurmctld on n1 has no node n3."),
    ],
)
def test_slurm_nodes(line: str, words: str) -> None:
    found = healthy_evidence()
    found["slurm"]["stdout"] = SINFO.replace("n3|idle|10.99.0.3|none", line)
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["slurm.node@n3"]
    assert [c["reason"] for c in verdict["checks"] if c["status"] == "fail"] == [words]


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (None, "skipped"),
        ({"skipped": True}, "skipped"),
        ({"rc": 127, "stderr": "timeout: failed to run command 'sinfo': No such file or directory"}, "skipped"),
        ({"unreachable": True, "msg": "x"}, "error"),
        ({"rc": 1, "stderr": "slurm_load_partitions: Unable to contact slurm controller"}, "error"),
        ({"msg": "timeout"}, "error"),
    ],
)
def test_a_controller_that_does_not_answer(result: Any, status: str) -> None:
    made = evidence.slurm_checks(samples.record(3), result)
    assert [one["status"] for one in made] == [status]
    assert made[0]["reason"]


def test_what_sinfo_printed_counts_even_if_the_job_could_not_be_run() -> None:
    nodes, unreachable = {"rc": 0, "stdout": SINFO}, {"unreachable": True, "msg": "x"}
    no_controller = {"rc": 1, "stderr": "Unable to contact slurm controller"}
    failed = {"failed": True, "msg": "srun is missing.", "error": {"kind": "command", "sinfo": nodes}}
    assert evidence.split_job_result({"sinfo": nodes, "rc": 0}) == (nodes, {"sinfo": nodes, "rc": 0})
    assert evidence.split_job_result(failed) == (nodes, failed)
    assert evidence.split_job_result({"sinfo": no_controller, "rc": 0}) == (no_controller, None), "nothing was launched"
    assert evidence.split_job_result(unreachable) == (unreachable, None)
    killed = {"failed": True, "msg": "the module was killed", "error": "?", "sinfo": {"stdout": SINFO}}
    assert evidence.split_job_result(killed) == (killed, killed), "neither is known"
    assert evidence.split_job_result({}) == (None, None), "not run in this run"


def test_a_job_that_misses_a_member_names_it() -> None:
    found = healthy_evidence()
    found["job"]["stdout"] = "n1\nn2"
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["slurm.job@None"]
    assert "No task ran on n3." in json.dumps(verdict)


def test_a_job_that_fails_shows_its_output() -> None:
    found = healthy_evidence()
    found["job"] = {"rc": 1, "cmd": ["srun"], "stdout": "", "stderr": "srun: error: Unable to allocate resources"}
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["slurm.job@None"]
    assert verdict["jobs"][0]["output"] == "srun: error: Unable to allocate resources"


def test_a_clock_that_is_off_is_named_with_its_direction() -> None:
    found = healthy_evidence()
    for pair in found["reachability"]["pairs"]:
        pair["offset_s"] = {"n3": 600.0}.get(pair["to"], 0.0) - {"n3": 600.0}.get(pair["from"], 0.0)
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["clock.offset@n1", "clock.offset@n2", "clock.offset@n3"]
    assert "n3's clock is 600 s ahead of n1's." in json.dumps(verdict)


def test_a_node_without_a_health_result_is_an_error_with_its_message() -> None:
    found = healthy_evidence()
    found["health"]["n2"] = {"failed": True, "msg": "module blew up"}
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["health.node@n2"]
    assert verdict["status"] == "error"


def test_member_with_another_driver_is_named() -> None:
    found = healthy_evidence()
    for machine, driver in (("n1", "550.90.07"), ("n2", "550.90.07"), ("n3", "535.86.10")):
        found["health"][machine]["versions"] = {"models": ["NVIDIA H100 80GB HBM3"], "driver": driver}
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["members.versions@None"]
    assert "535.86.10 on n3" in json.dumps(verdict)


def test_each_member_that_cannot_use_a_volume_has_a_result_of_its_own() -> None:
    reasons = {
        "n1": "/data: does not answer.",
        "n2": "/data: does not answer.",
        "n3": "/data: nothing is mounted there.",
    }
    found = healthy_evidence()
    for machine, reason in reasons.items():
        given = {"reason": reason, "actual": 0, "required": 1, "unit": "volumes", "remedy": "Check the server."}
        found["health"][machine]["checks"].append(samples.check("storage.mounts", machine, "fail", **given))
    verdict = judge_evidence(found)
    lines = [line.rsplit(" ", 1) for line in prometheus.render(verdict).splitlines() if not line.startswith("#")]
    series = [name for name, _value in lines]
    assert len(series) == len(set(series))
    values = {name: value for name, value in lines if "storage.mounts" in name}
    assert values == {
        f'gpumesh_check_ok{{cluster="lab",host="{machine}",check="storage.mounts"}}': "0.0" for machine in reasons
    }
    # People read each reason once.
    shown = [(one["hosts"], one["reason"]) for one in collect_findings(verdict["checks"], ("fail",))]
    assert shown == [(["n1", "n2"], reasons["n1"]), (["n3"], reasons["n3"])]


def test_a_collective_check_has_the_status_of_its_result() -> None:
    found = healthy_evidence()
    found["collectives"] = [
        *samples.collectives(),
        {
            "collective": "all_reduce",
            "status": "fail",
            "error": {"message": "Rank 2 is missing.", "remedy": "Look at n3."},
            "rows": [],
            "ranks": None,
            "nodes": None,
            "busbw_gbps": None,
            "output": "SECRET=1",
        },
    ]
    verdict = judge_evidence(found, level="full")
    assert failing_checks(verdict) == ["collective.all_reduce@None"]
    assert "SECRET" not in json.dumps(verdict)


def test_members_left_out_of_a_collective_are_named() -> None:
    passed = samples.collectives()[0]
    words = "n1 has no GPU and does not take part."
    made = evidence.collective_checks([{**passed, "left_out": words}], "full")
    assert [(one["id"], one["status"]) for one in made] == [
        ("collective.all_reduce", "pass"),
        ("collective.all_reduce_members", "skipped"),
    ]
    assert made[1]["reason"] == words


def test_a_collective_module_that_fails_is_not_left_out() -> None:
    found = healthy_evidence()
    found["collectives"] = [
        {"item": "alltoall", "failed": True, "msg": "alltoall needs nccl-tests."},
        {"item": "broadcast", "skipped": True},
    ]
    verdict = judge_evidence(found, level="full")
    assert failing_checks(verdict) == ["collective.alltoall@None"]
    assert verdict["status"] == "error"
    assert verdict["collectives"] == []
    found["collectives"] = [{"skipped": True}]
    assert failing_checks(judge_evidence(found, level="full")) == []


def evidence_with_bandwidth(**slow: float) -> dict[str, Any]:
    """All pairs at about 10 Gbit/s, except for the given ones, such as n1_n2=0.1."""
    found = healthy_evidence()
    for index, pair in enumerate(found["reachability"]["pairs"]):
        pair["bandwidth_gbps"] = slow.get(f"{pair['from']}_{pair['to']}", 9.0 + index / 2)
    return found


def bandwidth_checks(verdict: dict[str, Any]) -> dict[str, Any]:
    return {c["host"]: c for c in verdict["checks"] if c["id"] == "reachability.bandwidth"}


def test_a_link_far_below_the_others_is_named() -> None:
    assert failing_checks(judge_evidence(evidence_with_bandwidth(), level="full")) == []
    verdict = judge_evidence(evidence_with_bandwidth(n2_n3=0.1, n3_n2=0.1), level="full")
    assert failing_checks(verdict) == ["reachability.bandwidth@n2", "reachability.bandwidth@n3"]
    assert (
        "The link from n2 to n3 carries 0.1 Gbit/s; the median within a site is"
        in bandwidth_checks(verdict)["n2"]["reason"]
    )


def test_the_links_of_pods_are_compared_with_each_other() -> None:
    found = evidence_with_bandwidth()
    for pair in found["reachability"]["pairs"]:
        pair["bandwidth_gbps"] = 0.5
    record = samples.record(3)
    assert evidence.judge_cluster(record, found, GENERATED_AT, level="full", min_bandwidth_gbps=5)["status"] == "fail"
    for member in record["members"][1:]:
        member["mesh"]["userspace"] = True
    assert failing_checks(evidence.judge_cluster(record, found, GENERATED_AT, level="full", min_bandwidth_gbps=5)) == []
    found["reachability"]["pairs"][0]["bandwidth_gbps"] = 0.01
    verdict = evidence.judge_cluster(record, found, GENERATED_AT, level="full", min_bandwidth_gbps=5)
    assert "the median of pods is 0.5" in bandwidth_checks(verdict)["n1"]["reason"]


def test_a_slow_link_is_marked_on_the_page() -> None:
    view = build_page(judge_evidence(evidence_with_bandwidth(n2_n3=0.1), level="full"))
    links = {link["title"]: link["kind"] for link in view["topology"]["links"]}
    assert links["n2 and n3"] == "slow"
    assert set(links.values()) == {"slow", "tunnel"}
    cells = {cell["label"]: cell["kind"] for row in view["bandwidth"]["rows"] for cell in row["cells"]}
    assert cells["n2 to n3: 0.10 Gbit/s, too slow"] == "slow"
    assert list(cells.values()).count("slow") == 1
    assert view["bandwidth"]["slow"]
    assert not view["latency"]["slow"]
    assert not build_page(judge_evidence(evidence_with_bandwidth(), level="full"))["bandwidth"]["slow"]


def test_a_configured_bandwidth_is_required_of_every_link() -> None:
    verdict = judge_evidence(evidence_with_bandwidth(n2_n3=8.0), level="full", min_bandwidth_gbps=8.5)
    assert failing_checks(verdict) == ["reachability.bandwidth@n2"]
    assert bandwidth_checks(verdict)["n2"]["reason"] == "The link from n2 to n3 carries 8 Gbit/s, but 8.5 are required."


def test_sites_are_not_compared_with_each_other() -> None:
    """A tenth of the LAN's throughput is not a fault of a link over the internet."""
    record = samples.record(6, ("a", "b"))
    found = {"queried": [m["machine"] for m in record["members"]], "reachability": {"pairs": samples.pairs(record)}}
    for pair in found["reachability"]["pairs"]:
        near = (pair["from"] in "n1 n2 n3") == (pair["to"] in "n1 n2 n3")
        pair["bandwidth_gbps"] = 10.0 if near else 1.0
    checks = bandwidth_checks(evidence.judge_cluster(record, found, GENERATED_AT, level="full"))
    assert {c["status"] for c in checks.values()} == {"pass"}


def test_unmeasured_throughput_is_reported() -> None:
    found = healthy_evidence()
    for pair in found["reachability"]["pairs"]:
        pair.pop("bandwidth_gbps", None)
    assert "levels full" in bandwidth_checks(judge_evidence(found))[None]["reason"]
    assert bandwidth_checks(judge_evidence(found, level="full"))[None]["reason"] == "No throughput was measured."
    found = evidence_with_bandwidth()
    for pair in found["reachability"]["pairs"]:
        if (pair["from"], pair["to"]) == ("n1", "n3"):
            pair["bandwidth_gbps"] = None
    checks = bandwidth_checks(judge_evidence(found, level="full", min_bandwidth_gbps=1))
    assert (checks["n1"]["status"], checks["n2"]["status"]) == ("error", "pass")
    assert "n1 to n3 could not be measured" in checks["n1"]["reason"]


@pytest.mark.parametrize(
    ("sites", "kinds"),
    [
        (("a", "a"), {"n1": "within a site", "n2": "within a site"}),
        (("a", "a", "b"), {"n1": "between two sites and within a site", "n3": "between two sites"}),
    ],
)
def test_too_few_links_to_compare_are_reported_and_not_judged(sites: tuple[str, ...], kinds: dict[str, str]) -> None:
    record = samples.record(len(sites), sites)
    machines = [member["machine"] for member in record["members"]]
    found = {"queried": machines, "answered": machines, "reachability": {"pairs": samples.pairs(record)}}
    for pair in found["reachability"]["pairs"]:
        pair["bandwidth_gbps"] = 0.001 if (pair["from"], pair["to"]) == ("n1", "n2") else 25.0
    verdict = evidence.judge_cluster(record, found, GENERATED_AT, level="full")
    assert verdict["status"] == "pass"
    checks = bandwidth_checks(verdict)
    assert {check["status"] for check in checks.values()} == {"skipped"}
    assert (checks["n1"]["actual"], checks["n1"]["required"]) == (0.001, None)
    for machine, words in kinds.items():
        assert f"too few links {words} to compare" in checks[machine]["reason"]
        assert "check_min_bandwidth_gbps" in checks[machine]["reason"]
    assert "reachability.bandwidth: 0.001" in " ".join(terminal.render(verdict).split())
    assert "reachability.bandwidth: 0.001" in html.render(verdict)
    assert failing_checks(evidence.judge_cluster(record, found, GENERATED_AT, level="full", min_bandwidth_gbps=1)) == [
        "reachability.bandwidth@n1"
    ]


def test_incomparable_links_are_reported_in_a_separate_check() -> None:
    """Ten links of pods, and two others."""
    record = samples.record(4)
    record["members"][2]["mesh"]["userspace"] = record["members"][3]["mesh"]["userspace"] = True
    machines = [member["machine"] for member in record["members"]]
    found = {"queried": machines, "answered": machines, "reachability": {"pairs": samples.pairs(record)}}
    for pair in found["reachability"]["pairs"]:
        pair["bandwidth_gbps"] = 0.001 if (pair["from"], pair["to"]) == ("n1", "n2") else 0.5
    checks = {
        f"{c['id']}@{c['host']}": c for c in evidence.judge_cluster(record, found, GENERATED_AT, level="full")["checks"]
    }
    assert checks["reachability.bandwidth@n1"]["status"] == "pass"
    assert checks["reachability.bandwidth@n1"]["actual"] == 0.5
    alone = checks["reachability.bandwidth_unjudged@n1"]
    assert (alone["status"], alone["actual"]) == ("skipped", 0.001)
    assert "reachability.bandwidth_unjudged@n3" not in checks


def evidence_with_rdma(rate: float | None = 400.0, **changed: tuple[float | None, float | None]) -> dict[str, Any]:
    """All pairs at about 390 Gbit/s and 2 µs, except for the given ones, such as n1_n2=(40.0, 2.0)."""
    found = evidence_with_bandwidth()
    for index, pair in enumerate(found["reachability"]["pairs"]):
        usual = (390.0 + index / 4, 1.9 + index / 100)
        pair["rdma_gbps"], pair["rdma_latency_us"] = changed.get(f"{pair['from']}_{pair['to']}", usual)
        pair["rdma_error"] = "" if pair["rdma_gbps"] else "Couldn't connect to 10.99.0.3:40000"
    port = {"device": "mlx5_0", "port": 1, "gid_index": None, "rate_gbps": rate, "reason": ""}
    found["reachability"]["rdma"] = {f"n{number}": dict(port) for number in (1, 2, 3)}
    return found


def rdma_checks(verdict: dict[str, Any], what: str = "bandwidth") -> dict[str, Any]:
    return {c["host"]: c for c in verdict["checks"] if c["id"] == f"reachability.rdma_{what}"}


def test_rdma_must_reach_the_rate_of_the_slower_port() -> None:
    assert failing_checks(judge_evidence(evidence_with_rdma(), level="full")) == []
    verdict = judge_evidence(evidence_with_rdma(n2_n3=(199.0, 2.0)), level="full")
    assert failing_checks(verdict) == ["reachability.rdma_bandwidth@n2"]
    assert rdma_checks(verdict)["n2"]["reason"] == "RDMA from n2 to n3 carries 199 Gbit/s, but 320 are required."
    assert (rdma_checks(verdict)["n2"]["actual"], rdma_checks(verdict)["n2"]["required"]) == (199.0, "≥ 320")
    slower = evidence_with_rdma(n2_n3=(199.0, 2.0))
    slower["reachability"]["rdma"]["n3"]["rate_gbps"] = 200.0
    assert failing_checks(judge_evidence(slower, level="full")) == []


def test_software_rdma_is_judged_only_by_a_configured_minimum() -> None:
    slow = evidence_with_rdma(rate=None, n2_n3=(0.4, 90.0))
    assert failing_checks(judge_evidence(slow, level="full", rdma_limits=RdmaLimits(max_latency_us=100.0))) == []
    without = rdma_checks(judge_evidence(slow, level="full"))["n2"]
    assert (without["status"], without["actual"], without["required"]) == ("skipped", 0.4, None)
    assert "check_min_rdma_gbps" in without["reason"]
    verdict = judge_evidence(slow, level="full", rdma_limits=RdmaLimits(0.5, 50.0))
    assert failing_checks(verdict) == ["reachability.rdma_bandwidth@n2", "reachability.rdma_latency@n2"]
    assert rdma_checks(verdict, "latency")["n2"]["reason"] == "RDMA from n2 to n3 takes 90 µs, but only 50 are allowed."


def test_a_latency_far_above_the_others_is_named() -> None:
    verdict = judge_evidence(evidence_with_rdma(n3_n1=(391.0, 30.0)), level="full")
    assert failing_checks(verdict) == ["reachability.rdma_latency@n3"]


def test_too_few_latencies_to_compare_are_reported_and_not_judged() -> None:
    found = evidence_with_rdma(n1_n3=(None, None), n2_n1=(391.0, 900.0))
    verdict = judge_evidence(found, level="full")
    assert failing_checks(verdict) == ["reachability.rdma_bandwidth@n1", "reachability.rdma_latency@n1"]
    alone = rdma_checks(verdict, "latency")["n2"]
    assert (alone["status"], alone["actual"]) == ("skipped", 900.0)
    assert "check_max_rdma_latency_us" in alone["reason"]
    assert rdma_checks(verdict)["n2"]["status"] == "pass"


def test_rdma_without_a_result_reports_the_reason() -> None:
    verdict = judge_evidence(evidence_with_rdma(n1_n3=(None, None)), level="full")
    assert (rdma_checks(verdict)["n1"]["status"], rdma_checks(verdict)["n2"]["status"]) == ("error", "pass")
    assert rdma_checks(verdict)["n1"]["reason"] == (
        "RDMA from n1 to n3 returned no result: Couldn't connect to 10.99.0.3:40000."
    )


def test_a_member_without_rdma_is_skipped_with_the_reason() -> None:
    none = {"device": "", "port": 0, "gid_index": None, "rate_gbps": None}
    found = evidence_with_rdma()
    found["reachability"]["rdma"]["n3"] = {**none, "reason": "no RDMA device"}
    for pair in found["reachability"]["pairs"]:
        if "n3" in (pair["from"], pair["to"]):
            pair["rdma_gbps"] = pair["rdma_latency_us"] = None
    verdict = judge_evidence(found, level="full")
    assert failing_checks(verdict) == []
    assert (rdma_checks(verdict)["n3"]["status"], rdma_checks(verdict)["n3"]["reason"]) == (
        "skipped",
        "Not checked: n3: no RDMA device.",
    )
    assert rdma_checks(verdict)["n1"]["status"] == "pass"
    found["reachability"]["rdma"]["n2"] = {**none, "reason": "no port of mlx5_0 is active"}
    for pair in found["reachability"]["pairs"]:
        pair["rdma_gbps"] = pair["rdma_latency_us"] = None
    assert "no other member has RDMA" in rdma_checks(judge_evidence(found, level="full"))["n1"]["reason"]
    found["reachability"]["rdma"]["n1"] = {**none, "reason": "no RDMA device"}
    (check,) = rdma_checks(judge_evidence(found, level="full")).values()
    assert check["reason"] == "Not checked: n1, n3: no RDMA device; n2: no port of mlx5_0 is active."
    for pair in found["reachability"]["pairs"]:
        pair.pop("bandwidth_gbps")
    assert "levels full" in rdma_checks(judge_evidence(found))[None]["reason"]


def test_measured_rdma_is_on_the_page() -> None:
    view = build_page(judge_evidence(evidence_with_rdma(n2_n3=(199.0, 2.0)), level="full"))
    kinds = {cell["label"]: cell["kind"] for row in view["rdma"]["rows"] for cell in row["cells"]}
    assert kinds["n2 to n3: 199 Gbit/s, too slow"] == "slow"
    assert build_page(judge_evidence(evidence_with_bandwidth(), level="full"))["rdma"] is None


def test_a_node_that_its_own_check_has_drained_comes_back_by_itself() -> None:
    found = healthy_evidence()
    found["slurm"]["stdout"] = SINFO.replace(
        "n3|idle|10.99.0.3|none", "n3|drained|10.99.0.3|gpumesh health: health.disk: /"
    )
    check = next(c for c in judge_evidence(found)["checks"] if c["id"] == "slurm.node" and c["status"] == "fail")
    assert "returns it to service" in check["remedy"]
    assert "resume" not in check["remedy"]


def test_a_node_drained_by_an_interrupted_removal_is_distinguished_from_a_broken_one() -> None:
    found = healthy_evidence()
    found["slurm"]["stdout"] = SINFO.replace(
        "n3|idle|10.99.0.3|none", "n3|drained|10.99.0.3|gpumesh: leaves the cluster"
    )
    check = next(c for c in judge_evidence(found)["checks"] if c["id"] == "slurm.node" and c["status"] == "fail")
    assert check["remedy"].startswith("A removal of n3 was not completed. Run the playbook remove again")


def test_a_node_drained_for_a_reboot_is_distinguished_from_a_broken_one() -> None:
    found = healthy_evidence()
    found["slurm"]["stdout"] = SINFO.replace("n3|idle|10.99.0.3|none", "n3|drained|10.99.0.3|gpumesh: reboot")
    check = next(c for c in judge_evidence(found)["checks"] if c["id"] == "slurm.node" and c["status"] == "fail")
    assert check["remedy"].startswith("A reboot of n3 was not completed, or is not yet.")
    assert "state=resume" in check["remedy"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}', "null"])
def test_a_previous_verdict_that_cannot_be_used_starts_a_new_history(text: str) -> None:
    assert judge_evidence(healthy_evidence(), previous=text)["history"] == []


def test_the_previous_verdict_may_be_text() -> None:
    assert (
        len(judge_evidence(healthy_evidence(), previous=json.dumps(judge_evidence(healthy_evidence())))["history"]) == 1
    )


@given(st.text())
def test_any_sinfo_output_is_accepted(text: str) -> None:
    made = evidence.slurm_checks(samples.record(3), {"rc": 0, "stdout": text})
    assert len(made) == 3


JOBS_BY_NODE = {"n1": ["7 of alice (train)"], "n2": ["7 of alice (train)", "8 of bob (eval)"]}


def test_a_busy_cluster_is_skipped_and_its_jobs_are_named() -> None:
    """Busy nodes are not a fault of a cluster."""
    found = healthy_evidence()
    found["job"] = {"rc": 0, "stdout": "", "stderr": "", "cmd": [], "launched": [], "occupied": {**JOBS_BY_NODE, "n3": JOBS_BY_NODE["n1"]},
                    "unavailable": {}}  # fmt: skip
    verdict = judge_evidence(found)
    assert verdict["status"] == "pass"
    (job,) = (one for one in verdict["checks"] if one["id"] == "slurm.job")
    assert job["status"] == "skipped"
    assert "job 7 of alice (train) occupies n1, n2, n3; job 8 of bob (eval) occupies n2" in job["reason"]
    assert verdict["jobs"] == []


def test_the_job_is_launched_on_the_free_nodes() -> None:
    found = healthy_evidence()
    found["job"] = {"rc": 0, "stdout": "n3\n", "stderr": "", "cmd": ["srun"], "launched": ["n3"], "occupied": JOBS_BY_NODE,
                    "unavailable": {}}  # fmt: skip
    verdict = judge_evidence(found)
    (job,) = (one for one in verdict["checks"] if one["id"] == "slurm.job")
    assert (job["status"], job["required"]) == ("pass", "1 nodes")
    (room,) = (one for one in verdict["checks"] if one["id"] == "slurm.room")
    assert room["status"] == "skipped"
    assert "n1, n2" in room["reason"]
    found["job"]["stdout"] = ""
    assert failing_checks(judge_evidence(found)) == ["slurm.job@None"]


def test_an_unknown_slurm_account_is_skipped() -> None:
    found = healthy_evidence()
    said = "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified"
    found["job"] = {"rc": 1, "stdout": "", "stderr": said, "cmd": ["srun"], "launched": ["n1", "n2", "n3"], "occupied": {},
                    "unavailable": {}}  # fmt: skip
    verdict = judge_evidence(found)
    (job,) = (one for one in verdict["checks"] if one["id"] == "slurm.job")
    assert job["status"] == "skipped"
    assert "check_job_user" in job["reason"]


def test_a_lost_job_is_reported_in_addition_to_the_second_one() -> None:
    found = healthy_evidence()
    lost = "srun: error: Something is wrong with the boot of the nodes.\n"
    found["job"] = {"rc": 0, "stdout": "n1\nn3\nn2\n", "stderr": lost, "cmd": ["srun"], "launched": ["n1", "n2", "n3"],
                    "occupied": {}, "unavailable": {}, "away": ["n2"], "attempts": 2}  # fmt: skip
    verdict = judge_evidence(found)
    assert verdict["status"] == "pass"
    by_id = {one["id"]: one for one in verdict["checks"] if one["id"].startswith("slurm.job")}
    assert by_id["slurm.job"]["status"] == "pass"
    beside = by_id["slurm.job_unjudged"]
    assert (beside["status"], "n2 had been down" in beside["reason"]) == ("skipped", True)
    assert lost.strip() in verdict["jobs"][0]["output"]


def test_a_second_job_that_fails_and_a_node_that_stays_away_are_failures() -> None:
    found = healthy_evidence()
    found["job"] = {"rc": 1, "stdout": "", "stderr": "srun: error: Slurmd could not execve job", "cmd": ["srun"],
                    "launched": ["n1", "n2", "n3"], "occupied": {}, "unavailable": {}, "away": ["n2"], "attempts": 2}  # fmt: skip
    verdict = judge_evidence(found)
    assert failing_checks(verdict) == ["slurm.job@None"]
    (job,) = (one for one in verdict["checks"] if one["id"].startswith("slurm.job"))
    assert "could not execve" in job["reason"] and "second attempt: n2 had been down" in job["reason"]
    found["job"].update(attempts=1, rc=124, stderr="")
    (job,) = (one for one in judge_evidence(found)["checks"] if one["id"].startswith("slurm.job"))
    assert job["status"] == "fail" and "n2 had been down" in job["reason"] and "not run again" in job["reason"]
