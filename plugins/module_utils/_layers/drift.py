# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the layers of a cluster on this host with what the record requires. Read-only."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import (
    BOOT_UNIT_STATES,
    find_unread_files,
    parse_unit_properties,
    process_start_time,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import run_with_deadline
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel_log import can_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import host_names, munge_apply, names, names_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import apply as firewall_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import desired as firewall_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import host_apply as firewall_host_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import apply as job_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import desired as job_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import files as job_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import apply as mesh_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import desired as mesh_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import apply as slurm_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import apply as ssh_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import desired as ssh_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import files as ssh_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import apply as storage_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import mounts
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import server
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import apply as session_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import desired as session_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import install as session
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import node as session_node
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import apply as train_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import install

NOT_SET_UP = "not set up"
#: The parameter that says why the others of a module could not be derived.
_REFUSAL = "refusal"
#: What precedes a path in the states of a change.
_HEADING = "## "
_RUNNING_STATES = ("active", "activating", "reloading")


class Comparison(NamedTuple):
    """How a host differs, by layer.

    ``pending``: what a layer has to do that is no drift. ``ssh_keys``: its public SSH keys, which the record has as
    well. ``slurm_version``: that of its slurmd, or None. ``warnings``: those of the modules.
    """

    drift: Dict[str, str]
    pending: Dict[str, str]
    ssh_keys: Dict[str, Any]
    slurm_version: Optional[str]
    warnings: List[str]


def _find_nothing(_params: Mapping[str, Any], _values: Mapping[str, Any]) -> str:
    return ""


def _describe_nothing(_params: Mapping[str, Any], _values: Mapping[str, Any]) -> managed_files.LayerDifferences:
    return managed_files.LayerDifferences([], False)


def _find_session_leftovers(params: Mapping[str, Any], _values: Mapping[str, Any]) -> str:
    runs_sessions = params["state"] == "present"
    return "a session is, or was, here" if runs_sessions and session_node.has_leftovers() else ""


class LayerModule(NamedTuple):
    """What the module of a layer does on a host, for its comparison in check mode.

    ``options``: its argument_spec. ``find_pending``: from its parameters and return values to what a run has to do
    besides. ``describe``: from the same to how the host differs.
    """

    layer: str
    options: Mapping[str, Any]
    work: Callable[[Mapping[str, Any], bool], ModuleResult]
    find_pending: Callable[[Mapping[str, Any], Mapping[str, Any]], str] = _find_nothing
    describe: Callable[[Mapping[str, Any], Mapping[str, Any]], managed_files.LayerDifferences] = _describe_nothing


#: The module slurm with its state for a node, which includes the files of the controller, and with the states in which
#: the manager runs its services.
_SLURM = LayerModule("slurm", slurm_apply.OPTIONS, slurm_apply.work, slurm_apply.find_pending)

#: The modules whose check mode tells whether a layer has anything to do, by their names. A module with several states
#: has them all, by names of their own.
MODULES: Mapping[str, LayerModule] = {
    "wireguard": LayerModule("mesh", mesh_apply.OPTIONS, mesh_apply.work, describe=mesh_apply.describe_differences),
    "names": LayerModule("names", names_apply.OPTIONS, names_apply.work),
    "firewall": LayerModule("firewall", firewall_apply.OPTIONS, firewall_apply.work),
    "firewall_host": LayerModule("firewall", firewall_host_apply.OPTIONS, firewall_host_apply.work),
    "storage": LayerModule("storage", storage_apply.OPTIONS, storage_apply.work),
    "ssh_trust": LayerModule("ssh_trust", ssh_apply.OPTIONS, ssh_apply.work),
    "munge": LayerModule("munge", munge_apply.OPTIONS, munge_apply.work),
    "job_environment": LayerModule("job_environment", job_apply.OPTIONS, job_apply.work),
    "session": LayerModule("session", session_apply.OPTIONS, session_apply.work, _find_session_leftovers),
    "slurm": _SLURM,
    "slurm_stored": _SLURM,
    "slurm_served": _SLURM,
    "slurm_accounts": LayerModule("slurm", accounts.OPTIONS, accounts.work),
    "train": LayerModule("train", train_apply.OPTIONS, train_apply.work),
}

#: What describes how the host differs from the parameters of a module, by its name.
READERS: Mapping[str, Callable[[Runner, Mapping[str, Any]], managed_files.LayerDifferences]] = {
    "names": names.differences,
    "ssh_trust": ssh_files.find_differences,
    "job_environment": job_files.find_differences,
    "storage": mounts.find_differences,
    "train": install.find_differences,
    "session": session.differences,
    "tracking": server.differences,
}

