"""Uploads to S3 that were begun and not completed: found, swept, and not left by failures."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable

import pytest

from compactord.errors import AccessDenied, StorageError, TransientStorageError
from compactord.ids import Liveness, this_process
from compactord.maintenance.orphan_search import OwnerRule, remove_orphans
from compactord.storage.base import UnfinishedUpload
from compactord.storage.calls import Breaker, RetryPolicy
from compactord.storage.objects.connection import connection_of
from compactord.storage.objects.store import ObjectStorage
from tests import builders
from tests.builders import FIRST, SECOND, VirtualClock
from tests.silent_servers import page, serving
from tests.store_servers import StoreServer, free_port, s3
from tests.tools.store_faults import Fault, How, from_nth
from tests.tools.store_proxy import StoreProxy

LARGE = 20 << 20


def begin(storage: ObjectStorage, path: str) -> None:
    """What a worker leaves that is killed while it writes."""
    key = storage.spec.key_of(path)
    file = connection_of(storage.spec).once.open(key, "wb", chunk=5 << 20)
    file.write(bytes(LARGE))
    del file


def unfinished(storage: ObjectStorage, folder: str) -> list[str]:
    return sorted(upload.path for upload in storage.unfinished_uploads(folder))


def test_uploads_below_a_folder_are_found_and_aborted(moto: StoreServer) -> None:
    storage, folder = moto.spec.open(), f"{moto.root}/{uuid.uuid4().hex}"
    paths = [f"{folder}/t/bucket-0/{name}" for name in ("a b%", "z", "é")]
    for path in (*paths, f"{folder}/t2/bucket-0/x"):
        begin(storage, path)
    found = list(storage.unfinished_uploads(f"{folder}/t"))
    assert sorted(upload.path for upload in found) == paths
    for upload in (found[0], found[0]):
        storage.abort_upload(upload)
    assert len(unfinished(storage, f"{folder}/t")) == 2
    assert list(storage.list(folder)) == []


@pytest.mark.parametrize("server", ["moto", "minio"])
def test_an_output_that_fails_leaves_no_upload(
    server: str, started: Callable[[str], StoreServer]
) -> None:
    storage = started(server).spec.open()
    folder = f"{storage.spec.root}/{uuid.uuid4().hex}"
    path = f"{folder}/data.parquet"

    def fail() -> None:
        with storage.open_output(path) as stream:
            for _ in range(20):
                stream.write(bytes(LARGE // 20))
            (begun,) = storage.unfinished_uploads(folder)
            assert begun.path == path
            # moto says that all were started in 2010.
            age_ms = time.time() * 1000 - begun.started_ms
            assert server == "moto" or abs(age_ms) < 120_000
            raise KeyError("of the writer")

    with pytest.raises(KeyError, match="of the writer"):
        fail()
    assert unfinished(storage, folder) == []


def test_a_sweep_aborts_what_the_dead_began_and_nothing_else(moto: StoreServer) -> None:
    storage, location = moto.spec.open(), f"{moto.root}/{uuid.uuid4().hex}/db.db/t"
    table = builders.keyed_table(storage, location)
    rows = builders.fill_keyed(builders.writer(storage, table), commits=2)
    names = {owner: f"data-{owner.unique_name()}-0.parquet" for owner in (FIRST, SECOND)}
    for name in (*names.values(), "data-of-a-writer-0.parquet"):
        begin(storage, f"{location}/bucket-0/{name}")
    rule = OwnerRule(
        myself=this_process(),
        liveness=lambda owner: Liveness.DEAD if owner == FIRST else Liveness.ALIVE,
        now_ms=int(time.time() * 1000) + 11 * 60_000,
        grace_ms=builders.DAY_MS,
    )
    (removed,) = remove_orphans(storage, location, partition_depth=0, rule=rule).orphans
    assert removed.name == names[FIRST]
    assert unfinished(storage, location) == sorted(
        f"{location}/bucket-0/{name}" for name in (names[SECOND], "data-of-a-writer-0.parquet")
    )
    assert builders.read_keyed(storage, table) == rows


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(how=how) for how in (How.CLOSE, How.HANG)),
        *(Fault(how=How.ANSWER, status=status) for status in (400, 403, 404, 500)),
        Fault(how=How.HALF, after=True),
    ],
    ids=str,
)
def test_an_abort_that_fails_hides_no_error_and_the_next_sweep_tries_again(
    fault: Fault, moto: StoreServer
) -> None:
    folder = f"{moto.root}/{uuid.uuid4().hex}"
    path = f"{folder}/data.parquet"

    def fail(storage: ObjectStorage) -> None:
        with storage.open_output(path) as stream:
            for _ in range(20):
                stream.write(bytes(LARGE // 20))
            raise KeyError("of the writer")

    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        # To make a client takes its time on a machine that does other things as well.
        spec = dataclasses.replace(s3(proxy.port).spec, timeout_s=3.0)
        heard: list[bool] = []
        clock = VirtualClock()
        storage = ObjectStorage(
            spec,
            RetryPolicy(clock=clock, attempts_max=2),
            breaker=Breaker("s3://lake", clock.steady_ms, report=heard.append),
        )
        uploads = ("list_uploads", "abort_upload")
        proxy.fail(lambda request: fault if request.kind in uploads else None)
        with pytest.raises(KeyError, match="of the writer"):
            fail(storage)
        assert proxy.failed
        assert False in heard or (heard and fault.how is How.ANSWER)
        proxy.fail(None)
        (left,) = storage.unfinished_uploads(folder)
        storage.abort_upload(left)
        assert unfinished(storage, folder) == []


def test_a_listing_of_uploads_that_leads_back_ends(moto: StoreServer) -> None:
    """A server that says of each page that there is another one, and the same."""
    text = b"<R><IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker></R>"
    with serving(page("200 OK", text)) as port:
        policy = RetryPolicy(clock=VirtualClock(), attempts_max=2)
        storage = ObjectStorage(s3(port).spec, policy)
        with pytest.raises(TransientStorageError, match="do not advance"):
            unfinished(storage, f"{moto.root}/t")


@pytest.mark.parametrize(("status", "kind"), [(403, AccessDenied), (503, StorageError)])
def test_uploads_that_cannot_be_listed_are_an_error_that_names_the_folder(
    status: int, kind: type[StorageError], moto: StoreServer
) -> None:
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        proxy.fail(from_nth(1, Fault(how=How.ANSWER, status=status)))
        storage = s3(proxy.port).spec.open()
        folder = f"{moto.root}/t"
        with pytest.raises(kind) as failed:
            list(storage.unfinished_uploads(folder))
        assert failed.value.path == folder
        upload = UnfinishedUpload(path=f"{folder}/x", upload_id="1", started_ms=0)
        with pytest.raises(kind):
            storage.abort_upload(upload)


def test_a_role_that_cannot_be_had_is_an_error_of_ours(
    moto: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_port()}")
    options = {
        **dict(moto.spec.options),
        "role_arn": "arn:aws:iam::1:role/r",
        "region": "eu-west-1",
    }
    spec = dataclasses.replace(moto.spec, options=tuple(options.items()))
    with pytest.raises(StorageError, match="Could not connect") as failed:
        unfinished(spec.open(), f"{moto.root}/t")
    assert failed.value.path == f"{moto.root}/t"
