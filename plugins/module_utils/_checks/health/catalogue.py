# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of the checks of a node: what each reads, when it runs, and what a failure leads to.

Slurm's health program, the check playbook, gpumesh-train and docs/guides/health.md are all derived from this table.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.logins import MAX_PEERS

#: When a check runs: only before a job; by Slurm every few minutes, and in each playbook check; or in those of this level
#: and higher ones.
PROLOG, PASSIVE, QUICK, FULL, BURN = LEVELS = ("prolog", "passive", "quick", "full", "burn")
#: What a failure leads to. The check playbook reports each of them.
NO_ACTION, WARN, DRAIN = ACTIONS = ("none", "warn", "drain")

_NVIDIA, _ANY_GPU, _ANY_HOST = "NVIDIA", "NVIDIA, AMD", "all"
_REPLACE_GPU = "Drain and reboot the node. Replace the GPU if the error recurs."


class CatalogueEntry(NamedTuple):
    """A check. Without a ``source``, the threshold follows from the record or from an option.

    ``excludes_node``: gpumesh-train makes the check before it uses a node again on which a failure has occurred, and leaves
    one that fails out of the run.
    ``is_single_card``: the fault is one of a single part. That several nodes have one is a coincidence: no common cause
    excuses it, and jobs fail on each of these nodes. All other checks can fail everywhere for one reason, such as a file
    server, a switch, an upgrade of the driver or a setting. ``compares_members``: the controller makes the check, from what
    the members report.
    """

    check_id: str
    purpose: str
    reads: str
    hardware: str
    threshold: str
    source: str
    level: str
    action: str
    remedy: str
    excludes_node: bool = False
    is_single_card: bool = False
    compares_members: bool = False


