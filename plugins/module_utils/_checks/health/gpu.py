# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs, from nvidia-smi, dcgmi and the kernel log. Parsing and judging only; nothing is run here."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu_details, kernel_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json, parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import kernel_log

#: The fields that are requested from nvidia-smi, in one call.
QUERY_FIELDS = (
    "index",
    "name",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
)
QUERY_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv,noheader,nounits")
REMAP_COMMAND = (
    "nvidia-smi",
    "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
    "--format=csv,noheader,nounits",
)
NVLINK_COMMAND = ("nvidia-smi", "nvlink", "--status")
#: Older drivers do not know this field.
RECOVERY_COMMAND = ("nvidia-smi", "--query-gpu=index,gpu_recovery_action", "--format=csv,noheader")
#: All fields. The state of the fabric is only one of those of --query-gpu in newer versions, and without its health.
DETAILS_COMMAND = ("nvidia-smi", "-q")
MIG_COMMAND = ("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader")

#: The models that are soldered to a board which connects all of them: either all of them use NVLink, or none does, as
#: in a virtual machine with one of them. Cards with bridges have NVL or PCIe in their names, and a GH200 has no others.
_BOARD_MODEL = re.compile(
    r"\bSXM[0-9]*\b|\bGB[23]00\b|\bB[23]00\b|\bH(?:20|200|800)(?!.*(?:NVL|PCIe))\b|\bH100 [0-9]+GB HBM", re.IGNORECASE
)
_ABSENT_VALUES = ("", "[n/a]", "n/a", "[not supported]", "not supported")
REBOOT_REMEDY = "Drain the node, wait for its jobs to end and reboot it. Replace the GPU if the error recurs."


#: The start of a line about a GPU that works, but cannot keep some of its data, and the exit status with it.
_WARNING_PREFIX = "WARNING: infoROM is corrupted"
CORRUPTED_INFOROM_STATUS = 14


class GpuFields(Dict[str, Optional[str]]):
    """One GPU: the fields of QUERY_FIELDS; None if this model has no such value."""


def _split_rows(csv_text: str) -> List[List[str]]:
    """The fields of each line. nvidia-smi does not quote them."""
    return [[field.strip() for field in line.split(",")] for line in csv_text.splitlines() if line.strip()]


def parse_query(query_output: str) -> List[GpuFields]:
    """The GPUs in QUERY_COMMAND's output. Raises ParseError on lines of another form, such as an error message."""
    gpus = []
    for values in _split_rows(query_output):
        if values[0].startswith(_WARNING_PREFIX):
            continue
        if len(values) != len(QUERY_FIELDS):
            raise ParseError(
                "nvidia-smi --query-gpu", f"a line has {len(values)} fields instead of {len(QUERY_FIELDS)}"
            )
        gpus.append(
            GpuFields(
                (key, None if field_text.lower() in _ABSENT_VALUES else field_text)
                for key, field_text in zip(QUERY_FIELDS, values)
            )
        )
    return gpus


#: The texts that nvidia-smi prints for a GPU that does not respond, also as a value of one of its fields.
_LOST_MESSAGE = re.compile(
    r"GPU is lost|GPU requires reset|Unable to determine the device handle|fallen off the bus|No devices were found",
    re.IGNORECASE,
)
#: The values of a field that a GPU which does not respond has in all fields.
_UNREADABLE_VALUES = ("[unknown error]", "err!", "[err!]", "unknown error")
#: The first line of nvidia-smi if it fails as a whole. That it lacks a permission or its library says nothing about jobs.
_DRIVER_FAILURE = re.compile(
    r"^Failed to initialize NVML: (?P<reason>(?!Insufficient Permissions|GPU access blocked).+?)\.?\s*$"
    r"|^NVIDIA-SMI has failed because (?P<sentence>it could(?:n't| not) communicate with the NVIDIA driver)",
    re.IGNORECASE | re.MULTILINE,
)
_LIBRARY_VERSION = re.compile(r"^NVML library version: (?P<version>[\w.]+)", re.MULTILINE)
#: The first line of any other failure of nvidia-smi.
_FAILURE_LINE = re.compile(
    r"^(?:Failed to initialize NVML|NVIDIA-SMI has failed|NVIDIA-SMI couldn't find)\b.*", re.MULTILINE
)


