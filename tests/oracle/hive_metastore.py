"""A Hive metastore from pyspark's own jars, and Java's Hive catalog, in a judge's JVM."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from tests.oracle.contest import PROGRAM, Contest
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm

FORGET_SECONDS = 2
_METASTORE = Path(__file__).with_name("Metastore.java")
_OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("net", "lang", "util")]
# Without it Log4j looks for classes in a way that fails beside another loader.
_LOG = "-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.BasicContextSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metastore:
    """One that runs, on the loopback device."""

    java: JudgeJvm
    port: int
    warehouse: str

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def options(self, **more: str) -> dict[str, str]:
        return {
            "uri": self.uri,
            "lock.enabled": "true",
            "lock-check-max-sleep": "100 ms",
            **{key.replace("_", "-"): value for key, value in more.items()},
        }

    def catalog(self, **more: str) -> Catalog:
        return open_catalog(self.warehouse, metastore="hive", options=self.options(**more))

    def java_options(self, **more: str) -> dict[str, str]:
        return {"metastore": "hive", "warehouse": self.warehouse, **self.options(**more)}

    def contest(self, *, commits: int) -> Contest:
        """Java's writer waits after each commit: locks are given in the order of asking."""
        options = self.java_options()
        return Contest(
            java=self.java, options=options, users=["java-1"], commits=commits, pause_ms=150
        )

    def tell(self, method: str, name: str, *, java: dict[str, str], **arguments: object) -> int:
        """Java does something with the table db.`name` of the catalog that `java` describes."""
        found: int = self.java.call(
            "Metastore", method, {"catalog": java, "name": name, **arguments}
        )
        return found

    def ask(self, method: str, name: str, *, java: dict[str, str], **arguments: object) -> Any:
        """As `tell`, of what Java says in JSON."""
        return json.loads(
            self.java.call("Metastore", method, {"catalog": java, "name": name, **arguments})
        )


@contextlib.contextmanager
def hive_metastore(folder: Path) -> Iterator[Metastore]:
    """A metastore over a database in memory, whose warehouse is below the folder."""
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    java = JudgeJvm(time_zone="UTC", java_options=[*JAVA_OPTIONS, *_OPENED, _LOG], jars=jars)
    java.start()
    try:
        java.load(PROGRAM)
        java.load(_METASTORE)
        warehouse = str(folder / "wh")
        properties = {
            "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "datanucleus.connectionPoolingType": "HikariCP",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{warehouse}",
            # Locks are dropped only by the `housekeeping` of a test.
            "hive.txn.timeout": f"{FORGET_SECONDS}s",
            "derby.stream.error.file": str(folder / "derby.log"),
        }
        port = java.call("Metastore", "start", properties)
        yield Metastore(java=java, port=port, warehouse=warehouse)
    finally:
        java.stop()