#: What derives the parameters of a layer's module from the record and those that do not follow from it, by module.
DERIVERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]] = {
    "wireguard": mesh_desired.derive_parameters,
    "names": host_names.derive_parameters,
    "firewall": firewall_desired.derive_parameters,
    "ssh_trust": ssh_desired.derive_parameters,
    "job_environment": job_desired.derive_parameters,
    "session": session_desired.derive_parameters,
}


def describe_file_difference(expected_file: Mapping[str, Any], current_text: Optional[str]) -> str:
    """Describe how a file differs; empty if it does not. ``current_text`` is None if the file does not exist."""
    path = expected_file["path"]
    if expected_file.get("state") == "absent":
        return "" if current_text is None else f"{path} is still there"
    missing_message = f"{path} is missing"
    if current_text is None:
        return missing_message
    return "" if not expected_file.get("contains") or expected_file["contains"] in current_text else f"{path} differs"


def parse_units(systemctl_output: str) -> Dict[str, Dict[str, str]]:
    """Parse the properties of each unit, from `systemctl show --property=Id,…` with several units."""
    properties_by_unit = {}
    for paragraph in systemctl_output.strip().split("\n\n"):
        properties = parse_unit_properties(paragraph)
        if "Id" in properties:
            properties_by_unit[properties["Id"]] = properties
    return properties_by_unit


def describe_service_problems(
    unit_name: str, properties: Mapping[str, str], settings_files: Sequence[str] = ()
) -> List[str]:
    """Describe the problems of one unit. ``settings_files``: files that the unit reads at its start."""
    if properties.get("LoadState") != "loaded":
        return [f"{unit_name} is missing"]
    problems = []
    if properties.get("ActiveState") not in _RUNNING_STATES:
        problems.append(f"{unit_name} is not running")
    if properties.get("UnitFileState") not in BOOT_UNIT_STATES:
        problems.append(f"{unit_name} does not start at boot")
    unread_files = find_unread_files(
        process_start_time(parse_whole_number(properties.get("MainPID")) or 0), settings_files
    )
    if unread_files:
        problems.append(f"{unit_name} has not read {', '.join(unread_files)} yet")
    return problems


def read_file(path: str) -> Optional[str]:
    """Return the text of a file, or None if it does not exist. Raises HostStateError if it is not a file."""
    current_file = managed_files.read_current(path)
    return None if current_file.kind == managed_files.ABSENT else current_file.text


def compare_layers(
    run: Runner, expected_files: Sequence[Mapping[str, Any]], expected_services: Sequence[Mapping[str, Any]]
) -> Dict[str, str]:
    """Return a message for each layer that differs. A layer of which nothing exists is not set up.

    Services are compared if systemd runs them, and those that watch a log of the kernel if it can be read.
    """
    problems_by_layer: Dict[str, List[str]] = {}
    expected_counts: Dict[str, int] = {}
    for expected_file in expected_files:
        # What must not be there does not show that a layer is set up.
        file_count = 0 if expected_file.get("state") == "absent" else 1
        expected_counts[expected_file["layer"]] = expected_counts.get(expected_file["layer"], 0) + file_count
        try:
            problem = describe_file_difference(expected_file, read_file(expected_file["path"]))
        except HostStateError as failure:
            problem = failure.message.rstrip(".")
        problems_by_layer.setdefault(expected_file["layer"], []).extend([problem] if problem else [])
    expected_services = [
        service for service in expected_services if not service.get("watches") or can_read(service["watches"])
    ]
    unit_names = [service["unit"] for service in expected_services]
    if unit_names and find_program("systemctl") is not None and runs_systemd():
        completed = run(
            ["systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState,MainPID", *unit_names], check=False
        )
        properties_by_unit = parse_units(completed.stdout)
        for service in expected_services:
            expected_counts[service["layer"]] = expected_counts.get(service["layer"], 0) + 1
            service_problems = describe_service_problems(
                service["unit"], properties_by_unit.get(service["unit"], {}), service.get("reads") or []
            )
            problems_by_layer.setdefault(service["layer"], []).extend(service_problems)
    return {
        layer: _join_problems(problem, expected_counts[layer])
        for layer, problem in problems_by_layer.items()
        if problem
    }


