"""A name service and how it is connected to, as a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from compactord.storage.base import Storage
from compactord.storage.hdfs.settings import address_of

# Of a call without an answer.
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NameService(ABC):
    """A name service as the user wrote it, `hdfs://service`, with which paths begin.

    `settings` are Hadoop's properties of it. Tickets and user are found where it is opened.
    """

    root: str
    settings: tuple[tuple[str, str], ...] = ()
    answer_s: float = ANSWER_S

    @property
    def address(self) -> str:
        """The URL that is connected to."""
        return address_of(self.root.partition("://")[2], dict(self.settings))

    @abstractmethod
    def open(self) -> Storage:
        """See `StorageSpec`: a name service is one, and what connects to it needs no store."""