#: In the order of the results.
CATALOGUE: Tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "members.versions",
        "Members with the same GPUs have the same driver and NCCL library",
        "`/proc/driver/nvidia`, the kernel's release, `libnccl.so` of the system",
        "members of a site with GPUs of the same model",
        "equal driver and NCCL versions; a different VBIOS or kernel is only shown",
        "",
        QUICK,
        WARN,
        "Install the same version on all of them, and reboot those with another driver.",
        compares_members=True,
    ),
    CatalogueEntry(
        "health.gpu_count",
        "The number of GPUs matches the record",
        "device files, the PCI bus, `nvidia-smi --query-gpu`",
        _ANY_GPU,
        "the number in the record; `nvidia-smi` can use the driver, and all GPUs respond",
        "",
        PASSIVE,
        DRAIN,
        "Load the driver, or reboot. If the machine has fewer GPUs from now on, join it again.",
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.gpu_ecc",
        "No uncorrected GPU memory errors",
        "`nvidia-smi --query-gpu`; `ras/*_err_count` in sysfs",
        "NVIDIA with ECC, AMD with RAS",
        "no uncorrected error since the driver was loaded",
        "[GPU memory error management](https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html), "
        "[AMDGPU RAS](https://docs.kernel.org/gpu/amdgpu/ras.html)",
        PASSIVE,
        DRAIN,
        _REPLACE_GPU,
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.gpu_retired",
        "No GPU memory is pending retirement",
        "`nvidia-smi --query-gpu`, `--query-remapped-rows`; `ras/gpu_vram_bad_pages` in sysfs",
        _ANY_GPU,
        "no page or row that waits for a reset, or that could not be replaced",
        "[GPU memory error management](https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html), "
        "[AMDGPU RAS](https://docs.kernel.org/gpu/amdgpu/ras.html)",
        PASSIVE,
        DRAIN,
        "Drain and reboot the node. Replace a GPU whose memory could not be replaced.",
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.gpu_xid",
        "No GPU errors in the kernel log",
        "`/dev/kmsg`",
        "NVIDIA, NVSwitch, AMD",
        "no Xid, SXid or message of amdgpu after which the GPU cannot be trusted",
        "[Xid errors](https://docs.nvidia.com/deploy/xid-errors/index.html)",
        PASSIVE,
        DRAIN,
        _REPLACE_GPU,
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.nvlink",
        "NVLink is up on all GPUs that have it",
        "`nvidia-smi nvlink --status`",
        "NVIDIA with NVLink",
        "all links with NVSwitches or on a board; otherwise as many as the other GPUs",
        "",
        PASSIVE,
        DRAIN,
        "Restart nvidia-fabricmanager if there is one, then reboot. Replace the baseboard or bridge if it persists.",
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.fabric_manager",
        "The fabric manager is running, and each GPU has registered, if there are NVSwitches",
        "`systemctl is-active nvidia-fabricmanager`; on boards with NVLink, the fabric in `nvidia-smi -q`",
        "NVIDIA with NVSwitches",
        "active; state Completed, status Success, health not degraded",
        "[Fabric Manager](https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html)",
        PASSIVE,
        DRAIN,
        "Start nvidia-fabricmanager in exactly the driver's version, and read its log.",
        excludes_node=True,
    ),
    CatalogueEntry(
        "health.gpu_clocks",
        "The hardware does not throttle the clocks of a GPU",
        "the clocks event reasons (before driver 535: throttle reasons) in `nvidia-smi -q`",
        _NVIDIA,
        "no HW Slowdown, HW Thermal Slowdown or HW Power Brake Slowdown for 5 s on a GPU that is not idle; the power limit "
        "and SW Thermal Slowdown are normal under load",
        "[NVML](https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html)",
        QUICK,
        WARN,
        "Check the fans, the heat sinks, the power supplies and their cables.",
    ),
    CatalogueEntry(
        "health.gpu_processes",
        "The GPUs of a job are free before it starts",
        "the processes and the memory in `nvidia-smi -q`; `status` and `stack` in `/proc/PID/task/TID`",
        _NVIDIA,
        "no killed process that hangs in NVIDIA's driver, and at most 1 GiB in use without a process, also 5 s later; other "
        "processes of users do not drain the node",
        "",
        PROLOG,
        DRAIN,
        "Look for the cause in the kernel log, and reboot the node.",
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.gpu_access",
        "The GPUs of a board have access to each other's memory",
        "`nvidia-smi topo -p2p r`",
        "NVIDIA on a board with NVLink",
        "all pairs are OK, except those of partitioned GPUs (MIG); without a board, it depends on the model",
        "[NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)",
        QUICK,
        WARN,
        "Check nvidia-fabricmanager, MIG and the IOMMU, and reboot.",
    ),
    CatalogueEntry(
        "health.pcie",
        "GPU PCIe links are at full width",
        "`nvidia-smi --query-gpu`",
        _NVIDIA,
        "the largest width that GPU and slot have",
        "",
        PASSIVE,
        DRAIN,
        "Reseat the card, and look for PCI errors in the kernel log.",
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.pcie_speed",
        "PCIe links of busy GPUs run at full speed",
        "the link, the utilization and the performance state in `nvidia-smi -q`",
        _NVIDIA,
        "the generation that both GPU and host support, at 50 % utilization or more in state P0",
        "",
        QUICK,
        WARN,
        "Reseat the card or its riser, and look for a limit in the settings of the firmware.",
    ),
    CatalogueEntry(
        "health.pcie_errors",
        "No uncorrectable errors on the PCI bus of GPUs and RDMA cards",
        "`/dev/kmsg`; `aer_dev_fatal` and `aer_dev_nonfatal` in sysfs",
        "GPUs, RDMA cards and the bridges above them",
        "no fatal error, and no damaged data (poisoned TLP, ECRC), since the boot; corrected errors are normal",
        "[PCIe AER](https://docs.kernel.org/PCI/pcieaer-howto.html)",
        PASSIVE,
        DRAIN,
        "Drain and reboot the node. If they recur, reseat or replace the card, its riser or its retimer.",
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.acs",
        "PCI switches let GPUs and RDMA cards exchange data directly",
        "the ACS capability in `/sys/bus/pci/devices/*/config`",
        "GPUs and RDMA cards below the same PCI switch",
        "no request or completion redirect at the ports between them, unless for translated addresses",
        "[NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)",
        QUICK,
        WARN,
        "Disable ACS in the firmware or with setpci, if no device is passed to a virtual machine.",
    ),
    CatalogueEntry(
        "health.memory_errors",
        "No uncorrectable errors of memory and processors",
        "`/dev/kmsg` (machine checks, memory failures, EDAC); `edac/mc/mc*/ue_count` in sysfs",
        _ANY_HOST,
        "none since the boot; corrected errors are normal",
        "[RAS](https://docs.kernel.org/admin-guide/RAS/main.html)",
        PASSIVE,
        DRAIN,
        "Drain the node, find the module in the log of the BMC, and replace it.",
        excludes_node=True,
        is_single_card=True,
    ),
    CatalogueEntry(
        "health.rdma",
        "RDMA ports are active at full rate",
        "`/sys/class/infiniband`",
        "InfiniBand, RoCE",
        "as fast as the fastest port of its kind, or `slurm_health_rdma_rate_gbps`; active if the record has RDMA",
        "",
        PASSIVE,
        DRAIN,
        "Check the cable, the transceiver, the switch port and the subnet manager. Disable a port that is unused.",
        excludes_node=True,
    ),
    CatalogueEntry(
        "health.link_flaps",
        "Links stay up",
        "`counters/link_downed` of RDMA ports, `carrier_down_count` of interfaces, in two snapshots",
        "InfiniBand, RoCE, Ethernet on the PCI bus with a route",
        "at most twice a day, where fewer than ten between two snapshots count once; without those while the host is suspended",
        "",
        PASSIVE,
        DRAIN,
        "Replace the cable or transceiver, or check the switch port.",
    ),
    CatalogueEntry(
        "health.link_errors",
        "Links carry data without errors",
        "`counters/symbol_error`, `port_rcv_errors` of RDMA ports, `statistics/rx_crc_errors` of interfaces, in two snapshots",
        "InfiniBand, RoCE, Ethernet on the PCI bus with a route",
        "120 an hour, which a bit error rate of 10⁻¹² gives at 32 Gbit/s; faster links correct errors first",
        "[ibdiagnet](https://docs.nvidia.com/networking/display/ibdiagnetusermanualv211/bit+error+rate+(ber))",
        QUICK,
        WARN,
        "Clean or replace the cable or transceiver, and look at the counters of the switch port.",
    ),
    CatalogueEntry(
        "health.memlock",
        "Jobs can lock memory without limit",
        "`/proc/PID/limits` of slurmd",
        "InfiniBand, RoCE",
        "unlimited",
        "[NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)",
        PASSIVE,
        DRAIN,
        "Set LimitMEMLOCK=infinity for slurmd, and restart it.",
    ),
    CatalogueEntry(
        "health.swap",
        "Little or no swap is in use",
        "`/proc/swaps`",
        _ANY_HOST,
        "1 GiB",
        "",
        QUICK,
        WARN,
        "Find out what uses the memory, then disable swap.",
    ),
    CatalogueEntry(
        "health.disk",
        "No local file system is too full",
        "`statvfs` of `/`, `/var`, `/home`, `/tmp`, `/dev/shm`",
        _ANY_HOST,
        "95 % of space and inodes; only file systems that users cannot fill drain the node",
        "",
        PASSIVE,
        DRAIN,
        "Free some space.",
    ),
    CatalogueEntry(
        "health.packages",
        "Packages are completely installed, and their services can start",
        "`/var/lib/dpkg/status`",
        "Debian",
        "no package is half installed",
        "",
        QUICK,
        WARN,
        "Run the site playbook, which completes the installation.",
    ),
    CatalogueEntry(
        "health.hung_processes",
        "No process hangs in the kernel",
        "`/proc/PID/stat` and `status`, in two snapshots",
        _ANY_HOST,
        "120 s in uninterruptible sleep without having run; paused containers do not count",
        "[hung_task_timeout_secs](https://docs.kernel.org/admin-guide/sysctl/kernel.html)",
        QUICK,
        WARN,
        "See in /proc/PID/stack what they wait for: a volume, a disk or a driver.",
    ),
    CatalogueEntry(
        "health.maintenance",
        "The provider has not announced maintenance or an interruption",
        "the metadata service, with a limit of 1 s for each request",
        "machines of AWS, Google Cloud and Azure, by DMI",
        "no event",
        "[AWS](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html), "
        "[Google Cloud](https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event), "
        "[Azure](https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events)",
        QUICK,
        WARN,
        "Drain the node before that time, or move the machine.",
    ),
    CatalogueEntry(
        "storage.mounts",
        "Shared volumes are mounted and writable",
        "a small file on each volume",
        _ANY_HOST,
        "an answer within `slurm_health_mount_timeout`; a server that is only slow drains no node",
        "",
        PASSIVE,
        DRAIN,
        "Check the server of the volume, then run the storage playbook.",
        excludes_node=True,
    ),
    CatalogueEntry(
        "clock.synchronised",
        "The clock is synchronized",
        "`timedatectl show`",
        _ANY_HOST,
        "synchronized",
        "",
        QUICK,
        WARN,
        "Install and start chrony or systemd-timesyncd.",
    ),
    CatalogueEntry(
        "health.name",
        "The host's own name resolves to its cluster address",
        "`getaddrinfo`",
        _ANY_HOST,
        "only the cluster address",
        "",
        QUICK,
        WARN,
        "Run the site playbook, which changes `/etc/hosts`.",
    ),
    CatalogueEntry(
        "health.dcgm",
        "NVIDIA's own diagnostics pass",
        "`dcgmi diag -j`",
        "NVIDIA with DCGM",
        "no test has failed",
        "[DCGM diagnostics](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html)",
        FULL,
        WARN,
        _REPLACE_GPU,
        is_single_card=True,
    ),
    CatalogueEntry(
        "mesh.handshake",
        "Recent handshake with every peer",
        "`wg show`",
        "members of a WireGuard mesh",
        "180 s",
        "[WireGuard](https://www.wireguard.com/papers/wireguard.pdf)",
        QUICK,
        WARN,
        "Check the tunnels with the playbook check, tag reachability.",
    ),
    CatalogueEntry(
        "mesh.key_expiry",
        "The key of the tailnet is valid for a month",
        "`tailscale status`",
        "members of a tailnet",
        "30 days",
        "",
        QUICK,
        WARN,
        "Renew the key, or disable its expiry.",
    ),
    CatalogueEntry(
        "slurm.job_plugin",
        "Slurm loads the plugin that sets the environment of jobs",
        "the plugin, its source, `plugstack.conf`, `slurmd -V`",
        "nodes with the plugin in place of the task prolog",
        "installed, included, and compiled for the release of Slurm",
        "",
        PASSIVE,
        DRAIN,
        "Run the slurm playbook, which compiles it.",
    ),
    CatalogueEntry(
        "slurm.rest_certificate",
        "The certificate of Slurm's REST API is valid for a month",
        "the certificate's file",
        "the manager",
        "30 days",
        "",
        QUICK,
        WARN,
        "Run the slurm playbook, which renews it.",
    ),
    CatalogueEntry(
        "mesh.preload",
        "The programs of a pod see the mesh",
        "`/etc/ld.so.preload`",
        "pods",
        "our library is loaded, and no program in use is static",
        "",
        QUICK,
        WARN,
        "Run the mesh playbook.",
    ),
    CatalogueEntry(
        "ssh_trust.login",
        "SSH login to every other member without a prompt",
        f"a login to each member; with more than {MAX_PEERS + 1} members, to {MAX_PEERS} of them",
        _ANY_HOST,
        "all",
        "",
        QUICK,
        WARN,
        "Run the site playbook, which renews keys and known hosts.",
    ),
)

#: The check of the shared volumes.
VOLUME_CHECK = "storage.mounts"

#: The checks of what programs compute and communicate with.
HARDWARE_CHECKS = tuple(entry.check_id for entry in CATALOGUE if entry.excludes_node and entry.check_id != VOLUME_CHECK)

#: The checks that make a node unfit for all jobs. The clock, swap, names and connections to other members are not among
#: them: they are judged by the check playbook, and one dead peer must not drain the others.
DRAINING_CHECKS = tuple(entry.check_id for entry in CATALOGUE if entry.action == DRAIN)

#: Faults that no common cause excuses.
SINGLE_CARD_CHECKS = tuple(entry.check_id for entry in CATALOGUE if entry.is_single_card)
