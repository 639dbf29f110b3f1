"""A log that a full volume delays and does not damage. Nothing here needs PyTorch."""

from __future__ import annotations

from pathlib import Path


class Log:
    """Lines of a file. What the volume does not take is kept, and written before the next line."""

    def __init__(self, path: Path) -> None:
        # Without a buffer, so that the rest of a line is known of which the volume has taken a part.
        self._stream = path.open("ab", buffering=0)
        self._left = b""

    def write(self, line: str) -> None:
        """Write the line, now or later."""
        self._left += line.encode()
        try:
            while self._left:
                self._left = self._left[self._stream.write(self._left) :]
        except OSError:
            # The training goes on.
            return

    def close(self) -> None:
        """Try the rest once more."""
        self.write("")
        self._stream.close()
