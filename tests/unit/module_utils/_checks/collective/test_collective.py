# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective import judge, launch, parse, thresholds
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, InputError

FIXTURES = Path(__file__).parent / "fixtures"

# name: (collective, ranks, hosts, rows, busbw at the largest size, exit status, expected ranks, nodes, kind of problem)
CASES = {
    "01-new-table.txt": ("all_reduce", 8, 1, 6, 189.30, 0, 8, 1, None),
    "02-two-nodes.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, None),
    "03-before-version-line.txt": (None, 8, 1, 6, 189.30, 0, 8, 1, None),
    "04-very-old-no-root.txt": (None, 8, 1, 6, 119.74, 0, 8, 1, None),
    "05-wrong-not-checked.txt": ("all_reduce", 8, 1, 6, 189.30, 0, 8, 1, None),
    "06-wrong-values-scientific.txt": ("all_reduce", 8, 1, 6, 189.30, 1, 8, 1, "wrong_values"),
    "07-time-scientific.txt": ("all_reduce", 8, 1, 2, 1.25, 0, 8, 1, None),
    "08-timestamps.txt": ("all_reduce", 8, 1, 4, 156.34, 0, 8, 1, None),
    "09-srun-label.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, None),
    "10-mpirun-tag-output.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, None),
    "11-interleaved-logs.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, None),
    "12-colours.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, None),
    "13-broadcast-root.txt": ("broadcast", 16, 2, 6, 189.30, 0, 16, 2, None),
    "14-all-gather-empty-redop.txt": ("all_gather", 16, 2, 6, 189.30, 0, 16, 2, None),
    "15-in-place-only.txt": ("all_reduce", 8, 1, 1, 189.30, 0, 8, 1, None),
    "16-rccl.txt": ("all_reduce", 8, 1, 6, 189.30, 0, 8, 1, None),
    "17-usage.txt": (None, 0, 0, 0, None, 0, 8, 1, "usage"),
    "18-truncated.txt": ("all_reduce", 16, 2, 6, 189.30, 0, 16, 2, "truncated"),
    "19-nccl-failure.txt": ("all_reduce", 8, 1, 2, 121.22, 3, 8, 1, "failed"),
    "20-cuda-failure.txt": ("all_reduce", 0, 0, 0, None, 2, 8, 1, "failed"),
    "21-test-timeout.txt": ("all_reduce", 8, 1, 0, None, 1, 8, 1, "failed"),
    "22-rank-killed.txt": ("all_reduce", 3, 3, 2, 92.36, 137 - 128, 3, 3, "rank_died"),
    "23-without-mpi.txt": ("all_reduce", 1, 2, 4, 0.0, 0, 2, 2, "wrong_ranks"),
    "24-one-host-only.txt": ("all_reduce", 16, 1, 6, 189.30, 0, 16, 2, "wrong_nodes"),
    "25-out-of-bounds.txt": ("all_reduce", 8, 1, 6, 189.30, 1, 8, 1, "wrong_values"),
    "26-empty.txt": (None, 0, 0, 0, None, 0, 8, 1, "truncated"),
    "27-hang-after-devices.txt": ("all_reduce", 2, 2, 0, None, 124, 3, 3, "timeout"),
    "33-own-program.txt": ("all_reduce", 3, 3, 2, 1.3981, 0, 3, 3, None),
    "34-own-program-died.txt": (None, 3, 3, 0, None, 1, 3, 3, "rank_died"),
    "35-no-torch.txt": (None, 0, 0, 0, None, 1, 3, 3, "not_installed"),
    "36-two-singles-2.13.txt": (None, 1, 2, 4, 0.0, 0, 2, 2, "wrong_ranks"),
    "37-version-with-commit.txt": ("all_reduce", 0, 0, 4, 44.44, 0, 4, 1, "truncated"),
    "38-all-gather-2.19.txt": ("all_gather", 2, 2, 12, 23.74, 0, 2, 2, None),
    "39-rccl-2.17-alltoall.txt": ("alltoall", 8, 1, 14, 268.26, 0, 8, 1, None),
    "40-too-few-gpus.txt": ("all_reduce", 0, 0, 0, None, 1, 297, 3, "failed"),
    "41-missing-library.txt": (None, 0, 0, 0, None, 127, 8, 1, "not_started"),
    "42-execve-not-found.txt": (None, 0, 0, 0, None, 2, 2, 1, "not_started"),
    "43-execve-denied.txt": (None, 0, 0, 0, None, 13, 2, 2, "not_started"),
}


