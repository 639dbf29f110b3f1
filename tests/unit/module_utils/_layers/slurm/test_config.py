# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's configuration language, and the content of our files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import CAP_SYS_NICE, has_capability
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf, config, configure
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import (
    CgroupSupport,
    GpuDevices,
    SlurmHost,
    choose_autodetect,
    format_gres_type,
    parse_cgroups,
    parse_version,
    read_memory,
    running_slurmd_options,
)
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT

V1 = CgroupSupport("v1", ("cpuset", "devices", "freezer", "memory"))
HOST = SlurmHost((24, 11, 5), V1, GpuDevices("h100", ("/dev/nvidia0", "/dev/nvidia1"), ""), 24105, 16, "box17")
FOLDER = "/etc/slurm"


def request(**overrides: Any) -> config.SlurmRequest:
    """Return the request of n1, the controller, with the overrides of a test."""
    fields: dict[str, Any] = {
        "cluster": "lab",
        "controller": "10.99.0.1",
        "machine": "n1",
        "address": "10.99.0.1",
        "serve": True,
        "accounting": True,
        "max_nodes": 1024,
        "task_prolog": "/etc/gpumesh/task_prolog",
        "health_check": "",
        "health_check_interval": 300,
        "prolog": "",
        "epilog": "",
        "state_folder": "/var/lib/slurm/slurmctld",
        "spool_folder": "/var/lib/slurm/slurmd",
        "log_folder": "/var/log/slurm",
        "settings": {},
        "partitions": {"cluster": {"Nodes": "ALL", "Default": True}},
        "nodesets": {},
        "cgroup": {},
        "gres": {},
        "node": {},
    }
    return config.SlurmRequest(**{**fields, **overrides})


def served(**overrides: Any) -> dict[str, str]:
    """The settings of slurm.conf."""
    return conf.parse_settings(config.build_config_files(request(**overrides), HOST, FOLDER).served_files["slurm.conf"])


def test_slurm_conf() -> None:
    settings = served()
    # The host's own name: slurmctld refuses another one, whatever the inventory calls the host.
    assert settings["slurmctldhost"] == "box17(10.99.0.1)"
    assert settings["clustername"] == "lab"
    assert settings["slurmctldparameters"] == "enable_configless"
    assert settings["accountingstoragehost"] == "10.99.0.1"
    # slurmstepd reports its end again after 60 s.
    assert int(settings["unkillablesteptimeout"]) > 60 + 60
    assert "Include /etc/slurm/node/slurm.conf" in settings
    assert "PartitionName=cluster Nodes=ALL Default=YES" in settings


def test_config_files_contain_no_node_names() -> None:
    one = config.build_config_files(request(), HOST, FOLDER).served_files
    other = config.build_config_files(
        request(machine="n7", address="10.99.0.7", gres={"gpu": []}), HOST, FOLDER
    ).served_files
    assert one == other


def test_user_settings_win_regardless_of_case() -> None:
    settings = served(
        settings={"treewidth": 16, "MaxJobCount": 20000, "TaskProlog": None, "ProctrackType": "proctrack/pgid"}
    )
    assert settings["treewidth"] == "16"
    assert settings["maxjobcount"] == "20000"
    assert "taskprolog" not in settings
    text = config.build_config_files(request(settings={"ProctrackType": "proctrack/pgid"}), HOST, FOLDER).node_files[
        "node/slurm.conf"
    ]
    assert "proctracktype" not in conf.parse_settings(text)


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"SlurmctldParameters": "idle_on_node_suspend"}, "idle_on_node_suspend,enable_configless"),
        ({"slurmctldparameters": ["a", "Enable_Configless"]}, "a,Enable_Configless"),
        # No node gets its configuration without this switch.
        ({"SlurmctldParameters": None}, "enable_configless"),
        ({"SlurmctldParameters": []}, "enable_configless"),
        ({"DebugFlags": ["Steps", "Gres"]}, "Steps,Gres,NO_CONF_HASH"),
        ({"debugflags": " Steps , no_conf_hash"}, "Steps , no_conf_hash"),
        ({"DebugFlags": None}, None),
        ({"SchedulerParameters": "defer"}, "defer,bf_interval=10,nohold_on_prolog_fail"),
        ({"SchedulerParameters": "defer, BF_Interval=60"}, "defer, BF_Interval=60,nohold_on_prolog_fail"),
        ({"SchedulerParameters": None}, None),
        # Other lists are the user's alone.
        ({"PrologFlags": "X11"}, "X11"),
    ],
)
def test_switch_lists_of_the_user_keep_required_switches(settings: dict[str, Any], written: str | None) -> None:
    (key,) = settings
    assert served(settings=settings, prolog="/usr/local/sbin/check").get(key.lower()) == written


def test_switch_lists_of_the_user_get_no_other_switches() -> None:
    assert served(settings={"SchedulerParameters": "defer"})["schedulerparameters"] == "defer,bf_interval=10"


