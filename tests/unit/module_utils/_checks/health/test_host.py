# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, host, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree


def port(state: str = "active", physical: str = "linkup", rate: float | None = 400.0, **changes: object) -> dict:
    rdma_port = {"device": "mlx5_0", "port": 1, "state": state, "physical_state": physical, "rate_gbps": rate}
    return {**rdma_port, "link_layer": "InfiniBand", "driver": "mlx5_core", "pci_address": "0000:1b:00.0", **changes}


def cards(*states: str, layer: str = "InfiniBand", rate: float = 400.0, bus: int = 0) -> list[dict]:
    """Cards with ports that are active (x), look for a link (-) or are disabled (o), one character for each port."""
    kinds = {"x": ("active", "linkup"), "-": ("down", "polling"), "o": ("down", "disabled")}
    return [
        port(*kinds[state], rate, device=f"mlx5_{bus}{card}{function}", link_layer=layer,
             pci_address=f"0000:{bus}{card}:00.{function}")
        for card, ports in enumerate(states)
        for function, state in enumerate(ports)
    ]  # fmt: skip


SOFTWARE = port(device="rxe0", driver=None, pci_address=None, link_layer="Ethernet", rate=2.5)
ETHERNET = cards("x", layer="Ethernet", rate=25.0, bus=9)


@pytest.mark.parametrize(
    ("ports", "rate", "status"),
    [
        ([], None, "skipped"),
        ([port()], None, "pass"),
        ([port(), port("down", "disabled")], None, "pass"),
        ([port(), port("init")], None, "fail"),
        ([port(), port(rate=200.0)], None, "fail"),
        ([port(rate=200.0)], 400.0, "fail"),
        ([port(rate=None)], None, "pass"),
        ([port(rate=None)], 400.0, "fail"),
        ([port("down", "polling")], None, "fail"),
        # Another kind of card has another rate, and none is required of it.
        (cards(*["x"] * 8) + ETHERNET, None, "pass"),
        (cards(*["x"] * 8) + ETHERNET, 400.0, "pass"),
        (cards(*["x"] * 8, rate=200.0) + ETHERNET, 400.0, "fail"),
        ([*cards("x", "x"), port(rate=200.0)], None, "fail"),
        # Software has arbitrary rates.
        ([SOFTWARE], None, "skipped"),
        ([port(), SOFTWARE], None, "pass"),
        # A dead cable, on cards with one port and with two.
        (cards(*["x"] * 7, "-"), None, "fail"),
        (cards(*["x"] * 7, "-") + ETHERNET, None, "fail"),
        (cards(*["x"] * 6, "-", "o"), None, "fail"),
        (cards("xx", "xx", "x-"), None, "fail"),
        # The second port of each card is not used.
        (cards("x-", "x-", "x-"), None, "pass"),
        (cards("x-"), None, "pass"),
        (cards("xx", "x-"), None, "pass"),
        (cards(*["x"] * 7, "o"), None, "pass"),
        # There are not enough cards to compare.
        (cards("x", "-"), None, "skipped"),
        (cards("x", "x", "-", "-"), None, "skipped"),
        (cards("x", "x") + cards("-", layer="Ethernet", bus=9), None, "skipped"),
    ],
)
def test_rdma(ports: list, rate: float | None, status: str) -> None:
    judged = host.judge_rdma(ports, rate)
    assert judged.status == status, judged
    assert bool(judged.reason) == (status != "pass")


@pytest.mark.parametrize(
    ("ports", "fabric", "status"),
    [
        ([], "infiniband", "fail"),
        ([], "none", "skipped"),
        ([port()], "infiniband", "pass"),
        ([port()], "roce", "fail"),
        (ETHERNET, "infiniband", "fail"),
        ([port("down", "disabled"), *ETHERNET], "infiniband", "fail"),
        ([port("down", "disabled"), *ETHERNET], "roce", "pass"),
        # RDMA in software connects to the others, too.
        ([SOFTWARE], "roce", "skipped"),
    ],
)
def test_recorded_rdma_must_be_present(ports: list, fabric: str, status: str) -> None:
    judged = host.judge_rdma(ports, None, recorded_fabric=fabric)
    assert judged.status == status, judged
    assert (f"RDMA ({fabric})" in judged.reason) == (status == "fail")


