# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a node, and how they are run: all at once, each with a time limit."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
import threading
import time
from concurrent.futures import Future
from typing import Callable, Dict, Generic, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import (
    amd_memory,
    fault_history,
    gpu,
    gpu_details,
    handshakes,
    hardware_faults,
    host,
    hung,
    job_plugin,
    keys,
    links,
    logins,
    maintenance,
    peer_access,
    preload,
    snapshots,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import CATALOGUE
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    CheckResult,
    ExpectedState,
    Judgement,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import locate_snapshot
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import find_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import kernel_log, releases
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import split_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.host import read_job_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailscale
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release, rest

#: The file systems to check. The last one is the shared memory of NCCL and PyTorch's data loaders.
_DISK_PATHS = ("/", "/var", "/home", tempfile.gettempdir(), os.path.join("/dev", "shm"))
_DCGM_TIMEOUT_BY_LEVEL = {0: 0.0, 1: 120.0, 2: 600.0, 3: 3600.0, 4: 7200.0}
#: Seconds for a check that has no limit of its own.
_TIME_LIMIT = 10.0
#: Seconds between two queries of what may be over a moment later.
_QUERY_PAUSE = 5.0
_NO_DRIVER_REASON = "There is no NVIDIA driver on this host."

_T = TypeVar("_T")


class _ReadOnce(Generic[_T]):
    """A value that is read when the first check needs it, and then shared by all of them.

    A failure is shared, too: another attempt would fail as late, for instance after the time limit of a program.
    """

    def __init__(self, read: Callable[[], _T]) -> None:
        self._lock, self._read = threading.Lock(), read
        self._outcome: Future[_T] = Future()

    def __call__(self) -> _T:
        with self._lock:
            if not self._outcome.done():
                _run_into(self._outcome, self._read)
        return self._outcome.result()


class CheckContext:
    """The sources of the checks. What several of them need is only read once.

    ``snapshot``: what these checks have seen, for the next snapshot. ``urgent_snapshot``: the part that has to be up to date.
    """

    def __init__(
        self,
        expected: ExpectedState,
        tree: Tree,
        run: Runner,
        find_program: Callable[[str], Optional[str]] = find_program,
        snapshot_path: Optional[str] = None,
    ) -> None:
        self.expected_state = expected
        # Without a path, it is that of the host's tree.
        self.snapshot_path = snapshot_path or locate_snapshot().lstrip("/")
        self.host_tree = tree
        self.run_command = run
        self.find_program = find_program
        self.last_snapshot = snapshots.read_snapshot(tree, self.snapshot_path)
        self.snapshot: snapshots.Snapshot = {}
        self.urgent_snapshot: snapshots.Snapshot = {}
        #: nvidia-smi's table, with an error as exit status if one GPU does not respond.
        self.query_nvidia_smi = self._query_once(gpu.QUERY_COMMAND, timeout=10)
        #: nvidia-smi's links.
        self.query_nvlink = self._query_once(gpu.NVLINK_COMMAND, timeout=10)
        #: The indexes of the GPUs that are partitioned.
        self.find_partitioned_gpus = _ReadOnce(self._find_partitioned_gpus)
        #: All that nvidia-smi shows of each GPU. This takes longer than the others.
        self.query_details = self._query_once(gpu.DETAILS_COMMAND, timeout=20)
        #: The fields of each GPU that responds.
        self.read_details = _ReadOnce(self._read_details)
        #: An nvidia-smi that hangs in the kernel, if there is one.
        self.find_hung_nvidia_smi = _ReadOnce(lambda: hung.find_hung_process(tree, "nvidia-smi"))
        #: The GPUs by their device files and on the bus.
        self.read_gpu_facts = _ReadOnce(lambda: read_gpus(tree, tree.list_pci_devices()))
        #: The RDMA ports, which take many files to read.
        self.split_rdma_ports = _ReadOnce(lambda: split_ports(tree))
        #: The GPUs and RDMA cards on the bus, with the bridges above them.
        self.find_watched_devices = _ReadOnce(
            lambda: hardware_faults.find_watched_devices(tree, self.read_rdma_ports())
        )
        #: The kernel log in the format of /dev/kmsg; None if it cannot be read.
        self.read_kernel_records = _ReadOnce(lambda: kernel_log.read_records(tree.path("dev/kmsg")))
        #: The kernel's own messages; None if its log cannot be read.
        self.read_kernel_messages = _ReadOnce(self._read_kernel_messages)
        #: What has happened to the links; None if there is no earlier snapshot.
        self.follow_links = _ReadOnce(self._follow_links)

    @property
    def has_nvidia(self) -> bool:
        """Whether there are GPUs that nvidia-smi can query."""
        return self.host_tree.exists("proc/driver/nvidia/version") and self.find_program("nvidia-smi") is not None

    def read_rdma_ports(self) -> List[RdmaPort]:
        """The RDMA ports that lead to a network."""
        return self.split_rdma_ports()[0]

    def run_nvidia_smi(self, argv: Sequence[str], timeout: float) -> CommandResult:
        """Run nvidia-smi, unless an earlier one hangs: this one would, too, and stay forever."""
        hung_process = self.find_hung_nvidia_smi()
        if hung_process:
            raise CommandError(argv[:1], f"is not run, since an earlier one hangs in the kernel ({hung_process})")
        return self.run_command(argv, timeout=timeout, check=False)

    def _query_once(self, argv: Sequence[str], timeout: float) -> _ReadOnce[CommandResult]:
        return _ReadOnce(lambda: self.run_nvidia_smi(argv, timeout))

    def _find_partitioned_gpus(self) -> List[str]:
        # Older drivers do not know this field, and do not partition GPUs.
        return gpu.parse_partitioned(self.run_nvidia_smi(gpu.MIG_COMMAND, timeout=5).stdout)

    def _read_details(self) -> Dict[str, gpu_details.GpuDetails]:
        """Raises CommandError if no GPU responds."""
        query_result = self.query_details()
        details_by_gpu = gpu_details.parse_details(query_result.stdout)
        if not details_by_gpu:
            failure = gpu.describe_failure(query_result.stdout + query_result.stderr, query_result.rc)
            raise CommandError(gpu.DETAILS_COMMAND[:1], f"shows no GPU: {failure}", rc=query_result.rc)
        return details_by_gpu

    def read_later_details(self) -> Dict[str, gpu_details.GpuDetails]:
        """The details a few seconds later; empty if no GPU responds by then."""
        time.sleep(_QUERY_PAUSE)
        return gpu_details.parse_details(self.run_nvidia_smi(gpu.DETAILS_COMMAND, timeout=20).stdout)

    def _read_kernel_messages(self) -> Optional[List[str]]:
        kernel_records = self.read_kernel_records()
        return None if kernel_records is None else kernel_log.extract_messages(kernel_records)

    def _follow_links(self) -> Optional[links.LinkHistory]:
        link_counters, uptime = (
            links.read_link_counters(self.host_tree, self.read_rdma_ports()),
            snapshots.read_uptime(self.host_tree),
        )
        if uptime is None:
            return None
        earlier = snapshots.read_part(self.last_snapshot, "links")
        # A suspend takes the links down.
        suspend_count = self.host_tree.read_integer("sys/power/suspend_stats/success")
        was_suspended = suspend_count != self.last_snapshot.get("suspends", suspend_count)
        self.snapshot["suspends"] = suspend_count
        link_history = links.continue_history(earlier, link_counters, uptime, was_suspended)
        self.snapshot["links"] = link_history
        return link_history if earlier or not link_counters else None

    def read_gpu_table(self) -> List[gpu.GpuFields]:
        """nvidia-smi's table."""
        query_result = self.query_nvidia_smi()
        if query_result.rc not in (0, gpu.CORRUPTED_INFOROM_STATUS):
            failure = gpu.describe_failure(query_result.stdout + query_result.stderr, query_result.rc)
            raise CommandError(gpu.QUERY_COMMAND[:1], f"exited {query_result.rc}: {failure}", rc=query_result.rc)
        return gpu.parse_query(query_result.stdout)


class HealthCheck(NamedTuple):
    """One check. ``time_limit`` is its limit, or a function of the context that returns it."""

    check_id: str
    purpose: str
    run_check: Callable[[CheckContext], Judgement]
    time_limit: Union[float, Callable[[CheckContext], float]] = _TIME_LIMIT

    def limit_seconds(self, context: CheckContext) -> float:
        """Return the time limit in seconds."""
        return self.time_limit(context) if callable(self.time_limit) else self.time_limit


class JudgedCheck(NamedTuple):
    """A check that was made, and its judgement."""

    check: HealthCheck
    judgement: Judgement


def _check_gpu_count(context: CheckContext) -> Judgement:
    gpu_facts = context.read_gpu_facts()
    by_files = gpu.judge_gpu_count(
        gpu_facts["count"], gpu_facts["problem"], context.expected_state.gpus, _find_driver_command(context)
    )
    # The device files remain when the driver is unloaded, so that only nvidia-smi tells whether it works.
    if by_files.status == "fail" or gpu_facts["vendor"] != "nvidia" or context.find_program("nvidia-smi") is None:
        return by_files
    hung_process = context.find_hung_nvidia_smi()
    if hung_process:
        return gpu.judge_hung_driver(hung_process, context.expected_state.gpus)
    query_result = context.query_nvidia_smi()
    failure = gpu.find_driver_failure(query_result.stdout + query_result.stderr)
    if failure:
        return gpu.judge_driver_failure(failure, context.expected_state.gpus, host.runs_in_container(context.host_tree))
    message = gpu.find_lost_message(query_result.stdout) or gpu.find_lost_message(query_result.stderr)
    table = context.read_gpu_table() if not message else []
    message = message or gpu.find_unreadable_gpu(table)
    if message:
        return gpu.judge_lost_gpu(message, gpu_facts["count"], context.expected_state.gpus)
    recovery_result = context.run_nvidia_smi(gpu.RECOVERY_COMMAND, timeout=10)
    by_recovery = gpu.judge_recovery(recovery_result.stdout, len(table), context.expected_state.gpus)
    return by_recovery or gpu.judge_gpu_count(len(table), None, context.expected_state.gpus)


def _find_driver_command(context: CheckContext) -> str:
    """Return the command that installs NVIDIA's driver on this host; empty if it has one, or needs none."""
    host_tree, problem = context.host_tree, context.read_gpu_facts()["problem"] or ""
    # An AMD GPU has another driver.
    if "nvidia" not in problem or host_tree.exists("proc/driver/nvidia/version"):
        return ""
    # In a container, it is the driver of the machine that counts.
    if context.find_program("nvidia-smi") is not None or host.runs_in_container(host_tree):
        return ""
    release = releases.read_release(host_tree).release
    return release.driver_command if release else ""


def _judge_gpus(judge: Callable[[Sequence[gpu.GpuFields]], Judgement], context: CheckContext) -> Judgement:
    return judge(context.read_gpu_table()) if context.has_nvidia else skipped(_NO_DRIVER_REASON)


def _list_amd_files(context: CheckContext) -> List[str]:
    """The device files of the GPUs, if they are those of AMD."""
    gpu_facts = context.read_gpu_facts()
    return gpu_facts["files"] if gpu_facts["vendor"] == "amd" else []


def _check_gpu_ecc(context: CheckContext) -> Judgement:
    amd_files = _list_amd_files(context)
    if amd_files:
        counts_by_gpu = amd_memory.read_error_counts(context.host_tree, amd_files)
        return amd_memory.judge_errors(counts_by_gpu, gpu.REBOOT_REMEDY)
    return _judge_gpus(gpu.judge_ecc, context)


def _check_gpu_retired(context: CheckContext) -> Judgement:
    amd_files = _list_amd_files(context)
    if amd_files:
        return amd_memory.judge_bad_pages(amd_memory.read_bad_pages(context.host_tree, amd_files))
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    remapped = context.run_nvidia_smi(gpu.REMAP_COMMAND, timeout=10)
    return gpu.judge_retired(context.read_gpu_table(), remapped.stdout if remapped.rc == 0 else None)


def _has_nvswitch(context: CheckContext) -> bool:
    return any(name.startswith("nvidia-nvswitch") for name in context.host_tree.list_names("dev"))


def _check_nvlink(context: CheckContext) -> Judgement:
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    nvlink_result = context.query_nvlink()
    switched = _has_nvswitch(context)
    has_inactive = "inactive" in nvlink_result.stdout.lower() and gpu.may_use_nvlink(nvlink_result.stdout)
    partitioned = context.find_partitioned_gpus() if switched or has_inactive else []
    return gpu.judge_nvlink(nvlink_result.stdout + nvlink_result.stderr, nvlink_result.rc, switched, partitioned)


def _check_xids(context: CheckContext) -> Judgement:
    gpu_facts = context.read_gpu_facts()
    has_driver = context.host_tree.exists("proc/driver/nvidia/version")
    # The driver may not have started at all, because of a fault that only the log tells.
    if not (has_driver or gpu_facts["count"] or context.expected_state.gpus):
        return skipped("This host has no GPU driver, and no GPUs in the record.")
    return gpu.judge_xid(
        context.read_kernel_records(),
        host.runs_in_container(context.host_tree),
        gpu_facts["vendor"] == "amd",
    )


def _check_fabric_manager(context: CheckContext) -> Judgement:
    has_switch = _has_nvswitch(context)
    state = None
    if has_switch and context.find_program("systemctl"):
        systemctl_result = context.run_command(
            ["systemctl", "is-active", "nvidia-fabricmanager"], timeout=5, check=False
        )
        state = systemctl_result.stdout.strip() or None
    by_service = gpu.judge_fabric_manager(state, has_switch, host.runs_in_container(context.host_tree))
    if by_service.status == "fail" or not context.has_nvidia:
        return by_service
    # The query of all fields takes a second or two, which cards without NVLink are spared every few minutes.
    if not (has_switch or gpu.may_use_nvlink(context.query_nvlink().stdout)):
        return by_service
    query_result = context.query_details()
    # One GPU that does not respond is judged by its number, and does not hide the state of the others.
    return gpu.judge_fabric(query_result.stdout, has_switch) or by_service


def _check_gpu_clocks(context: CheckContext) -> Judgement:
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    clock_state = gpu_details.find_slowdowns(context.read_details())
    if clock_state.slowdowns:
        # A power brake of a moment is no fault.
        first_slowdowns = clock_state.slowdowns
        clock_state = gpu_details.find_slowdowns(context.read_later_details())
        return gpu_details.judge_clocks(clock_state, first_slowdowns)
    return gpu_details.judge_clocks(clock_state)


def _check_pcie_speed(context: CheckContext) -> Judgement:
    return gpu_details.judge_pcie_speed(context.read_details()) if context.has_nvidia else skipped(_NO_DRIVER_REASON)


def _check_gpu_processes(context: CheckContext) -> Judgement:
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    if host.runs_in_container(context.host_tree):
        return skipped("This is a container, which does not see all processes of its GPUs.")
    occupied_before = context.last_snapshot.get("occupied_gpus") or []
    if not (context.expected_state.job_gpus or occupied_before):
        return skipped("Only checked before a job, on its GPUs.")
    gpu_uses = gpu_details.read_gpu_uses(context.read_details())
    addresses = gpu_details.select_job_gpus(gpu_uses, context.expected_state.job_gpus) or occupied_before
    judgement, occupied_gpus = _judge_leftovers(context, gpu_uses, addresses)
    if occupied_gpus:
        # The driver needs a moment to free the memory of a process that has just ended.
        later_uses = gpu_details.read_gpu_uses(context.read_later_details())
        judgement, occupied_gpus = _judge_leftovers(context, later_uses or gpu_uses, addresses)
    examined_gpus = set(addresses).intersection(gpu_uses)
    if occupied_gpus or examined_gpus.intersection(occupied_before):
        # Otherwise, a job on other GPUs that starts at the same time would forget what this one has found.
        context.urgent_snapshot["occupied_gpus"] = sorted(
            {*occupied_before}.difference(examined_gpus).union(occupied_gpus)
        )
    return judgement


def _judge_leftovers(
    context: CheckContext, gpu_uses: Mapping[str, gpu_details.GpuUse], addresses: Sequence[str]
) -> Tuple[Judgement, List[str]]:
    """Judge these GPUs. Returns the occupied ones, too.

    Any user can start a process outside of a job, and no user must be able to take a node out of service.
    """
    examined_uses = {address: gpu_use for address, gpu_use in gpu_uses.items() if address in addresses}
    unkillable_processes = hung.find_unkillable(
        context.host_tree, [pid for gpu_use in examined_uses.values() for pid in gpu_use.compute_pids]
    )
    if any(gpu_use.unexplained_mib for gpu_use in examined_uses.values()) and processes.is_open_by_user(
        context.host_tree.path("proc"), "/dev/nvidia"
    ):
        examined_uses = {address: gpu_use._replace(unexplained_mib=0) for address, gpu_use in examined_uses.items()}
    return gpu_details.judge_leftovers(examined_uses, unkillable_processes)


def _check_gpu_access(context: CheckContext) -> Judgement:
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    matrix_result = context.run_nvidia_smi(peer_access.P2P_COMMAND, timeout=10)
    is_board = gpu.connects_all(context.query_nvlink().stdout)
    # A GPU that is partitioned has no access to others.
    partitioned = context.find_partitioned_gpus() if is_board else []
    return peer_access.judge_p2p(matrix_result.stdout, matrix_result.rc, is_board, partitioned)


def _check_acs(context: CheckContext) -> Judgement:
    if host.runs_in_container(context.host_tree):
        return skipped("This is a container, and the settings of the PCI bus are those of its host.")
    switch_ports = peer_access.find_switch_ports(context.find_watched_devices())
    try:
        acs_controls = peer_access.read_acs_controls(context.host_tree, switch_ports)
    except (OSError, ValueError) as failure:
        return unknown(f"ACS of the PCI switches cannot be read: {failure}.", "Run as root, on the host itself.")
    return peer_access.judge_acs(acs_controls)


def _check_pci_errors(context: CheckContext) -> Judgement:
    paths_by_device = context.find_watched_devices()
    messages = context.read_kernel_messages()
    bridges_and_devices = {address for path in paths_by_device.values() for address in path}
    return hardware_faults.judge_pci_errors(
        len(paths_by_device),
        hardware_faults.read_pci_errors(context.host_tree, paths_by_device),
        None if messages is None else hardware_faults.find_fatal_messages(messages, bridges_and_devices),
        host.runs_in_container(context.host_tree),
    )


def _check_memory_errors(context: CheckContext) -> Judgement:
    messages = context.read_kernel_messages()
    return hardware_faults.judge_memory_errors(
        hardware_faults.read_memory_errors(context.host_tree),
        None if messages is None else hardware_faults.find_memory_messages(messages),
        host.runs_in_container(context.host_tree),
    )


def _check_hung_processes(context: CheckContext) -> Judgement:
    earlier = snapshots.read_part(context.last_snapshot, "processes")
    return hung.judge_sleeping(
        hung.follow_sleeping(context.host_tree, earlier), snapshots.read_uptime(context.host_tree)
    )


def _check_maintenance(context: CheckContext) -> Judgement:
    return maintenance.judge_maintenance(maintenance.identify_cloud(context.host_tree), maintenance.fetch_metadata)


def _check_dcgm(context: CheckContext) -> Judgement:
    level = context.expected_state.dcgm_level
    if not level:
        return skipped("Only performed at levels full and burn.")
    if not context.has_nvidia:
        return skipped(_NO_DRIVER_REASON)
    if context.find_program("dcgmi") is None:
        return skipped("dcgmi is not installed.")
    dcgm_result = context.run_command(
        ["dcgmi", "diag", "-r", str(level), "-j"], timeout=_DCGM_TIMEOUT_BY_LEVEL[level], check=False
    )
    return gpu.judge_dcgm(dcgm_result.stdout)


def _check_locked_memory(context: CheckContext) -> Judgement:
    if not context.expected_state.slurm_node:
        return skipped("The member runs no jobs.")
    return host.judge_locked_memory(host.read_memlock(context.host_tree), context.read_rdma_ports())


def _check_swap(context: CheckContext) -> Judgement:
    return host.judge_swap(context.host_tree.read("proc/swaps"), context.expected_state.max_swap_mib)


def _check_disks(context: CheckContext) -> Judgement:
    disks = host.read_disks(_DISK_PATHS, context.host_tree)
    if context.expected_state.drains:
        disks = [disk for disk in disks if not disk.users_can_write]
        if not disks:
            return skipped(
                "Users can write to every local file system, and no user must be able to take a node out of service."
            )
    return host.judge_disks(disks, context.expected_state.max_disk_percent)


def _check_packages(context: CheckContext) -> Judgement:
    if not context.host_tree.exists("var/lib/dpkg"):
        return skipped("This host does not use dpkg.")
    return host.judge_packages(find_leftovers(context.host_tree))


def _check_mounts(context: CheckContext) -> Judgement:
    expected_state = context.expected_state
    mount_paths = [*expected_state.mounts, *expected_state.external_mounts]
    problem_by_path = run_concurrently(
        {
            path: functools.partial(
                host.probe_mount, path, path in expected_state.read_only_mounts, expected_state.mount_timeout
            )
            for path in mount_paths
        },
        expected_state.mount_timeout + 5.0,
    )
    mounted = host.parse_filesystem_types(context.host_tree.read("proc/self/mountinfo") or "")
    kinds = {
        path: host.find_filesystem_type(path, mounted, path in expected_state.external_mounts) for path in mount_paths
    }
    return host.judge_mounts(problem_by_path, kinds, expected_state.drains)


def _check_clock(context: CheckContext) -> Judgement:
    if host.runs_in_container(context.host_tree):
        return host.judge_clock(None, True)
    if context.find_program("timedatectl") is None:
        return host.judge_clock(None, False)
    timedatectl_result = context.run_command(
        ["timedatectl", "show", "-p", "NTPSynchronized", "--value"], timeout=5, check=False
    )
    return host.judge_clock(timedatectl_result.stdout.strip() or None, False)


def _check_host_name(context: CheckContext) -> Judgement:
    name = socket.gethostname()
    expected = context.expected_state
    peers = {*expected.ssh_peers, *expected.mesh_peers}
    return host.judge_name(name, host.resolve_name(name), expected.cluster_address, peers, expected.machine)


def _check_rdma(context: CheckContext) -> Judgement:
    ports = context.read_rdma_ports()
    expected, models = context.expected_state, host.read_rdma_models(context.host_tree, ports)
    judged = host.judge_rdma(ports, expected.rdma_rate_gbps, models, expected.rdma)
    settings = host.read_job_settings(context.host_tree) if ports and judged.status != "fail" else None
    if settings is None:
        return judged
    try:
        job_ports = read_job_ports(context.run_command, context.host_tree, settings, context.split_rdma_ports())
    except (GpumeshError, LookupError, ValueError):
        # What is known of the ports is not lost with it.
        return judged
    return host.judge_job_ports(judged, settings, job_ports, expected.drains)


def _check_handshakes(context: CheckContext) -> Judgement:
    expected = context.expected_state
    if not expected.mesh_interface:
        return skipped("The cluster has no WireGuard mesh.")
    if not expected.mesh_peers:
        return skipped("This member has no peer.")
    if context.find_program("wg") is None:
        return unknown("wg is not installed.", "Run the mesh playbook.")
    interface, peers, age = expected.mesh_interface, expected.mesh_peers, expected.max_handshake_age_s
    return handshakes.judge_handshakes(
        handshakes.read_handshake_ages(context.run_command, interface, peers.values(), age), peers, age, interface
    )


def _check_key_expiry(context: CheckContext) -> Judgement:
    if not context.expected_state.tailnet:
        return skipped("The cluster has no tailnet.")
    if context.find_program("tailscale") is None:
        return unknown("tailscale is not installed.", "Run the mesh playbook.")
    status = tailscale.parse_status(context.run_command(["tailscale", "status", "--json"], timeout=5).stdout)
    return keys.judge_key_expiry(status.backend_state, status.key_expiry, time.time())


def _check_rest_certificate(context: CheckContext) -> Judgement:
    return keys.judge_rest_certificate(context.host_tree.read(rest.TRUST_PATH.lstrip("/")) or "", time.time())


def _check_preload(context: CheckContext) -> Judgement:
    preload_list = context.host_tree.read("etc/ld.so.preload") or ""
    return preload.judge_preload(preload_list, preload.find_uncovered_programs(context.host_tree))


def _check_job_plugin(context: CheckContext) -> Judgement:
    installed_plugin = job_plugin.read_plugin(context.host_tree)
    slurm_version = release.installed_version(context.run_command, "slurmd") if installed_plugin.is_wanted else None
    return job_plugin.judge_plugin(installed_plugin, slurm_version)


def _check_ssh(context: CheckContext) -> Judgement:
    peers = context.expected_state.ssh_peers
    if not peers:
        return skipped("There are no peers to log in to.")
    if context.find_program("ssh") is None:
        return unknown("ssh is not installed.", "Install openssh-client.")
    own_machine = context.expected_state.machine or socket.gethostname()
    return host.judge_ssh(
        logins.log_in_to_peers(context.run_command, own_machine, context.expected_state.ssh_user, peers),
        context.expected_state.ssh_user,
    )


def _limit_ssh_seconds(context: CheckContext) -> float:
    return logins.max_login_seconds(len(context.expected_state.ssh_peers))


#: What makes each check of the catalogue, and its time limit.
_IMPLEMENTATIONS: Dict[
    str, Tuple[Callable[[CheckContext], Judgement], Union[float, Callable[[CheckContext], float]]]
] = {
    "health.gpu_count": (_check_gpu_count, 25.0),
    "health.gpu_ecc": (_check_gpu_ecc, 15.0),
    "health.gpu_retired": (_check_gpu_retired, 25.0),
    "health.gpu_xid": (_check_xids, 15.0),
    "health.nvlink": (_check_nvlink, 20.0),
    "health.fabric_manager": (_check_fabric_manager, 30.0),
    "health.gpu_clocks": (_check_gpu_clocks, 50.0),
    "health.gpu_processes": (_check_gpu_processes, 50.0),
    "health.gpu_access": (_check_gpu_access, 30.0),
    "health.pcie": (functools.partial(_judge_gpus, gpu.judge_pcie), 15.0),
    "health.pcie_speed": (_check_pcie_speed, 30.0),
    "health.pcie_errors": (_check_pci_errors, _TIME_LIMIT),
    "health.acs": (_check_acs, _TIME_LIMIT),
    "health.memory_errors": (_check_memory_errors, _TIME_LIMIT),
    "health.rdma": (_check_rdma, _TIME_LIMIT),
    "health.link_flaps": (lambda context: links.judge_flaps(context.follow_links()), _TIME_LIMIT),
    "health.link_errors": (lambda context: links.judge_link_errors(context.follow_links()), _TIME_LIMIT),
    "health.memlock": (_check_locked_memory, _TIME_LIMIT),
    "health.swap": (_check_swap, _TIME_LIMIT),
    "health.disk": (_check_disks, _TIME_LIMIT),
    "health.packages": (_check_packages, _TIME_LIMIT),
    "health.hung_processes": (_check_hung_processes, _TIME_LIMIT),
    "health.maintenance": (_check_maintenance, _TIME_LIMIT),
    "storage.mounts": (_check_mounts, 130.0),
    "clock.synchronised": (_check_clock, _TIME_LIMIT),
    "health.name": (_check_host_name, _TIME_LIMIT),
    "health.dcgm": (_check_dcgm, 3700.0),
    "mesh.handshake": (_check_handshakes, 3 * handshakes.HANDSHAKE_TIMEOUT),
    "mesh.key_expiry": (_check_key_expiry, _TIME_LIMIT),
    "slurm.job_plugin": (_check_job_plugin, _TIME_LIMIT),
    "slurm.rest_certificate": (_check_rest_certificate, _TIME_LIMIT),
    "mesh.preload": (_check_preload, _TIME_LIMIT),
    "ssh_trust.login": (_check_ssh, _limit_ssh_seconds),
}

ALL_CHECKS = tuple(
    HealthCheck(entry.check_id, entry.purpose, *_IMPLEMENTATIONS[entry.check_id])
    for entry in CATALOGUE
    if not entry.compares_members
)


def run_concurrently(work: Dict[str, Callable[[], _T]], limit_s: float) -> Dict[str, _T]:
    """Run everything at once. Returns the results in the order of ``work``. Raises CommandError after the time limit.

    Threads are abandoned rather than waited for: what hangs in the kernel cannot be stopped.
    """
    futures = {name: _start_thread(job) for name, job in work.items()}
    deadline = time.monotonic() + limit_s
    return {
        name: _wait_for_result(name, future, deadline - time.monotonic(), limit_s) for name, future in futures.items()
    }


def _start_thread(job: Callable[[], _T]) -> Future[_T]:
    work_future: Future[_T] = Future()
    threading.Thread(target=_run_into, args=(work_future, job), daemon=True).start()
    return work_future


def _run_into(future: Future[_T], job: Callable[[], _T]) -> None:
    """Do the job. Its result, or its failure, is that of ``future``, and raised to whoever asks for it."""
    try:
        future.set_result(job())
    except (GpumeshError, OSError, ValueError, LookupError, ArithmeticError) as failure:
        future.set_exception(failure)
    finally:
        if not future.done():
            # A bug in this collection: the traceback goes to stderr from this thread, and nothing waits for it.
            future.set_exception(ValueError("an unexpected error, whose traceback is on stderr"))


def _wait_for_result(name: str, future: Future[_T], remaining_s: float, limit_s: float) -> _T:
    finished_event = threading.Event()
    future.add_done_callback(lambda _future: finished_event.set())
    if not finished_event.wait(max(remaining_s, 0.0)):
        raise CommandError([name], f"did not end within {limit_s:g} s")
    return future.result()


def _run_check(check: HealthCheck, context: CheckContext) -> Judgement:
    """Make a check. If something prevents that, it is the result."""
    try:
        return run_concurrently(
            {check.check_id: functools.partial(check.run_check, context)}, check.limit_seconds(context)
        )[check.check_id]
    except GpumeshError as error:
        return unknown(error.message, error.remedy or "Run the command manually on this host.")
    except (OSError, ValueError, LookupError, ArithmeticError) as error:
        return unknown(
            f"The check failed unexpectedly: {type(error).__name__}: {error}.", "Please report this as a bug."
        )


def judge_checks(context: CheckContext, only: Sequence[str] = ()) -> List[JudgedCheck]:
    """Run the checks, all at once. ``only`` are IDs, or the parts of IDs before or after the dot."""
    selected_checks = [
        check for check in ALL_CHECKS if not only or {check.check_id, *check.check_id.split(".")} & set(only)
    ]
    # Checks of other hosts do not apply.
    selected_checks = [
        check for check in selected_checks if check.run_check is not _check_preload or context.expected_state.pod
    ]
    judgements = run_concurrently(
        {check.check_id: functools.partial(_run_check, check, context) for check in selected_checks},
        max((check.limit_seconds(context) for check in selected_checks), default=0.0) + 5.0,
    )
    return [JudgedCheck(check, judgements[check.check_id]) for check in selected_checks]


def run_selected_checks(
    context: CheckContext,
    host_name: Optional[str],
    only: Sequence[str] = (),
    noted_faults: Sequence[fault_history.NotedFault] = (),
) -> List[CheckResult]:
    """Run the checks, as ``judge_checks`` does. ``noted_faults``: those that the node remembers."""
    return build_results(judge_checks(context, only), host_name, noted_faults)


def build_results(
    judged_checks: Sequence[JudgedCheck],
    host_name: Optional[str],
    noted_faults: Sequence[fault_history.NotedFault] = (),
) -> List[CheckResult]:
    """Return the results of checks. The reason of a failed one says how often that has happened lately."""
    return [_build_result(check, host_name, judgement, noted_faults) for check, judgement in judged_checks]


def _build_result(
    check: HealthCheck,
    host_name: Optional[str],
    judgement: Judgement,
    noted_faults: Sequence[fault_history.NotedFault],
) -> CheckResult:
    reason = judgement.reason
    if judgement.status == "fail":
        occurrences = fault_history.describe_occurrences(noted_faults, check.check_id, judgement.devices)
        reason = f"{reason.rstrip('.')} ({occurrences})." if occurrences else reason
    return {
        "id": check.check_id,
        "purpose": check.purpose,
        "host": host_name,
        "actual": judgement.actual,
        "required": judgement.required,
        "unit": judgement.unit,
        "status": judgement.status,
        "reason": reason,
        "remedy": judgement.remedy,
    }
