# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostlist expressions: expansion, compression, and refused input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import (
    compress_hostlist,
    expand_hostlist,
)

NAMES = st.from_regex(r"\A[a-z][a-z-]{0,4}[0-9]{0,4}\Z")


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,5],head", ["n1", "n2", "n5", "head"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib, m3", ["n1-ib", "n2-ib", "m3"]),
        ("/dev/nvidia[0-7]", [f"/dev/nvidia{number}" for number in range(8)]),
    ],
)
def test_expand(expression: str, hosts: list[str]) -> None:
    assert expand_hostlist(expression) == hosts


@pytest.mark.parametrize("expression", ["n[1-3", "n1-3]", "n[[1]]", "n[3-1]", "n[]", "n[a-b]", "n[0-99999]"])
def test_invalid_expressions_are_refused(expression: str) -> None:
    with pytest.raises(InputError):
        expand_hostlist(expression)


@pytest.mark.parametrize(
    ("hosts", "expression"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n2"], "n[1-3]"),
        (["n1", "n3", "head", "n4"], "head,n[1,3-4]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n7", "n07"], "n7,n07"),
        (["n9", "n10"], "n[9-10]"),
    ],
)
def test_compress(hosts: list[str], expression: str) -> None:
    assert sorted(expand_hostlist(compress_hostlist(hosts))) == sorted(set(hosts))
    assert sorted(compress_hostlist(hosts).split(",")) == sorted(expression.split(","))


@pytest.mark.parametrize("host", ["", "a,b", "n[1]", "a b"])
def test_invalid_host_names_are_refused(host: str) -> None:
    with pytest.raises(InputError):
        compress_hostlist([host])


@given(st.lists(NAMES, max_size=40))
def test_compressed_hosts_expand_to_the_same_hosts(hosts: list[str]) -> None:
    assert sorted(expand_hostlist(compress_hostlist(hosts))) == sorted(set(hosts))
