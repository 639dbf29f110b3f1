# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the desired files to this host's configuration directory, after Slurm's own parser has accepted them."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from fnmatch import fnmatch
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths, find_command_lines
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.config import (
    NODE_FILES,
    OPTIONS_FILE,
    PLUGINS_FILE,
    SERVED_FILES,
    SlurmConfigFiles,
    parse_definition,
    render_options,
    required_reload,
)

#: The directory in which Debian's Slurm looks for its configuration.
CONFIG_DIRECTORY = "/etc/slurm"
_MANAGED_HEADER = conf.render_file([]).strip()
#: The daemons of a node and of a controller, with the accounts that may run them.
_DAEMON_ACCOUNTS = (("slurmd", "root"), ("slurmctld", "root"), ("slurmctld", "slurm"))
#: The files that may start slurmd, on Debian and elsewhere, and the drop-ins of its unit. Our options are elsewhere.
_START_FILES = ("etc/default/slurmd", "etc/sysconfig/slurmd", "etc/systemd/system/slurmd.service")
_DROP_IN_DIRECTORY = "etc/systemd/system/slurmd.service.d"
_CONFIGLESS_OPTION = re.compile(r"(?m)^(?!\s*[#;]).*--conf-server\b")


class SlurmConfigPlan(NamedTuple):
    """The differences. A text of None is a file to remove. ``reload`` is for the controller, the others for slurmd."""

    changed_files: Dict[str, Optional[str]]
    reload: str
    node_changed: bool
    node_redefined: bool
    before: str
    after: str


def read_managed_files(config_directory: str) -> Dict[str, Optional[str]]:
    """Read the current managed files."""
    return {
        name: read_text(os.path.join(config_directory, name)) for name in (*SERVED_FILES, *NODE_FILES, OPTIONS_FILE)
    }


def find_foreign_config(config_directory: str, tree: Tree) -> Optional[HostStateError]:
    """Return the error for a host that belongs to a Slurm cluster that somebody else has set up, or None.

    A node that gets its configuration from its controller has no file for it, and slurmd may be stopped.
    """
    conf_path = os.path.join(config_directory, "slurm.conf")
    conf_text = read_text(conf_path)
    if read_text(os.path.join(config_directory, OPTIONS_FILE)) is not None or (conf_text or "").startswith(
        _MANAGED_HEADER
    ):
        return None
    if conf_text is not None:
        return _foreign_config_error(conf_path)
    drop_in_paths = [
        f"{_DROP_IN_DIRECTORY}/{daemon_name}"
        for daemon_name in tree.list_names(_DROP_IN_DIRECTORY)
        if daemon_name.endswith(".conf")
    ]
    for start_file in (*_START_FILES, *drop_in_paths):
        if _CONFIGLESS_OPTION.search(tree.read(start_file) or ""):
            return HostStateError(
                f"/{start_file} makes this host a node of another Slurm cluster.",
                "Remove --conf-server there if that cluster is no longer used.",
            )
    for daemon_name, account_name in _DAEMON_ACCOUNTS:
        arguments = (
            [] if _has_managed_start(tree, daemon_name) else _find_running_arguments(tree, daemon_name, account_name)
        )
        if arguments:
            return HostStateError(
                f"{daemon_name} runs on this host, and this collection has not set it up: {' '.join(arguments)}.",
                "Stop and disable it if its Slurm cluster is no longer used.",
            )
    return None


def _has_managed_start(tree: Tree, name: str) -> bool:
    """Whether a daemon is started with our settings, even if somebody has deleted those of Slurm."""
    service_paths = ServicePaths()
    return any(
        tree.exists(path.lstrip("/")) for path in (service_paths.drop_in_path(name), service_paths.program_path(name))
    )


def _find_running_arguments(tree: Tree, daemon_name: str, account_name: str) -> List[str]:
    try:
        return next(iter(find_command_lines(tree, daemon_name, pwd.getpwnam(account_name).pw_uid)), [])
    except KeyError:
        return []


def refuse_foreign_config(config_directory: str, tree: Tree) -> None:
    """Raise HostStateError for a host of another Slurm cluster."""
    refusal = find_foreign_config(config_directory, tree)
    if refusal is not None:
        raise refusal


def _foreign_config_error(path: str) -> HostStateError:
    return HostStateError(
        f"{path} was not written by this collection.",
        "Move it away if the Slurm cluster that it describes is no longer used.",
    )


