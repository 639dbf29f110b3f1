# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns by which the errors of training programs are recognised.

The programs are those that everyone uses. A comment names the program, not its version: each pattern was seen in a real
run or in a public report, which the fixtures of the unit tests name.
"""

from __future__ import annotations

import re
from typing import Pattern

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.kernel_faults import HARDWARE_XIDS


def _any_of(*patterns: str) -> Pattern[str]:
    return re.compile("|".join(patterns))


#: The prefixes that loggers and launchers put before a program's line. Several may follow each other.
LINE_PREFIX = _any_of(
    r"\[rank(?P<rank>\d+)\]: ?",  # PyTorch's hook for uncaught exceptions, and its logger
    r"\[(?:default|trainer|worker)(?P<local>\d+)[^\]\s]*\]: ?",  # torchrun --tee
    r"\[\d+,(?P<process>\d+)\]<std(?:err|out)>: ?",  # mpirun --tag-output, Horovod
    r" *(?P<task>\d+): (?=\[|  +\S|Traceback|(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b)",  # srun --label
    r"\(\w+ pid=\d+[^)]*\) ?",  # Ray
    r" *[|+] (?=\s*\S)",  # ExceptionGroup
    r"(?P<time>\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: \w{1,5})?\]?:? +(?:- )?)",  # logging
    r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \S+:\d+\] ?",  # vLLM
    r"\[(?:ERROR|CRITICAL|FATAL)\] *|(?:ERROR|CRITICAL|FATAL): *",  # logging, DeepSpeed
)
#: The prefix of glog (JAX, and with brackets PyTorch): severity, date, time, thread and source line.
GLOG_PREFIX = re.compile(
    r"\[?(?P<severity>[IWEF])(?:\d{3,4} [\d:.]+)?(?: +\d+)? (?:\S+/)?[\w.]+(?:\.cpp|\.cc|\.h|\.py):\d+\] ?"
)
#: A line of logrus, the logger of podman and docker.
LOGRUS_LINE = re.compile(r'time="[^"]*" level=(?P<severity>\w+) msg="(?P<text>(?:[^"\\]|\\.)*)"')
#: Lines that do not say why a program ends: warnings, stacks of C and C++, advice, and rules.
NOISE_LINE = _any_of(
    r"^\S+:\d+: \w*Warning: ",
    r"^\s*warnings\.warn\(",
    r"^\[W\d* |Warning: WARNING: |NCCL INFO|^NCCL version",
    r"^frame #\d+: |^\s*#?\d+ +(?:0x[0-9a-f]+ |\S+\(.*\) \[0x)|^\s*@ +0x[0-9a-f]+ |\[0x[0-9a-f]+\]$",
    r"^\s+at /rustc/|^\s+\d+: [\w<]|^stack backtrace:|^note: (?:run with|Some details)",
    r"^\*\*\* Check failure stack trace|^==== backtrace|^Exception raised from |^<omitting python frames>",
    r"^CUDA kernel errors might be|^HIP kernel errors might be|^For debugging consider|^Compile with `TORCH_USE",
    r"^Search for `\w+' in ",
    r"^For simplicity, JAX has removed|^RPC: /|^Additional GRPC error information",
    r"^[\s=*~^+-]*$|^[+|\s-]*\d+ -{4,}",
    r"^(?:\[\d\d:\d\d:\d\d\])? *(?:DEBUG|INFO|WARNING) |\d%\|.*\| *\d+/\d+ \[",  # Rich's and vLLM's logs, tqdm
    r"^wandb:|^srun: Terminating|^Extension modules: |^Disable Python buffering",
    r"resource_tracker: There appear to be",
    r"^\[rank: \d+\] Child process with PID \d+ terminated",  # Lightning, which then kills itself
)
#: Lines that Python writes before exceptions that do not end the program.
IGNORED_EXCEPTION = _any_of(r"^Exception ignored in", r"^Error in atexit", r"^Error in sys\.excepthook")
FRAME_LINE = re.compile(r'^(?P<indent>\s*)File "[^"]*", line \d+')
EXCEPTION_LINE = re.compile(r"^(?P<name>[A-Za-z_][\w.<>]*)(?P<message>: .*|:)?$")
#: An exception without frames, since these were cut off or the program has printed it itself.
EXCEPTION_NAME = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Group|Failure)\b(?:: .*|:)?$|^Exception: .*$"
)
DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
DURING_HANDLING = "During handling of the above exception, another exception occurred:"
#: Errors that only say that another one came before, which is reported in their place.
SECONDARY_ERROR = _any_of(
    r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",  # PyTorch
    r"unexpected pos \d+ vs \d+",  # torch.save after a failed write
    r"^ChildFailedError:?\s*$|errors\.ChildFailedError",  # torchrun
    r"unhandled errors in a TaskGroup",  # asyncio
    r"CalledProcessError: Command .* returned non-zero exit status",  # subprocess, and so accelerate
    r"^RemoteTraceback:?\s*\"*$",  # multiprocessing
)
#: The last lines of programs that end without an exception.
FATAL_LINE = _any_of(
    r"^Fatal Python error: ",
    r"^thread '.*' (?:\(\d+\) )?panicked at ",  # Rust
    r"^double free or corruption|^(?:malloc|free|realloc)\(\): |^corrupted |^munmap_chunk\(\)|^\*\*\* stack smashing",  # glibc
    r": Assertion [`'].*' failed\.?$",  # assert.h, and CUDA's
    r"Caught signal \d+ \(",  # UCX
    r"(?:^|\s)(?:Killed|Bus error|Segmentation fault|Aborted|Illegal instruction)(?: +\(core dumped\))?(?:\s|$)",  # bash
    r"error while loading shared libraries: |cannot execute binary file|can't open file ",  # ld.so, bash, python3
    r"version `\w+_[\d.]+' not found",  # ld.so
    r"^Memory access fault by GPU node",  # ROCm
    r"NCCL WARN .*(?:Got completion from peer|Connection closed by remote peer|Socket recv failed|Call to \w+ (?:from|to) )",
    r"UCX +(?:ERROR|FATAL)|UCX Fatal|Transport retry count exceeded on ",  # UCX
    r"^(?:ORTE|PRTE) has lost communication|^MPI_ABORT was invoked on rank|^mpi(?:run|exec) noticed that process rank",
    r"oom[-_]kill event|^\S*: task \d+: Out Of Memory|[Oo]ut of memory: Killed process",  # Slurm, the kernel
    r"exceeded memory limit \(\d+ > \d+\)",  # Slurm without control groups
    r"NVRM: Xid ",  # NVIDIA's driver
    r"^Error: ",  # podman
)
#: Errors of a rank whose peer is gone or late, which say nothing about the rank itself.
PEER_ERROR = _any_of(
    # Gloo
    r"Timed out waiting \d+ ?ms for (?:recv|send)|failed to pass monitoredBarrier|Gloo connectFullMesh failed",
    r"Application timeout caused pair closure",
    r"Gloo \w+ failed: .*(?:pair|buffer)\.cc",
    # NCCL
    r"ncclRemoteError|remote process exited or there was a network error|NCCL communicator was aborted",
    r"Got completion from peer|Socket recv failed while polling|Proxy Call to rank \d+ failed",
    r"Call to (?:recv|send|connect)\w* (?:from|to) .* failed|socketPollConnect|socketProgress",
    # PyTorch's watchdog and its stores
    r"Watchdog caught collective operation timeout|watchdog got stuck for|Heartbeat monitor timed out",
    r"Some NCCL operations have failed or timed out|Received a (?:dump|global timeout) signal",
    r"client socket has timed out|clients joined|recvValue failed|sendBytes failed|failed to recv|wait timeout after",
    r"in store based barrier|RendezvousConnectionError|RendezvousTimeoutError|RendezvousClosedError",
    r"SignalException: Process \d+ got signal: 15",
    # MPI and UCX
    r"lost communication with a remote daemon|Endpoint timeout|Transport retry count exceeded",
    # JAX and XLA
    r"another task died|heartbeat timeout|tasks are unhealthy|Failed to send RPC to coordination service",
    r"Barrier timed out|[Bb]arrier failed because|coordination service .*(?:unavailable|heartbeat)",
    r"GetKeyValue\(\) timed out",
    # Horovod
    r"Horovod has been shut down",
)
#: The system's errors of a connection, to a peer or to any server.
CONNECTION_ERROR = _any_of(
    r"Connection closed by (?:remote )?peer|Connection reset by (?:remote )?peer|Connection refused|Broken pipe",
    r"Connection was likely closed|Socket closed|Socket [Tt]imeout|Lost connection|Timed out waiting",
)
#: Names of the libraries that connect ranks, which show that a connection was one to a peer.
BETWEEN_RANKS = _any_of(
    r"(?:pair|buffer|socket)\.(?:cc|cpp|h)\b|\b[Gg]loo\b|NCCL|\bnccl|\bsocket[A-Z]\w+: |^Net : |\bUCX\b|\bMPI",
    r"TCPStore|in store based|[Rr]endezvous|\bc10d\b|Dist\w+Error|distributed|(?:Xla|Jax)RuntimeError|[Cc]oordination",
    r"Horovod|\b[Rr]ank:? ?\d",
)
#: Errors of a connection for which the rank itself is to blame.
LOCAL_ERROR = _any_of(
    r"Address already in use|EADDRINUSE",  # PyTorch's DistNetworkError
    r"Temporary failure in name resolution|Name or service not known",
)
#: Errors that show a fault of the node, from CUDA, NVIDIA's driver and library, NCCL, Gloo and the kernel.
HARDWARE_ERROR = _any_of(
    r"(?<!\b0 )(?<!\b[Nn]o )uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE",
    r"uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE",
    r"over nvlink or a hardware error",  # cudaErrorContained
    r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",  # no fabric manager
    r"system has unsupported display driver|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|[Dd]river/library version mismatch",
    r"fallen off the bus|fell off the bus|GPU is lost|[Uu]nable to determine the device handle",
    r"NVRM: Xid \([^)]*\): (?:" + "|".join(map(str, HARDWARE_XIDS)) + r")\b(?!.{0,300}\bNon-?fatal\b)",
    r"NVRM: Xid \([^)]*\): (?:14[4-9]|150)\b.{0,300}\bFatal\b|SXid \([^)]*\): \d+, Fatal\b",  # NVLink 5, NVSwitch
    # NCCL reports events of the node's own adapter. An event of a QP or CQ may be the fault of the program.
    r"(?:Got async event :|async fatal event:|Got non-fatal async event:) (?:local catastrophic error|port error)",
    r"[Nn]o socket interface found|Unable to find address for: |no NCCL_SOCKET_IFNAME interface found",
    r"with family \d+ is neither AF_INET",  # NCCL 2.27, without the interface
    r"\[Hardware Error\]|Machine [Cc]heck (?:[Ee]vent|[Ee]xception)|[Ff]atal machine check",
    r"[Bb]uffer I/O error on dev|I/O error, dev (?:nvme|sd)",  # the kernel
    # A local disk; that of a file server proves nothing, and an error about moving a file may be about either place.
    r"\[Errno (?:5|30)\] [^']*'(?:/tmp|/var/tmp|/dev)/(?![^']*' -> '(?!(?:/tmp|/var/tmp|/dev)/))",
)
#: Errors of a file system that is full, and of one that fails or is unavailable: the system's messages and numbers.
NO_SPACE = _any_of(
    r"(?i:No space left on device|Disk quota exceeded|database or disk is full)",  # the last one of SQLite
    r"\bENOSPC\b|\bEDQUOT\b",
    r"(?i:errno|os error):? (?:28|122)\b",
)
FILE_SYSTEM_ERROR = _any_of(
    r"(?i:Read-only file system|Stale (?:NFS )?file handle|Input/output error|Remote I/O error)",
    r"(?i:Transport endpoint is not connected)",  # FUSE; without a path, it may be a socket
    r"\bEROFS\b|\bESTALE\b",
)
#: Errors of PyTorch and NumPy after a failed write, which do not say why it failed.
WRITE_ERROR = _any_of(
    r"PytorchStreamWriter failed writing|: file write failed|unexpected pos \d+ vs \d+",
    r"\d+ requested and \d+ written",
)
#: Messages of Slurm and the kernel about a job whose memory is used up.
OUT_OF_MEMORY = _any_of(
    r"oom[-_]kill event",
    r"task \d+: Out Of Memory",
    r"exceeded memory limit \(\d+ > \d+\)",
    r"[Oo]ut of memory: Killed process",
    r"[Mm]emory cgroup out of memory",
)
#: Errors of programs when one of their processes was killed: PyTorch's data loader and spawn, and Python's pools.
KILLED_PROCESS = _any_of(r"killed by signal: Killed", r"terminated abruptly", r"terminated with signal SIGKILL")
#: The block in which torchrun names the process that failed first.
ROOT_CAUSE = "Root Cause (first observed failure):"
ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+) ")
ROOT_CODE = re.compile(r"^\s*exitcode\s*: (-?\d+) ")
ROOT_TRACE = re.compile(r"^\s*traceback\s*: (.*)$")


#: Text of PyTorch and JAX around the message of another library, which is left out.
WRAPPER_TEXT = _any_of(
    r"^[\w.]+: NCCL error in: .*?(?= nccl[A-Z]\w+: )",
    r"^\S+:\d+:\d+ \[\d+\] \S+:\d+ (?=NCCL WARN)",
    r"^(?:\[PG [^\]]*\] )*Process group watchdog thread terminated with exception: ",
    r"^Terminating process because the JAX distributed service detected fatal errors\..*?absl::Status: ",
)
