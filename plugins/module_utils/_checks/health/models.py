# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The input and the results of a check."""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict, Union

CheckValue = Union[str, int, float, bool, None]

#: The names of slurmd. Debian's is a link to the second one, which is also its name once it has executed itself again.
SLURMD_NAMES = ("slurmd", "slurmd-wlm")


class CheckResult(TypedDict):
    """One check's result, in the form that every check of the collection has.

    ``status`` is pass, fail, error (could not be checked) or skipped. ``reason`` is empty on a pass, ``remedy`` on a
    pass and on a skip.
    """

    id: str
    purpose: str
    host: Optional[str]
    actual: CheckValue
    required: CheckValue
    unit: str
    status: str
    reason: str
    remedy: str


class Judgement(NamedTuple):
    """The result of a judging function. The check adds its ID and purpose.

    ``devices``: the names of the GPUs or switches that a failed check is about, as far as they are known.
    """

    status: str
    actual: CheckValue = None
    required: CheckValue = None
    unit: str = ""
    reason: str = ""
    remedy: str = ""
    devices: Tuple[str, ...] = ()


class ExpectedState(NamedTuple):
    """The expected state of the host. None means unknown.

    ``rdma`` is the fabric that the record has for the host, such as infiniband. ``mounts`` are mount points;
    ``external_mounts`` are those of external file systems, or folders below one; ``read_only_mounts`` are those of both
    that are not written to. ``drains``: failed checks take the node out of service, so conditions that any user can
    cause are ignored. ``machine`` is the host's name in the cluster. ``tailnet``: whether it has a key in a tailnet.
    ``pod``: its programs reach the mesh through a library. ``slurm_node``: it runs jobs. ``job_gpus``: the numbers of the GPUs of a job that is about to
    start.
    """

    gpus: Optional[int] = None
    rdma: Optional[str] = None
    rdma_rate_gbps: Optional[float] = None
    mounts: Sequence[str] = ()
    read_only_mounts: Sequence[str] = ()
    external_mounts: Sequence[str] = ()
    cluster_address: Optional[str] = None
    mesh_interface: Optional[str] = None
    mesh_peers: Mapping[str, str] = MappingProxyType({})
    tailnet: bool = False
    pod: bool = False
    slurm_node: bool = True
    ssh_peers: Mapping[str, str] = MappingProxyType({})
    ssh_user: str = "root"
    machine: Optional[str] = None
    max_disk_percent: float = 95.0
    max_swap_mib: float = 1024.0
    max_handshake_age_s: float = 180.0
    dcgm_level: int = 0
    drains: bool = False
    mount_timeout: float = 10.0
    job_gpus: Sequence[int] = ()


def passed(actual: CheckValue, required: CheckValue, unit: str = "") -> Judgement:
    """The actual value meets the requirement."""
    return Judgement("pass", actual, required, unit)


def failed(
    actual: CheckValue,
    required: CheckValue,
    reason: str,
    remedy: str,
    unit: str = "",
    devices: Tuple[str, ...] = (),
) -> Judgement:
    """The actual value does not meet the requirement."""
    return Judgement("fail", actual, required, unit, reason, remedy, devices)


def skipped(reason: str) -> Judgement:
    """The check does not apply here."""
    return Judgement("skipped", reason=reason)


def unknown(reason: str, remedy: str) -> Judgement:
    """The check applies, but could not be made."""
    return Judgement("error", reason=reason, remedy=remedy)