def find_lost_message(tool_output: str) -> Optional[str]:
    """nvidia-smi's message about a GPU that does not respond; None if all of them do.

    The driver keeps the device file of such a GPU, so that it is only missing in nvidia-smi's output.
    """
    for line in tool_output.splitlines():
        if _LOST_MESSAGE.search(line):
            return line.strip()
    return None


def find_unreadable_gpu(gpus: Sequence[GpuFields]) -> Optional[str]:
    """A message about a GPU none of whose values can be read; None if there is no such GPU."""
    for gpu in gpus:
        values = [value for key, value in gpu.items() if value is not None and key not in ("index", "name")]
        if values and all(value.lower() in _UNREADABLE_VALUES for value in values):
            return f"GPU {gpu['index']} has {values[0]} for every value"
    return None


def find_driver_failure(tool_output: str) -> Optional[str]:
    """Return why nvidia-smi cannot use any GPU; None if it can, or if it may be only nvidia-smi that cannot."""
    failure = _DRIVER_FAILURE.search(tool_output)
    if not failure:
        return None
    version = _LIBRARY_VERSION.search(tool_output)
    reason = failure.group("reason") or f"nvidia-smi says that {failure.group('sentence')}"
    return f"{reason} (version of the library: {version.group('version')})" if version else reason


def describe_failure(tool_output: str, exit_status: int) -> str:
    """Return the line that says why nvidia-smi failed, without a full stop."""
    failure_line = _FAILURE_LINE.search(tool_output)
    lines = [failure_line.group()] if failure_line else tool_output.strip().splitlines()[-1:]
    return (lines or [f"exit status {exit_status}"])[0].strip().rstrip(".")


def judge_driver_failure(reason: str, expected: Optional[int], container: bool) -> Judgement:
    """The judgement if nvidia-smi fails as a whole: CUDA uses the same driver, so that each job would fail."""
    remedy = (
        "Compare the driver's version with that of its module (cat /proc/driver/nvidia/version, dkms status), and reboot "
        "the node after its jobs have ended."
    )
    if "mismatch" in reason:
        remedy = (
            "The driver's packages were upgraded, but the old module is still loaded. Wait for the node's jobs to end, "
            "reboot it, and exclude these packages from unattended upgrades."
        )
    if container:
        remedy = (
            "Restart the container. It loses its devices when systemd reloads the units of its host (daemon-reload), and "
            "its libraries do not match after an upgrade of the driver there."
        )
    return failed(0, expected, f"No GPU can be used: {reason}.", remedy, "GPUs")


def judge_hung_driver(hung_process: str, expected: Optional[int]) -> Judgement:
    """The judgement if an earlier nvidia-smi hangs in the kernel."""
    return failed(
        0,
        expected,
        f"The NVIDIA driver does not answer: an earlier nvidia-smi hangs in the kernel and cannot be killed ({hung_process}).",
        "Look for the cause in the kernel log, and reboot the node. If it does not shut down, turn its power off and on.",
        "GPUs",
    )


def judge_lost_gpu(message: str, files: int, expected: Optional[int]) -> Judgement:
    """The judgement of a GPU that nvidia-smi reports as lost. ``files``: the number of device files."""
    return failed(
        f"fewer than {files}",
        expected,
        f"nvidia-smi reports a GPU that does not respond: {message.rstrip('.')}.",
        REBOOT_REMEDY,
        "GPUs",
    )


#: Values of a GPU that cannot be used, or only in part, until it is reset: Reset, Reboot, Drain P2P, Drain and Reset.
#: Others concern the domain of NVLink.
_RECOVERY_ACTION = re.compile(r"\b(?:reset|reboot|drain)\b", re.IGNORECASE)


def judge_recovery(recovery_output: str, gpu_count: int, expected_count: Optional[int]) -> Optional[Judgement]:
    """The judgement of GPUs that the driver wants to be reset, from RECOVERY_COMMAND's output; None if there are none.

    nvidia-smi shows all other values of such a GPU, even if no program can open it. The fault may no longer be in the
    kernel log, and containers cannot read that.
    """
    actions = [
        f"GPU {row[0]} ({row[1]})"
        for row in _split_rows(recovery_output)
        if len(row) == 2 and row[0].isdigit() and _RECOVERY_ACTION.search(row[1])
    ]
    if not actions:
        return None
    return failed(
        gpu_count - len(actions),
        expected_count,
        f"The driver requires a recovery before jobs can use {', '.join(actions)}.",
        REBOOT_REMEDY,
        "GPUs",
    )