def plan_config(
    current_texts: Mapping[str, Optional[str]],
    config_files: Optional[SlurmConfigFiles],
    serve: bool,
    config_directory: str,
    running_options: Optional[Mapping[str, str]] = None,
    unmanaged_files: Sequence[str] = (),
) -> SlurmConfigPlan:
    """Plan which files are written and removed; all are removed without ``config_files``.

    A host without jobs has the served files, too: nothing else tells Slurm's commands there where the controller is.
    ``unmanaged_files`` are not changed. ``running_options`` are those of the running slurmd, which may be older than
    the file after an interrupted run. A configuration that is not ours is refused: it may belong to another cluster.
    """
    desired_texts: Dict[str, Optional[str]] = dict.fromkeys(current_texts)
    if config_files is not None:
        desired_texts.update(config_files.node_files)
        desired_texts[OPTIONS_FILE] = render_options(config_files.arguments) if config_files.slurm_node else None
        if serve or not config_files.slurm_node:
            desired_texts.update(config_files.served_files)
    for file_name in SERVED_FILES:
        current_text = current_texts.get(file_name)
        if current_text is None or current_text.startswith(_MANAGED_HEADER):
            continue
        if (
            config_files is None
            or file_name not in config_files.served_files
            or _contains_settings(current_text, config_files.served_files[file_name])
        ):
            # The file is not ours to remove or change.
            desired_texts[file_name] = current_text
            continue
        raise _foreign_config_error(os.path.join(config_directory, file_name))
    changed_files = {
        file_name: current_text
        for file_name, current_text in desired_texts.items()
        if current_text != current_texts.get(file_name) and file_name not in unmanaged_files
    }
    new_options, old_options = desired_texts[OPTIONS_FILE], current_texts.get(OPTIONS_FILE)
    running_definition = (running_options or {}).get("--conf")
    return SlurmConfigPlan(
        changed_files,
        required_reload(current_texts["slurm.conf"], desired_texts["slurm.conf"] or "")
        if serve and config_files is not None
        else "none",
        any(file_name in changed_files for file_name in (*NODE_FILES, OPTIONS_FILE))
        or _has_outdated_options(running_options, config_files),
        any(
            former_definition and former_definition != parse_definition(new_options)
            for former_definition in (parse_definition(old_options), running_definition)
        ),
        _format_files(current_texts, changed_files),
        _format_files(desired_texts, changed_files),
    )


def includes_plugins(plugstack_text: Optional[str], config_directory: str) -> bool:
    """Whether the controller's plugstack.conf includes the file of each host: ours, or a file of others that does."""
    fields_by_line = [line.split() for line in (plugstack_text or "").splitlines()]
    patterns = [fields[1] for fields in fields_by_line if len(fields) > 1 and fields[0].lower() == "include"]
    return any(fnmatch(os.path.join(config_directory, PLUGINS_FILE), pattern) for pattern in patterns)


def has_foreign_plugins(plugstack_text: Optional[str], config_directory: str) -> bool:
    """Whether the controller has a plugstack.conf of others, which does not include the file of each host."""
    return (
        plugstack_text is not None
        and not plugstack_text.startswith(_MANAGED_HEADER)
        and not includes_plugins(plugstack_text, config_directory)
    )


def _contains_settings(text: str, desired_text: str) -> bool:
    """Whether a file that is not ours, such as one from a package, contains the desired settings."""
    lines = [
        {line.strip() for line in config_text.splitlines() if not line.startswith("#")}
        for config_text in (desired_text, text)
    ]
    return lines[0] - {""} <= lines[1]


def _has_outdated_options(
    running_options: Optional[Mapping[str, str]], config_files: Optional[SlurmConfigFiles]
) -> bool:
    """Whether slurmd was started with other options."""
    if not running_options or config_files is None:
        return False
    desired_options = dict(zip(config_files.arguments, config_files.arguments[1:]))
    return any(desired_options.get(name) != argument for name, argument in running_options.items())


