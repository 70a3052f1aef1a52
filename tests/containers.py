"""Avro container files from records and back, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compactord.paimon.avro.container import AvroSchema, Container, ContainerWriter, encode_record
from compactord.paimon.avro.types import Codec


def encode_container(
    schema: AvroSchema, records: Iterable[Mapping[str, Any]], codec: Codec
) -> bytes:
    """A whole file; without records it is a header alone, as Java writes it."""
    writer = ContainerWriter(schema, codec)
    for record in records:
        writer.append(encode_record(schema, record))
    return writer.finish()


def records_of(container: Container) -> list[dict[str, Any]]:
    return [record for record, _ in container.encoded_records()]
