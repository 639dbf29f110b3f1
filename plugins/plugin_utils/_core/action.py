# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of this collection's action plugins: they decide on the controller, and run modules on the task's host.

Converts our errors for Ansible's actions, as module.py does for modules and filtering.py for filters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ansible import constants
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import record_digest
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import encode_content
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.time_limit import number_refusal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.valid_records import parse_once
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width, wrap_text
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.packages import (
    BEGIN_SCRIPT,
    COMPLETE_SCRIPT,
    END_SCRIPT,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import ProgramSources

_COLLECTION_PATH = Path(__file__).resolve().parents[3]
_ROLES_PATH = _COLLECTION_PATH / "roles"
#: Ansible takes these out of the result of any task: facts become variables of the host, which precede those of the
#: inventory, and statistics become artifacts, which are extra variables of the next job in a workflow of AWX.
_FACTS_KEY, _STATISTICS_KEY = "ansible_facts", "ansible_stats"
#: What apt says with lists that are empty, or older than the archive.
_OUTDATED_LISTS = re.compile(
    r"No package matching|Unable to locate package|Unable to fetch|Failed to fetch|404 +Not Found"
)
#: The path of Python on the host. A result keeps only this fact, since Ansible would search for it again in each task.
_INTERPRETER_FACT = "discovered_interpreter_python"
_INTERPRETER_PATH = re.compile(r"/[\w./+-]+")
#: Variables that are no options of a role, but are read, set by the inventory plugin `clusters`, or created by AWX from
#: the artifacts of `discover`.
_OTHER_VARIABLES = (
    "cluster_address",
    "cluster_generation",
    "cluster_gpus",
    "cluster_hosts",
    "cluster_interface",
    "cluster_is_manager",
    "cluster_rank",
    "cluster_without",
    "clusters",
    "daemon_supervisor_config",
    "daemon_supervisor_programs",
    "discover_silent_hosts",
    "discover_subnets",
)
#: The variables with the paths of supervisord, by the option of the modules.
_SUPERVISOR_VARIABLES = {
    "supervisor_config": "daemon_supervisor_config",
    "supervisor_programs": "daemon_supervisor_programs",
}
#: The types of options for which an empty text, such as that of an unanswered question, can only mean that none is set.
_TYPES_WITHOUT_EMPTY_TEXT = ("bool", "dict", "float", "int")
#: A marker for a variable that does not exist.
_UNSET = object()
#: Callbacks whose output is read by programs: with these, text appears only in the task's result.
_MACHINE_READABLE_CALLBACKS = ("json", "jsonl", "ansible.posix.json", "ansible.posix.jsonl")
#: Options that the actions of all layers share.
RECORD_OPTION = {"type": "raw", "required": True}
STATE_OPTION = {"type": "str", "choices": ["present", "absent"], "default": "present"}


#: The modules that apply a layer, which compare the generation of the record on the host with that of the caller.
RECORD_MODULES = frozenset(
    f"gpumesh.cluster.{name}"
    for name in (
        "firewall",
        "firewall_host",
        "job_environment",
        "mesh_preload",
        "munge",
        "names",
        "session",
        "slurm",
        "ssh_trust",
        "storage",
        "tailscale",
        "tracking",
        "train",
        "wireguard",
        "wireguard_preshared",
        "wireguard_rotation",
    )
)


class RecordArguments(NamedTuple):
    """The arguments of a module that can derive most of them from the host's copy of the record.

    ``independent``: those that do not follow from the record. ``derive``: returns the others, for a host with another copy.
    So what is sent does not grow with the members.
    """

    independent: Mapping[str, Any]
    derive: Callable[[], Mapping[str, Any]]


class ModuleFailedError(GpumeshError):
    """A module has failed on the host; its result is that of the task."""

    def __init__(self, module_result: Mapping[str, Any]) -> None:
        super().__init__(str(module_result.get("msg", "")))
        self.result = dict(module_result)


class PackageError(ModuleFailedError):
    """The package manager of the host has failed."""


@cache
def role_names() -> tuple[str, ...]:
    """The names of the roles of this collection."""
    return tuple(
        sorted(
            specification_path.parent.parent.name
            for specification_path in _ROLES_PATH.glob("*/meta/argument_specs.yml")
        )
    )


@cache
def entry_points(role_name: str) -> Mapping[str, Mapping[str, Any]]:
    """The options of a role by entry point. Raises InputError."""
    if role_name not in role_names():
        raise InputError(f"There is no role gpumesh.cluster.{role_name}.", "Use names of roles in this collection.")
    specifications = yaml_load((_ROLES_PATH / role_name / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    return {
        entry_name: entry_point.get("options") or {}
        for entry_name, entry_point in specifications["argument_specs"].items()
    }


@cache
def role_options(role_name: str, entry_point: str = "main") -> Mapping[str, Any]:
    """The options of a role's entry point, without those that the preceding play sets. Raises InputError."""
    return {name: option for name, option in entry_points(role_name)[entry_point].items() if name != "cluster_record"}


@cache
def option_spec(option_name: str) -> Mapping[str, Any]:
    """Return the specification of a role's option, as an action can use it: without a default that is a template.

    Raises InputError.
    """
    for role_name in role_names():
        for options in entry_points(role_name).values() if option_name.startswith(f"{role_name}_") else ():
            if option_name in options:
                specification = {key: value for key, value in options[option_name].items() if key != "required"}
                if "{{" in str(specification.get("default")):
                    del specification["default"]
                return specification
    raise InputError(f"There is no option {option_name}.", "Use names of options of the roles in this collection.")


@cache
def option_names() -> frozenset[str]:
    """Return the names of all options of this collection's roles, and of the other variables that it reads."""
    return frozenset(_OTHER_VARIABLES).union(
        *(options for role in role_names() for options in entry_points(role).values())
    )


def split_facts(module_result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a host's answer into the part that sets no variables, and the facts in it.

    The Python of a host writes the answer, and so whoever is root there.
    """
    host_facts = dict(module_result.get(_FACTS_KEY) or {}) if isinstance(module_result.get(_FACTS_KEY), Mapping) else {}
    remaining_result = {key: value for key, value in module_result.items() if key not in (_FACTS_KEY, _STATISTICS_KEY)}
    interpreter_path = host_facts.pop(_INTERPRETER_FACT, None)
    if isinstance(interpreter_path, str) and _INTERPRETER_PATH.fullmatch(interpreter_path):
        remaining_result[_FACTS_KEY] = {_INTERPRETER_FACT: interpreter_path}
    return remaining_result, host_facts


def conversion_refusal(option_name: str, option_spec: Mapping[str, Any], option_text: Any) -> InputError | None:
    """Return the error for a text option whose value YAML has converted; None if the value can be used."""
    is_text = option_name.endswith("_time") or (option_spec.get("type") == "str" and "choices" not in option_spec)
    if not is_text or not isinstance(option_text, (bool, int, float)):
        return None
    if option_name.endswith("_time"):
        return number_refusal(option_name, option_text)
    type_name = "boolean" if isinstance(option_text, bool) else "number"
    return InputError(
        f"{option_name} is the {type_name} {option_text}: YAML takes 010 without quotes for the number 8, and no for a boolean.",
        "Write it in quotes. In a survey of AWX, which has none, write something else.",
    )


def build_stats(artifacts: Mapping[str, Any]) -> dict[str, Any]:
    """The result that passes values to the next job of a workflow, as ``ansible.builtin.set_stats`` does."""
    return {"ansible_stats": {"data": dict(artifacts), "per_host": False, "aggregate": True}}


class HostAction(ActionBase):
    """An action that derives the desired state of a host on the controller, and applies it with modules."""

    TRANSFERS_FILES = False
    #: The record that was passed to the task; empty until it is read.
    _given_record: Mapping[str, Any] = {}
    #: Its digest; empty until it is needed.
    _given_digest = ""
    #: Whether it is in a variable of the play, and so the one that all hosts have, and not a change of it.
    _is_held_record = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ansible's entry point. Returns the result of ``work``, or its failure."""
        task_result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        try:
            self._refuse_options_in_facts()
            return {**task_result, **self.work()}
        except ModuleFailedError as failure:
            return {**task_result, **failure.result}
        except GpumeshError as error:
            error_message = printable(str(error))
            return {**task_result, "failed": True, "msg": error_message, "error": all_printable(error.to_result())}

    def work(self) -> dict[str, Any]:
        """Perform the task. Returns its result."""
        raise NotImplementedError

    def _refuse_options_in_facts(self) -> None:
        """Refuse a host whose facts have the names of options: they would precede the inventory's. Raises InputError.

        Tasks of this collection gather no such facts. Others may, and the host decides what they contain.
        """
        conflicting_names = sorted(option_names().intersection(self.variables.get(_FACTS_KEY) or ()))
        if conflicting_names:
            raise InputError(
                f"The facts of {self.machine} contain {', '.join(conflicting_names)}, which a host must not decide.",
                "Find out who has changed its Python or its facts (/etc/ansible/facts.d). Options belong in the "
                "inventory; after set_fact with cacheable, clear the cache of facts.",
            )

    def arguments(self, **options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the task, which must be among these options, as in a module's ``argument_spec``."""
        return dict(self.validate_argument_spec(options)[1])

    def record(self) -> model.Record:
        """The cluster record that was passed to the task. Raises RecordError or InputError."""
        record, self._given_digest = parse_once(self.resolve_record(self._task.args.get("record")))
        return record

    def resolve_record(self, record_reference: Any) -> Any:
        """Return a cluster record that was passed as a value, or by the name of a variable.

        If passed by name, it is not templated: searching a record of 1,000 members for templates takes 0.06 s per task
        and host. Raises InputError.
        """
        resolved_record = (
            self.variables.get(record_reference) if isinstance(record_reference, str) else record_reference
        )
        if resolved_record is None and isinstance(record_reference, str):
            raise InputError(
                f"record: there is no variable {record_reference}.", "Run the role gpumesh.cluster.cluster first."
            )
        if isinstance(resolved_record, str):
            resolved_record = self._templar.template(resolved_record)
        self._given_record = resolved_record if isinstance(resolved_record, Mapping) else {}
        self._given_digest = ""
        self._is_held_record = isinstance(record_reference, str)
        return resolved_record

    def older_version(self) -> dict[str, bool]:
        """The option of modules that change a record, if the user allows this version to follow a newer one."""
        return {"older_version": True} if self.options("cluster_older_version")["cluster_older_version"] else {}

    @property
    def machine(self) -> str:
        """The name of the task's host in the inventory, and in the record."""
        return str(self.variables["inventory_hostname"])

    def split_own_options(self, own_specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Validate the action's own options of the task. Returns them, and all others, which are for a module.

        A cluster record should be among the others, since validation copies its values. Raises InputError.
        """
        own_arguments = {name: value for name, value in self._task.args.items() if name in own_specification}
        validation_result = ArgumentSpecValidator(own_specification).validate(own_arguments)
        if validation_result.error_messages:
            raise InputError(f"Invalid options: {' '.join(validation_result.error_messages)}")
        module_arguments = {name: value for name, value in self._task.args.items() if name not in own_specification}
        return dict(validation_result.validated_parameters), module_arguments

    @property
    def active_hosts(self) -> list[str]:
        """The hosts of the play that have neither failed nor become unreachable."""
        return list(self.variables["ansible_play_batch"])

    @property
    def check_mode(self) -> bool:
        """Whether nothing may change."""
        return bool(self._task.check_mode)

    def resolve_variable(self, variable_name: str, default: Any = None, empty_answers: Sequence[Any] = ("",)) -> Any:
        """Return a variable of the host, with its templates resolved.

        An extra variable with a value in ``empty_answers`` is an unanswered question of a survey: the inventory's value
        is used.
        """
        is_unanswered = variable_name in self._extra_vars and self._extra_vars[variable_name] in empty_answers
        variables = self._inventory_variables(self.machine) if is_unanswered else self.variables
        return self._templar.template(variables[variable_name]) if variable_name in variables else default

    def resolve_inventory_variable(self, variable_name: str, default: Any = None) -> Any:
        """Return a variable of the inventory, even if an extra variable has the same name.

        Extra variables are set by whoever starts the job.
        """
        variables = self._inventory_variables(self.machine)
        return self._templar.template(variables[variable_name]) if variable_name in variables else default

    def read_option(self, option_name: str, machine: str = "") -> Any:
        """Return the value of a role's option as it was given, on this host or another one; None if it is not set.

        An empty answer in a survey that is not among ``choices`` counts as not set; an empty list only where the default
        is another one, since it may be chosen where it is the default.
        """
        specification = option_spec(option_name)
        has_choices = "choices" in specification and bool(specification.get("default"))
        empty_answers: tuple[Any, ...] = ("", []) if has_choices else ("",)
        if not machine or machine == self.machine:
            return self.resolve_variable(option_name, empty_answers=empty_answers)
        if self._extra_vars.get(option_name, _UNSET) in empty_answers:
            return self._templar.template(self._inventory_variables(machine).get(option_name))
        return self.variables_of(machine).get(option_name)

    def options(self, *option_names: str, machine: str = "") -> dict[str, Any]:
        """Return options of our roles by their names, with their values on this host or another one.

        This is the only way in which an action gets an option: a task passes options only to modules that people use
        in playbooks of their own. An option that is not set has the default of its role, None without one. A default
        that is a template applies only to tasks of its role. Raises InputError for invalid values.
        """
        option_specs = {name: option_spec(name) for name in option_names}
        given_options = {name: self.read_option(name, machine) for name in option_names}
        set_options = {
            name: value
            for name, value in given_options.items()
            if value is not None and not (value == "" and option_specs[name]["type"] in _TYPES_WITHOUT_EMPTY_TEXT)
        }
        validation_result = ArgumentSpecValidator(option_specs).validate(set_options, validate_role_argument_spec=True)
        if validation_result.error_messages:
            raise InputError(f"{machine or self.machine}: {' '.join(validation_result.error_messages)}")
        return dict(validation_result.validated_parameters)

    def options_by_host(self, *option_names: str) -> dict[str, dict[str, Any]]:
        """Return options on each host of the play, including failed ones. Raises InputError for invalid values."""
        return {
            machine: self.options(*option_names, machine=machine)
            for machine in self.variables["ansible_play_hosts_all"]
        }

    def refuse_converted_options(self, role_name: str, entry_point: str = "main") -> None:
        """Refuse a text option that YAML, or AWX on its way to Ansible, has converted to a number or boolean.

        ansible-core reads the answers of AWX's surveys as YAML since 2.19. Raises InputError.
        """
        for option_name, specification in role_options(role_name, entry_point).items():
            refusal = conversion_refusal(option_name, specification, self.read_option(option_name))
            if refusal:
                raise refusal

    @cached_property
    def _extra_vars(self) -> dict[str, Any]:
        """Ansible's own extra variables, including those whose removal is no longer visible."""
        return getattr(self._variable_manager, "extra_vars", {})

    @property
    def _variable_manager(self) -> Any:
        """Return Ansible's variable manager, or None in a test without one.

        It is reachable only through the variables of all hosts.
        """
        return getattr(self.variables.get("hostvars"), "_variable_manager", None)

    def _inventory_variables(self, machine: str) -> Mapping[str, Any]:
        """The variables of a host in the inventory. This is the only way to exclude extra variables."""
        saved_variables = dict(self._extra_vars)
        self._extra_vars.clear()
        try:
            return dict(self.variables["hostvars"].raw_get(machine))
        finally:
            self._extra_vars.update(saved_variables)

    def defined_variable_names(self, machine: str) -> set[str]:
        """Return the names of a host's variables in the inventory and on the command line.

        Facts and results of tasks are excluded.
        """
        if not self._variable_manager:
            return set()
        temporary_variables = getattr(self._variable_manager, "_nonpersistent_fact_cache", {})
        return set(self.variables["hostvars"].raw_get(machine)) - set(temporary_variables.get(machine, ()))

    def variables_by_host(self, *variable_names: str) -> dict[str, dict[str, Any]]:
        """Return these variables of each host of the play, including failed ones; None for one that is not set."""
        return {
            machine: {name: self.variables_of(machine).get(name) for name in variable_names}
            for machine in self.variables["ansible_play_hosts_all"]
        }

    def variables_of(self, machine: str) -> Mapping[str, Any]:
        """Return the variables of a host of the inventory. Ansible collects them anew whenever it is asked."""
        if machine not in self._collected_variables:
            self._collected_variables[machine] = self.variables["hostvars"][machine]
        return self._collected_variables[machine]

    @cached_property
    def _collected_variables(self) -> dict[str, Mapping[str, Any]]:
        return {}

    def registered_results(self, register_name: str, machines: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The results that a task registered under this name on the hosts of the play; empty for hosts without one."""
        all_variables = self.variables["hostvars"]
        return {machine: all_variables[machine].get(register_name) or {} for machine in machines}

    def warn(self, message: str) -> None:
        """Show a warning, as modules do."""
        self._display.warning(message)

    def print_text(self, text: str) -> None:
        """Print text, which must be printable, through Ansible's own display, as every callback does."""
        if constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK") not in _MACHINE_READABLE_CALLBACKS:
            self._display.display(text)

    def print_message(self, message: str) -> None:
        """Print a message as ``print_text`` does, wrapped to the width of the terminal."""
        self.print_text("\n".join(wrap_text(message, available_width())))

    def controller_path(self, given_path: str) -> str:
        """Return the absolute path of a file on the controller.

        Relative paths start at the directory of the playbook, as in Ansible. For a playbook of this collection, whose
        directory does not belong to the user, they start at the directory in which Ansible was started.
        """
        playbook_directory = Path(self._loader.get_basedir()).absolute()
        return str(
            Path(
                Path.cwd() if playbook_directory.resolve().is_relative_to(_COLLECTION_PATH) else playbook_directory,
                Path(given_path).expanduser(),
            )
        )

    @property
    def is_delegated(self) -> bool:
        """Whether the modules run on another host than the task's."""
        return self._task.delegate_to not in (None, self.variables.get("inventory_hostname"))

    def supervisor_options(self) -> dict[str, Any]:
        """The paths of supervisord on the host: options that are the same for all daemons."""
        host_variables = self.variables["hostvars"][self._task.delegate_to] if self.is_delegated else self.variables
        return {
            option_name: self._templar.template(host_variables[variable_name])
            for option_name, variable_name in _SUPERVISOR_VARIABLES.items()
            if host_variables.get(variable_name)
        }

    def run_module(self, module_name: str, arguments: Mapping[str, Any] | RecordArguments) -> dict[str, Any]:
        """Run a module on the host. Raises ModuleFailedError."""
        if isinstance(arguments, RecordArguments):
            copy_reference = self._copy_reference()
            if copy_reference:
                result = self.run_module(module_name, {**arguments.independent, **copy_reference})
                if not result.get("copy_differs"):
                    return result
            arguments = {**arguments.independent, **arguments.derive()}
        return self._run_module_with_facts(module_name, arguments)[0]

    def _copy_reference(self) -> dict[str, Any]:
        """Return the option that names the host's copy of the record.

        Empty if the host cannot have it: for a change that has not been distributed, or if the task runs elsewhere.
        """
        if self.is_delegated or not self._is_held_record:
            return {}
        digest = self._given_digest or record_digest(self._given_record)
        return {"record_copy": {"cluster": self._given_record["name"], "digest": digest}}

    def _run_module_with_facts(
        self, module_name: str, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The result of a module, and its facts. Raises ModuleFailedError."""
        module_arguments = {**arguments, **self._record_origin(module_name, arguments)}
        raw_result = self._execute_module(
            module_name=module_name, module_args=module_arguments, task_vars=self.variables
        )
        result, facts = split_facts(raw_result)
        if result.get("failed") or result.get("unreachable"):
            raise ModuleFailedError(result)
        return result, facts

    def _record_origin(self, module_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record that this task has read, as an option of the module of a layer.

        Empty for other modules, and if the layer is removed.
        """
        given_record = self._given_record
        if (
            module_name not in RECORD_MODULES
            or arguments.get("state") == "absent"
            or not {"name", "generation"} <= given_record.keys()
        ):
            return {}
        machine = str(self._task.delegate_to or self.machine)
        return {
            "derived_from": {
                "cluster": given_record["name"],
                "generation": given_record["generation"],
                "machine": machine,
            }
        }

    def follow_progress(
        self,
        result: dict[str, Any],
        is_running: Callable[[Mapping[str, Any]], bool],
        query_progress: Callable[[], dict[str, Any]],
        poll_interval: float,
    ) -> dict[str, Any]:
        """Print the ``summary`` of a result and of the following ones while the operation runs. Returns the last one.

        ``poll_interval``: the seconds between two queries. No connection is held in between.
        """
        printed_summary = ""
        while is_running(result):
            if result["summary"] != printed_summary:
                printed_summary = result["summary"]
                self.print_message(printed_summary)
            time.sleep(poll_interval)
            result = query_progress()
        return result

    @property
    def userspace_only(self) -> list[str]:
        """The members that cannot connect to the others, as the role cluster has listed them."""
        return list(self.variables.get("cluster_userspace_only", []))

    def stop_daemon(self, daemon_name: str) -> bool:
        """Stop a daemon now and at boot. Returns whether anything changed. Raises ModuleFailedError."""
        module_result = self.run_module(
            "gpumesh.cluster.daemon", {"name": daemon_name, "state": "absent", **self.supervisor_options()}
        )
        return bool(module_result["changed"])

    def path_exists(self, path: str) -> bool:
        """Whether a file or directory exists on the host. Raises ModuleFailedError."""
        stat_options = {"path": path, "get_checksum": False, "get_mime": False, "get_attributes": False}
        return bool(self.run_module("ansible.builtin.stat", stat_options)["stat"]["exists"])

    def ensure_packages(
        self,
        module_name: str,
        arguments: Mapping[str, Any] | RecordArguments,
        find_missing_packages: Callable[[Mapping[str, Any]], Sequence[str]],
    ) -> dict[str, Any]:
        """Run a module, and run it again after installing packages that turn out to be missing.

        What else is missing may only be known when the first ones and the lists of packages are there.

        ``find_missing_packages`` returns their names from the module's result. In check mode, nothing is installed.
        Raises ModuleFailedError.
        """
        result = self.run_module(module_name, arguments)
        installed_packages: set[str] = set()
        while not self.check_mode and (missing_packages := set(find_missing_packages(result)) - installed_packages):
            self.install_packages([name for name in find_missing_packages(result) if name in missing_packages])
            installed_packages |= missing_packages
            result = {**self.run_module(module_name, arguments), "changed": True}
        return result

    def push_sources(
        self,
        module_name: str,
        arguments: Mapping[str, Any] | RecordArguments,
        first_result: dict[str, Any],
        load_sources: Callable[[], ProgramSources],
    ) -> dict[str, Any]:
        """Return the result of a module that installs programs, which runs again if some of them are outdated.

        ``first_result``: that of the first run. ``load_sources``: returns the sources for which the module may ask. In
        check mode, nothing is sent. Raises ModuleFailedError.
        """
        if self.check_mode or not first_result["outdated"]:
            return first_result
        sources_by_name = load_sources()
        encoded_sources = {
            source_name: encode_content(sources_by_name[source_name]) for source_name in first_result["outdated"]
        }
        contents = {"contents": encoded_sources}
        if isinstance(arguments, RecordArguments):
            return self.run_module(module_name, arguments._replace(independent={**arguments.independent, **contents}))
        return self.run_module(module_name, {**arguments, **contents})

    def refuse_missing_programs(self, missing_programs: Sequence[str]) -> None:
        """Raise HostStateError for anything that is still missing after the packages were installed."""
        if missing_programs and not self.check_mode:
            raise HostStateError(
                f"The packages are installed, but {', '.join(missing_programs)} cannot be found.",
                "Check whether the installed packages contain these programs, and install those that do.",
            )

    @cached_property
    def package_manager(self) -> str:
        """The module that installs packages on the host, such as apt."""
        host_facts = {} if self.is_delegated else self.variables.get("ansible_facts", {})
        if "pkg_mgr" not in host_facts:
            _result, host_facts = self._run_module_with_facts(
                "ansible.builtin.setup", {"gather_subset": ["!all", "!min", "pkg_mgr"]}
            )
        return str(host_facts.get("pkg_mgr", host_facts.get("ansible_pkg_mgr")))

    def install_packages(self, package_names: Sequence[str], refresh_lists: bool = False) -> bool:
        """Install packages with the host's package manager. Returns whether anything changed.

        ``refresh_lists``: fetch the lists of packages even if they are new. With apt, an interrupted installation is
        completed first, even if there are no packages to install. Raises ModuleFailedError or HostStateError.
        """
        module_arguments: dict[str, Any] = {"name": list(package_names), "state": "present"}
        if self.package_manager != "apt":
            return bool(package_names) and self._run_package_manager(module_arguments)
        module_arguments.update(
            install_recommends=False, update_cache=True, cache_valid_time=0 if refresh_lists else 3600, lock_timeout=300
        )
        self._run_script(BEGIN_SCRIPT)
        try:
            was_completed = self._run_script(COMPLETE_SCRIPT)
            return (bool(package_names) and self._install_with_apt(module_arguments)) or was_completed
        finally:
            self._run_script(END_SCRIPT)

    def _install_with_apt(self, arguments: Mapping[str, Any]) -> bool:
        """Install packages, with new lists if they are not in those that the host has, or no longer in the archive."""
        try:
            return self._run_package_manager(arguments)
        except ModuleFailedError as failure:
            # Images come without lists, and apt takes the time of the empty directory for that of the last update.
            if not arguments["cache_valid_time"] or not _OUTDATED_LISTS.search(failure.message):
                raise
        return self._run_package_manager({**arguments, "cache_valid_time": 0})

    def _run_package_manager(self, arguments: Mapping[str, Any]) -> bool:
        try:
            return bool(self.run_module(f"ansible.builtin.{self.package_manager}", arguments).get("changed"))
        except ModuleFailedError as failure:
            raise PackageError(failure.result) from failure

    def _run_script(self, script_text: str) -> bool:
        """Run a script on the host. Returns whether it printed anything. Raises HostStateError."""
        command_result = self._low_level_execute_command(script_text)
        if command_result["rc"] != 0:
            # The last words of ssh are on stderr, and with a terminal all others are on stdout.
            command_output = " ".join(printable(f"{command_result['stdout']} {command_result['stderr']}").split())[
                -600:
            ]
            raise HostStateError(
                f"An installation of packages that was cut off cannot be completed: {command_output}",
                "Complete it there: dpkg --configure -a; apt-get --fix-broken install.",
            )
        return bool(command_result["stdout"].strip())


class ControllerAction(HostAction):
    """An action that runs only on the controller."""

    _requires_connection = False
