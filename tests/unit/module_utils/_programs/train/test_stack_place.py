# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a program is, by its stack: a function that says something, rather than the one that waits."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.stack_place import find_location

DUMP = """step 41
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait

Current thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "train.py", line 88 in train
"""
LOADER = """Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 930 in wait
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1133 in _try_get_data
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 631 in __next__
  File "/home/u/train.py", line 31 in main
"""
DOWNLOAD = """Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/ssl.py", line 1166 in read
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/venv/lib/python3.11/site-packages/urllib3/response.py", line 561 in read
  File "/home/u/data.py", line 12 in fetch_shard
"""
ASLEEP = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
"""
#: mpi4py's and PyTorch's own functions with such names are collectives.
RECEIVE = """Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2481 in recv
  File "/home/u/pipeline.py", line 40 in forward
"""


def test_the_location_is_the_collective() -> None:
    assert find_location(DUMP) == "all_reduce (distributed_c10d.py:2810)"
    assert find_location(RECEIVE) == "recv (distributed_c10d.py:2481)"


def test_generic_waiting_functions_are_skipped() -> None:
    assert find_location(LOADER) == "_try_get_data (dataloader.py:1133)"
    assert find_location(DOWNLOAD) == "fetch_shard (data.py:12)"


def test_the_standard_library_in_lib64_is_recognized() -> None:
    assert find_location(LOADER.replace("/usr/lib/", "/usr/lib64/")) == find_location(LOADER)


def test_the_innermost_function_is_the_last_resort() -> None:
    assert find_location(ASLEEP) == "wait (threading.py:327)"


def test_without_a_stack_the_location_is_empty() -> None:
    assert find_location("loss 2.3") == ""


def test_function_names_cannot_control_the_terminal() -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "/home/u/a.py", line 3 in f\x1b]0;x\x07\n'
    assert find_location(stack) == "f\ufffd]0;x\ufffd (a.py:3)"