def test_health_check_prolog_and_epilog_are_configured() -> None:
    assert not [key for key in served() if key.startswith("healthcheck") or key == "prolog"]
    settings = served(health_check="/usr/local/sbin/check", health_check_interval=60)
    assert settings["healthcheckprogram"] == "/usr/local/sbin/check"
    assert settings["healthcheckinterval"] == "60"
    assert settings["healthchecknodestate"] == "ANY,CYCLE"
    assert "prolog" not in settings
    settings = served(prolog="/usr/local/sbin/check")
    assert settings["prolog"] == "/usr/local/sbin/check"
    assert settings["schedulerparameters"] == "bf_interval=10,nohold_on_prolog_fail"
    assert served(epilog="/usr/local/sbin/end")["epilog"] == "/usr/local/sbin/end"


def test_default_memory_is_proportional_to_cpus() -> None:
    settings = served()
    assert settings["selecttypeparameters"] == "CR_Core_Memory"
    assert settings["defmempercpu"] == "1472"
    # A job with all CPUs fits on the node.
    assert config.real_memory(HOST) >= 16 * 1472
    assert served(settings={"DefMemPerCPU": 4000})["defmempercpu"] == "4000"


def test_a_controller_without_jobs_sets_no_default_memory() -> None:
    assert "defmempercpu" not in served(slurm_node=False)
    assert served(slurm_node=False, settings={"DefMemPerCPU": 4000})["defmempercpu"] == "4000"


def test_default_memory_is_never_zero() -> None:
    """A container with little memory sees all CPUs of its machine."""
    small = HOST._replace(memory_mb=800, cpu_count=16)
    assert config.default_memory_per_cpu(small) == 768 // 16
    assert config.default_memory_per_cpu(HOST._replace(memory_mb=8, cpu_count=16)) == 1


MIB = 1024**2


@pytest.mark.parametrize(
    ("init", "groups", "limits", "memory"),
    [
        ("sshd", "0::/\n", {}, 24105),
        ("sshd", "0::/\n", {"memory.max": "max"}, 24105),
        ("sshd", "0::/\n", {"memory.max": f"{800 * MIB}"}, 800),
        # The limit may be larger than the machine's memory.
        ("sshd", "0::/\n", {"memory.max": f"{99999 * MIB}"}, 24105),
        # Only containers without systemd are limited in this way.
        ("systemd", "0::/init.scope\n", {"memory.max": f"{800 * MIB}"}, 24105),
        # A container without a namespace sees the whole tree.
        ("sshd", "0::/pod/one\n", {"pod/memory.max": f"{700 * MIB}", "pod/one/memory.max": "max"}, 700),
        ("sshd", "0::/../..\n", {"memory.max": f"{800 * MIB}"}, 800),
        (
            "sshd",
            "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/docker/a\n",
            {"memory/memory.limit_in_bytes": f"{800 * MIB}"},
            800,
        ),
        ("sshd", "4:memory:/docker/a\n", {"memory/docker/a/memory.limit_in_bytes": f"{600 * MIB}"}, 600),
        ("sshd", "4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 24105),
        ("sshd", None, {}, 24105),
    ],
)
def test_memory_is_limited_by_the_container(
    tmp_path: Path, init: str, groups: str | None, limits: dict[str, str], memory: int
) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    files |= {"proc/1/comm": init, "proc/meminfo": f"MemTotal:  {24105 * 1024} kB\nMemFree: 1 kB\n"}
    files |= {"proc/1/cgroup": groups} if groups is not None else {}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    assert read_memory(Tree(str(tmp_path))) == memory
    assert read_memory(Tree(str(tmp_path / "nothing"))) == 0


@pytest.mark.parametrize("key", ["DefMemPerGPU", "defmempernode"])
def test_default_memory_of_the_user_replaces_ours(key: str) -> None:
    assert "defmempercpu" not in served(settings={key: 1000})


def test_memory_is_enforced_without_cgroups() -> None:
    bare = HOST._replace(cgroups=CgroupSupport("none", ()))
    assert config.node_settings(bare)["JobAcctGatherParams"] == "OverMemoryKill"
    assert "JobAcctGatherParams" not in config.node_settings(HOST)


def test_without_accounting() -> None:
    assert not [key for key in served(accounting=False) if key.startswith("accounting")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"settings": {"PartitionName": "x"}}, "slurm_partitions"),
        ({"settings": {"NodeName": "x"}}, "slurm_node_conf"),
        ({"settings": {"Max Jobs": 1}}, "name of a Slurm parameter"),
        ({"settings": {"Epilog": "/bin/true\nInclude /etc/shadow"}}, "line break"),
        ({"settings": {"Epilog": {"a": 1}}}, "not a string, number"),
        ({"settings": {"Epilog": "/bin/true # quick"}}, "'#'"),
        ({"settings": {"SchedulerParameters": "x" * 1100}}, "1024"),
        ({"partitions": {}}, "at least one partition"),
        ({"partitions": {"a b": {}}}, "slurm_partitions"),
        ({"gres": {"gpu": {"Type": "h100"}}}, "neither File, MultipleFiles nor Count"),
        ({"gres": {"gpu": 2}}, "Give a mapping"),
        ({"node": {"NodeAddr": "1.2.3.4"}}, "set from the cluster record"),
        ({"node": {"Feature": "a'b"}}, "quotes"),
        ({"node": {"Feature": "$(reboot)"}}, "quotes"),
    ],
)
def test_invalid_settings_are_refused(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        config.build_config_files(request(**overrides), HOST, FOLDER)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("given_gres", "gpu", "lines", "declared"),
    [
        (
            {},
            HOST.gpu,
            ["Name=gpu Type=h100 File=/dev/nvidia0", "Name=gpu Type=h100 File=/dev/nvidia1"],
            "gpu:h100:2",
        ),
        ({}, GpuDevices("h100", ("/dev/nvidia0", "/dev/nvidia1"), "nvml"), ["AutoDetect=nvml"], "gpu:2"),
        ({}, GpuDevices("", ("/dev/nvidia0",), ""), ["Name=gpu File=/dev/nvidia0"], "gpu:1"),
        ({}, None, [], ""),
        ({"gpu": []}, HOST.gpu, [], ""),
        (
            {"gpu": {"Type": "a100", "File": "/dev/nvidia[0-7]"}},
            HOST.gpu,
            ["Name=gpu Type=a100 File=/dev/nvidia[0-7]"],
            "gpu:a100:8",
        ),
        (
            # Parts of a GPU, each of which has several devices.
            {"gpu": [{"Type": "3g.20gb", "MultipleFiles": "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12"}] * 2},
            None,
            ["Name=gpu Type=3g.20gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12"] * 2,
            "gpu:3g.20gb:1,gpu:3g.20gb:1",
        ),
        (
            {"GPU": [{"Type": "a", "Count": 2}, {"type": "b", "count": 1}], "license": {"Count": 3}},
            HOST.gpu,
            ["Name=gpu Type=a Count=2", "Name=gpu type=b count=1", "Name=license Count=3"],
            "gpu:a:2,gpu:b:1,license:3",
        ),
    ],
)
def test_gres(given_gres: dict[str, Any], gpu: GpuDevices | None, lines: list[str], declared: str) -> None:
    found = config.build_gres_config(request(gres=given_gres), HOST._replace(gpu=gpu))
    assert found == config.GresConfig(lines, declared)


