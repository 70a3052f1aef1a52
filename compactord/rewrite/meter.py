"""Measures the processor time and memory of a subcompaction."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = "VmHWM:"


class Meter:
    """Processor time and peak memory of the process since this object was created.

    Subcompactions that run at the same time in one process are counted together.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        # A worker runs many subcompactions: reset the peak of earlier ones, if Linux allows it.
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")

    def cpu_s(self) -> float:
        """Processor seconds since the start, of all threads."""
        return time.process_time() - self._cpu_s

    def peak_rss_bytes(self) -> int:
        """Peak resident memory of the process, in bytes."""
        with contextlib.suppress(OSError):
            for line in _STATUS.read_text().splitlines():
                if line.startswith(_PEAK):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
