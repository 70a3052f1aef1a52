from __future__ import annotations

import pytest

from compactord.engine.driver import last_words

_WARN = "2026-11-21 21:19:27,784 WARN org.apache.spark.util.Utils: Your hostname resolves to ::1"
_ERROR = "2026-11-21 21:19:27,900 ERROR org.apache.spark.SparkContext: no"
_REASON = 'Exception in thread "main" org.apache.spark.SparkException: it cannot be'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        (f"{_WARN}\n{_WARN}\n{_REASON}\n\tat a.b(C.java:1)\n", f" Its last words: {_REASON}"),
        (f"{_WARN}\n{_ERROR}\n{_REASON}", f" Its last words: {_ERROR} | {_REASON}"),
        (f"{_WARN}\n", f" Its last words: {_WARN}"),
        ("a WARN b\n", " Its last words: a WARN b"),
    ],
)
def test_the_last_words_are_the_reason_without_warnings_and_stacks(log: str, expected: str) -> None:
    assert last_words(log) == expected
