"""The number of stops of a data file."""

from __future__ import annotations

from tests.tools.way_of_a_file import stops_of_one


def test_a_file_has_few_stops_from_the_poll_to_the_snapshot() -> None:
    found = stops_of_one()
    published = found.index("commit.publish.Publication.published")
    assert "plan.table.plan_bucket" in found[:published]
    assert published + 1 <= 25, found
