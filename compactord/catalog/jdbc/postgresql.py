"""Connections to PostgreSQL that give up by the client's own clock.

Neither psycopg nor libpq has a limit for the time of an answer: a server that logs in and falls
silent would keep its callers for ever.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")


class TimedConnection(psycopg.Connection[Any]):
    """Closed, with an `OperationalError`, once an answer takes longer than `answer_seconds`."""

    # Set once the connection stands.
    answer_seconds = 30

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """As psycopg's, which resumes the generator several times a second.

        Raises `psycopg.OperationalError` once the answer takes too long.
        """
        try:
            return super().wait(self._limited(gen), *args, **kwargs)
        except _NoAnswer:
            # It is in the middle of a statement, and of no use.
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