def test_gres_types_of_all_members_are_declared() -> None:
    """The controller ignores GRES whose name is not in GresTypes."""
    assert served()["grestypes"] == "gpu"
    # gres.conf and the node's definition have the same names.
    assert served(gres={"NIC": {"Count": 2}})["grestypes"] == "gpu,nic"
    assert served(gres={"nic": {"Count": 2}}, gres_types=["tape", "GPU", "nic"])["grestypes"] == "gpu,nic,tape"


def test_gres_types_are_parsed_from_slurm_conf() -> None:
    assert config.parse_gres_types(None) == []
    assert config.parse_gres_types("ClusterName=lab\n") == []
    documents = config.build_config_files(request(gres_types=["nic"]), HOST, FOLDER)
    assert config.parse_gres_types(documents.served_files["slurm.conf"]) == ["gpu", "nic"]


def test_slurmd_arguments() -> None:
    made = config.build_config_files(
        request(node={"Feature": ["nvlink", "ib"]}, settings={"SlurmctldPort": "6817-6820"}), HOST, FOLDER
    )
    assert made.arguments == (
        "-Z",
        "-N",
        "n1",
        "--conf-server",
        "10.99.0.1:6817",
        "--conf",
        "NodeAddr=10.99.0.1 RealMemory=23616 Gres=gpu:h100:2 Feature=nvlink,ib",
    )
    text = config.render_options(made.arguments)
    assert config.parse_definition(text) == made.definition
    # The shell reads the file in the same way as systemd.
    shown = subprocess.run(
        ["/bin/sh", "-c", f'{text}\neval "set -- $SLURMD_OPTIONS"; for word; do echo "$word"; done'],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert tuple(shown.stdout.splitlines()) == made.arguments


@pytest.mark.parametrize(
    ("cgroups", "version", "node", "cgroup"),
    [
        (V1, (24, 11, 5), "proctrack/cgroup", {"cgroupplugin": "cgroup/v1", "constraindevices": "YES"}),
        (CgroupSupport("v2", ("cpuset", "memory")), (24, 11, 5), "proctrack/cgroup",
         {"cgroupplugin": "cgroup/v2", "enablecontrollers": "YES", "constraindevices": "YES"}),
        (CgroupSupport("none", ()), (24, 11, 5), "proctrack/linuxproc", {"cgroupplugin": "disabled"}),
        # 22.05 does not know these keywords, and would not start.
        (CgroupSupport("v2", ("cpuset", "memory")), (22, 5, 8), "proctrack/cgroup", {"cgroupplugin": "cgroup/v2"}),
        (CgroupSupport("none", ()), (22, 5, 8), "proctrack/linuxproc", {"cgroupplugin": "cgroup/v1"}),
    ],
)  # fmt: skip
def test_control_groups(cgroups: CgroupSupport, version: Any, node: str, cgroup: dict[str, str]) -> None:
    made = config.build_config_files(request(), HOST._replace(cgroups=cgroups, version=version), FOLDER).node_files
    assert conf.parse_settings(made["node/slurm.conf"])["proctracktype"] == node
    written = conf.parse_settings(made["node/cgroup.conf"])
    assert cgroup.items() <= written.items()
    assert ("enablecontrollers" in written) == ("enablecontrollers" in cgroup)


def test_missing_cgroup_controllers_are_not_used() -> None:
    host = HOST._replace(cgroups=CgroupSupport("v1", ("cpuset", "freezer")))
    made = config.build_config_files(request(cgroup={"ConstrainSwapSpace": True}), host, FOLDER).node_files
    assert conf.parse_settings(made["node/slurm.conf"])["jobacctgathertype"] == "jobacct_gather/linux"
    written = conf.parse_settings(made["node/cgroup.conf"])
    assert (written["constrainramspace"], written["constraindevices"], written["constrainswapspace"]) == (
        "NO",
        "NO",
        "YES",
    )


V1_MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs {mode},nosuid,nodev,noexec,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup {mode},relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup {mode},relatime,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup {mode},relatime,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup {mode},relatime,devices 0 0
cgroup /sys/fs/cgroup/freezer cgroup {mode},relatime,freezer 0 0
cgroup /sys/fs/cgroup/systemd cgroup {mode},relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2_MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 {mode},nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "systemd", "version", "why"),
    [
        (V1_MOUNTS.format(mode="rw"), True, "v1", ""),
        (V1_MOUNTS.format(mode="ro"), True, "none", "freezer and cpuset"),
        (V1_MOUNTS.format(mode="rw"), False, "none", "systemd"),
        (V2_MOUNTS.format(mode="rw"), True, "v2", ""),
        (V2_MOUNTS.format(mode="ro"), True, "none", "read-only"),
        ("", True, "none", "freezer and cpuset"),
    ],
)
def test_detected_control_groups(mounts: str, systemd: bool, version: str, why: str) -> None:
    found = parse_cgroups(mounts, "cpuset cpu io memory pids", systemd)
    assert found.version == version
    assert why in found.missing_reason
    if version == "v1":
        assert found.controllers == ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory")


