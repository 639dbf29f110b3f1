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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import RecordError

DEFAULT_DIRECTORY = "/var/lib/gpumesh/clusters"
#: The number of characters that contain all top-level values of a record before its first list or object.
HEAD_LENGTH = 512
_GENERATION_PATTERN = re.compile(r'\{(?:\s*"\w+": (?:\d+|"[^"]*"),)*?\s*"generation": (\d+),')

#: The option of the modules of layers; documented in the fragment ``gpumesh.cluster.record.derived``.
DERIVED_OPTION: Dict[str, Any] = {
    "derived_from": {
        "type": "dict",
        "options": {
            "cluster": {"type": "str", "required": True},
            "generation": {"type": "int", "required": True},
            "machine": {"type": "str", "required": True},
            "path": {"type": "path", "default": DEFAULT_DIRECTORY},
        },
    }
}


def parse_generation(file_head: str) -> Optional[int]:
    """Parse the generation of a record from the first ``HEAD_LENGTH`` characters of its file.

    Returns None if they do not contain it.
    """
    generation_match = _GENERATION_PATTERN.match(file_head)
    return int(generation_match.group(1)) if generation_match else None


def refuse_outdated(derived_from: Mapping[str, Any]) -> None:
    """Refuse to apply what was derived from an older record than this host has. Raises RecordError.

    Between the last comparison on the controller and the module of a layer, another run may have removed a machine.
    """
    record_path = os.path.join(derived_from["path"], f"{derived_from['cluster']}.json")
    try:
        with open(record_path, encoding="utf-8", errors="replace") as stream:
            local_generation = parse_generation(stream.read(HEAD_LENGTH))
    except OSError:
        # The host has no copy yet, or an unreadable one, which the modules of the record report.
        local_generation = None
    if local_generation is not None and local_generation > derived_from["generation"]:
        raise RecordError(
            f"{derived_from['machine']} has generation {local_generation} of the record of cluster '{derived_from['cluster']}' by now, "
            f"and this run applies generation {derived_from['generation']}: nothing of this layer was changed there.",
            "Another run has changed the cluster meanwhile. Run it again.",
            generation=local_generation,
        )
