"""Values of keys that have a few of them; quick to import, as the parser needs them."""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """AUTO: work is picked when it is due. PAUSED: the table is polled but not compacted."""

    AUTO = "auto"
    PAUSED = "paused"


class MaintenanceRule(enum.Enum):
    """FROM_TABLE: a kind of maintenance follows the table's options. OFF: never."""

    FROM_TABLE = "from_table"
    OFF = "off"


class LogLevel(enum.Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.Enum):
    """AUTO: readable on a terminal, JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class UnlockedWriters(enum.Enum):
    """REFUSE: do not serve catalogs with unlocked writers. GUARDED: serve them with care."""

    REFUSE = "refuse"
    GUARDED = "guarded"