@pytest.mark.parametrize(
    ("capabilities", "plugin"),
    [("000001ffffffffff", "task/affinity"), ("00000000a80425fb", "task/none")],
    ids=["all", "those of a container engine"],
)
def test_tasks_are_bound_if_the_capability_exists(capabilities: str, plugin: str) -> None:
    """Whether tasks are bound: without CAP_SYS_NICE, slurmd cannot start a bound task of another user."""
    binds = has_capability(f"Name:\tpython3\nCapPrm:\t{capabilities}\nCapEff:\t{capabilities}\n", CAP_SYS_NICE)
    host = HOST._replace(cgroups=CgroupSupport("none", ()), may_bind_tasks=binds)
    assert config.node_settings(host)["TaskPlugin"] == plugin


def test_gres_type_and_autodetect() -> None:
    assert format_gres_type("NVIDIA H100 80GB HBM3") == "nvidia_h100_80gb_hbm3"
    assert format_gres_type(None) == ""
    assert choose_autodetect("nvidia", True, ["gpu_nvidia", "gpu_nvml"]) == "nvml"
    assert choose_autodetect("nvidia", True, ["gpu_nvidia"]) == "nvidia"
    assert choose_autodetect("nvidia", True, ["gpu_generic"]) == ""
    # Device files without a driver would be detected as no GPU.
    assert choose_autodetect("nvidia", False, ["gpu_nvml"]) == ""
    assert choose_autodetect("amd", True, ["gpu_rsmi"]) == "rsmi"
    with pytest.raises(ParseError):
        parse_version("command not found")


@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        (None, "A=1", "restart"),
        ("# x\nA=1\nB=2\n", "b = 2\na=1 # same", "none"),
        ("A=1", "A=2", "reconfigure"),
        ("A=1", "A=1\nPartitionName=x Nodes=ALL", "reconfigure"),
        ("SelectType=a", "SelectType=b", "restart"),
        ("A=1", "A=1\nAccountingStorageEnforce=qos", "restart"),
        ("SlurmctldHost=a(1.2.3.4)", "SlurmctldHost=b(1.2.3.5)", "restart"),
    ],
)
def test_reload_needed(old: str | None, new: str, needed: str) -> None:
    assert config.required_reload(old, new) == needed


@given(
    st.dictionaries(
        st.from_regex(r"\A[A-Z][a-z]{1,8}\Z"),
        st.one_of(st.booleans(), st.integers(), st.from_regex(r"\A[a-z/,.]{1,20}\Z")),
        max_size=8,
    )
)
def test_written_settings_are_parsed_back(settings: dict[str, Any]) -> None:
    read = conf.parse_settings(conf.render_file(conf.render_settings(settings)))
    expected = {key.lower(): conf.format_value(key, value) for key, value in settings.items()}
    assert read == expected


def test_pairs() -> None:
    assert conf.parse_pairs("A=1 OS=Linux 6.1 #1 SMP CfgTRES=cpu=2,mem=5M Reason=") == [
        ("A", "1"),
        ("OS", "Linux 6.1 #1 SMP"),
        ("CfgTRES", "cpu=2,mem=5M"),
        ("Reason", ""),
    ]


