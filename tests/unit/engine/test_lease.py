from __future__ import annotations

import pickle
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine.leases import Lease, LeaseOffice, LeaseOver, hold, receive, send
from compactord.engine.worker import run_subcompaction
from compactord.model import Subcompaction, SubcompactionOutcome, SubcompactionResult
from tests.spark.subcompactions import append_subcompaction, eventually, outputs
from tests.unit.engine.jobs import ScriptedJob

SECONDS = 180.0


@pytest.fixture(params=["Unix domain", "TCP"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseOffice]:
    office = (
        LeaseOffice(tmp_path)
        if request.param == "Unix domain"
        else LeaseOffice(None, host="127.0.0.1", bind="127.0.0.1")
    )
    yield office
    office.close()


@pytest.fixture
def job(tmp_path: Path) -> ScriptedJob:
    return ScriptedJob(append_subcompaction(tmp_path, number) for number in range(3))


def _held(lease: Lease) -> socket.socket:
    connection = hold(lease)
    assert connection is not None
    connection.settimeout(SECONDS)
    return connection


def _has_ended(connection: socket.socket, seconds: float = SECONDS) -> bool:
    readable, _, _ = select.select([connection], [], [], seconds)
    return bool(readable) and connection.recv(1) == b""


def _answer(connection: socket.socket, outcome: SubcompactionOutcome) -> int | str:
    """The index of the next subcompaction, or what the driver answered instead."""
    send(connection, pickle.dumps(outcome))
    with connection.makefile("rb") as stream:
        answer = receive(stream)
    if not answer:
        return "closed" if answer is None else "no more"
    following: Subcompaction = pickle.loads(answer)
    return following.index


def test_a_lease_is_held_until_it_ends(office: LeaseOffice, job: ScriptedJob) -> None:
    mine, other = office.grant(job), office.grant(job)
    with _held(mine) as first, _held(mine) as second, _held(other) as third:
        assert not _has_ended(first, 0.05)
        office.end(mine)
        assert _has_ended(first)
        assert _has_ended(second)
        assert not _has_ended(third, 0.05)


def test_who_comes_after_the_end_is_turned_away(office: LeaseOffice, job: ScriptedJob) -> None:
    lease = office.grant(job)
    office.end(lease)
    with pytest.raises(LeaseOver):
        hold(lease)


def test_a_stranger_is_turned_away(office: LeaseOffice, job: ScriptedJob) -> None:
    lease = office.grant(job)
    with pytest.raises(LeaseOver):
        hold(Lease(address=lease.address, token=b"x" * 16))


def test_all_leases_end_with_the_office(tmp_path: Path, job: ScriptedJob) -> None:
    office = LeaseOffice(tmp_path)
    with _held(office.grant(job)) as connection:
        assert not _has_ended(connection, 0.05)
        office.close()
        assert _has_ended(connection)


def test_an_office_that_cannot_be_reached_gives_no_connection(tmp_path: Path) -> None:
    assert hold(Lease(address=str(tmp_path / "nowhere"), token=b"x" * 16)) is None


def test_outcomes_are_answered_with_the_next_subcompaction(
    office: LeaseOffice, job: ScriptedJob, tmp_path: Path
) -> None:
    results = [run_subcompaction(each) for each in job.all]
    with _held(office.grant(job)) as connection:
        assert [_answer(connection, result) for result in results] == [1, 2, "no more"]
        # The worker ends first, so that it is not taken for one that has to stop.
        assert not _has_ended(connection, 0.05)
    assert job.taken == results
    assert len(outputs(tmp_path)) == 3


def test_a_copy_of_the_task_has_to_stop_when_the_other_was_faster(
    office: LeaseOffice, job: ScriptedJob, tmp_path: Path
) -> None:
    lease = office.grant(job)
    faster, slower = run_subcompaction(job.first), run_subcompaction(job.first)
    with _held(lease) as first, _held(lease) as second:
        assert _answer(first, faster) == 1
        assert _has_ended(second)
        assert _answer(second, slower) == "closed", "it was about to report"
        with pytest.raises(LeaseOver):
            hold(lease)
        assert not _has_ended(first, 0.05)
    assert isinstance(faster, SubcompactionResult)
    kept = [output.file.file_name for output in faster.outputs]
    eventually(lambda: outputs(tmp_path) == kept, "the driver has removed the other's file")


def test_files_of_an_outcome_after_the_end_are_removed(
    office: LeaseOffice, job: ScriptedJob, tmp_path: Path
) -> None:
    lease = office.grant(job)
    with _held(lease) as connection:
        job.ended = True
        office.end(lease)
        assert _answer(connection, run_subcompaction(job.first)) == "closed"
    eventually(lambda: outputs(tmp_path) == [], "the driver has removed the file")


def test_an_outcome_that_arrives_twice_keeps_its_files(
    office: LeaseOffice, job: ScriptedJob, tmp_path: Path
) -> None:
    result = run_subcompaction(job.first)
    with _held(office.grant(job)) as connection:
        assert job.deliver(result), "through Spark"
        assert _answer(connection, result) == "closed"
    assert len(outputs(tmp_path)) == 1


def test_a_message_that_breaks_off_is_no_outcome(
    office: LeaseOffice, job: ScriptedJob, tmp_path: Path
) -> None:
    result = run_subcompaction(job.first)
    connection = _held(office.grant(job))
    connection.sendall(len(pickle.dumps(result)).to_bytes(4, "big") + b"abc")
    connection.close()
    with _held(office.grant(job)) as other:
        assert _answer(other, result) == 1
    assert job.taken == [result]
