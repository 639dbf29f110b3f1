# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place where our errors and results are passed to AnsibleModule."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, refused_writes
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import refuse_outdated
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable, printable

#: With it, the folders that root creates on the way to a file are open to all users, as on most hosts. A hardened host
#: would close them, and with them volumes, scripts of jobs and libraries. What is secret has a mode of its own.
_UMASK = 0o022


class Outcome(NamedTuple):
    """The result of a module.

    ``values`` are the return keys. ``before`` and ``after`` are text for the diff, without secrets; leave both empty if
    there is nothing to show.
    """

    changed: bool
    values: Dict[str, Any]
    before: str = ""
    after: str = ""
    diff_header: str = ""


class Part(NamedTuple):
    """A part of a layer on a host: whether it differs, its current and desired state, and how to apply it.

    ``apply`` may have something to do even if nothing differs, since an earlier run may have been interrupted.
    ``lacks``: the name of a content that the controller has to send before it can be applied, as in supplied.py.
    """

    changed: bool
    before: str
    after: str
    apply: Callable[[], None]
    lacks: str = ""


def bring_about(parts: Sequence[Part], values: Dict[str, Any], look_only: bool) -> Outcome:
    """Apply the parts in order, unless ``look_only`` is set. ``values`` are the return keys."""
    if not look_only:
        for part in parts:
            part.apply()
    before, after = ("".join(texts) for texts in zip(*((part.before, part.after) for part in parts)))
    return Outcome(any(part.changed for part in parts), values, before, after)


def exit_with(
    module: AnsibleModule,
    work: Callable[[], Outcome],
    host: Optional[str] = None,
    echo: bool = True,
    own_umask: bool = False,
) -> None:
    """Do the work and end the module: the only exit for success and for all errors of this collection.

    ``host`` names the machine in error messages, since a delegated task shows another host's name. Without ``echo``,
    the result does not repeat the arguments, as Ansible does by default: they may contain a whole record, or be larger
    than the result. With ``own_umask``, root's is kept, for what programs of its own create.
    """
    if os.geteuid() == 0 and not own_umask:
        os.umask(_UMASK)
    try:
        with refused_writes():
            derived_from = module.params.get("derived_from")
            if derived_from and not module.check_mode:
                refuse_outdated(derived_from)
            outcome = work()
    except GpumeshError as error:
        # It may contain names chosen by users of the host, and output of its programs.
        message = printable(f"{host}: {error}" if host else str(error))
        module.fail_json(msg=message, error=all_printable(error.as_result()))
    result: Dict[str, Any] = {"changed": outcome.changed, **outcome.values}
    if module._diff and outcome.before != outcome.after:
        result["diff"] = {
            "before": outcome.before,
            "after": outcome.after,
            "before_header": outcome.diff_header,
            "after_header": outcome.diff_header,
        }
    if not echo:
        result["invocation"] = {}
    module.exit_json(**result)
