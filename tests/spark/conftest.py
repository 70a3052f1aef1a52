from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

HERE = Path(__file__).parent


def _can_connect() -> bool:
    """Spark Connect needs packages of its extra and a server, which Spark 3 does not ship."""
    jars = Path(pyspark.__file__).parent / "jars"
    return find_spec("grpc") is not None and any(jars.glob("spark-connect_*.jar"))


collect_ignore = [] if _can_connect() else ["test_connect.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # Up to Spark 4.0 pyspark leaves the socket of each result to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
