# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The generation of this host's copy of a record, and its comparison with the one that a layer was derived from.

Small, since the module of every layer contains it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import RecordError

DEFAULT_FOLDER = "/var/lib/gpumesh/clusters"
#: As many characters contain the values at the top level of a record that precede its first list or object.
BEGINNING = 512
_GENERATION = re.compile(r'\{(?:\s*"\w+": (?:\d+|"[^"]*"),)*?\s*"generation": (\d+),')

#: The option of the modules of layers; documented in the fragment ``gpumesh.cluster.record.derived``.
DERIVED_OPTION: Dict[str, Any] = {
    "derived_from": {
        "type": "dict",
        "options": {
            "cluster": {"type": "str", "required": True},
            "generation": {"type": "int", "required": True},
            "machine": {"type": "str", "required": True},
            "path": {"type": "path", "default": DEFAULT_FOLDER},
        },
    }
}


def generation_in(beginning: str) -> Optional[int]:
    """The generation of a record, from the first ``BEGINNING`` characters of its file; None if they do not contain it."""
    found = _GENERATION.match(beginning)
    return int(found.group(1)) if found else None


def refuse_outdated(derived_from: Mapping[str, Any]) -> None:
    """Refuse to apply what was derived from an older record than this host has. Raises RecordError.

    Between the last comparison on the controller and the module of a layer, another run may have removed a machine.
    """
    path = os.path.join(derived_from["path"], f"{derived_from['cluster']}.json")
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            held = generation_in(stream.read(BEGINNING))
    except OSError:
        # It has no copy yet, or an unreadable one, which the modules of the record report.
        held = None
    if held is not None and held > derived_from["generation"]:
        raise RecordError(
            f"{derived_from['machine']} has generation {held} of the record of cluster '{derived_from['cluster']}' by now, "
            f"and this run applies generation {derived_from['generation']}: nothing of this layer was changed there.",
            "Another run has changed the cluster meanwhile. Run it again.",
            generation=held,
        )
