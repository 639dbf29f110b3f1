# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pass our errors and results to AnsibleModule. No other code does."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    read_copy,
    refuse_outdated,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, translate_write_errors
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import all_printable, printable

#: This umask opens the directories that root creates on the way to a file to all users, as on most hosts. A hardened
#: host would close them, and with them volumes, job scripts and libraries. Secret files have a mode of their own.
_MODULE_UMASK = 0o022


class ModuleResult(NamedTuple):
    """The result of a module.

    ``return_values`` are the return keys. ``before`` and ``after`` are text for the diff, without secrets; leave both
    empty if there is nothing to show. ``warnings``: sentences for whoever runs Ansible.
    """

    changed: bool
    return_values: Dict[str, Any]
    before: str = ""
    after: str = ""
    diff_header: str = ""
    warnings: Sequence[str] = ()


class LayerChange(NamedTuple):
    """A change of a layer on a host: whether anything differs, the current and the desired state, and how to apply it.

    ``apply`` may have something to do even if nothing differs, since an earlier run may have been interrupted.
    ``missing_content``: the name of a content that the controller has to push before the change can be applied.
    """

    changed: bool
    before: str
    after: str
    apply: Callable[[], None]
    missing_content: str = ""


def apply_changes(
    layer_changes: Sequence[LayerChange], return_values: Dict[str, Any], check_mode: bool
) -> ModuleResult:
    """Apply the changes in order, unless ``check_mode`` is set. ``return_values`` are the return keys."""
    if not check_mode:
        for layer_change in layer_changes:
            layer_change.apply()
    before, after = (
        "".join(diff_texts)
        for diff_texts in zip(*((layer_change.before, layer_change.after) for layer_change in layer_changes))
    )
    return ModuleResult(any(layer_change.changed for layer_change in layer_changes), return_values, before, after)


def exit_with(
    module: AnsibleModule,
    work: Callable[[], ModuleResult],
    host_name: Optional[str] = None,
    echo_arguments: bool = True,
    keep_umask: bool = False,
    derive: Optional[Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]] = None,
) -> None:
    """Do the work and end the module: the only exit for success and for all errors of this collection.

    ``host_name`` is the machine in error messages, since a delegated task shows the name of another host. Without
    ``echo_arguments``, the result does not repeat the arguments, as Ansible does by default: they may contain a whole
    record, or be larger than the result. With ``keep_umask``, the umask of root applies to what the programs of the
    host create. ``derive``: from a record and the parameters to those that follow from the record. If the task names
    this host's copy of the record, they are derived from it; if that is not the record that the task applies, nothing
    is done.
    """
    if os.geteuid() == 0 and not keep_umask:
        os.umask(_MODULE_UMASK)
    try:
        with translate_write_errors():
            derived_from = module.params.get("derived_from")
            if derived_from and not module.check_mode:
                refuse_outdated(derived_from)
            record_copy = module.params.get("record_copy")
            record = read_copy(record_copy) if record_copy else None
            if derive and record is not None:
                module.params.update(derive(record, module.params))
            module_result = (
                work() if record is not None or not record_copy else ModuleResult(False, {"copy_differs": True})
            )
    except GpumeshError as error:
        # An error may contain names chosen by users of the host, and output of its programs.
        error_message = printable(f"{host_name}: {error}" if host_name else str(error))
        module.fail_json(msg=error_message, error=all_printable(error.to_result()))
    for warning in module_result.warnings:
        module.warn(warning)
    result: Dict[str, Any] = {"changed": module_result.changed, **module_result.return_values}
    if module._diff and module_result.before != module_result.after:
        result["diff"] = {
            "before": module_result.before,
            "after": module_result.after,
            "before_header": module_result.diff_header,
            "after_header": module_result.diff_header,
        }
    if not echo_arguments:
        result["invocation"] = {}
    module.exit_json(**result)