def validate_config(run: Runner, config_files: SlurmConfigFiles, config_directory: str) -> bool:
    """Let slurmd read all files, in a temporary directory. Raises InputError with Slurm's own message.

    Returns False if it cannot be run yet: Slurm is not installed, or munge is not running, such as in check mode on a
    host that only has the packages.
    """
    if find_program("slurmd") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="gpumesh-slurm-") as temporary_directory:
        for file_name in NODE_FILES:
            os.makedirs(os.path.dirname(os.path.join(temporary_directory, file_name)), exist_ok=True)
        moved_paths = {
            os.path.join(config_directory, file_name): os.path.join(temporary_directory, file_name)
            for file_name in NODE_FILES
        }
        for file_name, file_text in {**config_files.served_files, **config_files.node_files}.items():
            write_atomic(
                os.path.join(temporary_directory, file_name), conf.redirect_includes(file_text, moved_paths), mode=0o644
            )
        slurmd_command = ["slurmd", "-G", "-L", "/dev/null", "-f", os.path.join(temporary_directory, "slurm.conf")]
        slurmd_command += ["-Z", "-N", config_files.arguments[2]]
        slurmd_result = run([*slurmd_command, "--conf", config_files.definition], check=False)
    if slurmd_result.rc != 0:
        if "Munge encode failed" in slurmd_result.stderr + slurmd_result.stdout:
            return False
        error_summary = (
            "; ".join(extract_errors(slurmd_result.stderr + slurmd_result.stdout))
            or f"slurmd exited {slurmd_result.rc}"
        )
        raise InputError(
            f"Slurm rejects the configuration: {error_summary}.",
            "Correct slurm_conf, slurm_cgroup, slurm_gres, slurm_node_conf or slurm_partitions. Old files are kept.",
        )
    return True


def extract_errors(slurmd_output: str) -> List[str]:
    """Extract Slurm's errors, without the program's name, the time, and the last line, which only reports the exit."""
    error_messages = [
        match.group(1).strip()
        for match in re.finditer(r"^\S*?:?\s*(?:\[[^\]]*\]\s*)?(?:error|fatal): (.*)$", slurmd_output, re.MULTILINE)
    ]
    specific_messages = [text for text in error_messages if "Unable to process configuration file" not in text]
    return specific_messages or error_messages


def find_missing_programs(paths: Sequence[str]) -> List[str]:
    """Return the missing prologs and epilogs, without which jobs or nodes would fail."""
    return [path for path in paths if path and not os.path.exists(path)]


def create_programs(paths: Sequence[str]) -> None:
    """Create programs that do nothing, until the administrator replaces them."""
    for path in paths:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_atomic(path, "#!/bin/sh\nexit 0\n", mode=0o755)


def find_missing_directories(owner_by_path: Mapping[str, str]) -> List[Tuple[str, str]]:
    """Return the missing directories, each with the account that has to own it."""
    return [(path, owner) for path, owner in owner_by_path.items() if not os.path.isdir(path)]


def create_directories(path_owners: Sequence[Tuple[str, str]]) -> None:
    """Create directories that only their owners, and readers of logs, can access."""
    for path, owner in path_owners:
        try:
            passwd_entry = pwd.getpwnam(owner)
        except KeyError as failure:
            raise HostStateError(f"There is no user {owner}.", "Install Slurm first.") from failure
        os.makedirs(path, mode=0o755, exist_ok=True)
        os.chown(path, passwd_entry.pw_uid, passwd_entry.pw_gid)


def apply_config(config_directory: str, config_plan: SlurmConfigPlan) -> None:
    """Write and remove files. The served slurm.conf is last, so that a starting controller finds what it includes.

    It also becomes newer than a running controller that has to announce a removed file, even after an interruption.
    """
    if not config_plan.changed_files:
        return
    conf_path = os.path.join(config_directory, "slurm.conf")
    if any(config_plan.changed_files.get(file_name, "") is None for file_name in SERVED_FILES) and os.path.exists(
        conf_path
    ):
        os.utime(conf_path)
    for file_name in sorted(config_plan.changed_files, key=lambda path: path == "slurm.conf"):
        file_text = config_plan.changed_files[file_name]
        path = os.path.join(config_directory, file_name)
        if file_text is None:
            remove_file(path)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            write_atomic(path, file_text, mode=0o644)


def _format_files(text_by_name: Mapping[str, Optional[str]], names: Mapping[str, Optional[str]]) -> str:
    return "".join(
        f"## {name}\n{text_by_name.get(name) or ''}" for name in sorted(names) if text_by_name.get(name) is not None
    )
