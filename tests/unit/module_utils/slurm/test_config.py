# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's configuration language, and the content of our files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import CAP_SYS_NICE, has_capability
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf, config, configure
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import (
    Cgroups,
    Gpu,
    SlurmHost,
    choose_autodetect,
    gres_type,
    parse_cgroups,
    parse_version,
    read_memory,
    running_options,
)

V1 = Cgroups("v1", ("cpuset", "devices", "freezer", "memory"))
HOST = SlurmHost((24, 11, 5), V1, Gpu("h100", ("/dev/nvidia0", "/dev/nvidia1"), ""), 24105, 16, "box17")
FOLDER = "/etc/slurm"


def request(**overrides: Any) -> config.Request:
    """n1, which is the controller, with the changes of a test."""
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
    return config.Request(**{**fields, **overrides})


def served(**overrides: Any) -> dict[str, str]:
    """The settings of slurm.conf."""
    return conf.parse(config.documents(request(**overrides), HOST, FOLDER).served["slurm.conf"])


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


def test_no_file_names_a_node() -> None:
    one = config.documents(request(), HOST, FOLDER).served
    other = config.documents(request(machine="n7", address="10.99.0.7", gres={"gpu": []}), HOST, FOLDER).served
    assert one == other


def test_the_user_wins_in_whatever_case() -> None:
    settings = served(
        settings={"treewidth": 16, "MaxJobCount": 20000, "TaskProlog": None, "ProctrackType": "proctrack/pgid"}
    )
    assert settings["treewidth"] == "16"
    assert settings["maxjobcount"] == "20000"
    assert "taskprolog" not in settings
    text = config.documents(request(settings={"ProctrackType": "proctrack/pgid"}), HOST, FOLDER).node["node/slurm.conf"]
    assert "proctracktype" not in conf.parse(text)


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"SlurmctldParameters": "idle_on_node_suspend"}, "idle_on_node_suspend,enable_configless"),
        ({"slurmctldparameters": ["a", "Enable_Configless"]}, "a,Enable_Configless"),
        # Without this word, no node gets its configuration.
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
def test_lists_of_the_user_keep_the_words_that_we_need(settings: dict[str, Any], written: str | None) -> None:
    (key,) = settings
    assert served(settings=settings, prolog="/usr/local/sbin/check").get(key.lower()) == written


def test_lists_of_the_user_get_only_words_that_we_set() -> None:
    assert served(settings={"SchedulerParameters": "defer"})["schedulerparameters"] == "defer,bf_interval=10"


def test_the_nodes_are_checked_by_the_program_that_is_given() -> None:
    assert not [key for key in served() if key.startswith("healthcheck") or key == "prolog"]
    settings = served(health_check="/usr/local/sbin/check", health_check_interval=60)
    assert settings["healthcheckprogram"] == "/usr/local/sbin/check"
    assert settings["healthcheckinterval"] == "60"
    assert settings["healthchecknodestate"] == "ANY"
    assert "prolog" not in settings
    settings = served(prolog="/usr/local/sbin/check")
    assert settings["prolog"] == "/usr/local/sbin/check"
    assert settings["schedulerparameters"] == "bf_interval=10,nohold_on_prolog_fail"
    assert served(epilog="/usr/local/sbin/end")["epilog"] == "/usr/local/sbin/end"


def test_memory_is_given_out_by_the_share_of_a_cpu() -> None:
    settings = served()
    assert settings["selecttypeparameters"] == "CR_Core_Memory"
    assert settings["defmempercpu"] == "1472"
    # A job with all CPUs fits on the node.
    assert config.real_memory(HOST) >= 16 * 1472
    assert served(settings={"DefMemPerCPU": 4000})["defmempercpu"] == "4000"


def test_the_share_of_a_cpu_is_not_rounded_down_to_nothing() -> None:
    """A container with little memory sees all CPUs of its machine."""
    small = HOST._replace(memory=800, cpus=16)
    assert config.default_memory(small) == 768 // 16
    assert config.default_memory(HOST._replace(memory=8, cpus=16)) == 1


MIB = 1024**2