def read(name: str) -> parse.ParsedOutput:
    return parse.parse_text((FIXTURES / name).read_text(encoding="utf-8"))


def test_every_fixture_is_tested() -> None:
    assert sorted(CASES) == sorted(path.name for path in FIXTURES.glob("*.txt"))


@pytest.mark.parametrize("name", CASES)
def test_fixture(name: str) -> None:
    collective, ranks, hosts, rows, busbw, rc, expected_ranks, nodes, kind = CASES[name]
    output = read(name)
    assert output["collective"] == collective
    assert len({device["rank"] for device in output["devices"]}) == ranks
    assert len({device["host"] for device in output["devices"]}) == hosts
    assert len(output["rows"]) == rows
    top = judge.find_largest_row(output["rows"])
    assert (top["busbw_gbps"] if top else None) == busbw
    problem = judge.judge_output(output, judge.ExpectedRun(expected_ranks, nodes, 60), rc, rc == 124)
    assert (problem.kind if problem else None) == kind, problem
    if problem:
        assert problem.message.endswith(".") and problem.remedy.endswith(".")


def test_versions_and_warnings() -> None:
    assert read("01-new-table.txt")["versions"] == {
        "nccl-tests": "2.17.4",
        "nccl-headers": "22803",
        "nccl-library": "22803",
    }
    assert read("37-version-with-commit.txt")["versions"] == {
        "nccl-tests": "2.20.0",
        "nccl-headers": "23102",
        "nccl-library": "23102",
    }
    assert read("39-rccl-2.17-alltoall.txt")["versions"] == {
        "rccl-tests": "2.17.9-develop:2596ca5f71",
        "rccl-headers": "22803",
        "rccl-library": "22707",
    }
    assert read("16-rccl.txt")["versions"] == {"rccl-tests": "develop:4b3bb7a"}
    assert read("33-own-program.txt")["versions"] == {"torch": "2.6.0", "backend": "gloo"}
    mixed = read("11-interleaved-logs.txt")
    assert mixed["versions"]["nccl"] == "2.28.3+cuda12.9"
    assert all("NCCL WARN" in line for line in mixed["warnings"]) and len(mixed["warnings"]) == 3


def test_wrong_counts_are_distinguished_from_old_rounding_errors() -> None:
    assert read("06-wrong-values-scientific.txt")["rows"][0]["wrong"] == 2100000
    assert {row["wrong"] for row in read("05-wrong-not-checked.txt")["rows"]} == {None}
    assert {row["wrong"] for row in read("04-very-old-no-root.txt")["rows"]} == {None}
    assert read("13-broadcast-root.txt")["rows"][0]["redop"] is None


def problem(name: str, **changes: object) -> judge.CollectiveProblem:
    ranks, nodes, rc = CASES[name][6], CASES[name][7], CASES[name][5]
    expected = judge.ExpectedRun(ranks, nodes, 60)._replace(**changes)
    found_problem = judge.judge_output(read(name), expected, rc, rc == 124)
    assert found_problem is not None
    return found_problem


def test_messages_name_the_rank_and_the_node() -> None:
    assert problem("22-rank-killed.txt").message == "A process ended early: rank 2 on n3: Killed."
    assert problem("34-own-program-died.txt").message == "A process ended early: rank 1 on n2: Killed."
    assert "Rank 2" in problem("27-hang-after-devices.txt").message
    assert "socketProgress: Connection closed by remote peer n3" in problem("19-nccl-failure.txt").message


@pytest.mark.parametrize("name", ["23-without-mpi.txt", "36-two-singles-2.13.txt"])
@pytest.mark.parametrize("rc", [0, 1, 124])
def test_processes_that_run_their_own_tests_are_told_from_missing_ranks(name: str, rc: int) -> None:
    found_problem = judge.judge_output(read(name), judge.ExpectedRun(2, 2, 60), rc, rc == 124)
    assert found_problem is not None and found_problem.kind == "wrong_ranks"
    assert found_problem.message.startswith("Every process ran a separate test: rank 0 reported 2 times (on ")
    assert "build it with MPI=1" in found_problem.remedy and "srun --mpi=list" in found_problem.remedy