def test_rdma_cards_of_another_model_are_not_compared() -> None:
    storage = port(device="mlx5_9", rate=200.0, pci_address="0000:9b:00.0")
    assert host.judge_rdma([port(), storage], None).status == "fail"
    judged = host.judge_rdma([port(), storage], None, {"mlx5_0": "0x15b3:0x1021", "mlx5_9": "0x15b3:0x101d"})
    assert (judged.status, judged.actual) == ("pass", "1 at 400 Gbit/s, 1 at 200 Gbit/s")


def test_the_model_of_an_rdma_device_is_that_of_its_card(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    ids = {"vendor": "0x15b3", "device": "0x1021", "subsystem_vendor": "0x15b3", "subsystem_device": "0x0041"}
    for name, text in ids.items():
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    board = tmp_path / "sys/class/infiniband/mlx5_0/board_id"
    board.parent.mkdir(parents=True)
    board.write_text("MT_0000000838\n", encoding="utf-8")
    model_by_device = host.read_rdma_models(Tree(str(tmp_path)), [port(), {**SOFTWARE, "driver": None}])
    assert model_by_device == {"mlx5_0": "0x15b3:0x1021:0x15b3:0x0041:MT_0000000838", "rxe0": "::::"}


def test_a_lost_link_is_named() -> None:
    judged = host.judge_rdma(cards(*["x"] * 7, "-"), None)
    assert judged.reason == "mlx5_070:1 has no link (polling), unlike all other cards of its kind."
    assert (judged.actual, judged.required) == ("7 of 8", "8 at 400 Gbit/s")


def test_locked_memory_matters_only_with_rdma() -> None:
    assert host.judge_locked_memory(65536, []).status == "skipped"
    assert host.judge_locked_memory(None, [port()]).status == "pass"
    assert host.judge_locked_memory(65536, [port()]).status == "fail"


def fake_slurmd(
    tmp_path: Path,
    pid: int,
    ids: str = "0\t0\t0\t0",
    file: str = "/usr/sbin/slurmd",
    # No host has it, so that it cannot be that of the test.
    limit: int = 12345,
    comm: str = "slurmd",
) -> None:
    folder = tmp_path / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n", encoding="utf-8")
    (folder / "status").write_text(f"Name:\tslurmd\nUid:\t{ids}\nGid:\t0\t0\t0\t0\n", encoding="utf-8")
    (folder / "exe").symlink_to(file)
    (folder / "limits").write_text(
        f"Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {limit}              {limit}              bytes\n",
        encoding="utf-8",
    )


@pytest.mark.parametrize("comm", ["slurmd", "slurmd-wlm"], ids=["started", "reconfigured"])
@pytest.mark.parametrize(
    "file",
    ["/usr/sbin/slurmd", "/opt/slurm/sbin/slurmd", "/usr/sbin/slurmd-wlm", "/usr/sbin/slurmd-wlm (deleted)"],
)
def test_locked_memory_limit_is_read_from_slurmd(tmp_path: Path, file: str, comm: str) -> None:
    fake_slurmd(tmp_path, 77, file=file, comm=comm)
    assert host.read_memlock(Tree(str(tmp_path))) == 12345


def test_locked_memory_limit_of_a_fake_slurmd_is_ignored(tmp_path: Path) -> None:
    fake_slurmd(tmp_path, 1, ids="1000\t1000\t1000\t1000", limit=1)
    # A setuid program, started by a user under that name and with that user's limits.
    fake_slurmd(tmp_path, 2, ids="1000\t0\t0\t0", file="/home/alice/slurmd", limit=2)
    fake_slurmd(tmp_path, 3, file="/usr/bin/sudo", limit=3)
    fake_slurmd(tmp_path, 77)
    assert host.read_memlock(Tree(str(tmp_path))) == 12345


def test_swap() -> None:
    text = "Filename Type Size Used Priority\n/swap file 8388604 2097152 -2\n"
    assert host.parse_swap(text) == 2048.0
    assert host.judge_swap(text, 1024).status == "fail"
    assert host.judge_swap("Filename Type Size Used Priority\n", 1024).status == "pass"
    assert host.judge_swap(None, 1024).status == "skipped"


def test_the_fullest_disk_is_named_by_space_or_inodes() -> None:
    judged = host.judge_disks([host.DiskUsage("/", 50, 10), host.DiskUsage("/var", 20, 99)], 95)
    assert (judged.status, judged.actual) == ("fail", 99)
    assert "/var" in judged.reason and "inodes" in judged.reason
    assert host.judge_disks([host.DiskUsage("/", 94.9, 1)], 95).status == "pass"
    assert host.judge_disks([], 95).status == "error"


def test_user_writable_filesystem_drains_no_node(tmp_path: Path) -> None:
    disks = host.read_disks(["/", "/tmp"], Tree())
    assert disks[0].path == "/"
    assert disks[-1].users_can_write, "everybody can write to /tmp"
    (tmp_path / "a" / "scratch").mkdir(parents=True)
    (tmp_path / "system").mkdir(mode=0o755)
    (tmp_path / "a" / "scratch").chmod(0o1777)
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "open").mkdir()
    (tmp_path / "share" / "open").chmod(0o777)
    mounts = host.parse_mountinfo(f"36 35 0:32 / {tmp_path}/share rw - nfs4 n1:/x rw\n")
    user_directories = [
        path for path in host.find_user_directories(mounts, str(tmp_path)) if path.startswith(str(tmp_path))
    ]
    assert user_directories == [str(tmp_path / "a" / "scratch")], "what is mounted is not looked into"