@pytest.mark.parametrize(
    ("init", "groups", "limits", "memory"),
    [
        ("sshd", "0::/\n", {}, 24105),
        ("sshd", "0::/\n", {"memory.max": "max"}, 24105),
        ("sshd", "0::/\n", {"memory.max": f"{800 * MIB}"}, 800),
        # It may be larger than the machine.
        ("sshd", "0::/\n", {"memory.max": f"{99999 * MIB}"}, 24105),
        # Only containers without systemd are limited in this way.
        ("systemd", "0::/init.scope\n", {"memory.max": f"{800 * MIB}"}, 24105),
        # Without a namespace, the container sees the whole tree.
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
def test_memory_is_what_the_container_may_use(
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
def test_another_default_of_memory_is_the_only_one(key: str) -> None:
    assert "defmempercpu" not in served(settings={key: 1000})


def test_a_host_without_control_groups_still_ends_what_takes_too_much_memory() -> None:
    bare = HOST._replace(cgroups=Cgroups("none", ()))
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
def test_refused(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        config.documents(request(**overrides), HOST, FOLDER)
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
        ({}, Gpu("h100", ("/dev/nvidia0", "/dev/nvidia1"), "nvml"), ["AutoDetect=nvml"], "gpu:2"),
        ({}, Gpu("", ("/dev/nvidia0",), ""), ["Name=gpu File=/dev/nvidia0"], "gpu:1"),
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
def test_gres(given_gres: dict[str, Any], gpu: Gpu | None, lines: list[str], declared: str) -> None:
    found = config.gres_lines(request(gres=given_gres), HOST._replace(gpu=gpu))
    assert found == config.Gres(lines, declared)


def test_the_controller_knows_the_gres_of_all_members() -> None:
    """It ignores those whose name is not in GresTypes."""
    assert served()["grestypes"] == "gpu"
    # As gres.conf and the node's definition have them.
    assert served(gres={"NIC": {"Count": 2}})["grestypes"] == "gpu,nic"
    assert served(gres={"nic": {"Count": 2}}, gres_types=["tape", "GPU", "nic"])["grestypes"] == "gpu,nic,tape"


def test_the_gres_that_the_controller_knows() -> None:
    assert config.gres_types_in(None) == []
    assert config.gres_types_in("ClusterName=lab\n") == []
    documents = config.documents(request(gres_types=["nic"]), HOST, FOLDER)
    assert config.gres_types_in(documents.served["slurm.conf"]) == ["gpu", "nic"]


def test_the_arguments_of_slurmd() -> None:
    made = config.documents(
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
    text = config.options_text(made.arguments)
    assert config.definition_in(text) == made.definition
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
        (Cgroups("v2", ("cpuset", "memory")), (24, 11, 5), "proctrack/cgroup",
         {"cgroupplugin": "cgroup/v2", "enablecontrollers": "YES", "constraindevices": "YES"}),
        (Cgroups("none", ()), (24, 11, 5), "proctrack/linuxproc", {"cgroupplugin": "disabled"}),
        # 22.05 does not know these keywords, and would not start.
        (Cgroups("v2", ("cpuset", "memory")), (22, 5, 8), "proctrack/cgroup", {"cgroupplugin": "cgroup/v2"}),
        (Cgroups("none", ()), (22, 5, 8), "proctrack/linuxproc", {"cgroupplugin": "cgroup/v1"}),
    ],
)  # fmt: skip
def test_control_groups(cgroups: Cgroups, version: Any, node: str, cgroup: dict[str, str]) -> None:
    made = config.documents(request(), HOST._replace(cgroups=cgroups, version=version), FOLDER).node
    assert conf.parse(made["node/slurm.conf"])["proctracktype"] == node
    written = conf.parse(made["node/cgroup.conf"])
    assert cgroup.items() <= written.items()
    assert ("enablecontrollers" in written) == ("enablecontrollers" in cgroup)


def test_a_controller_that_is_missing_is_not_used() -> None:
    host = HOST._replace(cgroups=Cgroups("v1", ("cpuset", "freezer")))
    made = config.documents(request(cgroup={"ConstrainSwapSpace": True}), host, FOLDER).node
    assert conf.parse(made["node/slurm.conf"])["jobacctgathertype"] == "jobacct_gather/linux"
    written = conf.parse(made["node/cgroup.conf"])
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
    assert why in found.why
    if version == "v1":
        assert found.controllers == ("cpu", "cpuacct", "cpuset", "devices", "freezer", "memory")


@pytest.mark.parametrize(
    ("capabilities", "plugin"),
    [("000001ffffffffff", "task/affinity"), ("00000000a80425fb", "task/none")],
    ids=["all", "those of a container engine"],
)
def test_tasks_are_bound_where_that_is_allowed(capabilities: str, plugin: str) -> None:
    """Without CAP_SYS_NICE, slurmd cannot start a task of another user that it would have to bind to CPUs."""
    binds = has_capability(f"Name:\tpython3\nCapPrm:\t{capabilities}\nCapEff:\t{capabilities}\n", CAP_SYS_NICE)
    host = HOST._replace(cgroups=Cgroups("none", ()), binds=binds)
    assert config.node_settings(host)["TaskPlugin"] == plugin


def test_words_of_the_host() -> None:
    assert gres_type("NVIDIA H100 80GB HBM3") == "nvidia_h100_80gb_hbm3"
    assert gres_type(None) == ""
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
    assert config.reload_needed(old, new) == needed


@given(
    st.dictionaries(
        st.from_regex(r"\A[A-Z][a-z]{1,8}\Z"),
        st.one_of(st.booleans(), st.integers(), st.from_regex(r"\A[a-z/,.]{1,20}\Z")),
        max_size=8,
    )
)
def test_what_is_written_is_what_is_read(settings: dict[str, Any]) -> None:
    read = conf.parse(conf.text_of(conf.render(settings)))
    expected = {key.lower(): conf.value_text(key, value) for key, value in settings.items()}
    assert read == expected


def test_pairs() -> None:
    assert conf.parse_pairs("A=1 OS=Linux 6.1 #1 SMP CfgTRES=cpu=2,mem=5M Reason=") == [
        ("A", "1"),
        ("OS", "Linux 6.1 #1 SMP"),
        ("CfgTRES", "cpu=2,mem=5M"),
        ("Reason", ""),
    ]


PRESENT: dict[str, str | None] = dict.fromkeys((*config.SERVED, *config.NODE, config.OPTIONS))


def present_after(documents: config.Documents, serve: bool) -> dict[str, str | None]:
    planned = configure.plan(PRESENT, documents, serve, FOLDER)
    return {**PRESENT, **planned.write}


@pytest.mark.parametrize("serve", [True, False])
def test_a_second_run_is_empty(serve: bool) -> None:
    documents = config.documents(request(serve=serve), HOST, FOLDER)
    again = configure.plan(present_after(documents, serve), documents, serve, FOLDER)
    assert (again.write, again.reload, again.node_changed, again.redefined) == ({}, "none", False, False)


def test_a_first_run_redefines_nothing() -> None:
    planned = configure.plan(PRESENT, config.documents(request(), HOST, FOLDER), True, FOLDER)
    assert (planned.reload, planned.node_changed, planned.redefined) == ("restart", True, False)


def test_fewer_gpus_redefine_the_node() -> None:
    before = present_after(config.documents(request(), HOST, FOLDER), False)
    planned = configure.plan(before, config.documents(request(gres={"gpu": []}), HOST, FOLDER), False, FOLDER)
    assert (planned.node_changed, planned.redefined, planned.reload) == (True, True, "none")


def test_lost_gpus_stay_declared_until_somebody_says_that_they_are_fewer() -> None:
    """The controller takes the node out of service for missing ones; see the scenario `slurm`."""
    before = config.documents(request(gpus=2), HOST, FOLDER)
    assert "Gres=gpu:h100:2" in before.definition
    one = HOST._replace(gpu=HOST.gpu._replace(files=HOST.gpu.files[:1]) if HOST.gpu else None)
    for lost in (one, HOST._replace(gpu=None)):
        after = config.documents(request(gpus=2), lost, FOLDER, before.definition)
        assert after.definition == before.definition
        assert "/dev/nvidia1" not in after.node["node/gres.conf"]
    assert "Gres=gpu:2" in config.documents(request(gpus=2), HOST._replace(gpu=None), FOLDER).definition
    assert "Gres=gpu:h100:1" in config.documents(request(gpus=1), one, FOLDER, before.definition).definition
    # The user's values take precedence.
    assert "Gres" not in config.documents(request(gpus=2, gres={"gpu": []}), one, FOLDER, before.definition).definition
    more = config.documents(request(gpus=2, gres={"tape": {"Count": 3}}), one, FOLDER, before.definition)
    assert more.definition.endswith("Gres=gpu:h100:2,tape:3")


@pytest.mark.parametrize(
    ("memory", "kept"), [(24105, True), (24101, True), (24109, True), (24030, True), (23600, False), (48210, False)]
)
def test_another_kernel_does_not_redefine_the_node(memory: int, kept: bool) -> None:
    before = config.documents(request(), HOST, FOLDER)
    files = present_after(before, False)
    after = config.documents(request(), HOST._replace(memory=memory), FOLDER, before.definition)
    assert (configure.plan(files, after, False, FOLDER).redefined, after.definition == before.definition) == (
        not kept,
        kept,
    )
    declared = dict(conf.parse_pairs(after.definition))["RealMemory"]
    assert int(declared) <= memory


def test_a_redefinition_that_was_cut_off_is_still_due() -> None:
    """The file has it already, but slurmd runs with the previous one."""
    documents = config.documents(request(), HOST, FOLDER)
    files = present_after(documents, False)
    words = dict(zip(documents.arguments, documents.arguments[1:]))
    runs = {name: words[name] for name in ("-N", "--conf-server", "--conf")}
    for differs, redefined in (
        ({"--conf": "NodeAddr=10.99.0.1 Gres=gpu:4"}, True),
        ({"--conf-server": "10.99.0.9"}, False),
    ):
        planned = configure.plan(files, documents, False, FOLDER, {**runs, **differs})
        assert (planned.write, planned.node_changed, planned.redefined) == ({}, True, redefined)
    for same in (runs, {}):
        planned = configure.plan(files, documents, False, FOLDER, same)
        assert (planned.node_changed, planned.redefined) == (False, False)


@pytest.mark.parametrize("comm", ["slurmd", "slurmd-wlm", "exe"], ids=["started", "reconfigured", "by its link"])
def test_the_slurmd_that_runs(tmp_path: Path, comm: str) -> None:
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
        # In a container on this host.
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
    assert running_options(Tree(str(tmp_path)), "n1") == {
        "-N": "n1",
        "--conf-server": "10.99.0.1",
        "--conf": "NodeAddr=10.99.0.1 Gres=gpu:9",
    }
    assert running_options(Tree(str(tmp_path)), "n3") == {}


def test_a_port_is_found_in_whatever_case() -> None:
    for settings in ({"slurmctldPort": 7000}, {"SLURMCTLDPORT": "7000-7003"}, {"SlurmctldPort": " 7000 "}):
        assert config.first_port("slurm_conf", settings, "SlurmctldPort", "6817") == "7000"
        assert "10.99.0.1:7000" in config.documents(request(settings=settings), HOST, FOLDER).arguments
    for wrong in ("seven", "", 0, 65536, True):
        with pytest.raises(InputError, match="is not a port"):
            config.first_port("slurm_conf", {"SlurmctldPort": wrong}, "SlurmctldPort", "6817")
    for nothing in ({}, {"slurmctldport": None}, {"DbdPort": 1}):
        assert config.first_port("slurm_conf", nothing, "SlurmctldPort", "6817") == "6817"


def test_another_controller_restarts_slurmd_but_redefines_nothing() -> None:
    before = present_after(config.documents(request(), HOST, FOLDER), False)
    moved = config.documents(request(controller="10.99.0.2"), HOST, FOLDER)
    planned = configure.plan(before, moved, False, FOLDER)
    assert (sorted(planned.write), planned.redefined) == ([config.OPTIONS], False)


def test_a_former_controller_serves_no_more() -> None:
    documents = config.documents(request(), HOST, FOLDER)
    planned = configure.plan(present_after(documents, True), documents, False, FOLDER)
    assert planned.write == dict.fromkeys(documents.served)


def test_plugins_are_served_by_a_pattern_and_named_on_each_host() -> None:
    without = config.documents(request(), HOST, FOLDER)
    documents = config.documents(request(plugins=["/usr/local/lib/x.so"]), HOST, FOLDER)
    assert documents.served["plugstack.conf"].splitlines()[1:] == [f"include {FOLDER}/plugstack.conf.d/*.conf"]
    assert documents.node["plugstack.conf.d/gpumesh.conf"].splitlines()[1:] == ["optional /usr/local/lib/x.so"]
    assert {*documents.served, *documents.node} - {*without.served, *without.node} == {
        "plugstack.conf",
        "plugstack.conf.d/gpumesh.conf",
    }
    planned = configure.plan(present_after(documents, True), without, True, FOLDER)
    assert planned.write == {"plugstack.conf": None, "plugstack.conf.d/gpumesh.conf": None}
    theirs = {**present_after(without, True), "plugstack.conf": "optional /their.so\n"}
    assert configure.plan(theirs, without, True, FOLDER).write == {}
    with pytest.raises(HostStateError, match="not written by this collection"):
        configure.plan(theirs, documents, True, FOLDER)
    debians = {**theirs, "plugstack.conf": f"include {FOLDER}/plugstack.conf.d/*.conf\n"}
    assert list(configure.plan(debians, documents, True, FOLDER).write) == ["plugstack.conf.d/gpumesh.conf"]


#: As an earlier version wrote it.
FORMER_OCI = conf.text_of(['RunTimeQuery="r=%r; exec crun --root=$r state %n.%u.%j.%s.%t"'])


@pytest.mark.parametrize("serve", [True, False], ids=["the controller", "a former controller"])
def test_an_earlier_oci_conf_of_ours_goes_and_the_controller_has_to_pass_that_on(tmp_path: Path, serve: bool) -> None:
    """root would run what users have put into it."""
    folder = tmp_path / "slurm"
    documents = config.documents(request(serve=serve), HOST, str(folder))
    configure.apply(str(folder), configure.plan(configure.read_files(str(folder)), documents, True, str(folder)))
    (folder / "oci.conf").write_text(FORMER_OCI)
    started = (folder / "slurm.conf").stat().st_mtime - 5
    os.utime(folder / "slurm.conf", (started, started))
    planned = configure.plan(configure.read_files(str(folder)), documents, serve, str(folder))
    assert (planned.write["oci.conf"], planned.reload) == (None, "none")
    assert "r=%r; exec crun" in planned.before
    configure.apply(str(folder), planned)
    assert not (folder / "oci.conf").exists()
    if serve:
        assert list(planned.write) == ["oci.conf"]
        assert daemon.unread(started, [f"{folder}/slurm.conf"])
    assert configure.plan(configure.read_files(str(folder)), documents, serve, str(folder)).write == {}


def test_an_oci_conf_of_the_administrators_own_stays() -> None:
    documents = config.documents(request(), HOST, FOLDER)
    theirs = {**present_after(documents, True), "oci.conf": 'RunTimeQuery="true"\n'}
    for wanted, serve in ((documents, True), (documents, False), (None, False)):
        assert "oci.conf" not in configure.plan(theirs, wanted, serve, FOLDER).write


def test_a_configuration_of_somebody_else_is_refused_and_not_removed() -> None:
    foreign = {**PRESENT, "slurm.conf": "ClusterName=theirs\n"}
    with pytest.raises(HostStateError, match="not written by this collection"):
        configure.plan(foreign, config.documents(request(), HOST, FOLDER), True, FOLDER)
    assert configure.plan(foreign, None, False, FOLDER).write == {}


def test_complaints() -> None:
    output = """\
slurmd: error: _parse_next_key: Parsing error at unrecognized key: Bogus
slurmd: fatal: Unable to process configuration file
"""
    assert configure.complaints(output) == ["_parse_next_key: Parsing error at unrecognized key: Bogus"]
    assert configure.complaints("slurmd: fatal: Unable to process configuration file") == [
        "Unable to process configuration file"
    ]


def test_slurm_reads_all_files_aside_and_its_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configure, "find", lambda _program: "/usr/sbin/slurmd")
    folder = str(tmp_path)
    documents = config.documents(request(plugins=["/x.so"]), HOST, folder)
    seen: dict[str, str] = {}

    def run(argv: list[str], **_options: Any) -> Completed:
        aside = Path(argv[argv.index("-f") + 1]).parent
        seen.update({str(path.relative_to(aside)): path.read_text() for path in aside.rglob("*.conf")})
        assert f"Include {aside}/node/gres.conf" in seen["gres.conf"]
        return Completed(1, "", "slurmd: error: MaxJobCount value (abc) is not a valid number\n")

    with pytest.raises(InputError, match=r"MaxJobCount value \(abc\).*slurm_conf"):
        configure.validate(run, documents, folder)
    assert sorted(seen) == sorted({*config.SERVED, *config.NODE} - {"oci.conf"})
    assert os.listdir(folder) == []


def test_slurm_cannot_read_them_before_munge_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in check mode, on a host that only has the packages."""
    monkeypatch.setattr(configure, "find", lambda _program: "/usr/sbin/slurmd")
    words = (
        'slurmd: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory'
    )
    documents = config.documents(request(), HOST, str(tmp_path))
    assert not configure.validate(lambda _argv, **_options: Completed(1, "", words), documents, str(tmp_path))


def test_apply(tmp_path: Path) -> None:
    folder = str(tmp_path / "slurm")
    documents = config.documents(request(), HOST, folder)
    configure.apply(folder, configure.plan(configure.read_files(folder), documents, True, folder))
    assert configure.plan(configure.read_files(folder), documents, True, folder).write == {}
    assert (tmp_path / "slurm/slurm.conf").stat().st_mode & 0o777 == 0o644
    configure.apply(folder, configure.plan(configure.read_files(folder), None, False, folder))
    assert [path for path in (tmp_path / "slurm").rglob("*") if path.is_file()] == []
