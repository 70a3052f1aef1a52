"""An older release of Java Paimon, driven from Python through the API that its users' jobs use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.oracle.judge import lines
from tests.oracle.judge_jar import Jar
from tests.oracle.judge_jvm import HERE as JUDGE
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm, Row, TypeName, Value

_HERE = Path(__file__).parent
_SOURCES = (_HERE / "NewerTypes.java", JUDGE / "Rows.java", _HERE / "Release.java")


def _bundle(version: str, sha256: str) -> Jar:
    return Jar(group="org.apache.paimon", artifact="paimon-bundle", version=version, sha256=sha256)


# The newest of each line that the public registry has whole.
BUNDLES: dict[str, Jar] = {
    "0.8.2": _bundle("0.8.2", "e42a51d2178ea79d0fb4a3a5134f5fe8dedac9d8f329651c41e3a4a159caac0a"),
    "0.9.0": _bundle("0.9.0", "82153c57edb1c3c6ff898ce38d4b83232ae7182cc6913b40f8c4441f9e0c3a26"),
    "1.0.1": _bundle("1.0.1", "6992925026548755d6223f1e29738a3ca98366ad6059989164f737a3470b3512"),
    "1.1.1": _bundle("1.1.1", "b605c1f1e60c007e3df0072ac83aaf470961b51003218dddeced3d8fff94fab1"),
    "1.2.0": _bundle("1.2.0", "7528a034115d4100c4fffdab65c358dcbc8df30a915dd48a38be19314e5375c0"),
    "1.3.1": _bundle("1.3.1", "ec0a91c0cf6c1da46c7175b7778e3207395eca10272d891fa49770ec7a780162"),
}


class Release:
    """One JVM with one release.

    Paths are `<warehouse>/<database>.db/<table>`, values as in judge.py.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._jvm = JudgeJvm(
            time_zone="UTC",
            java_options=JAVA_OPTIONS,
            paimon=BUNDLES[version],
            sources=_SOURCES,
        )

    def __enter__(self) -> Release:
        self._jvm.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.stop()

    def create_table(
        self,
        path: Path,
        columns: Sequence[tuple[str, TypeName]],
        *,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        arguments = {
            "columns": [list(column) for column in columns],
            "primary_key": list(primary_key),
            "partition_by": list(partition_by),
            "options": dict(options or {}),
        }
        self._call("createTable", path, arguments)

    def write(
        self,
        path: Path,
        rows: Iterable[Row],
        kinds: Sequence[str] | None = None,
        *,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """One commit of these rows, all +I unless `kinds` says otherwise."""
        text = "\n".join(
            json.dumps(["+I" if kinds is None else kinds[position], list(row)])
            for position, row in enumerate(rows)
        )
        self._call("write", path, {"options": dict(options or {})}, text)

    def compact(self, path: Path, *, buckets: int) -> None:
        """The release's own full compaction of these many buckets of an unpartitioned table."""
        self._call("compact", path, {"options": {}, "buckets": buckets})

    def read(self, path: Path) -> list[tuple[Value, ...]]:
        return [tuple(row) for row in lines(self._call("read", path, {"options": {}}))]

    def _call(self, method: str, path: Path, arguments: Mapping[str, Any], *texts: str) -> Any:
        where = {
            "warehouse": str(path.parent.parent),
            "database": path.parent.name.removesuffix(".db"),
            "table": path.name,
        }
        return self._jvm.call("Release", method, {**where, **arguments}, *texts)
