# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This host's copy of a record, and its comparison with the record that the controller applies.

Small, since the module of every layer contains it. So it does not validate a copy: one with the digest of the
controller's record is equal to that.
"""

from __future__ import annotations

import hashlib
import json
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

#: The option of the modules that derive parameters from the copy; documented in ``gpumesh.cluster.record.copy``.
COPY_OPTION: Dict[str, Any] = {
    "record_copy": {
        "type": "dict",
        "options": {
            "cluster": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
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


def record_digest(record: Mapping[str, Any]) -> str:
    """Return a digest that is the same for equal records, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_copy(record_copy: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return this host's copy of the record, or None if it has not this digest: missing, damaged, older or newer."""
    try:
        with open(_record_path(record_copy), encoding="utf-8") as stream:
            record = json.load(stream)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record_digest(record) == record_copy["digest"] else None


def _record_path(location: Mapping[str, Any]) -> str:
    return os.path.join(location["path"], f"{location['cluster']}.json")


def refuse_outdated(derived_from: Mapping[str, Any]) -> None:
    """Refuse to apply what was derived from an older record than this host has. Raises RecordError.

    Between the last comparison on the controller and the module of a layer, another run may have removed a machine.
    """
    try:
        with open(_record_path(derived_from), encoding="utf-8", errors="replace") as stream:
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
