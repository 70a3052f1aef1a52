from __future__ import annotations

import pytest

from compactord.engine.spark import start_spark
from compactord.errors import UsageError
from compactord.rewrite.pipeline import usable_cores


def test_a_setting_that_is_not_spark_s_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"executor\.memory"):
        start_spark("local[1]", {"executor.memory": "1g"})


def test_there_is_a_usable_core() -> None:
    assert usable_cores() >= 1
