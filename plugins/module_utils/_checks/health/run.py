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
from typing import Callable, Dict, Generic, List, NamedTuple, Optional, Sequence, TypeVar, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import (
    amd_memory,
    gpu,
    handshakes,
    host,
    hung,
    kernel_log,
    keys,
    logins,
    preload,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    CheckResult,
    ExpectedState,
    Judgement,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import find_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import read_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailscale
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest

#: The file systems to check. The last one is the shared memory of NCCL and PyTorch's data loaders.
_DISK_PATHS = ("/", "/var", "/home", tempfile.gettempdir(), os.path.join("/dev", "shm"))
_DCGM_TIMEOUT_BY_LEVEL = {0: 0.0, 1: 120.0, 2: 600.0, 3: 3600.0, 4: 7200.0}
_NO_DRIVER_REASON = "There is no NVIDIA driver on this host."

_T = TypeVar("_T")


class _ReadOnce(Generic[_T]):
    """A value that is read when the first check needs it, and then shared by all of them. A failure is not kept."""

    def __init__(self, read: Callable[[], _T]) -> None:
        self._lock, self._read = threading.Lock(), read
        self._values: List[_T] = []

    def __call__(self) -> _T:
        with self._lock:
            if not self._values:
                self._values.append(self._read())
            return self._values[0]


class CheckContext:
    """The sources of the checks. What several of them need is only read once."""

    def __init__(
        self,
        expected: ExpectedState,
        tree: Tree,
        run: Runner,
        find_program: Callable[[str], Optional[str]] = find_program,
    ) -> None:
        self.expected_state = expected
        self.host_tree = tree
        self.run_command = run
        self.find_program = find_program
        #: nvidia-smi's table, with an error as exit status if one GPU does not respond.
        self.query_nvidia_smi = _ReadOnce(lambda: self.run_nvidia_smi(gpu.QUERY_COMMAND, timeout=10))
        #: An nvidia-smi that hangs in the kernel, if there is one.
        self.find_hung_nvidia_smi = _ReadOnce(lambda: hung.find_hung_process(tree, "nvidia-smi"))
        #: The GPUs by their device files and on the bus.
        self.read_gpu_facts = _ReadOnce(lambda: read_gpus(tree, tree.list_pci_devices()))

    @property
    def has_nvidia(self) -> bool:
        """Whether there are GPUs that nvidia-smi can query."""
        return self.host_tree.exists("proc/driver/nvidia/version") and self.find_program("nvidia-smi") is not None

    def run_nvidia_smi(self, argv: Sequence[str], timeout: float) -> CommandResult:
        """Run nvidia-smi, unless an earlier one hangs: this one would, too, and stay forever."""
        hung_process = self.find_hung_nvidia_smi()
        if hung_process:
            raise CommandError(argv[:1], f"is not run, since an earlier one hangs in the kernel ({hung_process})")
        return self.run_command(argv, timeout=timeout, check=False)

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
    time_limit: Union[float, Callable[[CheckContext], float]] = 10.0

    def limit_seconds(self, context: CheckContext) -> float:
        """Return the time limit in seconds."""
        return self.time_limit(context) if callable(self.time_limit) else self.time_limit


def _check_gpu_count(context: CheckContext) -> Judgement:
    gpu_facts = context.read_gpu_facts()
    by_files = gpu.judge_gpu_count(gpu_facts["count"], gpu_facts["problem"], context.expected_state.gpus)
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
    nvlink_result = context.run_nvidia_smi(gpu.NVLINK_COMMAND, timeout=10)
    switched = _has_nvswitch(context)
    has_inactive = "inactive" in nvlink_result.stdout.lower()
    # Older drivers do not know this field, and do not partition GPUs.
    partitioned = (
        gpu.parse_partitioned(context.run_nvidia_smi(gpu.MIG_COMMAND, timeout=5).stdout)
        if switched or has_inactive
        else []
    )
    return gpu.judge_nvlink(nvlink_result.stdout + nvlink_result.stderr, nvlink_result.rc, switched, partitioned)


def _check_xids(context: CheckContext) -> Judgement:
    gpu_facts = context.read_gpu_facts()
    has_driver = context.host_tree.exists("proc/driver/nvidia/version")
    # The driver may not have started at all, because of a fault that only the log tells.
    if not (has_driver or gpu_facts["count"] or context.expected_state.gpus):
        return skipped("This host has no GPU driver, and no GPUs in the record.")
    return gpu.judge_xid(
        kernel_log.read_records(context.host_tree.path("dev/kmsg")),
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
    query_result = context.run_nvidia_smi(gpu.FABRIC_COMMAND, timeout=20)
    # One GPU that does not respond is judged by its number, and does not hide the state of the others.
    return gpu.judge_fabric(query_result.stdout, has_switch) or by_service


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
    return host.judge_locked_memory(host.read_memlock(context.host_tree), read_ports(context.host_tree))


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
    return host.judge_name(name, host.resolve_name(name), context.expected_state.cluster_address)


def _check_rdma(context: CheckContext) -> Judgement:
    ports = read_ports(context.host_tree)
    expected, models = context.expected_state, host.read_rdma_models(context.host_tree, ports)
    return host.judge_rdma(ports, expected.rdma_rate_gbps, models, expected.rdma)


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


def _check_ssh(context: CheckContext) -> Judgement:
    peers = context.expected_state.ssh_peers
    if not peers:
        return skipped("There are no peers to log in to.")
    if context.find_program("ssh") is None:
        return unknown("ssh is not installed.", "Install openssh-client.")
    own_machine = context.expected_state.machine or socket.gethostname()
    login_results = logins.log_in_everywhere(context.run_command, own_machine, context.expected_state.ssh_user, peers)
    return host.judge_ssh(
        login_results.problem_by_machine, context.expected_state.ssh_user, login_results.untried_machines
    )


def _limit_ssh_seconds(context: CheckContext) -> float:
    return logins.max_login_seconds(len(context.expected_state.ssh_peers))


ALL_CHECKS = (
    HealthCheck("health.gpu_count", "The number of GPUs matches the record", _check_gpu_count, 25.0),
    HealthCheck("health.gpu_ecc", "No uncorrected GPU memory errors", _check_gpu_ecc, 15.0),
    HealthCheck("health.gpu_retired", "No GPU memory is pending retirement", _check_gpu_retired, 25.0),
    HealthCheck("health.gpu_xid", "No GPU errors in the kernel log", _check_xids, 15.0),
    HealthCheck("health.nvlink", "NVLink is up on all GPUs that have it", _check_nvlink, 20.0),
    HealthCheck(
        "health.fabric_manager",
        "The fabric manager is running, and each GPU has registered, if there are NVSwitches",
        _check_fabric_manager,
        30.0,
    ),
    HealthCheck(
        "health.pcie", "GPU PCIe links are at full width", functools.partial(_judge_gpus, gpu.judge_pcie), 15.0
    ),
    HealthCheck("health.rdma", "RDMA ports are active at full rate", _check_rdma),
    HealthCheck("health.memlock", "Jobs can lock memory without limit", _check_locked_memory),
    HealthCheck("health.swap", "Little or no swap is in use", _check_swap),
    HealthCheck("health.disk", "No local file system is too full", _check_disks),
    HealthCheck("health.packages", "Packages are completely installed, and their services can start", _check_packages),
    HealthCheck("storage.mounts", "Shared volumes are mounted and writable", _check_mounts, 130.0),
    HealthCheck("clock.synchronised", "The clock is synchronized", _check_clock),
    HealthCheck("health.name", "The host's own name resolves to its cluster address", _check_host_name),
    HealthCheck("health.dcgm", "NVIDIA's own diagnostics pass", _check_dcgm, 3700.0),
    HealthCheck(
        "mesh.handshake", "Recent handshake with every peer", _check_handshakes, 3 * handshakes.HANDSHAKE_TIMEOUT
    ),
    HealthCheck("mesh.key_expiry", "The key of the tailnet is valid for a month", _check_key_expiry),
    HealthCheck(
        "slurm.rest_certificate", "The certificate of Slurm's REST API is valid for a month", _check_rest_certificate
    ),
    HealthCheck("mesh.preload", "The programs of a pod see the mesh", _check_preload),
    HealthCheck("ssh_trust.login", "SSH login to every other member without a prompt", _check_ssh, _limit_ssh_seconds),
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

    def run_work() -> None:
        try:
            work_future.set_result(job())
        except (GpumeshError, OSError, ValueError, LookupError, ArithmeticError) as failure:
            # Passed to the waiting thread, and raised there.
            work_future.set_exception(failure)
        finally:
            if not work_future.done():
                # A bug in this collection: the traceback goes to stderr from this thread, and nothing waits for it.
                work_future.set_exception(ValueError("an unexpected error, whose traceback is on stderr"))

    threading.Thread(target=run_work, daemon=True).start()
    return work_future


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


def run_selected_checks(context: CheckContext, host_name: Optional[str], only: Sequence[str] = ()) -> List[CheckResult]:
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
    return [_build_result(check, host_name, judgements[check.check_id]) for check in selected_checks]


def _build_result(check: HealthCheck, host_name: Optional[str], judgement: Judgement) -> CheckResult:
    return {
        "id": check.check_id,
        "purpose": check.purpose,
        "host": host_name,
        "actual": judgement.actual,
        "required": judgement.required,
        "unit": judgement.unit,
        "status": judgement.status,
        "reason": judgement.reason,
        "remedy": judgement.remedy,
    }