PRESENT: dict[str, str | None] = dict.fromkeys((*config.SERVED_FILES, *config.NODE_FILES, config.OPTIONS_FILE))


def present_after(documents: config.SlurmConfigFiles, serve: bool) -> dict[str, str | None]:
    planned = configure.plan_config(PRESENT, documents, serve, FOLDER)
    return {**PRESENT, **planned.changed_files}


@pytest.mark.parametrize("serve", [True, False])
def test_second_run_changes_nothing(serve: bool) -> None:
    documents = config.build_config_files(request(serve=serve), HOST, FOLDER)
    again = configure.plan_config(present_after(documents, serve), documents, serve, FOLDER)
    assert (again.changed_files, again.reload, again.node_changed, again.node_redefined) == ({}, "none", False, False)


def test_first_run_redefines_no_node() -> None:
    planned = configure.plan_config(PRESENT, config.build_config_files(request(), HOST, FOLDER), True, FOLDER)
    assert (planned.reload, planned.node_changed, planned.node_redefined) == ("restart", True, False)


def test_a_host_without_jobs_has_the_configuration_of_the_commands_only() -> None:
    head = {"serve": False, "controller_name": "gpu-1", "machine": "n2", "slurm_node": False}
    documents = config.build_config_files(request(**head), HOST, FOLDER)
    files = present_after(documents, False)
    assert files[config.OPTIONS_FILE] is None
    settings = conf.parse_settings(str(files["slurm.conf"]))
    # Only the address of the controller counts for the commands. sacct asks slurmdbd itself.
    assert (settings["slurmctldhost"], settings["accountingstoragehost"]) == ("gpu-1(10.99.0.1)", "10.99.0.1")
    again = configure.plan_config(files, documents, False, FOLDER)
    assert (again.changed_files, again.node_redefined) == ({}, False)
    # It is a node again: what it gets from the controller must not compete with files.
    node = configure.plan_config(
        files, config.build_config_files(request(**{**head, "slurm_node": True}), HOST, FOLDER), False, FOLDER
    )
    assert {name for name, text in node.changed_files.items() if text is None} == {*documents.served_files}
    assert node.changed_files[config.OPTIONS_FILE] and not node.node_redefined


def test_a_node_that_is_to_run_no_jobs_is_deleted_from_the_controller_first() -> None:
    node = config.build_config_files(request(), HOST, FOLDER)
    head = config.build_config_files(request(slurm_node=False), HOST, FOLDER)
    for kept in ([], [config.OPTIONS_FILE]):
        planned = configure.plan_config(present_after(node, True), head, True, FOLDER, None, kept)
        assert planned.node_redefined
        # The memory of this host says nothing about that of the nodes any more.
        assert "DefMemPerCPU" not in (planned.changed_files.pop("slurm.conf") or "DefMemPerCPU")
        assert (planned.changed_files, planned.reload) == (
            {name: None for name in (config.OPTIONS_FILE,) if not kept},
            "reconfigure",
        )
    # An interrupted run has removed the file, but slurmd still runs.
    runs = {"-N": "n1", "--conf": node.definition}
    assert configure.plan_config(present_after(head, True), head, True, FOLDER, runs).node_redefined


@pytest.mark.parametrize("settings", [{}, {"statesavelocation": "/var/lib/slurm/slurmctld"}])
def test_leave_knows_the_file_of_a_controller_with_accounting(settings: dict[str, Any]) -> None:
    """On other hosts, MariaDB would be installed to delete an accounting that was never there."""
    tasks = yaml.safe_load((ROOT / "roles/slurm/tasks/leave.yml").read_text(encoding="utf-8"))
    (pattern,) = [
        task["gpumesh.cluster.host_module"]["arguments"]["contains"]
        for task in tasks
        if task["name"] == "Check whether the controller used accounting"
    ]

    def is_found(**overrides: Any) -> bool:
        documents = config.build_config_files(request(settings=settings, **overrides), HOST, FOLDER)
        return bool(re.search(pattern, documents.served_files["slurm.conf"]))

    assert is_found() and is_found(slurm_node=False)
    assert not is_found(accounting=False)
    assert not is_found(serve=False, slurm_node=False)


def test_fewer_gpus_redefine_the_node_definition() -> None:
    before = present_after(config.build_config_files(request(), HOST, FOLDER), False)
    planned = configure.plan_config(
        before, config.build_config_files(request(gres={"gpu": []}), HOST, FOLDER), False, FOLDER
    )
    assert (planned.node_changed, planned.node_redefined, planned.reload) == (True, True, "none")


