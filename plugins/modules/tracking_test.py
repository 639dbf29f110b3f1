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

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import probe
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.server import checker_password


def work(params: Dict[str, Any], check_mode: bool) -> Outcome:
    """Ask, and where this host runs the server write."""
    started = time.monotonic()
    password = checker_password() if params["write"] and not check_mode else None
    server = probe.Client(params["uri"], params["trust"], params["timeout"], password)
    problem = ""
    certificate: Dict[str, Any] = {}
    try:
        server.ask()
        end = server.certificate_end() if params["write"] else None
        if end is not None:
            certificate = {"expires": expiry.shown(end), "days_left": expiry.days_left(end, time.time())}
        if password is not None:
            server.write_and_read()
    except GpumeshError as failure:
        problem = str(failure)
    seconds = round(time.monotonic() - started, 2)
    wrote = password is not None and not problem
    return Outcome(False, {"problem": problem, "wrote": wrote, "seconds": seconds, **certificate})


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
