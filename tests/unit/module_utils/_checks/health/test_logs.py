# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logs that no other program rotates are kept within bounds, while daemons have them open."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import logs, program
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT

SMALL = 1000


def write_large_log(folder: Path, lines: int = 500) -> Path:
    path = folder / "slurmd.log"
    path.write_text("".join(f"line {number}\n" for number in range(lines)))
    return path


def test_daemon_continues_to_write_to_the_truncated_log(tmp_path: Path) -> None:
    path = write_large_log(tmp_path)
    path.chmod(0o640)
    with path.open("a") as daemon:
        logs.limit_logs([str(path)], SMALL)
        assert path.stat().st_size == 0
        daemon.write("after\n")
    assert path.read_text() == "after\n"
    old = Path(f"{path}.old")
    copied_text = old.read_text().splitlines()
    assert copied_text[-1] == "line 499" and all(re.fullmatch(r"line \d+", line) for line in copied_text)
    assert SMALL - 20 < old.stat().st_size <= SMALL and stat.S_IMODE(old.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["slurmd.log", "slurmd.log.old"]


def test_log_and_copy_stay_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "slurmd.log"
    for turn in range(20):
        with path.open("a") as daemon:
            daemon.write(f"turn {turn}\n" * 300)
        logs.limit_logs([str(path)], SMALL)
        assert sum(log_path.stat().st_size for log_path in tmp_path.iterdir()) <= 2 * SMALL
    assert Path(f"{path}.old").read_text().splitlines()[-1] == "turn 19"


def test_small_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    path = write_large_log(tmp_path, 10)
    before = path.read_text()
    logs.limit_logs([str(path), str(tmp_path / "none.log")], SMALL)
    assert path.read_text() == before and os.listdir(tmp_path) == ["slurmd.log"]


@pytest.mark.parametrize("kind", ["symlink_to", "hardlink_to"])
def test_linked_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x" * 2 * SMALL)
    path = tmp_path / "slurmd.log"
    (path.symlink_to if kind == "symlink_to" else path.hardlink_to)(precious)
    pipe = tmp_path / "slurmctld.log"
    os.mkfifo(pipe)
    logs.limit_logs([str(path), str(pipe)], SMALL)
    assert precious.stat().st_size == 2 * SMALL
    assert sorted(os.listdir(tmp_path)) == ["precious", "slurmctld.log", "slurmd.log"]


def test_log_that_cannot_be_copied_is_kept_and_other_logs_are_limited(tmp_path: Path) -> None:
    path = write_large_log(tmp_path)
    size = path.stat().st_size
    Path(f"{path}.old").mkdir()
    second_log = tmp_path / "slurmctld.log"
    second_log.write_bytes(path.read_bytes())
    logs.limit_logs([str(path), str(second_log)], SMALL)
    assert (path.stat().st_size, second_log.stat().st_size) == (size, 0)


def test_log_shortened_by_logrotate_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_large_log(tmp_path)
    monkeypatch.setattr(logs.os, "pread", lambda *_given: b"")
    before = path.stat().st_size
    logs.limit_logs([str(path)], SMALL)
    assert path.stat().st_size == before and os.listdir(tmp_path) == ["slurmd.log"]


@pytest.mark.parametrize(
    ("arguments", "environment", "bounded"),
    [
        ([], {}, True),
        (["--show"], {}, False),
        ([], {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, False),
    ],
)
def test_periodic_health_check_limits_logs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    bounded: bool,
) -> None:
    path = write_large_log(tmp_path)
    shortened: list[list[str]] = []
    monkeypatch.setattr(program, "limit_logs", lambda paths: shortened.append(list(paths)))
    settings = {"cluster": "lab", "machine": "n1", "folder": str(tmp_path / "clusters")}
    assert program.main(settings, arguments, environment, log_paths=[str(path)]) == 0
    assert shortened == ([[str(path)]] if bounded else [])


def test_every_log_of_the_collection_is_limited() -> None:
    """Each log is limited here, by supervisord, or by the package that writes it, with a reason."""
    elsewhere = {
        "/var/log/slurm",  # The folder.
        "/var/log/gpumesh",  # service.py: supervisord keeps a few MB.
        "/var/log/postgresql/postgresql-17-main.log",  # Its package requires logrotate. An example of a line.
        "/var/log/",  # names.py, the same as service.py.
    }
    named: set[str] = set()
    for path in [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("roles/**/*.yml"), *ROOT.glob("roles/**/*.j2")]:
        named.update(re.findall(r"/var/log/(?:[\w./-]*\w)?", path.read_text(encoding="utf-8")))
    log_names = {name.rstrip(".") for name in named}
    assert log_names - elsewhere <= set(logs.DAEMON_LOGS)
    for source in ("_core/service.py", "_layers/names.py"):
        text = (ROOT / "plugins/module_utils" / source).read_text(encoding="utf-8")
        assert "stdout_logfile_maxbytes=" in text and "stdout_logfile_backups=" in text