def test_lost_gpus_stay_declared_until_the_record_changes() -> None:
    """The controller takes the node out of service for missing ones; see the scenario `slurm`."""
    before = config.build_config_files(request(gpus=2), HOST, FOLDER)
    assert "Gres=gpu:h100:2" in before.definition
    one = HOST._replace(gpu=HOST.gpu._replace(files=HOST.gpu.files[:1]) if HOST.gpu else None)
    for lost in (one, HOST._replace(gpu=None)):
        after = config.build_config_files(request(gpus=2), lost, FOLDER, before.definition)
        assert after.definition == before.definition
        assert "/dev/nvidia1" not in after.node_files["node/gres.conf"]
    assert "Gres=gpu:2" in config.build_config_files(request(gpus=2), HOST._replace(gpu=None), FOLDER).definition
    assert "Gres=gpu:h100:1" in config.build_config_files(request(gpus=1), one, FOLDER, before.definition).definition
    # The user's values take precedence.
    assert (
        "Gres"
        not in config.build_config_files(request(gpus=2, gres={"gpu": []}), one, FOLDER, before.definition).definition
    )
    more = config.build_config_files(request(gpus=2, gres={"tape": {"Count": 3}}), one, FOLDER, before.definition)
    assert more.definition.endswith("Gres=gpu:h100:2,tape:3")


@pytest.mark.parametrize(
    ("memory", "kept"), [(24105, True), (24101, True), (24109, True), (24030, True), (23600, False), (48210, False)]
)
def test_small_memory_differences_do_not_redefine_the_node(memory: int, kept: bool) -> None:
    before = config.build_config_files(request(), HOST, FOLDER)
    files = present_after(before, False)
    after = config.build_config_files(request(), HOST._replace(memory_mb=memory), FOLDER, before.definition)
    assert (
        configure.plan_config(files, after, False, FOLDER).node_redefined,
        after.definition == before.definition,
    ) == (
        not kept,
        kept,
    )
    declared = dict(conf.parse_pairs(after.definition))["RealMemory"]
    assert int(declared) <= memory


def test_interrupted_redefinition_is_repeated() -> None:
    """The file has it already, but slurmd runs with the previous one."""
    documents = config.build_config_files(request(), HOST, FOLDER)
    files = present_after(documents, False)
    words = dict(zip(documents.arguments, documents.arguments[1:]))
    runs = {name: words[name] for name in ("-N", "--conf-server", "--conf")}
    for differs, redefined in (
        ({"--conf": "NodeAddr=10.99.0.1 Gres=gpu:4"}, True),
        ({"--conf-server": "10.99.0.9"}, False),
    ):
        planned = configure.plan_config(files, documents, False, FOLDER, {**runs, **differs})
        assert (planned.changed_files, planned.node_changed, planned.node_redefined) == ({}, True, redefined)
    for same in (runs, {}):
        planned = configure.plan_config(files, documents, False, FOLDER, same)
        assert (planned.node_changed, planned.node_redefined) == (False, False)