def test_too_few_gpus_are_the_reason_of_a_failure() -> None:
    assert "297 requested but only 8 were found" in problem("40-too-few-gpus.txt").message


@pytest.mark.parametrize(
    ("line", "rc", "message", "remedy"),
    [
        ("", 126, "It exited 126: /opt/t/all_reduce_perf cannot be executed by the account", "chmod a+rx"),
        ("", 127, "It exited 127: /opt/t/all_reduce_perf, or a program or library", "Install it"),
        (
            "timeout: failed to run command '/root/t/all_reduce_perf': Permission denied",
            126,
            "It exited 126: /root/t/all_reduce_perf cannot be executed",
            "chmod a+rx",
        ),
        (
            "timeout: failed to run command \u2018srun\u2019: No such file or directory",
            127,
            "It exited 127: srun, or",
            "Install it",
        ),
        ("env: '/root/t/all_reduce_perf': Permission denied", 126, "It exited 126: /root/t/all_reduce_perf", "chmod"),
        ("slurmstepd: error: execve(): /a/b c: Permission denied", 13, "/a/b c cannot be executed", "chmod a+rx"),
        ("slurmstepd-n1: error: execve(): b: No such file or directory", 2, "b, or a program or", "Install it"),
        (
            "mpirun was unable to launch the specified application as it could not access\nor execute an executable:",
            1,
            "/opt/t/all_reduce_perf cannot be executed",
            "chmod a+rx",
        ),
        (
            "mpirun was unable to find the specified executable file, and therefore did not",
            1,
            "/opt/t/all_reduce_perf, or a program",
            "Install it",
        ),
        (
            "/a/all_reduce_perf: error while loading shared libraries: libmpi.so.40: cannot open shared object file",
            127,
            "/a/all_reduce_perf cannot be started: libmpi.so.40 is not installed",
            "LD_LIBRARY_PATH",
        ),
    ],
)
def test_a_program_that_cannot_be_started_gets_the_remedy_for_that(
    line: str, rc: int, message: str, remedy: str
) -> None:
    expected = judge.ExpectedRun(2, 2, 60, program="/opt/t/all_reduce_perf")
    found_problem = judge.judge_output(parse.parse_text(line), expected, rc, False)
    assert found_problem is not None and found_problem.kind == "not_started"
    assert found_problem.message.startswith(message)
    assert remedy in found_problem.remedy and "NCCL_DEBUG" not in found_problem.remedy


def test_other_exit_statuses_keep_their_remedy() -> None:
    found_problem = judge.judge_output(parse.parse_text(""), judge.ExpectedRun(2, 2, 60), 2, False)
    assert found_problem is not None and found_problem.kind == "exit_status"


def test_a_threshold_is_judged_at_the_largest_size_only() -> None:
    slow = thresholds.Threshold(200.0, "given")
    assert problem("01-new-table.txt", threshold=slow).kind == "slow"
    fine = judge.ExpectedRun(8, 1, 60, thresholds.Threshold(189.0, "given"))
    assert judge.judge_output(read("01-new-table.txt"), fine, 0, False) is None


def test_nonzero_exit_status_fails_despite_a_footer() -> None:
    assert judge.judge_output(read("01-new-table.txt"), judge.ExpectedRun(8, 1, 60), 3, False).kind == "exit_status"


def make_description(
    names: list, nodes: int = 1, collective: str = "all_reduce", size: int = 1 << 33
) -> thresholds.RunDescription:
    return thresholds.RunDescription(collective, names, nodes, size)


