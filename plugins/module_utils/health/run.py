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
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import (
    Completed,
    Runner,
    find,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.dpkg import unfinished
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    GpumeshError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import (
    gpu,
    handshakes,
    host,
    kernel_log,
    keys,
    logins,
    preload,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import (
    Expected,
    Judgement,
    Result,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import tailscale
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.rdma import read_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import rest

#: The last one is the shared memory of NCCL and PyTorch's data loaders.
_DISKS = ("/", "/var", "/home", tempfile.gettempdir(), os.path.join("/dev", "shm"))
_DCGM_TIMEOUT = {0: 0.0, 1: 120.0, 2: 600.0, 3: 3600.0, 4: 7200.0}
_NO_NVIDIA = "There is no NVIDIA driver on this host."

_T = TypeVar("_T")


class Context:
    """The sources of the checks. nvidia-smi is only run once for all of them."""

    def __init__(
        self, expected: Expected, tree: Tree, run: Runner, look: Callable[[str], Optional[str]] = find
    ) -> None:
        self.expected = expected
        self.tree = tree
        self.run = run
        self.find = look
        self._lock = threading.Lock()
        self._asked: Optional[Completed] = None

    @property
    def nvidia(self) -> bool:
        """Whether there are GPUs that nvidia-smi can query."""
        return self.tree.exists("proc/driver/nvidia/version") and self.find("nvidia-smi") is not None

    def query(self) -> Completed:
        """The output of nvidia-smi, which exits with an error if one GPU does not respond."""
        with self._lock:
            if self._asked is None:
                self._asked = self.run(gpu.QUERY_COMMAND, timeout=10, check=False)
            return self._asked

    def gpus(self) -> List[gpu.Gpu]:
        """nvidia-smi's table."""
        asked = self.query()
        if asked.rc != 0:
            said = asked.stderr or asked.stdout
            raise CommandError(gpu.QUERY_COMMAND, f"exited {asked.rc}", rc=asked.rc, stderr=said)
        return gpu.parse_query(asked.stdout)


class Check(NamedTuple):
    """One check. ``seconds`` is its limit, or a function of the context that returns it."""

    id: str
    purpose: str
    make: Callable[[Context], Judgement]
    seconds: Union[float, Callable[[Context], float]] = 10.0

    def limit(self, context: Context) -> float:
        """Its limit in seconds."""
        return self.seconds(context) if callable(self.seconds) else self.seconds


def _gpu_count(context: Context) -> Judgement:
    found = read_gpus(context.tree, context.tree.pci_devices())
    by_files = gpu.judge_count(found["count"], found["problem"], context.expected.gpus)
    if by_files.status == "fail" or found["vendor"] != "nvidia" or not context.nvidia:
        return by_files
    asked = context.query()
    message = gpu.lost(asked.stdout) or gpu.lost(asked.stderr)
    if message:
        return gpu.judge_lost(message, found["count"], context.expected.gpus)
    return gpu.judge_count(len(context.gpus()), None, context.expected.gpus)


def _with_gpus(judge: Callable[[Sequence[gpu.Gpu]], Judgement], context: Context) -> Judgement:
    return judge(context.gpus()) if context.nvidia else skipped(_NO_NVIDIA)


def _gpu_retired(context: Context) -> Judgement:
    if not context.nvidia:
        return skipped(_NO_NVIDIA)
    remapped = context.run(gpu.REMAP_COMMAND, timeout=10, check=False)
    return gpu.judge_retired(context.gpus(), remapped.stdout if remapped.rc == 0 else None)


def _has_switch(context: Context) -> bool:
    return any(name.startswith("nvidia-nvswitch") for name in context.tree.names("dev"))


def _nvlink(context: Context) -> Judgement:
    if not context.nvidia:
        return skipped(_NO_NVIDIA)
    asked = context.run(gpu.NVLINK_COMMAND, timeout=10, check=False)
    switched = _has_switch(context)
    # Older drivers do not know this field, and do not partition GPUs.
    partitioned = gpu.parse_mig(context.run(gpu.MIG_COMMAND, timeout=5, check=False).stdout) if switched else []
    return gpu.judge_nvlink(asked.stdout + asked.stderr, asked.rc, switched, partitioned)


def _kernel_log(context: Context) -> Judgement:
    if not context.tree.exists("proc/driver/nvidia/version"):
        return skipped(_NO_NVIDIA)
    return gpu.judge_xid(kernel_log.read(context.tree.path("dev/kmsg")), host.is_container(context.tree))


def _fabric_manager(context: Context) -> Judgement:
    has_switch = _has_switch(context)
    state = None
    if has_switch and context.find("systemctl"):
        asked = context.run(["systemctl", "is-active", "nvidia-fabricmanager"], timeout=5, check=False)
        state = asked.stdout.strip() or None
    return gpu.judge_fabric_manager(state, has_switch, host.is_container(context.tree))


def _dcgm(context: Context) -> Judgement:
    level = context.expected.dcgm_level
    if not level:
        return skipped("Only performed at levels full and burn.")
    if not context.nvidia:
        return skipped(_NO_NVIDIA)
    if context.find("dcgmi") is None:
        return skipped("dcgmi is not installed.")
    asked = context.run(["dcgmi", "diag", "-r", str(level), "-j"], timeout=_DCGM_TIMEOUT[level], check=False)
    return gpu.judge_dcgm(asked.stdout)


def _memlock(context: Context) -> Judgement:
    return host.judge_memlock(host.read_memlock(context.tree), read_ports(context.tree))


def _swap(context: Context) -> Judgement:
    return host.judge_swap(context.tree.read("proc/swaps"), context.expected.max_swap_mib)


def _disks(context: Context) -> Judgement:
    disks = host.read_disks(_DISKS, context.tree)
    if context.expected.drains:
        disks = [disk for disk in disks if not disk.users]
        if not disks:
            return skipped(
                "Users can write to every local file system, and no user must be able to take a node out of service."
            )
    return host.judge_disks(disks, context.expected.max_disk_percent)


def _packages(context: Context) -> Judgement:
    if not context.tree.exists("var/lib/dpkg"):
        return skipped("This host does not use dpkg.")
    return host.judge_packages(unfinished(context.tree))


def _mounts(context: Context) -> Judgement:
    expected = context.expected
    paths = [*expected.mounts, *expected.external_mounts]
    attempts = together(
        {
            path: functools.partial(host.try_mount, path, path in expected.read_only_mounts, expected.mount_timeout)
            for path in paths
        },
        expected.mount_timeout + 5.0,
    )
    mounted = host.parse_mounted(context.tree.read("proc/self/mountinfo") or "")
    kinds = {path: host.kind_at(path, mounted, path in expected.external_mounts) for path in paths}
    return host.judge_mounts(attempts, kinds, expected.drains)


def _clock(context: Context) -> Judgement:
    if host.is_container(context.tree):
        return host.judge_clock(None, True)
    if context.find("timedatectl") is None:
        return host.judge_clock(None, False)
    asked = context.run(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], timeout=5, check=False)
    return host.judge_clock(asked.stdout.strip() or None, False)


def _name(context: Context) -> Judgement:
    name = socket.gethostname()
    return host.judge_name(name, host.resolve(name), context.expected.cluster_address)


def _rdma(context: Context) -> Judgement:
    ports = read_ports(context.tree)
    expected, models = context.expected, host.read_rdma_models(context.tree, ports)
    return host.judge_rdma(ports, expected.rdma_rate_gbps, models, expected.rdma)


def _handshakes(context: Context) -> Judgement:
    expected = context.expected
    if not expected.mesh_interface:
        return skipped("The cluster has no WireGuard mesh.")
    if not expected.mesh_peers:
        return skipped("This member has no peer.")
    if context.find("wg") is None:
        return unknown("wg is not installed.", "Run the mesh playbook.")
    interface, peers, age = expected.mesh_interface, expected.mesh_peers, expected.max_handshake_age_s
    return handshakes.judge(handshakes.read(context.run, interface, peers.values(), age), peers, age, interface)


def _key_expiry(context: Context) -> Judgement:
    if not context.expected.tailnet:
        return skipped("The cluster has no tailnet.")
    if context.find("tailscale") is None:
        return unknown("tailscale is not installed.", "Run the mesh playbook.")
    status = tailscale.parse_status(context.run(["tailscale", "status", "--json"], timeout=5).stdout)
    return keys.judge(status.state, status.key_expiry, time.time())


def _rest_certificate(context: Context) -> Judgement:
    return keys.judge_rest(context.tree.read(rest.TRUST.lstrip("/")) or "", time.time())


def _preload(context: Context) -> Judgement:
    listed = context.tree.read("etc/ld.so.preload") or ""
    return preload.judge(listed, preload.programs(context.tree))


def _ssh(context: Context) -> Judgement:
    peers = context.expected.ssh_peers
    if not peers:
        return skipped("There are no peers to log in to.")
    if context.find("ssh") is None:
        return unknown("ssh is not installed.", "Install openssh-client.")
    own = context.expected.machine or socket.gethostname()
    made = logins.log_in(context.run, own, context.expected.ssh_user, peers)
    return host.judge_ssh(made.attempts, context.expected.ssh_user, made.left)


def _ssh_seconds(context: Context) -> float:
    return logins.longest(len(context.expected.ssh_peers))


#: The checks of what programs compute and communicate with.
HARDWARE = (
    "health.gpu_ecc",
    "health.gpu_retired",
    "health.gpu_xid",
    "health.nvlink",
    "health.fabric_manager",
    "health.pcie",
    "health.rdma",
)

CHECKS = (
    Check("health.gpu_count", "The number of GPUs matches the record", _gpu_count, 15.0),
    Check("health.gpu_ecc", "No uncorrected GPU memory errors", functools.partial(_with_gpus, gpu.judge_ecc), 15.0),
    Check("health.gpu_retired", "No GPU memory is pending retirement", _gpu_retired, 25.0),
    Check("health.gpu_xid", "No GPU errors in the kernel log", _kernel_log, 15.0),
    Check("health.nvlink", "NVLink is up on all GPUs that have it", _nvlink, 20.0),
    Check("health.fabric_manager", "The fabric manager is running if there are NVSwitches", _fabric_manager),
    Check("health.pcie", "GPU PCIe links are at full width", functools.partial(_with_gpus, gpu.judge_pcie), 15.0),
    Check("health.rdma", "RDMA ports are active at full rate", _rdma),
    Check("health.memlock", "Jobs can lock memory without limit", _memlock),
    Check("health.swap", "Little or no swap is in use", _swap),
    Check("health.disk", "No local file system is too full", _disks),
    Check("health.packages", "Packages are completely installed, and their services can start", _packages),
    Check("storage.mounts", "Shared volumes are mounted and writable", _mounts, 130.0),
    Check("clock.synchronised", "The clock is synchronized", _clock),
    Check("health.name", "The host's own name resolves to its cluster address", _name),
    Check("health.dcgm", "NVIDIA's own diagnostics pass", _dcgm, 3700.0),
    Check("mesh.handshake", "Recent handshake with every peer", _handshakes, 3 * handshakes.PATIENCE),
    Check("mesh.key_expiry", "The key of the tailnet is valid for a month", _key_expiry),
    Check("slurm.rest_certificate", "The certificate of Slurm's REST API is valid for a month", _rest_certificate),
    Check("mesh.preload", "The programs of a pod see the mesh", _preload),
    Check("ssh.login", "SSH login to every other member without a prompt", _ssh, _ssh_seconds),
)


def together(work: Dict[str, Callable[[], _T]], limit_s: float) -> Dict[str, _T]:
    """Run everything at once. Returns the results in the order of ``work``. Raises CommandError after the time limit.

    Threads are abandoned rather than waited for: what hangs in the kernel cannot be stopped.
    """
    futures = {name: _begin(job) for name, job in work.items()}
    ends = time.monotonic() + limit_s
    return {name: _wait(name, future, ends - time.monotonic(), limit_s) for name, future in futures.items()}


def _begin(job: Callable[[], _T]) -> Future[_T]:
    future: Future[_T] = Future()

    def body() -> None:
        try:
            future.set_result(job())
        except (GpumeshError, OSError, ValueError, LookupError, ArithmeticError) as failure:
            # Passed to the waiting thread, and raised there.
            future.set_exception(failure)
        finally:
            if not future.done():
                # A bug in this collection: the traceback goes to stderr from this thread, and nothing waits for it.
                future.set_exception(ValueError("an unexpected error, whose traceback is on stderr"))

    threading.Thread(target=body, daemon=True).start()
    return future


def _wait(name: str, future: Future[_T], remaining_s: float, limit_s: float) -> _T:
    done = threading.Event()
    future.add_done_callback(lambda _future: done.set())
    if not done.wait(max(remaining_s, 0.0)):
        raise CommandError([name], f"did not end within {limit_s:g} s")
    return future.result()


def _make(check: Check, context: Context) -> Judgement:
    """Make a check. If something prevents that, it is the result."""
    try:
        return together({check.id: functools.partial(check.make, context)}, check.limit(context))[check.id]
    except GpumeshError as error:
        return unknown(error.message, error.remedy or "Run the command manually on this host.")
    except (OSError, ValueError, LookupError, ArithmeticError) as error:
        return unknown(
            f"The check failed unexpectedly: {type(error).__name__}: {error}.", "Please report this as a bug."
        )


def make_checks(context: Context, host_name: Optional[str], only: Sequence[str] = ()) -> List[Result]:
    """Run the checks, all at once. ``only`` are IDs, or the parts of IDs before or after the dot."""
    chosen = [check for check in CHECKS if not only or {check.id, *check.id.split(".")} & set(only)]
    # Checks of other hosts do not apply.
    chosen = [check for check in chosen if check.make is not _preload or context.expected.pod]
    judgements = together(
        {check.id: functools.partial(_make, check, context) for check in chosen},
        max((check.limit(context) for check in chosen), default=0.0) + 5.0,
    )
    return [_result(check, host_name, judgements[check.id]) for check in chosen]


def _result(check: Check, host_name: Optional[str], judgement: Judgement) -> Result:
    return {
        "id": check.id,
        "purpose": check.purpose,
        "host": host_name,
        "actual": judgement.actual,
        "required": judgement.required,
        "unit": judgement.unit,
        "status": judgement.status,
        "reason": judgement.reason,
        "remedy": judgement.remedy,
    }
