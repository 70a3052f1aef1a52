"""HDFS beyond the contract: lost answers, silence, dead writers, a second name node, workers."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("hdfs_native", reason="hdfs-native is missing: run `make setup`")

from compactord.catalog.open import open_catalog
from compactord.commit.publish import Delta, StorePublisher
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.model import Subcompaction
from compactord.paimon.snapshot import read_snapshot
from compactord.plan.table import Strategy
from compactord.storage.base import Creation
from compactord.storage.calls import FAILURES_MAX, Breaker, RetryPolicy
from compactord.storage.hdfs.spec import HdfsSpec
from compactord.storage.hdfs.store import HdfsStorage, named_errors
from compactord.storage.open import STORES
from tests import builders
from tests.builders import FIRST, SECOND, VirtualClock
from tests.inline_engine import InlineEngine
from tests.oracle.hdfs_cluster import SERVICE, HdfsCluster, hdfs_cluster
from tests.oracle.judge_jar import JudgeJarError
from tests.sampling import CutPoints
from tests.silent_servers import serving
from tests.storages import WatchedStorage
from tests.store_servers import StoreServer
from tests.unit.catalog import metastore as hive

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def cluster() -> Iterator[HdfsCluster]:
    """One of two name nodes, which tests may stop."""
    with contextlib.ExitStack() as running:
        try:
            yield running.enter_context(hdfs_cluster(name_nodes=2))
        except JudgeJarError as error:
            pytest.skip(str(error))


@pytest.fixture
def server(started: Callable[[str], StoreServer]) -> StoreServer:
    return started("hdfs")


@pytest.fixture
def folder(server: StoreServer) -> str:
    return f"{server.root}/{uuid.uuid4().hex}"


def _impatient(root: str, *, answer_s: float = 1.0, **settings: str) -> HdfsStorage:
    policy = RetryPolicy(clock=VirtualClock(), attempts_max=2)
    spec = HdfsSpec(root=root, settings=tuple(settings.items()), answer_s=answer_s)
    return HdfsStorage(spec, policy)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('RPCError("org.apache.hadoop.security.AccessControlException", "no")', AccessDenied),
        ('GSSAPIError(GssMajorCodes(2529639068), 39756033, "no ticket")', AccessDenied),
        ("NoSASLMechanism", AccessDenied),
        (
            'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "x")',
            StoreFull,
        ),
        ('RPCError("org.apache.hadoop.fs.InvalidPathException", "x")', StorageError),
        ('RPCError("org.apache.hadoop.ipc.StandbyException", "x")', TransientStorageError),
        ('RPCError("java.io.IOException", "a\\n\\tat b.c")', TransientStorageError),
        ('DataTransferError("broken")', TransientStorageError),
    ],
)
def test_errors_of_name_nodes_become_ours(text: str, kind: type[CompactordError]) -> None:
    with pytest.raises(kind) as raised, named_errors("hdfs://n/x", "read"):
        raise RuntimeError(text)
    assert type(raised.value) is kind
    assert "\tat" not in str(raised.value)
    assert ("KRB5CCNAME" in str(raised.value)) == ("GSS" in text or "SASL" in text)


def test_a_name_that_is_no_service_and_no_host_is_told_where_to_say_so() -> None:
    # Some resolvers take their time to say that there is no such host.
    storage = _impatient("hdfs://no-such-service.invalid", answer_s=60.0)
    with pytest.raises(TransientStorageError, match=r"check the name; .* HADOOP_CONF_DIR"):
        storage.status(f"{storage.spec.root}/x")
    with pytest.raises(StorageError, match="outside the store"):
        storage.status("hdfs://elsewhere/x")


def test_of_two_that_publish_one_snapshot_one_is_told_that_it_exists(
    server: StoreServer, folder: str
) -> None:
    storage = server.spec.open()
    table = builders.keyed_table(storage, f"{folder}/db.db/t")
    builders.fill_keyed(builders.writer(storage, table), commits=1)
    first = read_snapshot(storage, table.location, 1)
    rivals = [(owner, replace(first, id=2, uuid=str(uuid.uuid4()))) for owner in (FIRST, SECOND)]
    publisher = StorePublisher(storage)
    assert publisher.excludes_writers
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda each: publisher.publish(table, each[1], Delta(base=first), owner=each[0]), rivals
        )
        outcomes = dict(zip(found, (snapshot for _, snapshot in rivals), strict=True))
    assert outcomes.keys() == {Creation.CREATED, Creation.EXISTS}
    assert read_snapshot(storage, table.location, 2).uuid == outcomes[Creation.CREATED].uuid
    assert builders.leftovers(storage, table, [FIRST, SECOND]) == set()


def _relay(port: int, admit: Callable[[bytes], str]) -> Callable[[socket.socket], None]:
    """Before a name node. `admit` says of what a client sends, at its leisure, whether it is "cut".

    Or "lost": passed on, and not answered. The connection ends then.
    """

    def answer(client: socket.socket) -> None:
        # Whoever serves may close the client between two looks at it.
        with (
            contextlib.suppress(ValueError),
            socket.create_connection(("127.0.0.1", port)) as node,
        ):
            while True:
                for source in select.select([client, node], [], [])[0]:
                    data = source.recv(1 << 16)
                    how = admit(data) if source is client else ""
                    if data and how != "cut":
                        (node if source is client else client).sendall(data)
                    if how == "lost":
                        node.recv(1)
                    if how or not data:
                        client.shutdown(socket.SHUT_RDWR)
                        return

    return answer


@pytest.mark.parametrize(
    ("how", "times", "expected"),
    [
        ("lost", 1, ["snapshot-1"]),
        ("lost", 99, ["snapshot-1"]),
        ("cut", 1, ["snapshot-1"]),
        ("cut", 99, []),
    ],
)
def test_a_rename_without_an_answer_counts_once(
    server: StoreServer, folder: str, how: str, times: int, expected: list[str]
) -> None:
    """So many requests for a rename fail so."""
    direct, failing = server.spec.open(), iter([how] * times)
    relay = _relay(server.port, lambda data: next(failing, "") if b"rename2" in data else "")
    with serving(relay) as port:
        root = f"hdfs://127.0.0.1:{port}"
        path, storage = f"{root}/{folder.rpartition('/')[2]}/snapshot-1", _impatient(root)
        may_fail = contextlib.nullcontext() if expected else pytest.raises(TransientStorageError)
        with may_fail:
            created = storage.create_if_absent(path, b"mine", temporary=f"{path}.t")
            assert created is Creation.CREATED
    assert [status.name for status in direct.list(folder)] == expected
    for name in expected:
        assert direct.read(f"{folder}/{name}") == b"mine"


# As Hadoop's request names its method; the name of the protocol follows.
_CHANGE = re.compile(rb"(create|addBlock|complete|rename2|delete|mkdirs)\x12")


def test_any_change_of_a_compaction_may_lose_its_answer(
    server: StoreServer, folder: str, cut_points: CutPoints
) -> None:
    """Every fifth, each in a run of its own."""
    direct, asked, lost = server.spec.open(), list[str](), -1

    def admit(data: bytes) -> str:
        change = _CHANGE.search(data)
        if change is None:
            return ""
        asked.append(change[1].decode())
        return "lost" if len(asked) - 1 == lost else ""

    seen: set[str] = set()
    with serving(_relay(server.port, admit)) as port:
        root = f"hdfs://127.0.0.1:{port}"
        storage = WatchedStorage(_impatient(root, answer_s=30.0))
        for number in (point - 1 for point in cut_points(5)):
            table = builders.keyed_table(direct, f"{folder}/{number}", buckets=1)
            rows = builders.fill_keyed(builders.writer(direct, table), commits=3, keys=20)
            relayed = replace(table, location=f"{root}/{folder.rpartition('/')[2]}/{number}")
            asked.clear()
            lost = number
            with contextlib.suppress(CompactordError):
                builders.compact(storage, relayed, owner=FIRST, strategy=Strategy.FULL)
            if len(asked) <= number:
                break
            seen.add(asked[number])
            builders.remove_leftovers(direct, table, myself=SECOND)
            totals = builders.compact(direct, table, owner=SECOND, strategy=Strategy.FULL)
            assert (totals.failures, totals.lost_snapshots) == ([], []), asked[number]
            assert builders.read_keyed(direct, table) == rows, asked[number]
            builders.check_chain(direct, table)
            assert builders.leftovers(direct, table, [FIRST, SECOND]) == set(), asked[number]
    assert len(seen) > 1
    assert number > 20, "the faults reached the whole run"


def test_a_name_node_that_hangs_is_an_error_in_time_and_goes_on_later(
    server: StoreServer, folder: str
) -> None:
    goes_on = threading.Event()
    goes_on.set()

    def admit(data: bytes) -> str:
        assert goes_on.wait(300)
        return ""

    with serving(_relay(server.port, admit)) as port:
        root = f"hdfs://127.0.0.1:{port}"
        storage, own = _impatient(root), f"{root}/{folder.rpartition('/')[2]}"
        path = f"{own}/file"
        storage.write_new(path, b"1")
        calls: tuple[Callable[[], object], ...] = (
            lambda: storage.read(path),
            lambda: storage.read_range(path, 0, 1),
            lambda: list(storage.list(own)),
            lambda: storage.status(path),
            lambda: storage.create_if_absent(f"{path}-2", b"2", temporary=f"{path}-t"),
            lambda: storage.overwrite(path, b"2"),
            lambda: storage.delete(path),
            lambda: storage.open_output(f"{path}-3").__enter__(),
        )
        goes_on.clear()
        for call in calls:
            began_s = time.monotonic()
            with pytest.raises(TransientStorageError, match="no answer within 1 s"):
                call()
            assert time.monotonic() - began_s < 30
        # Ten times as fast, so that its patience ends.
        breaker = Breaker("hdfs", lambda: int(time.monotonic() * 10_000))
        guarded = storage.behind(breaker)
        for _ in range(FAILURES_MAX):
            with pytest.raises(TransientStorageError):
                guarded.status(path)
        assert breaker.open_since_ms > 0
        goes_on.set()
        later = replace(storage.spec, answer_s=30.0).open()
        later.write_new(f"{path}-4", b"4")
        assert later.read(f"{path}-4") == b"4"
        # What was asked for meanwhile may have come about, but no name was given to half a file.
        assert {status.name for status in later.list(own)} >= {"file-4"}
        assert later.status(f"{path}-2") is None


_WRITER = """\
import pickle, sys
spec, path = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2]
with spec.open().open_output(path) as stream:
    stream.write(bytes(9 << 20))
    stream.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def _process(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_file_whose_writer_died_is_listed_refused_to_others_and_removed(
    server: StoreServer, folder: str
) -> None:
    storage, path = server.spec.open(), f"{folder}/data.parquet"
    with _process(_WRITER, pickle.dumps(server.spec).hex(), path) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
    (left,) = storage.list(folder)
    assert (left.name, left.size_bytes < 9 << 20) == ("data.parquet", True)
    assert len(storage.read(path)) <= left.size_bytes
    with pytest.raises(StorageError, match="read failed"):
        storage.read_range(path, 0, 9 << 20)
    with pytest.raises(StorageError, match="exists"):
        storage.write_new(path, b"another's")
    with pytest.raises(StorageError, match="exists"), storage.open_output(path):
        pass
    storage.delete(path)
    storage.write_new(path, b"another's")
    assert storage.read(path) == b"another's"


_STRANGER = """\
import pickle, sys
from compactord.errors import AccessDenied
storage, path = pickle.loads(bytes.fromhex(sys.argv[1])).open(), sys.argv[2]
for call in (lambda: storage.write_new(path + "-2", b""), lambda: storage.delete(path)):
    try:
        call()
    except AccessDenied as error:
        print(error, flush=True)
"""


def test_a_user_without_rights_is_denied(server: StoreServer, folder: str) -> None:
    storage, path = server.spec.open(), f"{folder}/file"
    storage.write_new(path, b"x")
    payload = pickle.dumps(server.spec).hex()
    with _process(_STRANGER, payload, path, HADOOP_USER_NAME="stranger") as process:
        said = process.communicate(timeout=180)[0].splitlines()
    assert len(said) == 2
    assert all("Permission denied: user=stranger" in line for line in said)
    assert [status.name for status in storage.list(folder)] == ["file"]


_FORKED = """\
import os, pickle, sys
storage, path = pickle.loads(bytes.fromhex(sys.argv[1])).open(), sys.argv[2]
storage.write_new(path, b"parent's")
child = os.fork()
found = storage.read(path)
if not child:
    os._exit(found != b"parent's")
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_has_a_client_of_its_own(server: StoreServer, folder: str) -> None:
    payload = pickle.dumps(server.spec).hex()
    with _process(_FORKED, payload, f"{folder}/file") as process:
        assert process.communicate(timeout=180)[0] == "0\n"


class _Away(InlineEngine):
    """Subcompactions go to their worker as bytes."""

    def submit(self, subcompaction: Subcompaction) -> None:
        super().submit(pickle.loads(pickle.dumps(subcompaction)))


def test_a_table_is_compacted_while_the_second_name_node_takes_over(
    cluster: HdfsCluster, tmp_path: Path
) -> None:
    """Hadoop's files are read by the driver, once."""
    cluster.write_site(tmp_path)
    warehouse, options = f"hdfs://{SERVICE}/warehouse", {"hadoop-conf-dir": str(tmp_path)}
    storage, path = STORES.open(warehouse, options)
    table = builders.keyed_table(storage, f"{path}/db.db/t")
    writer = builders.writer(storage, table)
    rows = builders.fill_keyed(writer, commits=6)
    (tmp_path / "hdfs-site.xml").unlink()
    assert isinstance(storage.spec, HdfsSpec)
    options = {f"hadoop.{key}": text for key, text in storage.spec.settings}
    with storage.open_output(f"{path}/half") as stream:
        stream.write(b"before ")
        cluster.fail_over()
        stream.write(b"and after")
    assert storage.read(f"{path}/half") == b"before and after"
    catalog = open_catalog(warehouse, options=options)
    catalog.check_access()
    catalog.check_commits()
    found = catalog.find_table("db.t")
    totals = builders.compact(
        catalog.warehouse_storage,
        found,
        access=catalog.open(found),
        start_engine=_Away,
    )
    assert (totals.snapshots, totals.compactions, totals.failures) == ([7], 2, [])
    assert builders.read_keyed(storage, found) == rows
    builders.check_chain(storage, found)
    assert builders.leftovers(storage, found, [FIRST]) == set()


def test_a_metastore_s_warehouse_and_tables_may_be_there(
    server: StoreServer, folder: str, tmp_path: Path
) -> None:
    """A location without a scheme is in the default file system of Hadoop's files."""
    storage = server.spec.open()
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        f"<value>{server.root}</value></property></configuration>"
    )
    rows = {}
    for name in ("named", "default"):
        ref = builders.keyed_table(storage, f"{folder}/db.db/{name}")
        rows[name] = builders.fill_keyed(builders.writer(storage, ref), commits=6)
    path = folder.removeprefix(server.root)
    metastore = hive.Metastore(
        hive.table("db", "named", f"{folder}/db.db/named"),
        hive.table("db", "default", f"{path}/db.db/default"),
    )
    with hive.running(metastore) as uri:
        options = {"uri": uri, "hadoop-conf-dir": str(tmp_path)}
        catalog = open_catalog(folder, metastore="hive", options=options)
        for name, expected in rows.items():
            access = catalog.open(catalog.find_table(f"db.{name}"))
            assert access.publisher.excludes_writers
            assert builders.compact(access.storage, access.ref, access=access).snapshots == [7]
            assert builders.read_keyed(storage, access.ref) == expected


@pytest.mark.spark
def test_spark_s_workers_open_it_themselves(server: StoreServer, folder: str) -> None:
    storage = server.spec.open()
    table = builders.keyed_table(storage, f"{folder}/db.db/t")
    rows = builders.fill_keyed(builders.writer(storage, table), commits=6)
    command = [sys.executable, "-m", "compactord", "compact", "--json", "--master", "local[2]"]
    done = subprocess.run(
        [*command, "--warehouse", folder, "--table", "db.t"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["compactions"] == 2
    assert builders.read_keyed(storage, table) == rows
    with pytest.raises(ObjectNotFound):
        storage.read(f"{table.location}/snapshot/snapshot-8")