def test_thresholds() -> None:
    assert thresholds.find_threshold(make_description(["NVIDIA H100 80GB HBM3"] * 8)).required_gbps == 460.0
    assert thresholds.find_threshold(make_description(["NVIDIA H100 80GB HBM3"] * 4)) is None
    assert thresholds.find_threshold(make_description(["NVIDIA H100"] * 7 + ["NVIDIA A100"])) is None
    assert thresholds.find_threshold(make_description(["NVIDIA H100"] * 8, collective="all_gather")) is None
    assert thresholds.find_threshold(make_description(["NVIDIA H100"] * 8, size=1 << 26)) is None
    assert thresholds.find_threshold(make_description(["x"], 2)) is None
    assert thresholds.find_threshold(make_description(["x"], 2), 400.0, 8).required_gbps == pytest.approx(307.2)
    assert thresholds.find_threshold(make_description(["x"], 2), 50.0, 1).required_gbps == pytest.approx(4.8)
    assert thresholds.find_threshold(make_description(["x"], 2), 100.0, 1, "tcp").required_gbps == pytest.approx(4.0)
    assert thresholds.find_threshold(make_description(["x"], 2), 10.0, 1, "tcp").required_gbps == pytest.approx(0.4)
    assert all(
        machine.source and 0 < machine.required_gbps <= machine.typical_gbps
        for machine in thresholds.MACHINE_BANDWIDTHS
    )
    assert all(fabric.source and fabric.typical_gbps > 0 for fabric in thresholds.FABRIC_BANDWIDTHS)


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("NVIDIA H100 80GB HBM3", 460.0),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", 431.0),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-SXM4-40GB", 210.0),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA B200", 754.0),
    ],
)
def test_pcie_cards_are_not_judged_by_nvswitch_thresholds(name: str, gbps: float | None) -> None:
    threshold = thresholds.find_threshold(make_description([name] * 8))
    assert (threshold.required_gbps if threshold else None) == gbps


def test_custom_threshold_takes_precedence() -> None:
    custom_thresholds = [
        thresholds.CustomThreshold(1.0, collective="broadcast"),
        thresholds.CustomThreshold(2.0, gpu="H100", gpus=8, nodes=1, source="our acceptance test"),
        thresholds.CustomThreshold(3.0, nodes=2),
    ]

    def find_source(*arguments: object) -> object:
        threshold = thresholds.find_threshold(make_description(*arguments), custom_thresholds=custom_thresholds)
        return threshold and (threshold.required_gbps, threshold.source)

    assert find_source(["NVIDIA H100"] * 8) == (2.0, "our acceptance test")
    assert find_source(["NVIDIA H100"] * 8, 1, "broadcast") == (1.0, "your own entry")
    assert find_source(["NVIDIA A100"] * 8) == (210.0, thresholds.MACHINE_BANDWIDTHS[3].source)
    assert find_source(["x", "y"], 2) == (3.0, "your own entry")
    assert find_source([]) is None


@settings(max_examples=300)
@given(st.text())
def test_output_without_a_footer_never_passes(text: str) -> None:
    output = parse.parse_text(text)
    if "Out of bounds values" not in text:
        assert judge.judge_output(output, judge.ExpectedRun(1, 1, 60), 0, False) is not None


_LINES = [line for name in CASES for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines()]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(_LINES) | st.text(max_size=60), max_size=40), st.integers(0, 4))
def test_shuffled_lines_never_crash_and_never_pass_without_a_footer(lines: list, cut: int) -> None:
    text = "\n".join(lines)
    output = parse.parse_text(text[: len(text) - cut])
    parsed_output = judge.judge_output(output, judge.ExpectedRun(2, 2, 60), 0, False)
    if "Out of bounds values" not in text and parse.RESULT_MARK not in text:
        assert parsed_output is not None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "collective",
                        "results",
                        "devices",
                        "size",
                        "in_place",
                        "bus_bw",
                        "out_of_bounds",
                        "average_bus_bandwidth",
                        "bandwidth",
                        "count",
                        "rank",
                        "host",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_any_json_document_is_accepted(value: object) -> None:
    output = parse.parse_text(f"{parse.RANK_MARK}{json.dumps(value)}\n{parse.RESULT_MARK}{json.dumps(value)}")
    assert judge.judge_output(output, judge.ExpectedRun(1, 1, 60), 0, False) is not None


@given(st.integers(0, 2000))
def test_truncated_result_never_passes(cut_index: int) -> None:
    text = (FIXTURES / "33-own-program.txt").read_text(encoding="utf-8").rstrip()
    assert not parse.parse_text(text[: min(cut_index, len(text) - 1)])["concluded"]