def derive_parameters(record: Mapping[str, Any], params: Mapping[str, Any]) -> Dict[str, Any]:
    """Complete the parameters of modules that are derived on the host. ``params``: those of the module layer_info.

    What does not follow from the record, since it or the parameters are refused, is a difference of the layer.
    """
    params_by_module = {}
    for name, module_params in params["modules"].items():
        params_by_module[name] = module_params
        if name in DERIVERS:
            try:
                derived_params = DERIVERS[name](record, module_params)
            except InputError as refusal:
                derived_params = {_REFUSAL: refusal.message.rstrip(".")}
            params_by_module[name] = {"state": "present", **module_params, **derived_params}
    return {"modules": params_by_module}


def compare_in_time(
    run: Runner, params_by_module: Mapping[str, Mapping[str, Any]], timeout_seconds: float
) -> Comparison:
    """Return the result of ``compare_modules``. After the time limit, no layer has been compared.

    A home directory or another directory of users may be on a volume whose server does not respond, perhaps because the
    mesh is down, which only a run can repair.
    """
    try:
        return Comparison(
            **run_with_deadline(lambda: compare_modules(run, params_by_module)._asdict(), timeout_seconds)
        )
    except HostStateError as failure:
        layers = map(_layer_of, params_by_module)
        return Comparison(dict.fromkeys(layers, f"could not be compared: {failure.message}"), {}, {}, None, [])


def compare_modules(run: Runner, params_by_module: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """Compare the host with the parameters of the modules of layers, by name."""
    drift_by_layer: Dict[str, str] = {}
    pending_by_layer: Dict[str, str] = {}
    ssh_keys: Dict[str, Any] = {}
    warnings: List[str] = []
    slurm_version = None
    for name, params in params_by_module.items():
        layer = _layer_of(name)
        differences = managed_files.LayerDifferences([], False)
        try:
            result = None
            if _REFUSAL in params:
                raise InputError(params[_REFUSAL])
            if name in MODULES:
                validated_params = _validate(name, params)
                result = MODULES[name].work(validated_params, True)
                pending = MODULES[name].find_pending(validated_params, result.return_values)
                pending_by_layer.update({layer: pending} if pending else {})
                warnings += result.warnings
                differences = MODULES[name].describe(validated_params, result.return_values)
            if name in READERS and (result is None or result.changed):
                differences = READERS[name](run, params)
            if result is not None and result.changed and not differences.messages:
                differences = managed_files.LayerDifferences([_describe_result(result)], False)
            if result is not None and name == "slurm":
                slurm_version = result.return_values.get("slurm_version")
            if result is not None and name == "ssh_trust":
                ssh_keys = {key: result.return_values.get(key) for key in ("host_keys", "signing_key")}
        except GpumeshError as failure:
            differences = managed_files.LayerDifferences([failure.message.rstrip(".")], False)
        if differences.messages and layer not in drift_by_layer:
            drift_by_layer[layer] = NOT_SET_UP if differences.nothing_exists else ", ".join(differences.messages)
    return Comparison(drift_by_layer, pending_by_layer, ssh_keys, slurm_version, warnings)


def _layer_of(name: str) -> str:
    """Return the layer of a module. One that is only read has the name of its layer."""
    return MODULES[name].layer if name in MODULES else name


def _validate(name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a module with its defaults. Raises InputError."""
    validation_result = ArgumentSpecValidator(MODULES[name].options).validate(params)
    if validation_result.error_messages:
        raise InputError(" ".join(validation_result.error_messages))
    return dict(validation_result.validated_parameters)


def _describe_result(result: ModuleResult) -> str:
    """Describe a change that no file shows by the first line in which the states before and after it differ.

    Below a heading, the lines are the content of a file, of which only the path is told.
    """
    before_lines, after_lines = result.before.splitlines(), result.after.splitlines()
    for lines, other_lines, verb in ((after_lines, before_lines, "lacks"), (before_lines, after_lines, "has")):
        heading = ""
        for line in lines:
            heading = line[len(_HEADING) :].strip() if line.startswith(_HEADING) else heading
            if line not in other_lines:
                return f"{heading} differs" if heading else f"{verb} '{line.strip()}'"
    return "is not as site would leave it"


def _join_problems(problems: Sequence[str], expected_count: int) -> str:
    absent_problems = [problem for problem in problems if problem.endswith((" is missing", " is not running"))]
    return NOT_SET_UP if len(absent_problems) == expected_count else ", ".join(problems)
