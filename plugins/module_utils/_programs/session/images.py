# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images that a user's sessions have stored on this node, where later sessions find them."""

from __future__ import annotations

import os
import tempfile
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.container import image_store
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import ContainerPaths
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime_podman import Podman, is_alias

ALL_IMAGES = "all"
_UNTAGGED_NAME = "<none>"


class StoredImage(NamedTuple):
    """A stored image. ``image_names``: empty for an image from a file. ``display_size``: the size with its unit."""

    identifier: str
    display_size: str
    image_names: List[str]


def parse_images(podman_output: str) -> List[StoredImage]:
    """Parse ``podman images --no-trunc --format={{.ID}}|{{.Size}}|{{.Repository}}:{{.Tag}}``, with a line for each tag."""
    images_by_id: Dict[str, StoredImage] = {}
    for line in podman_output.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            image = images_by_id.setdefault(fields[0], StoredImage(fields[0].rpartition(":")[2], fields[1], []))
            if not is_alias(fields[2]) and _UNTAGGED_NAME not in fields[2]:
                image.image_names.append(fields[2])
    return sorted(images_by_id.values(), key=lambda image: (image.image_names, image.identifier))


def list_images(run: Runner, settings: SessionSettings) -> List[StoredImage]:
    """Return the user's images on this node. Raises CommandError."""
    store_path = image_store(settings.storage)
    if not os.path.isdir(store_path):
        return []
    with tempfile.TemporaryDirectory() as scratch_directory:
        return parse_images(Podman(run).list_images(ContainerPaths(scratch_directory, "", store_path)))


def remove_images(run: Runner, settings: SessionSettings, requested_names: Sequence[str]) -> List[str]:
    """Remove images from this node. Returns a line for each. Raises GpumeshError.

    A container needs the files of its image as long as it runs, and podman knows no containers of other stores.
    """
    active_sessions = [
        entry.token.name
        for entry in job.list_sessions(run, "--me", f"--nodelist={settings.machine}")
        if not entry.has_ended
    ]
    if active_sessions:
        raise InputError(
            f"{settings.machine} runs the session '{active_sessions[0]}', which may need the images.",
            f"Wait for its end, or: gpumesh-session stop {active_sessions[0]}",
        )
    stored_images = list_images(run, settings)
    image_ids = [entry.identifier for entry in stored_images]
    removal_names = image_ids if ALL_IMAGES in requested_names else list(requested_names)
    if not stored_images and ALL_IMAGES not in requested_names:
        raise InputError(f"You have no images on {settings.machine}.", "See 'gpumesh-session images'.")
    report_lines = []
    for image_name in removal_names:
        with tempfile.TemporaryDirectory() as scratch_directory:
            removed_id = Podman(run).remove_image(
                ContainerPaths(scratch_directory, "", image_store(settings.storage)), image_name
            )
        report_lines.append(f"{settings.machine}: {removed_id[:12] if removed_id in image_ids else image_name} removed")
    return report_lines