@pytest.mark.parametrize("damage", ["NaN", "Infinity", '"1e999"', "null", "[]", "1" * 5000])
def test_damaged_number_of_the_built_in_program_never_passes(damage: str) -> None:
    text = (FIXTURES / "33-own-program.txt").read_text(encoding="utf-8")
    for good in ('"count": 0', '"rank": 2', '"bus_bw": 1.3981', '"bandwidth": 0.7', '"size": 1048576', '"nwrong": 0'):
        output = parse.parse_text(text.replace(good, f"{good.partition(':')[0]}: {damage}"))
        if output["concluded"]:
            assert good in ('"bus_bw": 1.3981', '"bandwidth": 0.7'), "a rate may be unknown"


def make_request(**changes: object) -> launch.CollectiveRequest:
    base = launch.CollectiveRequest(
        "all_reduce", "", "srun", 3, 3, ["n1", "n2", "n3"], 1024, 2048, 5, 60, None, None, 1, "python3"
    )
    return base._replace(**changes)


def test_every_command_has_a_time_limit_and_no_shell() -> None:
    for built_command in (
        launch.build_command(make_request()),
        launch.build_command(make_request(launcher="mpirun", path="/opt")),
        launch.build_command(make_request(launcher="local", nodes=1, path="/opt")),
    ):
        assert built_command[:3] == ["timeout", "--kill-after=10", "60"]
    srun = launch.build_command(make_request(path="/opt/nccl-tests/build", ranks=24))
    assert "--ntasks-per-node=8" in srun and "--nodelist=n1,n2,n3" in srun and "--gpus-per-node=8" in srun
    assert "/opt/nccl-tests/build/all_reduce_perf" in srun
    assert not [argument for argument in srun if argument.startswith("--mpi")]
    assert "--mpi=pmix" in launch.build_command(make_request(path="/opt", mpi="pmix"))
    assert not [argument for argument in launch.build_command(make_request(mpi="pmix")) if argument.startswith("--mpi")]
    assert not [
        argument
        for argument in launch.build_command(make_request(path="/opt", gpus=False))
        if argument.startswith("--gpus")
    ]
    assert launch.build_command(make_request(launcher="local", ranks=8, nodes=1, path="/opt"))[-3:] == ["8", "-n", "5"]
    assert "--backend=gloo" in launch.build_command(make_request(gpus=False))
    assert not [argument for argument in launch.build_command(make_request()) if argument.startswith("--backend")]
    assert "n1:1,n2:1,n3:1" in launch.build_command(make_request(launcher="mpirun", path="/opt"))


def fake_partitions(*each: str) -> Callable[..., CommandResult]:
    """Slurm with the nodes n1 to n3 in these partitions, of which main is the default one and closed is down."""

    def answer(argv: list, **_options: object) -> CommandResult:
        if "-V" in argv:
            return CommandResult(0, "slurm-wlm 22.05.8", "")
        if argv[-1] == "partition":
            lines = ["PartitionName=closed State=DOWN", "PartitionName=all State=UP"]
            return CommandResult(0, "\n".join([*lines, "PartitionName=main State=UP Default=YES"]), "")
        nodes = [f"NodeName=n{number} Partitions={names} State=IDLE" for number, names in enumerate(each, 1)]
        return CommandResult(0, "\n".join(nodes), "")

    return answer


@pytest.mark.parametrize(
    ("partitions", "chosen"),
    [
        (("main", "main", "main"), "main"),
        (("all", "all", "all"), "all"),
        (("all,closed,main", "main,all", "closed,all"), "all"),
        (("all,main", "main,all", "closed,main,all"), "main"),
        # srun says why.
        (("closed", "closed", "closed"), "closed"),
        ((), ""),
    ],
)
def test_a_collective_runs_in_the_partition_of_its_nodes(partitions: tuple[str, ...], chosen: str) -> None:
    placed, problem = launch.choose_partition(make_request(), fake_partitions(*partitions))
    assert (placed, problem) == (make_request(partition=chosen), None)
    assert (f"--partition={chosen}" in launch.build_command(placed)) == bool(chosen)


def test_nodes_without_a_common_partition_are_not_checked() -> None:
    request = make_request()
    placed, problem = launch.choose_partition(request, fake_partitions("main", "closed", "(null)"))
    assert placed == request and problem is not None
    assert problem.message == "Not run: no partition has all of the nodes (n1 in main; n2 in closed; n3 in none)."
    assert (
        launch.build_result(request, launch.Measurement(parse.make_empty_output(), problem, None), None)["status"]
        == "skipped"
    )