def judge_gpu_count(
    gpu_count: int, problem: Optional[str], expected_count: Optional[int], driver_command: str = ""
) -> Judgement:
    """Judge whether the number of GPUs matches the record. ``driver_command``: what installs a missing driver.

    If it does, others on the bus may belong to a virtual machine, or to other containers.
    """
    if problem and (not gpu_count or expected_count not in (None, gpu_count)):
        remedy = "Load the driver, or make the GPUs available in this container."
        if driver_command:
            remedy = f"Install the driver and reboot: {driver_command}"
        return failed(gpu_count, expected_count, problem, remedy, "GPUs")
    if expected_count is None:
        return skipped("The expected number of GPUs is not set.")
    if gpu_count == expected_count:
        return passed(gpu_count, expected_count, "GPUs")
    return failed(
        gpu_count,
        expected_count,
        f"{gpu_count} of {expected_count} GPUs are present."
        if gpu_count < expected_count
        else f"{gpu_count} GPUs are present, but {expected_count} are in the record.",
        "Check the kernel log for GPUs that fell off the bus, and reboot. If the machine has fewer GPUs from now on, join "
        "it again (playbook join with its name in cluster_machines)."
        if gpu_count < expected_count
        else "Run the site playbook again, which updates the record.",
        "GPUs",
    )


def judge_ecc(gpus: Sequence[GpuFields]) -> Judgement:
    """Judge whether there were memory errors that ECC could not correct since the driver was loaded."""
    error_counts = {gpu["index"]: parse_whole_number(gpu["ecc.errors.uncorrected.volatile.total"]) for gpu in gpus}
    known_counts = {index: number for index, number in error_counts.items() if number is not None}
    if not known_counts:
        return skipped("These GPUs have no ECC, or it is disabled.")
    total = sum(known_counts.values())
    if not total:
        return passed(0, 0, "errors")
    faulty_counts = {f"GPU {index}": number for index, number in known_counts.items() if number}
    error_text = ", ".join(f"{name}: {number}" for name, number in faulty_counts.items())
    return failed(
        total, 0, f"Uncorrected memory errors: {error_text}.", REBOOT_REMEDY, "errors", devices=tuple(faulty_counts)
    )


def _name_devices(gpu_names: Sequence[str]) -> Tuple[str, ...]:
    """Return the names of GPUs that have an index, such as "GPU 0", or an address, as devices."""
    return tuple(name if name.startswith("GPU ") else kernel_faults.name_device("GPU", name) for name in gpu_names)


def _parse_flag(text: str) -> Optional[bool]:
    """Whether a flag is set: Yes or No, and 1 or 0 with older drivers; None if the GPU does not have it."""
    number = parse_whole_number(text)
    return {"yes": True, "no": False}.get(text.lower()) if number is None else number > 0


def judge_retired(gpus: Sequence[GpuFields], remapped: Optional[str]) -> Judgement:
    """Judge whether a memory page or row waits for a reboot, or could not be replaced."""
    pending_gpus = [f"GPU {gpu['index']}" for gpu in gpus if (gpu["retired_pages.pending"] or "").lower() == "yes"]
    failed_gpus: List[str] = []
    is_reported = any(gpu["retired_pages.pending"] is not None for gpu in gpus)
    for row in _split_rows(remapped or ""):
        is_pending, has_failed = map(_parse_flag, row[1:]) if len(row) == 3 else (None, None)
        if is_pending is not None and has_failed is not None:
            is_reported = True
            pending_gpus += [row[0]] if is_pending else []
            failed_gpus += [row[0]] if has_failed else []
    if not is_reported:
        return skipped("These GPUs do not report retired memory.")
    if failed_gpus:
        reason = f"Bad memory rows could not be replaced on {', '.join(failed_gpus)}."
        remedy = "Drain the node and replace the GPU."
        return failed(len(failed_gpus), 0, reason, remedy, "GPUs", devices=_name_devices(failed_gpus))
    if pending_gpus:
        reason = f"Memory will be retired at the next reset of {', '.join(pending_gpus)}."
        remedy = "Drain the node and reboot it."
        return failed(len(pending_gpus), 0, reason, remedy, "GPUs", devices=_name_devices(pending_gpus))
    return passed(0, 0, "GPUs")


