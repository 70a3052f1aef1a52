"""Obtain, once, the stores on which the contract of a store is tested: `make stores`.

They are optional: their tests are skipped where they are missing. moto is not among them, since
`make tools` obtains it. MinIO takes some minutes to build.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools.catalogue import GO, NODE, Tool
from tests.tools.obtain import cache_root, obtain
from tests.tools.workbench import ToolError, Workbench

# A jar, which Java runs: no program of its own.
HDFS = "hdfs"


def _minio(bench: Workbench) -> None:
    source = bench.go_module(
        "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
        "/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA=",
    )
    bench.go_build(source, ".")


def _fake_gcs_server(bench: Workbench) -> None:
    source = bench.go_module(
        "github.com/fsouza/fake-gcs-server@v1.56.1",
        "K03sAvbLvDz4hAynpCCUqnNRp+ik9JFSvHbkD/wTPOU=",
    )
    bench.go_build(source, ".")


def _azurite(bench: Workbench) -> None:
    bench.npm_packages("azurite@3.35.0")


SERVERS = (
    Tool(
        name="azurite",
        version="3.35.0",
        programs={"azurite": "node_modules/azurite/dist/src/blob/main.js"},
        make=_azurite,
        needs=(NODE,),
    ),
    Tool(
        name="fake-gcs-server",
        version="1.56.1",
        programs={"fake-gcs-server": "fake-gcs-server"},
        make=_fake_gcs_server,
        needs=(GO,),
    ),
    Tool(
        name="minio",
        version="20260212",
        programs={"minio": "minio"},
        make=_minio,
        check=("--version",),
        needs=(GO,),
    ),
)


def server_path(name: str) -> Path:
    """A server's program; `ToolError` when it is missing."""
    tool = next(tool for tool in SERVERS if tool.name == name)
    path = cache_root() / f"{tool.name}-{tool.version}" / tool.programs[name]
    if not path.exists():
        raise ToolError(f"{name} is missing ({path}): run `make stores`")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.store_servers", description=__doc__
    )
    names = [*(tool.name for tool in SERVERS), HDFS]
    parser.add_argument("name", nargs="*", help=f"of {', '.join(names)}; default: all")
    wanted = parser.parse_args(arguments).name or names
    for name in wanted:
        if name not in names:
            parser.error(f"no server is called {name}; there are {', '.join(names)}")
    failures = obtain([tool for tool in SERVERS if tool.name in wanted], cache_root())
    if HDFS in wanted:
        # Slow to import, and this module is imported for its paths.
        from tests.oracle.judge_jar import JudgeJarError, hdfs_jar

        try:
            hdfs_jar(fetches=True)
        except JudgeJarError as error:
            failures[HDFS] = str(error)
    for name, why in failures.items():
        print(f"stores: {name} could not be obtained: {why}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