@pytest.mark.parametrize("changes", [{"nodelist": []}, {"launcher": "mpirun"}, {"launcher": "local"}])
def test_only_srun_on_named_nodes_needs_their_partition(changes: dict) -> None:
    def answer(argv: list, **_options: object) -> CommandResult:
        raise AssertionError(argv)

    assert launch.choose_partition(make_request(**changes), answer) == (make_request(**changes), None)


def test_srun_reports_that_slurm_does_not_answer() -> None:
    def answer(argv: list, **_options: object) -> CommandResult:
        raise CommandError(argv, "exited 1", 1, "Unable to contact slurm controller")

    assert launch.choose_partition(make_request(), answer) == (make_request(), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 4},
        {"ranks": 2},
        {"launcher": "local"},
        {"launcher": "mpirun", "nodelist": []},
        {"min_bytes": 4096},
        {"collective": "alltoall"},
    ],
)
def test_impossible_request_is_refused_with_a_remedy(changes: dict) -> None:
    with pytest.raises(InputError) as caught:
        launch.check_request(make_request(**changes))
    assert caught.value.remedy


def test_timeout_keeps_the_printed_output() -> None:
    text = (FIXTURES / "27-hang-after-devices.txt").read_text(encoding="utf-8")
    measurement = launch.run_and_judge(
        make_request(), lambda *_argv, **_options: CommandResult(124, text, "srun: forcing job termination")
    )
    assert measurement.problem is not None and measurement.problem.kind == "timeout"
    assert launch.build_result(make_request(), measurement, None)["status"] == "fail"