def judge_pcie(gpus: Sequence[GpuFields]) -> Judgement:
    """Judge whether links have their full width. Their speed decreases when idle to save power, so it is not judged."""
    narrow_links: Dict[str, str] = {}
    known_count = 0
    widest_link = 0
    for gpu in gpus:
        current_width, full = (
            parse_whole_number(gpu["pcie.link.width.current"]),
            parse_whole_number(gpu["pcie.link.width.max"]),
        )
        if current_width is None or full is None:
            continue
        known_count += 1
        widest_link = max(widest_link, full)
        if current_width < full:
            narrow_links[f"GPU {gpu['index']}"] = f"x{current_width} of x{full}"
    if not known_count:
        return skipped("nvidia-smi does not report the width of the links.")
    if not narrow_links:
        return passed(f"x{widest_link}", f"x{widest_link}")
    return failed(
        f"{known_count - len(narrow_links)} of {known_count}",
        f"{known_count} at full width",
        "; ".join(f"{name} at {width}" for name, width in narrow_links.items()) + ".",
        "Reseat the card; look for PCI errors in the kernel log.",
        "links",
        devices=tuple(narrow_links),
    )


#: What nvidia-smi prints instead of links, also if it exits with an error because of that.
_LINKLESS_MESSAGE = re.compile(r"not supported|all links are inactive", re.IGNORECASE)


class _GpuLinks(NamedTuple):
    """The links of a GPU. ``states``: whether each is up; a GPU whose links are all down may list none."""

    model: str
    states: List[bool]


def _parse_links(nvlink_output: str) -> Dict[str, _GpuLinks]:
    """The links of each GPU by its index, from NVLINK_COMMAND's output."""
    gpu_links: Dict[str, _GpuLinks] = {}
    gpu_index = ""
    for line in nvlink_output.splitlines():
        head = re.match(r"^GPU (\d+):(.*?)(?:\(UUID:.*)?$", line)
        if head:
            gpu_index = head.group(1)
            gpu_links[gpu_index] = _GpuLinks(head.group(2).strip(), [])
            continue
        link = re.match(r"^\s+Link (\d+): (.+)$", line)
        if link and gpu_index:
            gpu_links[gpu_index].states.append("inactive" not in link.group(2).lower())
    return gpu_links


def connects_all(nvlink_output: str) -> bool:
    """Whether all GPUs are on a board that connects them, and use NVLink, from NVLINK_COMMAND's output."""
    gpu_links = _parse_links(nvlink_output).values()
    return bool(gpu_links) and all(_BOARD_MODEL.search(model) and any(states) for model, states in gpu_links)


def may_use_nvlink(nvlink_output: str) -> bool:
    """Whether a GPU uses NVLink, or should, from NVLINK_COMMAND's output: not if all are cards without a bridge."""
    gpu_links = _parse_links(nvlink_output).values()
    if not gpu_links:
        return bool(nvlink_output.strip()) and not _LINKLESS_MESSAGE.search(nvlink_output)
    return any(states or _BOARD_MODEL.search(model) for model, states in gpu_links)


def parse_partitioned(mig_output: str) -> List[str]:
    """The indexes of the GPUs that are partitioned, from MIG_COMMAND's output."""
    return [row[0] for row in _split_rows(mig_output) if len(row) == 2 and row[1].lower() == "enabled"]


def judge_nvlink(
    nvlink_output: str, exit_status: int = 0, has_switches: bool = False, partitioned_gpus: Sequence[str] = ()
) -> Judgement:
    """Judge whether the links are up that should be. ``exit_status``: the exit status of NVLINK_COMMAND.

    With NVSwitches, these are all links, except those of ``partitioned_gpus``, which an A100 switches off. Otherwise,
    bridges connect some GPUs and use some of their slots: each GPU with a bridge must have as many links as the others
    that have one. On a board, of which the host may not see the NVSwitches, this holds for each GPU of the model.
    """
    # nvidia-smi prints nothing, or that it is not supported, for GPUs without NVLink.
    is_recognized = (
        not nvlink_output.strip()
        or "not supported" in nvlink_output.lower()
        or re.search(r"^GPU \d+:", nvlink_output, re.MULTILINE)
    )
    if (
        find_lost_message(nvlink_output)
        or not is_recognized
        or (exit_status and not _LINKLESS_MESSAGE.search(nvlink_output))
    ):
        failure = describe_failure(nvlink_output, exit_status)
        return unknown(f"nvidia-smi does not show the state of NVLink: {failure}.", "Run nvidia-smi nvlink --status.")
    gpu_links = _parse_links(nvlink_output)
    used_boards = {model for model, states in gpu_links.values() if any(states) and _BOARD_MODEL.search(model)}
    links = {
        index: states
        for index, (model, states) in gpu_links.items()
        if has_switches or any(states) or model in used_boards
    }
    active_by_gpu = {index: sum(states) for index, states in links.items() if index not in partitioned_gpus}
    if not active_by_gpu:
        return skipped("These GPUs have no NVLink in use.")
    most_links = max([len(links[index]) for index in active_by_gpu] if has_switches else active_by_gpu.values())
    down = {
        f"GPU {index}": f"{active_links} of {most_links or 'its'} links"
        for index, active_links in active_by_gpu.items()
        if active_links < most_links or not most_links
    }
    total, active_links = most_links * len(active_by_gpu), sum(active_by_gpu.values())
    if not down:
        return passed(active_links, total, "links")
    return failed(
        active_links,
        total or "all",
        "; ".join(f"{name} has {link_text}" for name, link_text in down.items()) + ".",
        "Restart nvidia-fabricmanager if there is one, then reboot. Replace the baseboard or bridge if the error persists.",
        "links",
        devices=tuple(down),
    )


