# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients of the tracking server in front of another listener, while the server is down: what it says is limited, and only text."""

from __future__ import annotations

import contextlib
import http.server
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.probe import Client
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import gpumesh_track

EVIL = "\x1b]0;pwned\x07\x1b[2J\u202e"
MUCH = 256 << 20


class Squatter(http.server.BaseHTTPRequestHandler):
    """Refuses with control characters, or answers without an end."""

    endless = False

    def _answer(self) -> None:
        body = f'{{"error_code": "X", "message": "{EVIL}"}}'.encode()
        self.send_response(200 if self.endless else 400)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for _part in range((MUCH >> 16) if self.endless else 1):
                self.wfile.write(b" " * (1 << 16) if self.endless else body)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Not in the output of the tests."""


@pytest.fixture
def squatter(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    monkeypatch.setattr(Squatter, "endless", request.param)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Squatter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MUCH // 2
    finally:
        tracemalloc.stop()


def sender(folder: Path, uri: str) -> gpumesh_track.Sender:
    (folder / "points.jsonl").write_text('{"points": [["loss", 1.0, 1, 1]]}\n', encoding="ascii")
    return gpumesh_track.Sender(str(folder), {"MLFLOW_TRACKING_URI": uri, "HOME": str(folder)})


@pytest.mark.parametrize("squatter", [True], indirect=True)
def test_an_answer_without_an_end(squatter: str, tmp_path: Path) -> None:
    with little_memory(), pytest.raises(gpumesh_track.UnreachableError):
        sender(tmp_path, squatter).send()
    with little_memory(), pytest.raises(HostStateError, match="more than"):
        Client(squatter, "", 30, None).ask()


@pytest.mark.parametrize("squatter", [False], indirect=True)
def test_an_answer_for_the_terminal(
    squatter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender(tmp_path, squatter)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", squatter)
    assert gpumesh_track.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "pwned" in said and printable(said) == said
