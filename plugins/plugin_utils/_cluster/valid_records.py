# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The validation of the cluster record on the controller: once per run of Ansible, not once per task and host.

Ansible starts a process for each task and host, so what they share is in the directory for temporary files that each
run of Ansible creates for itself, and that only its user can read. A record of 1,000 members takes 40 ms to validate, and
3 ms to recognize by its digest. Where it comes from does not matter: one that differs in anything has another digest.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, cast

from ansible import constants

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import record_digest


def parse_once(document: Any) -> tuple[model.Record, str]:
    """Validate a document as ``model.parse`` does, unless an equal one has been validated in this run.

    Returns the record and its digest. Raises as ``model.parse``.
    """
    digest = _document_digest(document)
    marker_path = Path(constants.DEFAULT_LOCAL_TMP) / f"gpumesh-valid-record-{digest}"
    if digest and marker_path.exists():
        return cast(model.Record, document), digest
    record = model.parse(document)
    digest_of_record = record_digest(record)
    # Another document of this record, such as one of an older schema, is converted each time.
    if digest_of_record == digest:
        # Without the directory, it is validated again.
        with contextlib.suppress(OSError):
            marker_path.touch(mode=0o600)
    return record, digest_of_record


def _document_digest(document: Any) -> str:
    """The digest of a document; empty for one that cannot be a record."""
    try:
        return record_digest(document) if isinstance(document, dict) else ""
    except (TypeError, ValueError, RecursionError):
        return ""