def judge_xid(kernel_records: Optional[str], container: bool = False, judges_amd: bool = True) -> Judgement:
    """Judge whether the kernel log, in the format of /dev/kmsg, has a fault after which a GPU cannot be trusted.

    None means that the log cannot be read, which only privileged containers can. ``judges_amd``: whether messages about
    GPUs of AMD count, which may only be there for a display.
    """
    if kernel_records is None and container:
        return skipped("This is a container that cannot read the kernel log of its host.")
    if kernel_records is None:
        return unknown("/dev/kmsg cannot be read.", "Run as root.")
    fault_log = kernel_faults.read_faults(kernel_log.extract_messages(kernel_records), judges_amd)
    fault_counts = fault_log.count_faults()
    if not fault_counts:
        return passed(0, 0, "faults")
    fault_text = "; ".join(f"{name}, {times} ×" for name, times in fault_counts.items())
    return failed(
        sum(fault_counts.values()), 0, f"{fault_text}.", REBOOT_REMEDY, "faults", devices=fault_log.list_devices()
    )


def judge_fabric_manager(service_state: Optional[str], has_switch: bool, container: bool = False) -> Judgement:
    """Judge whether the fabric manager runs where there is an NVSwitch.

    ``service_state`` is the output of systemctl is-active; None without systemctl, as in containers without systemd.
    """
    if not has_switch:
        return skipped("There is no NVSwitch in this host.")
    if service_state is None and container:
        return skipped("This is a container, and the fabric manager is a service of its host.")
    if service_state is None:
        return unknown("The state of nvidia-fabricmanager cannot be determined.", "Check it with systemctl status.")
    if service_state == "active":
        return passed("active", "active")
    return failed(
        service_state,
        "active",
        "Without the fabric manager, the GPUs cannot be opened or cannot communicate with each other.",
        "Install the fabric manager in exactly the driver's version and start nvidia-fabricmanager.",
    )


#: The section with the fields of a GPU's fabric in DETAILS_COMMAND's output.
_FABRIC_SECTION = "fabric"
#: Values of a GPU that is not connected to an NVSwitch, or of a driver that does not report the field.
_NO_FABRIC_VALUES = ("", "n/a", "[n/a]", "not supported", "unknown")
_COMPLETED = "completed"
#: Fields of the fabric's health, with their values that reduce the bandwidth or interrupt communication.
_FABRIC_FAULTS = {
    "summary": ("unhealthy", "limited capacity"),
    "bandwidth": ("degraded",),
    "route unhealthy": ("true",),
}


def parse_fabric(query_output: str) -> Dict[str, Dict[str, str]]:
    """The fields of each GPU's connection to NVSwitches in lower case, by PCI address, from DETAILS_COMMAND's output.

    GPUs without such a connection are left out.
    """
    fabric_by_gpu = {
        address: {path[-1]: value.lower() for path, value in details if _FABRIC_SECTION in path[:-1]}
        for address, details in gpu_details.parse_details(query_output).items()
    }
    return {
        address: fields for address, fields in fabric_by_gpu.items() if fields.get("state", "") not in _NO_FABRIC_VALUES
    }


