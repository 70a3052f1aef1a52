from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine.worker import Lease, LeaseOffice, hold, report

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


def _held(lease: Lease) -> socket.socket:
    connection = hold(lease)
    assert connection is not None
    return connection


def _has_ended(connection: socket.socket, seconds: float = SECONDS) -> bool:
    readable, _, _ = select.select([connection], [], [], seconds)
    return bool(readable) and connection.recv(1) == b""


def test_a_lease_is_held_until_it_ends(office: LeaseOffice) -> None:
    mine, other = office.grant(), office.grant()
    with _held(mine) as first, _held(mine) as second, _held(other) as third:
        assert not _has_ended(first, 0.05)
        office.end(mine)
        assert _has_ended(first)
        assert _has_ended(second)
        assert not _has_ended(third, 0.05)


def test_who_comes_after_the_end_is_turned_away(office: LeaseOffice) -> None:
    lease = office.grant()
    office.end(lease)
    with _held(lease) as connection:
        assert _has_ended(connection)


def test_a_stranger_is_turned_away(office: LeaseOffice) -> None:
    lease = office.grant()
    with _held(Lease(address=lease.address, token=b"x" * 16)) as connection:
        assert _has_ended(connection)


def test_all_leases_end_with_the_office(tmp_path: Path) -> None:
    office = LeaseOffice(tmp_path)
    with _held(office.grant()) as connection:
        assert not _has_ended(connection, 0.05)
        office.close()
        assert _has_ended(connection)


def test_an_office_that_cannot_be_reached_gives_no_connection(tmp_path: Path) -> None:
    assert hold(Lease(address=str(tmp_path / "nowhere"), token=b"x" * 16)) is None


def test_the_end_tells_what_all_holders_have_reported(office: LeaseOffice) -> None:
    lease, other = office.grant(), office.grant()
    many = [f"file-{number}.parquet" for number in range(5000)]
    with _held(lease) as first, _held(lease) as second, _held(other) as third:
        assert report(first, ["a", "b"])
        assert report(second, many)
        assert report(third, ["c"])
        assert office.end(lease) == {"a", "b", *many}
    assert office.end(other) == {"c"}


def test_a_report_after_the_end_is_refused(office: LeaseOffice) -> None:
    lease = office.grant()
    with _held(lease) as connection:
        assert report(connection, ["a"])
        office.end(lease)
        assert not report(connection, ["b"])
    with _held(lease) as connection:
        assert not report(connection, ["b"])


def test_a_driver_that_does_not_answer_is_no_reason_to_stop() -> None:
    mine, silent = socket.socketpair()
    with mine, silent:
        mine.settimeout(0.01)
        assert report(mine, ["a"])