def cluster(rate_of: Callable[[list, bool], float], backend: str = "nccl") -> Callable[..., CommandResult]:
    """The output of a cluster whose bandwidth depends on the nodes, and on whether NCCL has to use Ring."""

    def answer(argv: list, environment: dict | None = None, **_options: object) -> CommandResult:
        nodes = next(node_name for node_name in argv if node_name.startswith("--nodelist=")).split("=")[1].split(",")
        size = next(int(node_name.split("=")[1]) for node_name in argv if node_name.startswith("--max-bytes="))
        rate = rate_of(nodes, (environment or {}).get("NCCL_ALGO") == "Ring")
        devices = [{"rank": rank, "host": node, "device": 0, "name": "CPU"} for rank, node in enumerate(nodes)]
        body = {"time": 1.0, "alg_bw": rate, "bus_bw": rate, "nwrong": 0}
        document = {
            "collective": "all_reduce",
            "backend": backend,
            "devices": devices,
            "results": [{"size": size, "count": size // 4, "type": "float", "redop": "sum", "in_place": body}],
            "out_of_bounds": {"count": 0},
            "average_bus_bandwidth": {"bandwidth": rate},
        }
        return CommandResult(0, f"{parse.RESULT_MARK}{json.dumps(document)}\n", "")

    return answer


@pytest.mark.parametrize(("used_ports", "kind", "runs"), [(2, None, 3), (3, "failed", 3)])
def test_used_rendezvous_port_is_skipped(used_ports: int, kind: str | None, runs: int) -> None:
    works = cluster(lambda _nodes, _ring: 5.0)
    ports: list[str] = []

    def answer(argv: list, environment: dict, **options: object) -> CommandResult:
        ports.append(environment["MASTER_PORT"])
        if len(ports) > used_ports:
            return works(argv, environment, **options)
        error_text = "torch.distributed.DistNetworkError: The server socket has failed to listen: name: EADDRINUSE\n"
        return CommandResult(1, "", f"0: {error_text}")

    problem = launch.run_and_judge(make_request(), answer).problem
    assert (problem.kind if problem else None) == kind
    assert len(set(ports)) == len(ports) == runs, "another one each time"
    assert all(20000 <= int(port) < 32768 for port in ports)
    command = launch.build_command(make_request(launcher="mpirun", nodelist=["n1", "n2", "n3"], path=""))
    assert command[command.index("MASTER_PORT") - 1] == "-x"


def test_a_slow_run_names_the_link() -> None:
    one_slow_link = cluster(lambda nodes, _ring: 0.1 if {"n1", "n3"} <= set(nodes) else 5.0)
    request = make_request(min_busbw_gbps=1.0)
    measurement = launch.run_and_judge(request, one_slow_link)
    assert measurement.problem is not None and measurement.problem.kind == "slow"
    culprit = launch.bisect_nodes(request, measurement, one_slow_link)
    assert culprit is not None
    assert (culprit.kind, culprit.node_names) == ("link", ("n1", "n3"))
    result = launch.build_result(request, measurement, culprit)
    assert "the link between n1 and n3" in result["error"]["message"]
    assert "0.1 GB/s at 2 KiB" in result["error"]["message"]
    assert result["ring_busbw_gbps"] is None


def limit_memory(answer: Callable[..., CommandResult], most: int) -> Callable[..., CommandResult]:
    """GPUs whose memory holds messages of ``most`` bytes: nccl-tests reduces the maximum, and refuses the minimum."""

    def reduced(argv: list, **options: object) -> CommandResult:
        low, high = (
            int(next(argument for argument in argv if argument.startswith(name)).split("=")[1])
            for name in ("--min-bytes=", "--max-bytes=")
        )
        if low > min(high, most):
            return CommandResult(1, "", f"invalid sizes for 'minbytes' and 'maxbytes': {low} > {most}\n")
        argv = [
            f"--max-bytes={min(high, most)}" if argument.startswith("--max-bytes=") else argument for argument in argv
        ]
        return answer(argv, **options)

    return reduced


def test_later_runs_use_the_largest_message_of_the_first_run() -> None:
    rates = cluster(lambda nodes, _ring: 0.1 if "n2" in nodes else 20.0)
    request = make_request(nic_gbps=100.0, max_bytes=1 << 33)
    run = limit_memory(rates, 1 << 32)
    measurement = launch.run_and_judge(request, run)
    assert measurement.problem is not None and (measurement.problem.kind, measurement.ring_gbps) == ("slow", 0.1)
    culprit = launch.bisect_nodes(request, measurement, run)
    assert culprit is not None and (culprit.kind, culprit.node_names) == ("node", ("n2",))
    fine = launch.run_and_judge(request, limit_memory(cluster(lambda _nodes, _ring: 20.0), 1 << 32))
    assert (fine.problem, fine.ring_gbps) == (None, 20.0)


def test_network_rate_is_judged_with_ring() -> None:
    """Tree alone would have passed: 20 of 9.6 GB/s."""
    request = make_request(nodes=2, ranks=2, nodelist=["n1", "n2"], nic_gbps=100.0, max_bytes=1 << 30)
    measurement = launch.run_and_judge(request, cluster(lambda _nodes, ring: 6.0 if ring else 20.0))
    assert measurement.problem is not None and measurement.problem.kind == "slow"
    assert launch.build_result(request, measurement, None)["ring_busbw_gbps"] == 6.0
    measurement = launch.run_and_judge(request, cluster(lambda _nodes, ring: 11.0 if ring else 20.0))
    assert (measurement.problem, measurement.ring_gbps) == (None, 11.0)
    assert launch.build_command(make_request(launcher="mpirun", path="/opt", ring=True))[-13:-11] == ["-x", "NCCL_ALGO"]


def test_threshold_unused_for_small_messages_is_reported() -> None:
    request = make_request(nic_gbps=100.0, max_bytes=1 << 26)
    measurement = launch.run_and_judge(request, cluster(lambda _nodes, ring: 0.5))
    assert (measurement.problem, measurement.threshold) == (None, None)
    result = launch.build_result(request, measurement, None)
    assert "9.6 GB/s" in str(result["not_judged"])
    custom_threshold = make_request(min_busbw_gbps=1.0, max_bytes=1 << 26)
    assert launch.run_and_judge(custom_threshold, cluster(lambda _nodes, ring: 0.5)).problem is not None, (
        "what the user says is judged"
    )


def test_gloo_is_judged_by_the_tcp_threshold() -> None:
    request = make_request(nic_gbps=100.0, max_bytes=1 << 30)
    measurement = launch.run_and_judge(request, cluster(lambda _nodes, ring: 0.0 if ring else 4.5, backend="gloo"))
    assert measurement.problem is None and measurement.threshold is not None
    assert measurement.threshold.required_gbps == pytest.approx(4.0)
