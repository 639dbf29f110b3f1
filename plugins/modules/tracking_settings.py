#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tracking_settings
short_description: Compare the settings of tracking with the cluster record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns what M(gpumesh.cluster.cluster) has to write to the record, and refuses settings that cannot work.
  - Runs only on the controller and makes no connection. Nothing is changed.
  - "Reads these options of roles: C(tracking_certificate_file), C(tracking_port), C(tracking_server), C(tracking_state),
    C(tracking_tls), C(tracking_volume)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  record:
    required: true
  start:
    description: Whether to start tracking if the record has no server.
    type: bool
    default: false
  settings:
    description: With O(registered), the RV(settings) that this module has returned.
    type: raw
  registered:
    description:
      - The name of the variable in which the members have registered M(gpumesh.cluster.tracking) with
        O(gpumesh.cluster.tracking#module:state=certified). Its certificates are added to O(settings).
      - If it has failed on a host of the play, this module fails on all of them. Unlike with C(any_errors_fatal), each
        host fails by itself, and can be rescued.
    type: str
"""

EXAMPLES = r"""
- name: Determine the changes to the record
  gpumesh.cluster.tracking_settings:
    record: cluster_record
  register: changes

- name: Create the certificate of the server
  gpumesh.cluster.tracking:
    record: cluster_record
    state: certified
    own_certificate: true
  register: certified
  ignore_errors: true

- name: Add its certificate to the changes
  gpumesh.cluster.tracking_settings:
    record: cluster_record
    settings: "{{ changes.settings }}"
    registered: certified
"""

RETURN = r"""
settings:
  description: The values that must be written to the record, for M(gpumesh.cluster.cluster). Null if there are none.
  type: dict
  returned: success
own_certificate:
  description: Whether the server makes its certificate itself.
  type: bool
  returned: without O(registered)
former_server:
  description: The member that runs the server according to the record. Empty if there is none.
  type: str
  returned: without O(registered)
was_enabled:
  description: Whether tracking was switched off, so that a member that was down then may still have the server.
  type: bool
  returned: without O(registered)
"""

# The work is done by the action plugin of the same name.
