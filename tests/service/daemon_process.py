"""`compactord serve` as a process: started, asked over HTTP, told by signals, and its log read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from compactord.ids import owner_of
from tests.conftest import REPOSITORY
from tests.spark.remote import descendants, find_process, is_alive

SERVE = (str(Path(sys.executable).with_name("compactord")), "serve")
# Spark starts in five seconds on an idle machine; on a crowded one all takes far longer.
SECONDS_MAX = 180.0
_PAUSE_S = 0.05
_ADDRESS = re.compile(r"http_listening.*http://(?:localhost|127\.0\.0\.1):(\d+)/")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def configuration(warehouse: Path | str, **sections: Any) -> dict[str, Any]:
    """One that is quick about everything; `sections` are laid over it, key by key."""
    return merged(
        {
            "service": {"http": {"bind": "127.0.0.1", "port": 0}},
            "spark": {"master": "local[2]", "task_memory": "128 mb"},
            "catalogs": {"lake": {"warehouse": str(warehouse)}},
            "discovery": {"catalog_list_interval": "1 s"},
            "defaults": {"discovery_interval": "1 s", "append_wait": "1 s"},
            "retry": {"backoff": {"min": "500 ms", "max": "2 s"}},
            "reload": {"interval": "1 s"},
            "shutdown": {"grace": "120 s", "commit_reserve": "10 s"},
            "log": {"format": "json"},
        },
        sections,
    )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in over.items():
        known = found.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        found[key] = merged(known, value) if both else value  # type: ignore[arg-type]
    return found


@dataclass(frozen=True, slots=True)
class Scrape:
    """What /metrics said: samples as (name, labels, value)."""

    samples: tuple[tuple[str, Mapping[str, str], float], ...]

    def all(self, name: str, **labels: str) -> list[float]:
        """Values of the samples with these labels, whatever others they have."""
        full = f"compactord_{name}"
        wanted = labels.items()
        return [value for n, found, value in self.samples if n == full and wanted <= found.items()]

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.all(name, **labels))

    def one(self, name: str, **labels: str) -> float:
        (value,) = self.all(name, **labels)
        return value

    def states(self) -> dict[str, str]:
        """The state of each table, by its name."""
        found = (labels for name, labels, _ in self.samples if name == "compactord_table_state")
        return {labels["table"]: labels["state"] for labels in found}

    def tables(self) -> set[str]:
        """Names that any series carries."""
        return {labels["table"] for _, labels, _ in self.samples if "table" in labels}


class Service:
    """A running daemon. `folder` holds its configuration, what it says, and temporary files."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self._family: set[int] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    # -- what it says

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def text(self) -> str:
        """The log as it is."""
        return (self.folder / "log").read_text()

    def log(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """Lines of the log with these fields; each is a JSON object, or this fails."""
        text = self.text
        # The last line may still be being written.
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        wanted = fields if event is None else {"event": event, **fields}
        return [line for line in lines if wanted.items() <= line.items()]

    @property
    def port(self) -> int:
        found = _ADDRESS.search(self.text)
        if found is None:
            raise ConnectionError(f"no address yet: {self.err}")
        return int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with _OPENER.open(url, timeout=SECONDS_MAX) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def answers(self, path: str, status: int = 200) -> bool:
        """Whether the answer has this status; False also when nobody listens any more."""
        try:
            return self.get(path)[0] == status
        except (urllib.error.URLError, ConnectionError):
            return False

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def metrics(self) -> Scrape:
        status, text = self.get("/metrics")
        assert status == 200
        return Scrape(
            tuple(
                (sample.name, sample.labels, sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            )
        )

    def table(self, name: str) -> dict[str, Any]:
        """One of /v1/tables, by `table`; empty when it is not served."""
        found = self.json("/v1/tables")["tables"]
        return next((table for table in found if table["name"]["table"] == name), {})

    # -- waiting

    def wait_until(
        self, condition: Callable[[], object], what: str, seconds: float = SECONDS_MAX
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            code = self.process.poll()
            assert code is None, f"ended with {code} before {what}:\n{self._end_of_story()}"
            assert time.monotonic() < deadline, (
                f"not within {seconds:.0f} s: {what}\n{self._end_of_story()}"
            )
            time.sleep(_PAUSE_S)

    def wait_started(self) -> Service:
        self.wait_until(lambda: _ADDRESS.search(self.text), "it listens")
        self.wait_until(lambda: self.answers("/startupz"), "/startupz")
        self.family()
        return self

    def wait_settled(self, *tables: str, seconds: float = SECONDS_MAX) -> Scrape:
        """Until nothing is due in these tables, as seen by a poll that begins from now on."""
        begun = time.time()
        scrapes: list[Scrape] = []

        def is_settled() -> bool:
            scrapes[:] = [self.metrics()]
            return all(
                scrapes[0].sum("table_backlog_tasks", table=table) == 0
                and not scrapes[0].all("table_quarantined_buckets", table=table)
                # A poll takes less than a second here.
                and scrapes[0].sum("table_last_poll_timestamp_seconds", table=table) > begun + 1
                for table in tables
            )

        self.wait_until(is_settled, f"{tables} settled", seconds)
        return scrapes[0]

    def wait_exit(self, seconds: float = SECONDS_MAX) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"still running after {seconds:.0f} s:\n{self._end_of_story()}"
            raise AssertionError(message) from None

    # -- acting

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, seconds: float = SECONDS_MAX) -> int:
        """SIGTERM; the exit code."""
        self.family()
        self.signal(signal.SIGTERM)
        return self.wait_exit(seconds)

    def reconfigure(self, config: Mapping[str, Any] | str) -> None:
        """Another configuration under the same name, put there in one step."""
        text = config if isinstance(config, str) else yaml.safe_dump(dict(config))
        fresh = self.folder / "new.yaml"
        fresh.write_text(text)
        fresh.replace(self.folder / "compactord.yaml")

    # -- its processes and files

    def family(self) -> set[int]:
        """The processes below this one that were seen so far."""
        self._family |= descendants(self.pid)
        return self._family

    def jvm(self) -> int:
        alive = {pid for pid in self.family() if is_alive(pid)}
        return find_process("org.apache.spark.api.python.PythonGatewayServer", alive)

    def workers(self) -> list[int]:
        """Python processes whose parent is Spark's daemon, which is itself below the JVM."""
        jvm = self.jvm()
        return [pid for pid in self.family() if is_alive(pid) and parent(parent(pid)) == jvm]

    def data_files(self, location: Path | str) -> list[Path]:
        """Its data files in a table; they are named after their process."""
        return [
            path
            for path in Path(location).glob("**/bucket-*/data-*")
            if (owner := owner_of(path.name)) is not None and owner.pid == self.pid
        ]

    def assert_no_process_remains(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while alive := [pid for pid in self._family if is_alive(pid)]:
            assert time.monotonic() < deadline, f"still running: {alive}"
            time.sleep(_PAUSE_S)

    def kill_family(self) -> None:
        for pid in (self.pid, *self.family()):
            if is_alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(SECONDS_MAX)

    def _end_of_story(self) -> str:
        log = (self.folder / "log").read_text().splitlines()
        return "\n".join([*log[-15:], self.err[-2000:]])


@dataclass(frozen=True, slots=True)
class Services:
    """Starts daemons, each with a folder of its own below `scratch`."""

    scratch: Path
    started: list[Service]

    def start(
        self,
        config: Mapping[str, Any] | str,
        *arguments: str,
        command: Sequence[str] = SERVE,
        environment: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> Service:
        """Not waited for. `command` is `compactord serve`, or what stands in its place."""
        folder = self.scratch / str(len(self.started))
        temporary = folder / "t"
        temporary.mkdir(parents=True)
        text = config if isinstance(config, str) else yaml.safe_dump(dict(config))
        (folder / "compactord.yaml").write_text(text)
        with (folder / "log").open("wb") as log, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*command, "--config", str(folder / "compactord.yaml"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=err,
                cwd=REPOSITORY,
                env={**os.environ, "TMPDIR": str(temporary), **(environment or {})},
                **popen,
            )
        self.started.append(Service(process, folder))
        return self.started[-1]


def parent(pid: int) -> int:
    """Zero for a process that has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0
