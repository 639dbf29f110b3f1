#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tracking_test
short_description: Write a test run to the tracking server and read it back
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - On the member that runs the server, writes a run with a point, reads it back, and deletes it, with the server's own
    account for checks. On other members, queries the health of the server.
  - The run belongs to the experiment C(gpumesh-check), which is created, or restored if it was deleted. MLflow keeps
    deleted runs in its database until C(mlflow gc) erases them.
  - Set O(record). O(uri), O(trust) and O(write) are derived from it on the controller.
  - The module does not fail if the server does not work. Evaluate RV(problem) instead.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.record.given
attributes:
  check_mode:
    support: full
    details:
      - Nothing is written; only the health of the server is queried.
  diff_mode:
    support: N/A
    details:
      - It leaves only deleted runs.
  idempotent:
    support: full
    details:
      - It leaves only deleted runs.
options:
  uri:
    description: The URL of the server, such as V(http://10.99.0.1:5000). Required without O(record).
    type: str
    default: ""
  trust:
    description: A file with the CA certificates against which to verify the server. Empty means those of the host.
    type: path
    default: ""
  write:
    description: Whether to write a run, which requires the password stored on the host of the server.
    type: bool
    default: false
  timeout:
    description: The timeout of each request in seconds.
    type: float
    default: 20
"""

EXAMPLES = r"""
- name: Write a run and read it back
  gpumesh.cluster.tracking_test:
    record: cluster_record
  register: tracking
"""

RETURN = r"""
problem:
  description: A description of the problem. Empty if there is none.
  type: str
  returned: always
wrote:
  description: Whether a run was written and read back.
  type: bool
  returned: always
expires:
  description: When the certificate of the server expires.
  type: str
  returned: with O(write), if the server has TLS and answers
  sample: "2028-11-20T20:31:00Z"
days_left:
  description: For how many whole days that certificate is still valid.
  type: int
  returned: with O(write), if the server has TLS and answers
  sample: 728
seconds:
  description: The duration of the test in seconds.
  type: float
  returned: always
"""

import time
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import probe
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.server import checker_password


def work(params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Query the server, and on its own host also write a run and read it back."""
    started_at = time.monotonic()
    checker_secret = checker_password() if params["write"] and not check_mode else None
    tracking_client = probe.TrackingClient(params["uri"], params["trust"], params["timeout"], checker_secret)
    tracking_problem = ""
    certificate_dates: Dict[str, Any] = {}
    try:
        tracking_client.check_health()
        expires_at = tracking_client.certificate_expiry() if params["write"] else None
        if expires_at is not None:
            certificate_dates = {
                "expires": expiry.format_time(expires_at),
                "days_left": expiry.days_left(expires_at, time.time()),
            }
        if checker_secret is not None:
            tracking_client.write_and_read()
    except GpumeshError as failure:
        tracking_problem = str(failure)
    elapsed_seconds = round(time.monotonic() - started_at, 2)
    has_written = checker_secret is not None and not tracking_problem
    return ModuleResult(
        False, {"problem": tracking_problem, "wrote": has_written, "seconds": elapsed_seconds, **certificate_dates}
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "uri": {"type": "str", "default": ""},
            "write": {"type": "bool", "default": False},
            "trust": {"type": "path", "default": ""},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
