"""Definition and repetition levels: they precede a page's values and mark nulls."""

from __future__ import annotations

import pyarrow as pa

from compactord.formats.parquet import thrift
from compactord.formats.parquet.structs import Codec

_LENGTH_BYTES = 4
# The older framing of LZ4 is not one of Arrow's codecs.
_CODECS = {
    Codec.SNAPPY: "snappy",
    Codec.GZIP: "gzip",
    Codec.BROTLI: "brotli",
    Codec.ZSTD: "zstd",
    Codec.LZ4_RAW: "lz4_raw",
}


def are_levels(encoded: bytes, most: int, count: int) -> bool:
    """Whether the bytes are exactly runs of `count` levels; no bytes if `most` is 0."""
    if not most:
        return not encoded
    width = most.bit_length()
    position = found = 0
    try:
        while position < len(encoded):
            if found >= count:
                return False
            # The lowest bit is the kind of run; `signed` takes it for the sign.
            run, position = thrift.signed(encoded, position)
            found += run if run >= 0 else 8 * ~run
            position += (width + 7) // 8 if run >= 0 else width * ~run
    except IndexError:
        return False
    # The last run may be padded to a multiple of eight.
    return position == len(encoded) and found >= count


def begins_with_levels(stored: bytes, codec: int, size: int, count: int) -> bool | None:
    """Whether a page of version 1, of a column that is not nested, begins with definition levels.

    `size`: bytes of the decoded page. `count`: its values. None if this cannot be decided.
    """
    if codec != Codec.UNCOMPRESSED:
        if codec not in _CODECS:
            return None
        stored = pa.Codec(_CODECS[codec]).decompress(stored, size).to_pybytes()
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    return end <= len(stored) and are_levels(stored[_LENGTH_BYTES:end], 1, count)