def test_filesystems_of_one_pool_share_their_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    line = "36 35 0:{minor} / {point} rw - {kind} {source} rw\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(
        line.format(minor=1, point="/usr", kind="zfs", source="tank/usr")
        + line.format(minor=2, point="/tmp", kind="zfs", source="tank/tmp")
        + line.format(minor=3, point="/opt", kind="zfs", source="system/opt"),
        encoding="utf-8",
    )
    monkeypatch.setattr(host, "_USER_DIRECTORIES", ("/tmp",))
    monkeypatch.setattr(host, "_scan_directories", lambda *_arguments: [])
    assert host.read_disks(["/usr"], Tree(str(tmp_path)))[0].users_can_write
    assert not host.read_disks(["/opt"], Tree(str(tmp_path)))[0].users_can_write


def test_concurrent_file_removal_does_not_fail_the_mount_test(tmp_path: Path) -> None:
    """Any user who can write to a volume can remove the file, which must not drain a node."""
    stopped = threading.Event()

    def remove() -> None:
        while not stopped.is_set():
            for path in tmp_path.iterdir():
                path.unlink(missing_ok=True)

    racer = threading.Thread(target=remove)
    racer.start()
    try:
        assert [host.probe_mount(str(tmp_path)) for _again in range(10)] == [None] * 10
    finally:
        stopped.set()
        racer.join()


