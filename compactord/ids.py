"""Names of files that we write: plain Paimon names whose UUID identifies their owner.

A name's UUID has version 8 (RFC 9562, custom), so it never equals one of Java's random UUIDs
(version 4):

  mark 24 bits | host 24 | version 4 | start, process id, random (around a variant of 2)

`host` is a digest of machine, boot and process-id namespace; `start` the clock tick after boot at
which the process started (a wall clock may jump, ticks do not); `process id` its number there. So a
later run on the same host can prove from a name that the owner has ended.

The 24 random bits repeat within a few thousand names, so 64 more follow the UUID. A name must never
be reused, even after the first file was deleted: while a manifest still deletes the old file,
readers treat a new file of that name as deleted.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import UsageError

MARK = 0xC0AC7D
_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
_MACHINE_ID = Path("/etc/machine-id")
# Replaces the boot id if that cannot be read.
_PROCESS_IDENTITY = os.urandom(16).hex()
_START_BITS, _PID_BITS, _RANDOM_BITS = 28, 22, 24
_UNIQUE_BYTES = 8
_UUID = re.compile(
    rf"{MARK:06x}[0-9a-f]{{2}}-[0-9a-f]{{4}}-8[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that writes: host digest (24 bits), start, process id.

    `start_ticks` are clock ticks after boot, modulo 2^28 (31 days at 100 a second).
    """

    host: int
    start_ticks: int
    pid: int

    def unique_name(self) -> str:
        """A unique part of a name: a UUID of this owner, then 64 random bits."""
        return f"{self._uuid()}-{os.urandom(_UNIQUE_BYTES).hex()}"

    def _uuid(self) -> str:
        tail = int.from_bytes(os.urandom(4), "big") % (1 << _RANDOM_BITS)
        payload = self.start_ticks % (1 << _START_BITS)
        payload = payload << _PID_BITS | self.pid % (1 << _PID_BITS)
        payload = payload << _RANDOM_BITS | tail
        high = MARK << 24 | self.host
        value = high << 80 | 8 << 76 | (payload >> 62) << 64 | 2 << 62 | payload % (1 << 62)
        text = f"{value:032x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def owner_of(name: str) -> Owner | None:
    """The owner of a file, or None if compactord did not write it."""
    found = _UUID.search(name)
    if found is None:
        return None
    value = int(found.group().replace("-", ""), 16)
    payload = (value >> 64 & 0xFFF) << 62 | value % (1 << 62)
    payload >>= _RANDOM_BITS
    return Owner(
        host=value >> 80 & 0xFFFFFF,
        start_ticks=payload >> _PID_BITS,
        pid=payload % (1 << _PID_BITS),
    )


def random_uuid() -> str:
    """An anonymous UUID, for snapshot identities."""
    return str(uuid.uuid4())


def this_process(*, boot_id: Path = _BOOT_ID, proc: Path = _PROC) -> Owner:
    """The owner for the running process. Raises `UsageError` on a system without `proc`."""
    pid = os.getpid()
    start = _start_ticks(pid, proc)
    if start is None:
        raise UsageError(f"compactord runs on Linux only: {proc} does not show this process")
    return Owner(host=_host_digest(boot_id), start_ticks=start % (1 << _START_BITS), pid=pid)


class Liveness(enum.Enum):
    """Whether an owner's process runs, as known to this process."""

    DEAD = "dead"
    ALIVE = "alive"
    UNKNOWN = "unknown"


def liveness(owner: Owner, *, proc: Path = _PROC) -> Liveness:
    """Dead or alive for owners of this host, boot and process-id namespace; unknown for others.

    The start distinguishes a later process with the same id. If `proc` hides the processes of other
    users (its option hidepid), a running one is unknown as well.
    """
    if owner.host != _host_digest():
        return Liveness.UNKNOWN
    start = _start_ticks(owner.pid, proc)
    if start is None:
        return Liveness.UNKNOWN if _exists(owner.pid) else Liveness.DEAD
    runs = start % (1 << _START_BITS) == owner.start_ticks
    return Liveness.ALIVE if runs else Liveness.DEAD


def _host_digest(boot_id: Path = _BOOT_ID) -> int:
    """Digest of machine, boot and process-id namespace.

    If the boot id cannot be read, process ids and starts may be reused after the next boot. Each
    process then counts as its own host, so no proof concerns it.
    """
    try:
        boot = boot_id.read_text().strip() or _PROCESS_IDENTITY
        namespace = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        boot, namespace = _PROCESS_IDENTITY, ""
    machine = _MACHINE_ID.read_text().strip() if _MACHINE_ID.exists() else ""
    parts = [socket.gethostname(), machine, boot, namespace]
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:3], "big")


def _start_ticks(pid: int, proc: Path) -> int | None:
    """Ticks between boot and the start of a process, or None if the process is hidden."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(stat.rsplit(")", 1)[1].split()[19])


def _exists(pid: int) -> bool:
    """Whether a process of any user has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