@pytest.mark.parametrize("comm", ["slurmd", "slurmd-wlm", "exe"], ids=["started", "reconfigured", "by its link"])
def test_running_slurmd_options_are_read(tmp_path: Path, comm: str) -> None:
    """Debian's slurmd is a link to slurmd-wlm, and 24.11 executes itself again when it is reconfigured."""
    options = (
        "--systemd",
        "-Z",
        "-N",
        "n1",
        "--conf-server",
        "10.99.0.1",
        "--conf",
        "NodeAddr=10.99.0.1 Gres=gpu:2",
    )
    for pid, called, program, uid, name, contained in (
        (7, comm, "/usr/sbin/slurmd", 1000, "n1", ""),
        (8, "sshd", "sshd", 0, "n1", ""),
        # This slurmd runs in a container on this host.
        (88, comm, "/usr/sbin/slurmd", 0, "n1", "\t12"),
        (9, comm, "/usr/sbin/slurmd", 0, "n1", ""),
        (10, comm, "/usr/sbin/slurmd", 0, "n2", ""),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{called}\n")
        ids = "\t".join([str(uid)] * 4)
        (folder / "status").write_text(f"Name:\tslurmd\nUid:\t{ids}\nNSpid:\t{pid}{contained}\n")
        words = "\0".join([program, *options, ""])
        (folder / "cmdline").write_text(words.replace("n1", name).replace("gpu:2", f"gpu:{pid}"))
    assert running_slurmd_options(Tree(str(tmp_path)), "n1") == {
        "-N": "n1",
        "--conf-server": "10.99.0.1",
        "--conf": "NodeAddr=10.99.0.1 Gres=gpu:9",
    }
    assert running_slurmd_options(Tree(str(tmp_path)), "n3") == {}


def test_port_settings_are_case_insensitive() -> None:
    for settings in ({"slurmctldPort": 7000}, {"SLURMCTLDPORT": "7000-7003"}, {"SlurmctldPort": " 7000 "}):
        assert config.parse_first_port("slurm_conf", settings, "SlurmctldPort", "6817") == "7000"
        assert "10.99.0.1:7000" in config.build_config_files(request(settings=settings), HOST, FOLDER).arguments
    for wrong in ("seven", "", 0, 65536, True):
        with pytest.raises(InputError, match="is not a port"):
            config.parse_first_port("slurm_conf", {"SlurmctldPort": wrong}, "SlurmctldPort", "6817")
    for nothing in ({}, {"slurmctldport": None}, {"DbdPort": 1}):
        assert config.parse_first_port("slurm_conf", nothing, "SlurmctldPort", "6817") == "6817"


def test_new_controller_restarts_slurmd_without_redefinition() -> None:
    before = present_after(config.build_config_files(request(), HOST, FOLDER), False)
    moved = config.build_config_files(request(controller="10.99.0.2"), HOST, FOLDER)
    planned = configure.plan_config(before, moved, False, FOLDER)
    assert (sorted(planned.changed_files), planned.node_redefined) == ([config.OPTIONS_FILE], False)


def test_former_controller_removes_served_files() -> None:
    documents = config.build_config_files(request(), HOST, FOLDER)
    planned = configure.plan_config(present_after(documents, True), documents, False, FOLDER)
    assert planned.changed_files == dict.fromkeys(documents.served_files)


def test_plugins_are_included_by_pattern() -> None:
    without = config.build_config_files(request(), HOST, FOLDER)
    documents = config.build_config_files(request(plugins=["/usr/local/lib/x.so"]), HOST, FOLDER)
    assert documents.served_files["plugstack.conf"].splitlines()[1:] == [f"include {FOLDER}/plugstack.conf.d/*.conf"]
    assert documents.node_files["plugstack.conf.d/gpumesh.conf"].splitlines()[1:] == ["optional /usr/local/lib/x.so"]
    assert {*documents.served_files, *documents.node_files} - {*without.served_files, *without.node_files} == {
        "plugstack.conf",
        "plugstack.conf.d/gpumesh.conf",
    }
    planned = configure.plan_config(present_after(documents, True), without, True, FOLDER)
    assert planned.changed_files == {"plugstack.conf": None, "plugstack.conf.d/gpumesh.conf": None}
    theirs = {**present_after(without, True), "plugstack.conf": "optional /their.so\n"}
    assert configure.plan_config(theirs, without, True, FOLDER).changed_files == {}
    with pytest.raises(HostStateError, match="not written by this collection"):
        configure.plan_config(theirs, documents, True, FOLDER)
    debians = {**theirs, "plugstack.conf": f"include {FOLDER}/plugstack.conf.d/*.conf\n"}
    assert list(configure.plan_config(debians, documents, True, FOLDER).changed_files) == [
        "plugstack.conf.d/gpumesh.conf"
    ]


def test_a_host_with_the_job_plugin_has_no_task_prolog() -> None:
    documents = config.build_config_files(request(), HOST, FOLDER, job_plugin="/lib/job.so", include_plugins=True)
    lines = documents.node_files["plugstack.conf.d/gpumesh.conf"].splitlines()
    assert lines[1:] == ["optional /lib/job.so"]
    assert documents.node_files["node/slurm.conf"].endswith('\nTaskProlog=""\n')
    # The controller serves it for all others, and first: Slurm uses the last value.
    text = documents.served_files["slurm.conf"]
    assert text.index("TaskProlog=/etc/gpumesh/task_prolog") < text.index("Include /etc/slurm/node/slurm.conf")
    without = config.build_config_files(request(), HOST, FOLDER, include_plugins=True)
    assert without.served_files == documents.served_files and "plugstack.conf" in without.served_files
    assert "TaskProlog" not in without.node_files["node/slurm.conf"]
    assert "plugstack.conf.d/gpumesh.conf" not in without.node_files


def test_the_job_plugin_is_the_first() -> None:
    """A plugin for containers has to find the environment."""
    chosen = request(plugins=["/lib/x.so"])
    documents = config.build_config_files(chosen, HOST, FOLDER, job_plugin="/lib/job.so")
    lines = documents.node_files["plugstack.conf.d/gpumesh.conf"].splitlines()
    assert lines[1:] == ["optional /lib/job.so", "optional /lib/x.so"]


@pytest.mark.parametrize("prolog", [None, "/root/prolog"])
def test_a_task_prolog_of_the_user_is_kept_with_the_environment_that_it_had(prolog: str | None) -> None:
    chosen = request(settings={"taskProlog": prolog})
    documents = config.build_config_files(chosen, HOST, FOLDER, job_plugin="/lib/job.so")
    assert "plugstack.conf.d/gpumesh.conf" not in documents.node_files
    assert "TaskProlog" not in documents.node_files["node/slurm.conf"]


def test_plugstack_of_others_is_left_alone() -> None:
    ours = f"{conf.render_file([]).strip()}\ninclude {FOLDER}/plugstack.conf.d/*.conf\n"
    theirs = "required /their.so\n"
    for text, included, foreign in (
        (None, False, False),
        (ours, True, False),
        (theirs, False, True),
        (theirs + f"include {FOLDER}/plugstack.conf.d/*.conf\n", True, False),
        (f"Include  {FOLDER}/plugstack.conf.d/* # all\n", True, False),
        (f"include {FOLDER}/plugstack.conf.d/pyxis.conf\n#include {FOLDER}/plugstack.conf.d/*\n", False, True),
    ):
        assert (configure.includes_plugins(text, FOLDER), configure.has_foreign_plugins(text, FOLDER)) == (
            included,
            foreign,
        )
    # Only the manager serves its own; on a node, nothing reads that of others.
    documents = config.build_config_files(request(), HOST, FOLDER, job_plugin="/lib/job.so")
    present = {**present_after(documents, False), "plugstack.conf": theirs}
    assert configure.plan_config(present, documents, False, FOLDER).changed_files == {}


#: The file that an earlier version wrote.
FORMER_OCI = conf.render_file(['RunTimeQuery="r=%r; exec crun --root=$r state %n.%u.%j.%s.%t"'])


@pytest.mark.parametrize("serve", [True, False], ids=["the controller", "a former controller"])
def test_our_former_oci_conf_is_removed_and_the_controller_reconfigured(tmp_path: Path, serve: bool) -> None:
    """Root would run commands that users have put into the file."""
    folder = tmp_path / "slurm"
    documents = config.build_config_files(request(serve=serve), HOST, str(folder))
    configure.apply_config(
        str(folder), configure.plan_config(configure.read_managed_files(str(folder)), documents, True, str(folder))
    )
    (folder / "oci.conf").write_text(FORMER_OCI)
    started = (folder / "slurm.conf").stat().st_mtime - 5
    os.utime(folder / "slurm.conf", (started, started))
    planned = configure.plan_config(configure.read_managed_files(str(folder)), documents, serve, str(folder))
    assert (planned.changed_files["oci.conf"], planned.reload) == (None, "none")
    assert "r=%r; exec crun" in planned.before
    configure.apply_config(str(folder), planned)
    assert not (folder / "oci.conf").exists()
    if serve:
        assert list(planned.changed_files) == ["oci.conf"]
        assert service.find_unread_files(started, [f"{folder}/slurm.conf"])
    assert (
        configure.plan_config(configure.read_managed_files(str(folder)), documents, serve, str(folder)).changed_files
        == {}
    )


def test_foreign_oci_conf_is_kept() -> None:
    documents = config.build_config_files(request(), HOST, FOLDER)
    theirs = {**present_after(documents, True), "oci.conf": 'RunTimeQuery="true"\n'}
    for wanted, serve in ((documents, True), (documents, False), (None, False)):
        assert "oci.conf" not in configure.plan_config(theirs, wanted, serve, FOLDER).changed_files


def test_foreign_configuration_is_refused() -> None:
    foreign = {**PRESENT, "slurm.conf": "ClusterName=theirs\n"}
    with pytest.raises(HostStateError, match="not written by this collection"):
        configure.plan_config(foreign, config.build_config_files(request(), HOST, FOLDER), True, FOLDER)
    assert configure.plan_config(foreign, None, False, FOLDER).changed_files == {}


def test_errors_are_extracted_from_slurmd_output() -> None:
    output = """\
slurmd: error: _parse_next_key: Parsing error at unrecognized key: Bogus
slurmd: fatal: Unable to process configuration file
"""
    assert configure.extract_errors(output) == ["_parse_next_key: Parsing error at unrecognized key: Bogus"]
    assert configure.extract_errors("slurmd: fatal: Unable to process configuration file") == [
        "Unable to process configuration file"
    ]


def test_slurmd_validates_a_temporary_copy_and_errors_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configure, "find_program", lambda _program: "/usr/sbin/slurmd")
    folder = str(tmp_path)
    documents = config.build_config_files(request(plugins=["/x.so"]), HOST, folder)
    seen: dict[str, str] = {}

    def run(argv: list[str], **_options: Any) -> CommandResult:
        aside = Path(argv[argv.index("-f") + 1]).parent
        seen.update({str(path.relative_to(aside)): path.read_text() for path in aside.rglob("*.conf")})
        assert f"Include {aside}/node/gres.conf" in seen["gres.conf"]
        return CommandResult(1, "", "slurmd: error: MaxJobCount value (abc) is not a valid number\n")

    with pytest.raises(InputError, match=r"MaxJobCount value \(abc\).*slurm_conf"):
        configure.validate_config(run, documents, folder)
    assert sorted(seen) == sorted({*config.SERVED_FILES, *config.NODE_FILES} - {"oci.conf"})
    assert os.listdir(folder) == []


def test_validation_is_skipped_until_munge_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case occurs in check mode on a host that only has the packages."""
    monkeypatch.setattr(configure, "find_program", lambda _program: "/usr/sbin/slurmd")
    words = (
        'slurmd: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory'
    )
    documents = config.build_config_files(request(), HOST, str(tmp_path))
    assert not configure.validate_config(
        lambda _argv, **_options: CommandResult(1, "", words), documents, str(tmp_path)
    )


def test_apply(tmp_path: Path) -> None:
    folder = str(tmp_path / "slurm")
    documents = config.build_config_files(request(), HOST, folder)
    configure.apply_config(folder, configure.plan_config(configure.read_managed_files(folder), documents, True, folder))
    assert configure.plan_config(configure.read_managed_files(folder), documents, True, folder).changed_files == {}
    assert (tmp_path / "slurm/slurm.conf").stat().st_mode & 0o777 == 0o644
    configure.apply_config(folder, configure.plan_config(configure.read_managed_files(folder), None, False, folder))
    assert [path for path in (tmp_path / "slurm").rglob("*") if path.is_file()] == []
