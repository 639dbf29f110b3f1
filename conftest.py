"""What all tests share: Ansible prints what the tests read, whatever ansible.cfg says for people."""

from __future__ import annotations

import os

os.environ["ANSIBLE_STDOUT_CALLBACK"] = "ansible.builtin.default"
