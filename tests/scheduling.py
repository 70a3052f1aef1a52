"""Division of the tests among xdist's workers: in units, the longest first.

`tests/durations.json` holds the seconds of units that take more than `_LONG_SECONDS`.
`--renew-durations` rewrites it from a run.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).with_name("durations.json")
_LONG_SECONDS = 5.0
# Targets of their own run them, and their fixtures are expensive.
_BY_MODULE = ("bench", "browser", "deploy", "spark")
# Modules whose tests share an expensive fixture, such as a JVM: one worker runs the module.
_ALONE = (
    "tests/e2e/test_shared_spark.py",
    "tests/e2e/test_stops.py",
    "tests/faults/test_needed_files_jdbc.py",
    "tests/faults/test_storage_faults.py",
    "tests/oracle/test_compact_copied.py",
    "tests/oracle/test_hdfs.py",
    "tests/oracle/test_hive_catalog.py",
    "tests/oracle/test_jdbc_catalog.py",
    "tests/oracle/test_rest_catalog.py",
    "tests/oracle/test_s3.py",
    "tests/service/test_one_story.py",
    "tests/stores/test_failing_uploads.py",
    "tests/stores/test_hdfs.py",
    "tests/unit/catalog/test_jdbc_servers.py",
)
_ONE_DAEMON = ("beside_java", "life", "nonsense", "reload")
_SECOND_JAVA = ("compact_beside_writers", "compact_cross_partitions", "late_renames")
# The name of the unit of each module that is not divided into its tests.
UNITS = {
    **{module: module for module in _ALONE},
    **{f"tests/service/test_{name}.py": "tests/service, one daemon" for name in _ONE_DAEMON},
    **{f"tests/oracle/test_{name}.py": "tests/oracle, a second Java" for name in _SECOND_JAVA},
}
_RELEASE = re.compile(r"^tests/oracle/releases/.*\[.*?(\d+\.\d+\.\d+)")


def unit_of(nodeid: str) -> str:
    """The name of the tests that one worker runs together with this one."""
    module = nodeid.split("::")[0]
    if nodeid.split("/")[1] in _BY_MODULE:
        return module
    if release := _RELEASE.match(nodeid):
        return f"tests/oracle/releases, {release[1]}"
    return UNITS.get(module, nodeid)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands units to idle workers in the order of collection, which is that of `sort`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types here
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            # All units that a worker was ever given would be counted again after each test.
            unit = unit_of(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][unit].values()):
                del self.assigned_work[node][unit]

    config.option.loadscopereorder = False
    return ByUnit(config, log)


def sort(items: list[pytest.Item]) -> None:
    """Long units first, unit tests last, so that all workers end at about the same time."""
    items.sort(
        key=lambda item: ("unit" in item.path.parts, -_recorded().get(unit_of(item.nodeid), 0))
    )


@cache
def _recorded() -> Mapping[str, float]:
    recorded: Mapping[str, float] = json.loads(_FILE.read_text())
    return recorded


class Durations:
    """A plugin that measures units and writes `tests/durations.json` at the end of the run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[unit_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Units of modules that did not run stay as they are recorded."""
        modules = {unit.split("::")[0] for unit in self._seconds}
        others = {u: s for u, s in _recorded().items() if u.split("::")[0] not in modules}
        long = {u: round(s) for u, s in self._seconds.items() if s > _LONG_SECONDS} | others
        longest_first = dict(sorted(long.items(), key=lambda pair: (-pair[1], pair[0])))
        _FILE.write_text(json.dumps(longest_first, indent=0, ensure_ascii=False) + "\n")