def test_volumes_must_be_mounted_and_writable(tmp_path: Path) -> None:
    assert host.probe_mount(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    assert "No such file" in str(host.probe_mount(str(tmp_path / "none")))
    mounted = host.parse_filesystem_types(
        "36 35 0:32 / /mnt/a\\040b rw shared:1 - nfs4 n1:/x rw\n37 1 0:3 / /mnt/c rw - autofs x rw\n"
    )
    assert mounted == {"/mnt/a b": "nfs4", "/mnt/c": "autofs"}
    assert host.judge_mounts({"/mnt/a b": None}, mounted).status == "pass"
    assert host.find_filesystem_type("/mnt/a b/deep", mounted, external=True) == "nfs4"
    assert host.find_filesystem_type("/mnt/a b/deep", mounted, external=False) == ""
    assert host.find_filesystem_type("/mnt/d", {"/": "ext4", **mounted}, external=True) == ""
    assert host.judge_mounts({"/mnt/c": None}, mounted).status == "fail"
    assert host.judge_mounts({"/mnt/d": None}, mounted).status == "fail"
    slow = {"/mnt/a b": host.MountProblem("it responds, but no file could be written within 10 s", is_slow=True)}
    assert host.judge_mounts(slow, mounted).status == "fail"
    assert host.judge_mounts(slow, mounted, drains_node=True).status == "pass"
    assert "no answer" in host.judge_mounts({"/mnt/a b": host.MountProblem("no answer within 3 s")}, mounted).reason
    assert host.judge_mounts({}, {}).status == "skipped"


def test_read_only_mount_need_not_be_writable() -> None:
    # /proc, one of the kernel's own, does not accept files from any user.
    assert host.probe_mount("/proc", read_only=True) is None
    assert host.probe_mount("/proc") is not None


def test_clock_of_a_container_is_not_judged() -> None:
    assert host.judge_clock("no", True).status == "skipped"
    assert host.judge_clock("no", False).status == "fail"
    assert host.judge_clock("yes", False).status == "pass"
    assert host.judge_clock(None, False).status == "skipped"


@pytest.mark.parametrize(
    ("addresses", "status"),
    [(["10.99.0.1"], "pass"), (["127.0.1.1"], "fail"), (["10.99.0.1", "127.0.1.1"], "fail"), ([], "fail")],
)
def test_name(addresses: list, status: str) -> None:
    assert host.judge_name("n1", addresses, "10.99.0.1").status == status


@pytest.mark.parametrize("name", ["n2", "n3", "old"])
def test_a_name_that_another_member_has_must_be_changed(name: str) -> None:
    """/etc/hosts of all members has it, so no entry there helps."""
    judged = host.judge_name(name, ["10.99.0.2"], "10.99.0.3", {"n1", "n2"}, "n3")
    assert judged.status == "fail"
    assert ("hostnamectl set-hostname n3" in judged.remedy) == (name == "n2")
    assert ("/etc/hosts" in judged.remedy) == (name != "n2")


def context(expected: ExpectedState, tmp_path: Path, answers: dict | None = None) -> run.CheckContext:
    def fake(argv: list, **_options: object) -> CommandResult:
        answer = (answers or {}).get(argv[0])
        if isinstance(answer, CommandError):
            raise answer
        return answer or CommandResult(0, "", "")

    return run.CheckContext(
        expected, Tree(str(tmp_path)), fake, lambda name: f"/bin/{name}" if name in (answers or {}) else None
    )


def test_every_check_gives_one_result_in_order_on_a_bare_host(tmp_path: Path) -> None:
    results = run.run_selected_checks(context(ExpectedState(), tmp_path), "n1")
    assert [result["id"] for result in results] == [
        check.check_id for check in run.ALL_CHECKS if check.check_id != "mesh.preload"
    ]
    assert all(result["host"] == "n1" for result in results)
    for result in results:
        assert bool(result["reason"]) == (result["status"] != "pass"), result
        assert bool(result["remedy"]) == (result["status"] in ("fail", "error")), result


def test_only_selects_by_id_or_part(tmp_path: Path) -> None:
    check_context = context(ExpectedState(), tmp_path)
    assert [result["id"] for result in run.run_selected_checks(check_context, "n1", ["disk"])] == ["health.disk"]
    assert [result["id"] for result in run.run_selected_checks(check_context, "n1", ["mesh", "ssh_trust.login"])] == [
        "mesh.handshake",
        "mesh.key_expiry",
        "ssh_trust.login",
    ]


def test_ssh_names_the_peer_and_the_reason(tmp_path: Path) -> None:
    expected = ExpectedState(ssh_peers={"n2": "n2", "n3": "n3"})
    refused = {"ssh": CommandResult(255, "", "Host key verification failed.\n")}
    (result,) = run.run_selected_checks(context(expected, tmp_path, refused), "n1", ["ssh_trust"])
    assert result["status"] == "fail"
    assert "n2: Host key verification failed; n3: Host key verification failed." in result["reason"]
    (result,) = run.run_selected_checks(
        context(expected, tmp_path, {"ssh": CommandResult(0, "", "")}), "n1", ["ssh_trust"]
    )
    assert (result["status"], result["actual"], result["required"]) == ("pass", 2, 2)
    # Nobody has logins where ssh_trust_users is empty.
    (result,) = run.run_selected_checks(context(ExpectedState(), tmp_path), "n1", ["ssh_trust"])
    assert result["status"] == "skipped"


def add_driver(tmp_path: Path, *files: str) -> None:
    """Device files of an NVIDIA driver, and the mark of a container engine where it is among ``files``."""
    for name in ("proc/driver/nvidia/version", *files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("os_release", "files", "remedy"),
    [
        (
            "ID=ubuntu\nVERSION_CODENAME=noble\n",
            [],
            "and reboot: apt-get install ubuntu-drivers-common && ubuntu-drivers ",
        ),
        (
            "ID=debian\nVERSION_CODENAME=trixie\n",
            [],
            "and reboot: apt-get install linux-headers-$(dpkg --print-architecture) nvidia-driver",
        ),
        (
            "ID=linuxmint\nID_LIKE=debian\nDEBIAN_CODENAME=bookworm\n",
            [],
            "linux-headers-$(dpkg --print-architecture) nvidia-driver",
        ),
        ("ID=debian\nVERSION_CODENAME=bullseye\n", [], "Load the driver"),
        # Its device files are missing, or it is another machine's.
        ("ID=debian\nVERSION_CODENAME=trixie\n", ["proc/driver/nvidia/version"], "Load the driver"),
        ("ID=debian\nVERSION_CODENAME=trixie\n", [".dockerenv"], "Load the driver"),
    ],
)
def test_the_command_that_installs_a_missing_driver_is_named(
    tmp_path: Path, os_release: str, files: list[str], remedy: str
) -> None:
    device = {"sys/bus/pci/devices/0000:18:00.0/modalias": "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"}
    for name, text in {**device, **dict.fromkeys(files, ""), "etc/os-release": os_release}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (count,) = (
        result
        for result in run.run_selected_checks(context(ExpectedState(gpus=1), tmp_path), "n1", ["health"])
        if result["id"] == "health.gpu_count"
    )
    assert count["status"] == "fail"
    assert remedy in count["remedy"]


@pytest.mark.parametrize(("engine", "status"), [([".dockerenv"], "skipped"), ([], "error")])
def test_container_is_not_judged_by_log_and_services_of_its_host(
    tmp_path: Path, engine: list[str], status: str
) -> None:
    add_driver(tmp_path, "dev/nvidia-nvswitch0", *engine)
    results = run.run_selected_checks(
        context(ExpectedState(), tmp_path), "n1", ["health.gpu_xid", "health.fabric_manager"]
    )
    assert [result["status"] for result in results] == [status, status]


ROW = "0, NVIDIA H100 80GB HBM3, 0, [N/A], 16, 16, 31\n"
LOST = (
    "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
# https://github.com/anderskm/gputil/issues/55
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is "
    "properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to "
    "your system PATH.\n"
)


@pytest.mark.parametrize(
    ("answer", "expected", "status"),
    [
        (CommandResult(0, ROW * 2, ""), 2, "pass"),
        # The driver keeps the device file.
        (CommandResult(0, ROW, ""), 2, "fail"),
        (CommandResult(15, LOST, ""), 2, "fail"),
        (CommandResult(15, ROW, LOST), 2, "fail"),
        (CommandResult(0, ROW + ROW.replace("31", "[GPU is lost]"), ""), 2, "fail"),
        (CommandResult(6, "No devices were found\n", ""), 2, "fail"),
        (CommandResult(15, LOST, ""), None, "fail"),
        (CommandResult(0, ROW * 2, ""), None, "skipped"),
        (CommandResult(14, ROW + ROW.replace("31", "[GPU requires reset]"), ""), 2, "fail"),
        (CommandResult(0, ROW + "1, NVIDIA H100 80GB HBM3, [Unknown Error], [N/A], ERR!, ERR!, ERR!\n", ""), 2, "fail"),
        # The GPUs work, although one cannot keep some of its data (https://github.com/NVIDIA/gpu-operator/issues/285).
        (CommandResult(14, ROW * 2 + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n", ""), 2, "pass"),
        (CommandResult(14, ROW + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n", ""), 2, "fail"),
        # A value that this model cannot read.
        (CommandResult(0, ROW + ROW.replace("31", "[Unknown Error]"), ""), 2, "pass"),
        (CommandResult(18, MISMATCH, ""), 2, "fail"),
        (CommandResult(18, MISMATCH, ""), None, "fail"),
        (CommandResult(255, "Failed to initialize NVML: Unknown Error\n", ""), 2, "fail"),
        (CommandResult(9, NO_DRIVER, ""), 2, "fail"),
        (CommandResult(4, "Failed to initialize NVML: Insufficient Permissions\n", ""), 2, "error"),
        (CommandResult(12, NO_LIBRARY, ""), 2, "error"),
        (CommandResult(255, "Failed to initialize NVML: GPU access blocked by the operating system\n", ""), 2, "error"),
        (CommandResult(18, "Failed to initialize NVML: Driver/library version mismatch\n", ""), 3, "fail"),
        (CommandError(["nvidia-smi"], "did not end within 10 s"), 2, "error"),
    ],
)
def test_a_gpu_that_nvidia_smi_has_lost_is_missing(
    tmp_path: Path, answer: CommandResult | CommandError, expected: int | None, status: str
) -> None:
    add_driver(tmp_path, "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl")
    check_context = context(ExpectedState(gpus=expected), tmp_path, {"nvidia-smi": answer})
    results = {result["id"]: result for result in run.run_selected_checks(check_context, "n1", ["health"])}
    assert results["health.gpu_count"]["status"] == status
    if isinstance(answer, CommandResult) and answer.rc not in (0, gpu.CORRUPTED_INFOROM_STATUS):
        assert {results[f"health.{name}"]["status"] for name in ("gpu_ecc", "gpu_retired", "nvlink", "pcie")} == {
            "error"
        }
    if isinstance(answer, CommandResult) and answer.rc == 15:
        assert "GPU is lost" in results["health.gpu_count"]["reason"]


@pytest.mark.parametrize(
    ("answer", "files", "reason", "remedy"),
    [
        (
            CommandResult(18, MISMATCH, ""),
            [],
            "No GPU can be used: Driver/library version mismatch (version of the library: 535.161).",
            "reboot it",
        ),
        (
            CommandResult(18, MISMATCH, ""),
            [".dockerenv"],
            "No GPU can be used: Driver/library version mismatch (version of the library: 535.161).",
            "Restart the container",
        ),
        (
            # https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
            CommandResult(255, "Failed to initialize NVML: Unknown Error\n", ""),
            [".dockerenv"],
            "No GPU can be used: Unknown Error.",
            "Restart the container",
        ),
        (
            CommandResult(9, NO_DRIVER, ""),
            [],
            "No GPU can be used: nvidia-smi says that it couldn't communicate with the NVIDIA driver.",
            "reboot the node",
        ),
    ],
)
def test_driver_that_does_not_answer_is_named_with_its_remedy(
    tmp_path: Path, answer: CommandResult, files: list[str], reason: str, remedy: str
) -> None:
    add_driver(tmp_path, "dev/nvidia0", "dev/nvidia1", *files)
    check_context = context(ExpectedState(gpus=2), tmp_path, {"nvidia-smi": answer})
    results = {result["id"]: result for result in run.run_selected_checks(check_context, "n1", ["health"])}
    count = results.pop("health.gpu_count")
    assert (count["status"], count["actual"], count["required"], count["reason"]) == ("fail", 0, 2, reason)
    assert remedy in count["remedy"]
    first_line = answer.stdout.splitlines()[0].rstrip(".")
    for name in ("gpu_ecc", "gpu_retired", "nvlink", "pcie"):
        assert first_line in results[f"health.{name}"]["reason"]
        assert "--query-gpu" not in results[f"health.{name}"]["reason"]


def test_device_files_of_an_unloaded_driver_are_not_gpus(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).write_text("", encoding="utf-8")
    check_context = context(ExpectedState(gpus=2), tmp_path, {"nvidia-smi": CommandResult(9, NO_DRIVER, "")})
    (result,) = run.run_selected_checks(check_context, "n1", ["gpu_count"])
    assert result["status"] == "fail"


def test_hanging_command_is_an_error_and_does_not_delay_other_checks(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("x", encoding="utf-8")
    hangs = CommandError(["nvidia-smi"], "did not end within 10 s")
    results = {
        result["id"]: result
        for result in run.run_selected_checks(context(ExpectedState(), tmp_path, {"nvidia-smi": hangs}), "n1")
    }
    assert results["health.gpu_ecc"]["status"] == "error"
    assert "did not end within 10 s" in results["health.gpu_ecc"]["reason"]
    assert results["health.disk"]["status"] in ("pass", "fail")


def test_check_that_exceeds_its_time_limit_is_an_error() -> None:
    slow = run.HealthCheck("health.slow", "Slow", lambda _context: time.sleep(5), 0.05)
    judged = run._run_check(slow, None)
    assert judged.status == "error"
    assert "did not end within" in judged.reason


@pytest.mark.parametrize(
    ("path", "content", "container"),
    [
        ("proc/1/environ", "HOME=/\0container=podman\0", True),
        ("proc/1/environ", "KUBERNETES_SERVICE_HOST=10.96.0.1\0HOME=/\0", True),
        ("proc/1/environ", "HOME=/\0OTHER=container=x\0", False),
        (".dockerenv", "", True),
        ("run/systemd/container", "lxc", True),
    ],
)
def test_container_detection(path: str, content: str, container: bool, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(content, encoding="utf-8")
    assert host.runs_in_container(Tree(str(tmp_path))) == container


@pytest.mark.parametrize(("slurm_node", "status"), [(True, "fail"), (False, "skipped")])
def test_locked_memory_matters_where_jobs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm_node: bool, status: str
) -> None:
    """A head node without slurmd, with the limit of a login, which serves a volume over InfiniBand."""
    monkeypatch.setattr(host, "read_memlock", lambda _tree: 8 << 20)
    monkeypatch.setattr(run.CheckContext, "read_rdma_ports", lambda _self: [{"device": "mlx5_0"}])
    expected = ExpectedState(slurm_node=slurm_node)
    assert run._check_locked_memory(context(expected, tmp_path)).status == status
