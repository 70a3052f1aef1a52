from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.judge_jar import JudgeJarError, judge_jar
from tests.oracle.releases.release import BUNDLES, Release

# The first whose tables we read, with metadata that is most unlike ours, and the last.
IN_EVERY_RUN = ("0.8.2", "1.3.1")
OTHERS = [version for version in BUNDLES if version not in IN_EVERY_RUN]


@pytest.fixture(
    scope="session",
    params=[*IN_EVERY_RUN, *(pytest.param(one, marks=pytest.mark.compat) for one in OTHERS)],
)
def release(request: pytest.FixtureRequest) -> Iterator[Release]:
    try:
        judge_jar(BUNDLES[request.param])
    except JudgeJarError as error:
        pytest.skip(f"release {request.param} is not to be had: {error}")
    with Release(request.param) as release:
        yield release
