# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a session is parsed, and how what could not work is refused, with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, spec

MAIN_ROLE = {"name": "main", "image": "debian"}
FULL_SESSION = {
    "session_name": "demo",
    "session_roles": [
        {**MAIN_ROLE, "command": "python3 'a b.py'", "cpus": 2, "memory": "4G", "env": {"A": 1}},
        {"name": "sub", "replicas": 3, "image": "debian", "memory": 512, "gpus": 1, "mounts": ["/mnt/shared:/data:ro"]},
    ],
    "session_time": "8:00:00",
}


def test_full_session_is_parsed() -> None:
    found = spec.parse_spec(FULL_SESSION)
    main, sub = found.roles
    assert (main.command, main.cpus, main.memory, main.env) == (("python3", "a b.py"), 2, 4096, (("A", "1"),))
    assert (sub.replicas, sub.gpus, sub.mounts, found.time) == (3, 1, ("/mnt/shared:/data:ro",), 480)
    assert spec.parse_spec(spec.serialize_spec(found)) == found == job.decode_spec(job.encode_spec(found))


@pytest.mark.parametrize(
    ("written", "minutes"),
    [
        ("", 0),
        (None, 0),
        ("90", 90),
        ("90m", 90),
        ("2h", 120),
        ("3d", 3 * 24 * 60),
        ("28800", 28800),
        ("0:00:30", 1),
        ("2-01:00:00", 49 * 60),
    ],
)
def test_time_limit_is_parsed(written: Any, minutes: int) -> None:
    assert spec.parse_time_limit(written) == minutes


@pytest.mark.parametrize(
    "written",
    [0, "1", "59", "3600", "4320", "8h", "28800", "3-00:00:00", "365-00:00:00", "9999-9999:99:99"],
)
def test_time_limit_survives_encoding(written: Any) -> None:
    found = spec.parse_spec({**FULL_SESSION, "session_time": written})
    assert job.decode_spec(job.encode_spec(found)) == found
    assert spec.parse_spec(spec.serialize_spec(found)).time == found.time == spec.parse_time_limit(written)


@pytest.mark.parametrize("written", [90, 7200, 28800, 1.5, -5])
def test_unitless_number_is_refused_as_a_time_limit(written: Any) -> None:
    with pytest.raises(
        InputError, match=f"session_time is the number {written}: .* Write the time as 0-02:00:00 or 2h"
    ):
        spec.parse_time_limit(written)


@pytest.mark.parametrize("written", [True, "123456789", "2 hours", "2w"])
def test_invalid_time_limit_is_refused(written: Any) -> None:
    with pytest.raises(InputError, match=f"session_time is '{written}'"):
        spec.parse_time_limit(written)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"session_colour": "red"}, "no option session_colour"),
        ({"session_name": "Demo"}, "invalid session name"),
        ({"session_network": "bridge"}, "Choose private or host"),
        ({"session_time": "soon"}, "session_time is 'soon'"),
        ({"session_roles": []}, "no role"),
        ({"session_roles": [{**MAIN_ROLE, "colour": "red"}]}, "unknown field 'colour'"),
        ({"session_roles": [MAIN_ROLE, MAIN_ROLE]}, "two roles 'main'"),
        ({"session_roles": [{**MAIN_ROLE, "name": "sub"}]}, "no role 'main'"),
        ({"session_roles": [{**MAIN_ROLE, "replicas": 0}]}, "replicas is '0'"),
        ({"session_roles": [{**MAIN_ROLE, "replicas": 251}]}, "at most 250"),
        ({"session_roles": [{**MAIN_ROLE, "replicas": 3, "per_node": 2}]}, "multiple of per_node"),
        ({"session_roles": [MAIN_ROLE, {**MAIN_ROLE, "name": "sub1"}]}, "invalid role name"),
        ({"session_roles": [{**MAIN_ROLE, "image": "--privileged"}]}, "Name an image"),
        ({"session_roles": [{**MAIN_ROLE, "memory": "much"}]}, "memory as 4G"),
        (
            {"session_roles": [MAIN_ROLE, {**MAIN_ROLE, "name": "sub", "memory": "1G"}]},
            "main has no memory, but others do",
        ),
        ({"session_roles": [{**MAIN_ROLE, "mounts": ["/a/../etc:/b"]}]}, "cannot be read"),
        ({"session_roles": [{**MAIN_ROLE, "env": {"A-B": 1}}]}, "not a valid name of an environment variable"),
        ({"session_roles": [{**MAIN_ROLE, "command": "'open"}]}, "Close its quotation marks"),
        ({"session_roles": [{**MAIN_ROLE, "command": ["a\0b"]}]}, "the command contains a NUL character"),
        ({"session_roles": [{**MAIN_ROLE, "command": "a\0b"}]}, "the command contains a NUL character"),
        ({"session_roles": [{**MAIN_ROLE, "env": {"A": "\0"}}]}, "env contains a NUL character"),
        ({"session_roles": [{**MAIN_ROLE, "mounts": ["/a\0:/b"]}]}, "cannot be read"),
    ],
)
def test_invalid_session_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec.parse_spec({**FULL_SESSION, **changes})


def test_little_memory_is_rounded_up_and_null_is_empty() -> None:
    assert spec.parse_mebibytes("x", "512K") == 1
    assert spec.parse_mebibytes("x", "2048K") == 2
    assert spec.parse_spec({**FULL_SESSION, "session_roles": [{**MAIN_ROLE, "env": {"A": None}}]}).roles[0].env == (
        ("A", ""),
    )


def test_mounts_outside_the_allowed_directories_are_refused() -> None:
    wanted = spec.parse_spec(FULL_SESSION)
    spec.refuse_mounts(wanted, ["/mnt/shared"])
    with pytest.raises(InputError, match=r"/mnt/shared is not allowed. Use a directory below /mnt/share"):
        spec.refuse_mounts(wanted, ["/mnt/share"])
    with pytest.raises(InputError, match="session_mounts_allowed"):
        spec.refuse_mounts(wanted, [])