def _describe_fabric_fault(fields: Dict[str, str], is_connected: bool) -> Optional[str]:
    """What is wrong with a GPU's connection. ``is_connected``: there are NVSwitches to which it has to register."""
    state, status = fields["state"], fields.get("status", "")
    if state == "not started" and not is_connected:
        return None
    if state != _COMPLETED:
        return f"its state is {state}"
    if status not in ("success", *_NO_FABRIC_VALUES):
        return f"its registration ended with {status}"
    faults = [f"{name}: {fields[name]}" for name, values in _FABRIC_FAULTS.items() if fields.get(name) in values]
    return ", ".join(faults) or None


def judge_fabric(query_output: str, has_switch: bool) -> Optional[Judgement]:
    """Judge whether each GPU has registered with the NVSwitches; None if there is none, or the driver does not say so.

    Without that, CUDA cannot start (error 802), or NCCL uses PCIe. NVLink 5 has no device files of NVSwitches, so that
    only this state shows that there are some.
    """
    fabric_by_gpu = parse_fabric(query_output)
    is_connected = has_switch or any(fields["state"] != "not started" for fields in fabric_by_gpu.values())
    if not fabric_by_gpu or not is_connected:
        return None
    faults = {address: _describe_fabric_fault(fields, is_connected) for address, fields in fabric_by_gpu.items()}
    fault_text = "; ".join(f"GPU {address}: {fault}" for address, fault in faults.items() if fault)
    if not fault_text:
        return passed(len(faults), len(faults), "GPUs")
    return failed(
        sum(fault is None for fault in faults.values()),
        len(faults),
        f"Not all GPUs can use the NVLink fabric: {fault_text}.",
        "Restart nvidia-fabricmanager, in exactly the driver's version, and read its log (journalctl -u "
        "nvidia-fabricmanager). Reboot the node if the state persists. In a virtual machine, ask its provider.",
        "GPUs",
        devices=tuple(kernel_faults.name_device("GPU", address) for address, fault in faults.items() if fault),
    )


def _iterate_results(json_node: Any, node_path: Sequence[str] = ()) -> Iterator[Dict[str, Any]]:
    """Every ``{status: …}`` in a DCGM document, with its path, since the nesting differs between versions."""
    if isinstance(json_node, dict):
        name = json_node.get("name") or json_node.get("category")
        inner_path = [*node_path, str(name)] if name else list(node_path)
        if isinstance(json_node.get("status"), str):
            yield {**json_node, "path": inner_path}
        for inner in json_node.values():
            yield from _iterate_results(inner, inner_path)
    elif isinstance(json_node, list):
        for inner in json_node:
            yield from _iterate_results(inner, node_path)


def judge_dcgm(dcgm_output: str) -> Judgement:
    """Judge ``dcgmi diag -j`` by every result in it, since some versions exit 0 with failed tests."""
    start = dcgm_output.find("{")
    try:
        document = parse_json(dcgm_output[start:]) if start >= 0 else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return unknown("dcgmi diag printed no JSON.", "Start nvidia-dcgm, and run dcgmi diag -r 1 -j manually.")
    results = list(_iterate_results(document))
    failed_tests = [
        test_result
        for test_result in results
        if test_result["status"].lower() not in ("pass", "skip", "skipped", "not run", "warn")
    ]
    completed_tests = [
        test_result for test_result in results if test_result["status"].lower() in ("pass", "warn")
    ] + failed_tests
    if not completed_tests:
        return unknown("dcgmi diag ran no test.", "Run dcgmi diag -r 1 -j manually to see why.")
    if not failed_tests:
        return passed(len(completed_tests), len(completed_tests), "tests")
    failure_text = "; ".join(
        f"{' / '.join(test_result['path']) or 'test'} {test_result['status']}{_read_warning(test_result)}"
        for test_result in failed_tests[:8]
    )
    return failed(
        len(completed_tests) - len(failed_tests), len(completed_tests), f"{failure_text}.", REBOOT_REMEDY, "tests"
    )


def _read_warning(result: Dict[str, Any]) -> str:
    """DCGM's warning about a failed test: a string, or a list of strings or mappings, depending on the version."""
    warning = result.get("warnings") or result.get("warning") or result.get("info")
    if isinstance(warning, list) and warning:
        warning = warning[0]
    if isinstance(warning, dict):
        warning = warning.get("warning") or warning.get("message")
    return f" ({warning.strip()})" if isinstance(warning, str) and warning.strip() else ""
