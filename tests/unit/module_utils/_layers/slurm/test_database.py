# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounting as an SQL file. The scenario `slurm` tests attacks with it."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import database

DATABASE = database.AccountingDatabase("acct", "/run/mysqld/mysqld.sock", getpass.getuser())


def write_tool(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_saved_dump_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "accounting.sql"
    write_tool(tmp_path, "mariadb-dump", 'echo "dump $*"', monkeypatch)
    database.save_dump(DATABASE, str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("dump --no-defaults --protocol=socket --socket=/run/mysqld/mysqld.sock --user=")
    write_tool(tmp_path, "mariadb", f'echo "$*" >{tmp_path}/told; cat >>{tmp_path}/told', monkeypatch)
    dump = path.read_text()
    database.load_dump(DATABASE, str(path))
    told, _end, text = (tmp_path / "told").read_text().partition("\n")
    assert told.startswith("--no-defaults ") and told.endswith(" --binary-mode --loose-sandbox --local-infile=0 acct")
    assert text == dump
    assert not database.dump_exists(str(path))


def test_failed_load_keeps_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "accounting.sql"
    path.write_text("select")
    write_tool(tmp_path, "mariadb", "printf '%s\\n' secret 'ERROR 1 at line 1: \033]0;x' >&2; exit 1", monkeypatch)
    with pytest.raises(CommandError, match=r"ERROR 1 at line 1: \?\]0;x") as refusal:
        database.load_dump(DATABASE, str(path))
    assert "secret" not in str(refusal.value)
    assert database.dump_exists(str(path))


def test_only_regular_files_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "accounting.sql"
    os.mkfifo(path)
    with pytest.raises(HostStateError, match="not a plain file"):
        database.load_dump(DATABASE, str(path))


USAGE = "GRANT USAGE ON *.* TO `slurm`@`localhost` IDENTIFIED VIA unix_socket\n"


@pytest.mark.parametrize(
    ("answer", "lacks_rights"),
    [
        (CommandResult(0, USAGE + "GRANT ALL PRIVILEGES ON `slurm_acct_db`.* TO `slurm`@`localhost`\n", ""), False),
        (CommandResult(0, USAGE + "GRANT ALL PRIVILEGES ON `slurm\\_acct\\_db`.* TO `slurm`@`localhost`\n", ""), False),
        # With sql_mode=ANSI_QUOTES.
        (CommandResult(0, 'GRANT ALL PRIVILEGES ON "slurm_acct_db".* TO "slurm"@"localhost"\n', ""), False),
        (CommandResult(0, "GRANT ALL PRIVILEGES ON *.* TO `slurm`@`localhost` WITH GRANT OPTION\n", ""), False),
        (CommandResult(0, USAGE, ""), True),
        (CommandResult(0, USAGE + "GRANT SELECT ON `slurm_acct_db`.* TO `slurm`@`localhost`\n", ""), True),
        (CommandResult(0, USAGE + "GRANT ALL PRIVILEGES ON `slurm_acct_db2`.* TO `slurm`@`localhost`\n", ""), True),
        (
            CommandResult(
                1, "", "ERROR 1141 (42000) at line 1: There is no such grant defined for user 'slurm' on host"
            ),
            True,
        ),
        (CommandResult(1, "", "ERROR 1045 (28000): Access denied for user 'root'@'localhost'"), False),
        (CommandResult(1, "", "ERROR 2002 (HY000): Can't connect to local server through socket"), False),
    ],
)
def test_an_account_without_its_rights_is_found(answer: CommandResult, lacks_rights: bool) -> None:
    accounting = database.AccountingDatabase("slurm_acct_db", "/run/mysqld/mysqld.sock", "slurm")
    queries = []

    def answer_query(argv: list[str], **_options: object) -> CommandResult:
        queries.append(argv)
        return answer

    assert database.account_lacks_rights(answer_query, accounting) is lacks_rights
    ((*_client, query),) = queries
    assert query == "--execute=SHOW GRANTS FOR 'slurm'@'localhost'"
