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
from typing import Any

from ansible import constants
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.time_limit import number_refusal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.packages import BEGIN, COMPLETE, END
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.programs import Contents, packed

_COLLECTION = Path(__file__).resolve().parents[2]
_ROLES = _COLLECTION / "roles"
#: Ansible takes these out of the result of any task: facts become variables of the host, which precede those of the
#: inventory, and statistics become artifacts, which are extra variables of the next job in a workflow of AWX.
_FACTS, _STATISTICS = "ansible_facts", "ansible_stats"
#: The only fact that a result keeps, since Ansible would search for Python again in each task: where that is on the host.
_INTERPRETER = "discovered_interpreter_python"
_INTERPRETER_PATH = re.compile(r"/[\w./+-]+")
#: Variables that are read without being an option of a role, that the inventory plugin `clusters` sets, or that AWX makes
#: of the artifacts of `discover`.
_OTHER_NAMES = (
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
#: Callbacks whose output is read by programs: with these, text appears only in the task's result.
_FOR_PROGRAMS = ("json", "jsonl", "ansible.posix.json", "ansible.posix.jsonl")
#: Options that the actions of all layers share.
RECORD = {"type": "raw", "required": True}
STATE = {"type": "str", "choices": ["present", "absent"], "default": "present"}


#: The modules that apply a layer, which compare the generation of the record on the host with that of the caller.
LAYER_MODULES = frozenset(
    f"gpumesh.cluster.{name}"
    for name in (
        "firewall",
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


class ModuleFailedError(GpumeshError):
    """A module has failed on the host; its result is that of the task."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(str(result.get("msg", "")))
        self.result = dict(result)


@cache
def role_names() -> tuple[str, ...]:
    """The names of the roles of this collection."""
    return tuple(sorted(path.parent.parent.name for path in _ROLES.glob("*/meta/argument_specs.yml")))


@cache
def entry_points(role: str) -> Mapping[str, Mapping[str, Any]]:
    """The options of a role by entry point. Raises InputError."""
    if role not in role_names():
        raise InputError(f"There is no role gpumesh.cluster.{role}.", "Use names of roles in this collection.")
    document = yaml_load((_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    return {name: entry.get("options") or {} for name, entry in document["argument_specs"].items()}


@cache
def specification(role: str, entry: str = "main") -> Mapping[str, Any]:
    """The options of a role's entry point, without those that the preceding play sets. Raises InputError."""
    return {name: option for name, option in entry_points(role)[entry].items() if name != "cluster_record"}


@cache
def option_names() -> frozenset[str]:
    """The names of all options of this collection's roles, whichever entry point has them, and of what else it reads."""
    return frozenset(_OTHER_NAMES).union(*(options for role in role_names() for options in entry_points(role).values()))


def split_facts(result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A host's answer without what Ansible would make variables of, and the facts in it.

    The Python of a host writes the answer, and so whoever is root there.
    """
    facts = dict(result.get(_FACTS) or {}) if isinstance(result.get(_FACTS), Mapping) else {}
    kept = {key: value for key, value in result.items() if key not in (_FACTS, _STATISTICS)}
    interpreter = facts.pop(_INTERPRETER, None)
    if isinstance(interpreter, str) and _INTERPRETER_PATH.fullmatch(interpreter):
        kept[_FACTS] = {_INTERPRETER: interpreter}
    return kept, facts


def conversion_refusal(name: str, option: Mapping[str, Any], value: Any) -> InputError | None:
    """Why the value of an option that is a text, but was not given as one, cannot be used; None if it can."""
    is_text = name.endswith("_time") or (option.get("type") == "str" and "choices" not in option)
    if not is_text or not isinstance(value, (bool, int, float)):
        return None
    if name.endswith("_time"):
        return number_refusal(name, value)
    kind = "boolean" if isinstance(value, bool) else "number"
    return InputError(
        f"{name} is the {kind} {value}: YAML takes 010 without quotes for the number 8, and no for a boolean.",
        "Write it in quotes. In a survey of AWX, which has none, write something else.",
    )


def stats(data: Mapping[str, Any]) -> dict[str, Any]:
    """The result that passes values to the next job of a workflow, as ``ansible.builtin.set_stats`` does."""
    return {"ansible_stats": {"data": dict(data), "per_host": False, "aggregate": True}}


class HostAction(ActionBase):
    """An action that derives the desired state of a host on the controller, and applies it with modules."""

    TRANSFERS_FILES = False
    #: The record that the task was given, as far as it has been read.
    _given_record: Mapping[str, Any] = {}

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ansible's entry point. Returns the result of ``work``, or its failure."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        try:
            self._refuse_options_in_facts()
            return {**result, **self.work()}
        except ModuleFailedError as failure:
            return {**result, **failure.result}
        except GpumeshError as error:
            message = printable(str(error))
            return {**result, "failed": True, "msg": message, "error": all_printable(error.as_result())}

    def work(self) -> dict[str, Any]:
        """Perform the task. Returns its result."""
        raise NotImplementedError

    def _refuse_options_in_facts(self) -> None:
        """Refuse a host whose facts have the names of options: they would precede the inventory's. Raises InputError.

        Tasks of this collection gather no such facts. Others may, and the host decides what they contain.
        """
        named = sorted(option_names().intersection(self.variables.get(_FACTS) or ()))
        if named:
            raise InputError(
                f"The facts of {self.machine} contain {', '.join(named)}, which a host must not decide.",
                "Find out who has changed its Python or its facts (/etc/ansible/facts.d). Options belong into the "
                "inventory; after set_fact with cacheable, clear the cache of facts.",
            )

    def arguments(self, **options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the task, which must be among these options, as in a module's ``argument_spec``."""
        return dict(self.validate_argument_spec(options)[1])

    def record(self) -> model.Record:
        """The cluster record that was passed to the task. Raises RecordError or InputError."""
        return model.parse(self.named(self._task.args.get("record")))

    def named(self, record: Any) -> Any:
        """A cluster record that was passed as a value, or by the name of a variable.

        If passed by name, it is not templated: searching a record of 1,000 members for templates takes 0.06 s per task
        and host. Raises InputError.
        """
        found = self.variables.get(record) if isinstance(record, str) else record
        if found is None and isinstance(record, str):
            raise InputError(f"record: there is no variable {record}.", "Run the role gpumesh.cluster.cluster first.")
        if isinstance(found, str):
            found = self._templar.template(found)
        self._given_record = found if isinstance(found, Mapping) else {}
        return found

    def older_version(self) -> dict[str, bool]:
        """The option of modules that change a record, if the user allows this version to follow a newer one."""
        allowed = boolean(self.variable("cluster_older_version", False) or False, strict=False)
        return {"older_version": True} if allowed else {}

    @property
    def machine(self) -> str:
        """The name of the task's host in the inventory, and in the record."""
        return str(self.variables["inventory_hostname"])

    def own_options(self, specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Validate the action's own options of the task. Returns them, and all others, which are for a module.

        A cluster record should be among the others, since validation copies its values. Raises InputError.
        """
        own = {name: value for name, value in self._task.args.items() if name in specification}
        checked = ArgumentSpecValidator(specification).validate(own)
        if checked.error_messages:
            raise InputError(f"Invalid options: {' '.join(checked.error_messages)}")
        rest = {name: value for name, value in self._task.args.items() if name not in specification}
        return dict(checked.validated_parameters), rest

    @property
    def present(self) -> list[str]:
        """The hosts of the play that have neither failed nor become unreachable."""
        return list(self.variables["ansible_play_batch"])

    @property
    def check_mode(self) -> bool:
        """Whether nothing may change."""
        return bool(self._task.check_mode)

    def variable(self, name: str, default: Any = None, empty: Sequence[Any] = ("",)) -> Any:
        """A variable of the host, with its templates resolved.

        An extra variable with an ``empty`` value is an unanswered question of a survey: the inventory's value is used.
        """
        unanswered = name in self._extra_vars and self._extra_vars[name] in empty
        known = self._without_extra_vars if unanswered else self.variables
        return self._templar.template(known[name]) if name in known else default

    def inventory_variable(self, name: str, default: Any = None) -> Any:
        """The same, whatever extra variable has the name: those are set by whoever starts the job."""
        known = self._without_extra_vars
        return self._templar.template(known[name]) if name in known else default

    def option(self, name: str, option: Mapping[str, Any]) -> Any:
        """The value of a role's option; None if it is not set.

        An empty value that is not among ``choices`` counts as not set.
        """
        return self.variable(name, empty=("", []) if "choices" in option else ("",))

    def refuse_converted(self, role: str, entry: str = "main") -> None:
        """Refuse an option that is a text, and that YAML, or AWX on its way to Ansible, has made a number or boolean of.

        ansible-core reads the answers of AWX's surveys as YAML since 2.19. Raises InputError.
        """
        for name, option in specification(role, entry).items():
            refusal = conversion_refusal(name, option, self.option(name, option))
            if refusal:
                raise refusal

    @cached_property
    def _extra_vars(self) -> dict[str, Any]:
        """Ansible's own extra variables, including those whose removal is no longer visible."""
        return getattr(self._manager, "extra_vars", {})

    @property
    def _manager(self) -> Any:
        """Ansible's variable manager, which passes only through the variables of all hosts; None in a test without."""
        return getattr(self.variables.get("hostvars"), "_variable_manager", None)

    @cached_property
    def _without_extra_vars(self) -> Mapping[str, Any]:
        """The host's variables in the inventory. This is the only way to exclude extra variables."""
        given = dict(self._extra_vars)
        self._extra_vars.clear()
        try:
            return dict(self.variables["hostvars"].raw_get(self.machine))
        finally:
            self._extra_vars.update(given)

    def given_names(self, machine: str) -> set[str]:
        """The names of a host's variables in the inventory and on the command line, without facts and results of tasks."""
        if not self._manager:
            return set()
        during_run = getattr(self._manager, "_nonpersistent_fact_cache", {})
        return set(self.variables["hostvars"].raw_get(machine)) - set(during_run.get(machine, ()))

    def of_hosts(self, *names: str) -> dict[str, dict[str, Any]]:
        """These variables of each host of the play, including failed ones; None for one that is not set."""
        variables = self.variables["hostvars"]
        hosts = ((machine, variables[machine]) for machine in self.variables["ansible_play_hosts_all"])
        return {machine: {name: own.get(name) for name in names} for machine, own in hosts}

    def registered(self, name: str, machines: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The results that a task registered under this name on the hosts of the play; empty for hosts without one."""
        variables = self.variables["hostvars"]
        return {machine: variables[machine].get(name) or {} for machine in machines}

    def print_text(self, text: str) -> None:
        """Print text, which must be printable, through Ansible's own display, as every callback does."""
        if constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK") not in _FOR_PROGRAMS:
            self._display.display(text)

    def controller_path(self, path: str) -> str:
        """The absolute path of a file on the controller.

        Relative paths start at the folder of the playbook, as in Ansible, and for a playbook of this collection, whose
        folder does not belong to the user, at the folder in which Ansible was started.
        """
        base = Path(self._loader.get_basedir()).absolute()
        return str(Path(Path.cwd() if base.resolve().is_relative_to(_COLLECTION) else base, Path(path).expanduser()))

    @property
    def delegated(self) -> bool:
        """Whether the modules run on another host than the task's."""
        return self._task.delegate_to not in (None, self.variables.get("inventory_hostname"))

    def supervisor(self) -> dict[str, Any]:
        """The paths of supervisord on the host: options that are the same for all daemons."""
        host = self.variables["hostvars"][self._task.delegate_to] if self.delegated else self.variables
        named = {name: f"daemon_{name}" for name in ("supervisor_config", "supervisor_programs")}
        return {name: self._templar.template(host[given]) for name, given in named.items() if host.get(given)}

    def options(self, role: str, *names: str) -> dict[str, Any]:
        """Options of one of our roles, without its prefix, with the values that a run of the role on this host would
        have.

        Their defaults must not contain templates. Raises InputError for invalid values.
        """
        wanted = {f"{role}_{name}": specification(role)[f"{role}_{name}"] for name in names}
        given = {name: self.option(name, option) for name, option in wanted.items()}
        given = {name: value for name, value in given.items() if value is not None}
        result = ArgumentSpecValidator(wanted).validate(given, validate_role_argument_spec=True)
        if result.error_messages:
            raise InputError(" ".join(result.error_messages))
        return {name: result.validated_parameters[f"{role}_{name}"] for name in names}

    def module(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a module on the host. Raises ModuleFailedError."""
        return self._answer(name, arguments)[0]

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The result of a module, and its facts. Raises ModuleFailedError."""
        given = {**arguments, **self._derived_from(name, arguments)}
        done = self._execute_module(module_name=name, module_args=given, task_vars=self.variables)
        result, facts = split_facts(done)
        if result.get("failed") or result.get("unreachable"):
            raise ModuleFailedError(result)
        return result, facts

    def _derived_from(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """For the module of a layer, the record that this task has read, unless the layer is removed."""
        read = self._given_record
        if name not in LAYER_MODULES or arguments.get("state") == "absent" or not {"name", "generation"} <= read.keys():
            return {}
        machine = str(self._task.delegate_to or self.machine)
        return {"derived_from": {"cluster": read["name"], "generation": read["generation"], "machine": machine}}

    def follow(
        self,
        result: dict[str, Any],
        goes_on: Callable[[Mapping[str, Any]], bool],
        look: Callable[[], dict[str, Any]],
        spacing: float,
    ) -> dict[str, Any]:
        """Print the ``line`` of a result and of the following ones while it goes on. Returns the last one.

        ``spacing``: the seconds between two queries. No connection is held in between.
        """
        shown = ""
        while goes_on(result):
            if result["line"] != shown:
                shown = result["line"]
                self.print_text(shown)
            time.sleep(spacing)
            result = look()
        return result

    @property
    def userspace_only(self) -> list[str]:
        """The members that cannot connect to the others, as the role cluster has listed them."""
        return list(self.variables.get("cluster_userspace_only", []))

    def stop_daemon(self, name: str) -> bool:
        """Stop a daemon now and at boot; whether anything changed. Raises ModuleFailedError."""
        done = self.module("gpumesh.cluster.daemon", {"name": name, "state": "absent", **self.supervisor()})
        return bool(done["changed"])

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists on the host. Raises ModuleFailedError."""
        look = {"path": path, "get_checksum": False, "get_mime": False, "get_attributes": False}
        return bool(self.module("ansible.builtin.stat", look)["stat"]["exists"])

    def equipped_module(
        self, name: str, arguments: Mapping[str, Any], lacking: Callable[[Mapping[str, Any]], Sequence[str]]
    ) -> dict[str, Any]:
        """Run a module, and run it again after installing packages that turn out to be missing.

        ``lacking`` returns their names from the module's result. In check mode, nothing is installed. Raises
        ModuleFailedError.
        """
        result = self.module(name, arguments)
        packages = [] if self.check_mode else lacking(result)
        if not packages:
            return result
        self.install(packages)
        return {**self.module(name, arguments), "changed": True}

    def supply(
        self, name: str, arguments: Mapping[str, Any], result: dict[str, Any], contents: Callable[[], Contents]
    ) -> dict[str, Any]:
        """The result of a module that installs programs, which runs again if some of them are outdated.

        ``result``: that of the first run. ``contents``: what the module may ask for. In check mode, nothing is sent.
        Raises ModuleFailedError.
        """
        if self.check_mode or not result["outdated"]:
            return result
        found = contents()
        sent = {one: packed(found[one]) for one in result["outdated"]}
        return self.module(name, {**arguments, "contents": sent})

    def refuse_missing(self, names: Sequence[str]) -> None:
        """Raise HostStateError for anything that is still missing after the packages were installed."""
        if names and not self.check_mode:
            raise HostStateError(f"The packages are installed, but {', '.join(names)} cannot be found.", "See them.")

    @cached_property
    def package_manager(self) -> str:
        """The module that installs packages on the host, such as apt."""
        facts = {} if self.delegated else self.variables.get("ansible_facts", {})
        if "pkg_mgr" not in facts:
            _result, facts = self._answer("ansible.builtin.setup", {"gather_subset": ["!all", "!min", "pkg_mgr"]})
        return str(facts.get("pkg_mgr", facts.get("ansible_pkg_mgr")))

    def install(self, packages: Sequence[str], refresh: bool = False) -> bool:
        """Install packages with the host's package manager. Returns whether anything changed.

        ``refresh``: fetch the lists of packages even if they are new. With apt, an installation that was cut off is
        completed first, even if there are no packages to install. Raises ModuleFailedError or HostStateError.
        """
        arguments: dict[str, Any] = {"name": list(packages), "state": "present"}
        if self.package_manager != "apt":
            return bool(packages) and self._run_package_manager(arguments)
        arguments.update(
            install_recommends=False, update_cache=True, cache_valid_time=0 if refresh else 3600, lock_timeout=300
        )
        self._script(BEGIN)
        try:
            completed = self._script(COMPLETE)
            return (bool(packages) and self._run_package_manager(arguments)) or completed
        finally:
            self._script(END)

    def _run_package_manager(self, arguments: Mapping[str, Any]) -> bool:
        return bool(self.module(f"ansible.builtin.{self.package_manager}", arguments).get("changed"))

    def _script(self, text: str) -> bool:
        """Run a script on the host; whether it printed anything. Raises HostStateError."""
        done = self._low_level_execute_command(text)
        if done["rc"] != 0:
            # The last words of ssh are on stderr, and with a terminal all others are on stdout.
            said = " ".join(printable(f"{done['stdout']} {done['stderr']}").split())[-600:]
            raise HostStateError(
                f"An installation of packages that was cut off cannot be completed: {said}",
                "Complete it there: dpkg --configure -a; apt-get --fix-broken install.",
            )
        return bool(done["stdout"].strip())


class ControllerAction(HostAction):
    """An action that runs only on the controller."""

    _requires_connection = False
