"""Connections to PostgreSQL with a time limit for answers, by the client's own clock.

Neither psycopg nor libpq limits the time of an answer: a server that hangs after the login would
block its callers. A module of its own, because it imports psycopg.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")


class TimedConnection(psycopg.Connection[Any]):
    """Closes itself and raises `OperationalError` if an answer exceeds `answer_seconds`."""

    # Set after the connection was made.
    answer_seconds = 30

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Overrides psycopg's, which resumes the generator several times a second.

        Raises `psycopg.OperationalError` if the answer takes too long.
        """
        try:
            return super().wait(self._limited(gen), *args, **kwargs)
        except _NoAnswer:
            # The connection is in the middle of a statement and cannot be reused.
            self.close()
            text = f"no answer within {self.answer_seconds} s"
            raise psycopg.OperationalError(text) from None

    def _limited(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline_s = time.monotonic() + self.answer_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if time.monotonic() > deadline_s:
                    raise _NoAnswer
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


class _NoAnswer(Exception):
    pass


def connect(answer_seconds: int, **arguments: Any) -> TimedConnection:
    """A connection by psycopg's `arguments`; raises what psycopg raises."""
    connection = TimedConnection.connect(**arguments)
    connection.answer_seconds = answer_seconds
    return connection
