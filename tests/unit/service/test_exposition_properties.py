from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from compactord.service.exposition import family, labels_text, number, write_family

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))


@given(database=texts, table=texts, value=st.integers(0, 1 << 62) | st.floats(allow_nan=False))
def test_any_name_and_number_arrives(database: str, table: str, value: float) -> None:
    labels = f"{{{labels_text(('database', 'table'), (database, table))}}}"
    written = write_family(family("g", "Help."), [(labels, value)], is_openmetrics=False)
    (found,) = text_string_to_metric_families(written)
    (sample,) = found.samples
    assert sample.labels == {"database": database, "table": table}
    assert sample.value == value


@given(value=st.text(st.characters(categories=["Cs"]), min_size=1))
def test_half_a_surrogate_pair_becomes_text_that_can_be_sent(value: str) -> None:
    written = write_family(
        family("c_total", "Help."),
        [(f"{{{labels_text(('table',), (value,))}}}", 1)],
        is_openmetrics=True,
    )
    (found,) = openmetrics_parser.text_string_to_metric_families(written + "# EOF\n")
    assert found.samples[0].labels["table"].encode() == value.encode(errors="backslashreplace")


def test_numbers_that_json_does_not_know_have_their_words() -> None:
    assert [number(n) for n in (math.inf, -math.inf, math.nan)] == ["+Inf", "-Inf", "NaN"]


def test_a_family_without_samples_is_not_mentioned() -> None:
    assert write_family(family("g", "Help."), [], is_openmetrics=False) == ""
