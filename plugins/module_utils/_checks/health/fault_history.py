# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of a node for its faults, so that a reason can say that a GPU fails for the third time in a week.

A fault is noted when it begins, not at each look that finds it. It begins again once a check has passed in between. The
file is in a directory that only root can read, like what the reasons are made of.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import Judgement
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

_FILE_NAME = "faults.json"
_DAY_SECONDS = 86400.0
#: The days in which the occurrences of a fault are counted, and in which a fault that is over is remembered.
_COUNTED_DAYS, _KEPT_DAYS = 7, 30
_MAX_FAULTS = 200
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class NotedFault(NamedTuple):
    """A fault of a device, or of the node if ``device`` is empty. ``began``: seconds since 1970.

    ``occurrence``: 2 for the second time within the counted days. It stays the same while the fault lasts, and so does
    the reason of a drain.
    """

    check_id: str
    device: str
    began: float
    is_over: bool
    occurrence: int


def parse_faults(text: str) -> List[NotedFault]:
    """The faults in a file. What is damaged is left out: no fault may hide behind an old one that cannot be read."""
    try:
        document = parse_json(text)
    except ValueError:
        return []
    entries = document.get("faults") if isinstance(document, dict) else None
    faults = [_parse_fault(entry) for entry in entries] if isinstance(entries, list) else []
    return [fault for fault in faults if fault]


def _parse_fault(entry: Any) -> Optional[NotedFault]:
    fields: Dict[str, Any] = entry if isinstance(entry, dict) else {}
    values: List[Any] = [fields.get(name) for name in NotedFault._fields]
    fault = NotedFault(*values)
    is_valid = (
        isinstance(fault.check_id, str)
        and isinstance(fault.device, str)
        and isinstance(fault.began, (int, float))
        and isinstance(fault.is_over, bool)
        and isinstance(fault.occurrence, int)
    )
    return fault if is_valid else None


def render_faults(faults: Sequence[NotedFault]) -> str:
    """The content of the file."""
    return json.dumps({"faults": [fault._asdict() for fault in faults]}, indent=1) + "\n"


def update_faults(
    noted_faults: Sequence[NotedFault], judgements: Mapping[str, Judgement], now: float
) -> List[NotedFault]:
    """Return the faults after a look. ``judgements``: the results of all checks of this node, by their IDs.

    A check that could not be made neither begins a fault nor ends one.
    """
    failing = {
        (check_id, device)
        for check_id, judgement in judgements.items()
        if judgement.status == "fail"
        for device in judgement.devices or ("",)
    }
    undecided_checks = {check_id for check_id, judgement in judgements.items() if judgement.status == "error"}
    faults = [
        fault._replace(is_over=fault.is_over or (fault[:2] not in failing and fault.check_id not in undecided_checks))
        for fault in noted_faults
    ]
    lasting = {fault[:2] for fault in faults if not fault.is_over}
    for check_id, device in sorted(failing - lasting):
        earlier_times = [fault.began for fault in noted_faults if fault[:2] == (check_id, device)]
        count = sum(now - _COUNTED_DAYS * _DAY_SECONDS < began for began in earlier_times)
        faults.append(NotedFault(check_id, device, now, False, count + 1))
    kept_faults = [fault for fault in faults if not fault.is_over or now - fault.began < _KEPT_DAYS * _DAY_SECONDS]
    return sorted(kept_faults, key=lambda fault: (not fault.is_over, fault.began))[-_MAX_FAULTS:]


def format_ordinal(number: int) -> str:
    """A number as an ordinal in plain English: third, 11th, 22nd."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def describe_occurrences(faults: Sequence[NotedFault], check_id: str, devices: Sequence[str]) -> str:
    """Say how often a failed check has failed lately, from the second time on; empty otherwise."""
    occurrences: Dict[str, int] = {
        fault.device: fault.occurrence for fault in faults if fault.check_id == check_id and not fault.is_over
    }
    return ", ".join(
        f"{format_ordinal(occurrences[device])} time in {_COUNTED_DAYS} days" + (f" on {device}" if devices[1:] else "")
        for device in devices or ("",)
        if occurrences.get(device, 1) > 1
    )


def read_faults(state_folder: str) -> List[NotedFault]:
    """The faults that this node remembers; none for a user who may not read them."""
    try:
        return parse_faults(read_text(os.path.join(state_folder, _FILE_NAME)) or "")
    except HostStateError:
        return []


def note_faults(state_folder: str, judgements: Mapping[str, Judgement], now: float) -> List[NotedFault]:
    """Remember which faults have begun and which are over. Returns all of them. Raises OSError.

    The look has made the directory. If it is gone, the member has left meanwhile.
    """
    noted_faults = read_faults(state_folder)
    faults = update_faults(noted_faults, judgements, now)
    if faults != noted_faults:
        write_atomic(os.path.join(state_folder, _FILE_NAME), render_faults(faults), mode=0o600)
    return faults
