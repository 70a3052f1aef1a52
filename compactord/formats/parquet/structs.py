"""The structs of parquet.thrift as ids of their fields, its enumerations as numbers.

The ids are plain integers: they are the keys of decoded structs, and hashing an enum member is
slower. parquet.thrift of the Parquet format defines the fields.
"""

from __future__ import annotations


class File:
    """FileMetaData, the footer."""

    VERSION, SCHEMA, ROWS, GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)


class KeyValue:
    KEY = 1


class Element:
    """SchemaElement."""

    TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED = range(1, 7)
    SCALE, PRECISION, ID, LOGICAL = range(7, 11)


class Logical:
    """LogicalType, a union: it has one field, whose id is the type."""

    MAP, DECIMAL, TIME, TIMESTAMP, INTEGER = 2, 5, 7, 8, 10


class Decimal:
    """DecimalType."""

    SCALE, PRECISION = 1, 2


class Time:
    """TimeType and TimestampType; the unit is also a union."""

    UNIT, UNIT_MILLIS, UNIT_MICROS = 2, 1, 2


class Integer:
    """IntType."""

    BITS, IS_SIGNED = 1, 2


class Group:
    """RowGroup."""

    COLUMNS, SIZE, ROWS, SORTING, OFFSET, STORED_SIZE = range(1, 7)


class Chunk:
    """ColumnChunk."""

    FILE, OFFSET, META, OFFSET_INDEX_AT, OFFSET_INDEX_LENGTH = range(1, 6)
    COLUMN_INDEX_AT, COLUMN_INDEX_LENGTH, ENCRYPTION, ENCRYPTED_META = range(6, 10)


class Meta:
    """ColumnMetaData."""

    TYPE, ENCODINGS, PATH, CODEC, VALUES, SIZE, STORED_SIZE, KEY_VALUES = range(1, 9)
    DATA_AT, INDEX_AT, DICTIONARY_AT, STATISTICS, ENCODING_STATS = range(9, 14)
    BLOOM_FILTER_AT, BLOOM_FILTER_LENGTH, SIZE_STATISTICS = range(14, 17)


class Statistics:
    """Statistics; OLD_MAX and OLD_MIN are the deprecated bounds without a defined order."""

    OLD_MAX, OLD_MIN, NULL_COUNT, DISTINCT_COUNT, MAX, MIN = range(1, 7)


class EncodingStats:
    """PageEncodingStats."""

    PAGE_TYPE, ENCODING, COUNT = range(1, 4)


class SizeStatistics:
    UNENCODED_BYTES, REPETITIONS, DEFINITIONS = range(1, 4)


class Header:
    """PageHeader; sizes exclude the header."""

    TYPE, SIZE, STORED_SIZE, CHECKSUM, DATA = range(1, 6)
    DICTIONARY, DATA_V2 = 7, 8


class DataHeader:
    """DataPageHeader; VALUES has the same id in DictionaryPageHeader and DataPageHeaderV2."""

    VALUES, ENCODING, DEFINITION, REPETITION = range(1, 5)


class DataHeaderV2:
    """DataPageHeaderV2."""

    ENCODING, DEFINITION_BYTES, REPETITION_BYTES, IS_COMPRESSED = range(4, 8)


class OffsetIndex:
    LOCATIONS = 1


class PageLocation:
    OFFSET, SIZE, FIRST_ROW = range(1, 4)


class ColumnIndex:
    NULL_PAGES, LOWS, HIGHS, ORDER, NULL_COUNTS = range(1, 6)


class Order:
    """BoundaryOrder."""

    UNORDERED = 0


class Type:
    """Type, the physical type of values."""

    BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)


class Converted:
    """ConvertedType, the older form of `Logical`."""

    MAP = 1
    TIME_MILLIS, TIME_MICROS, TIMESTAMP_MILLIS, TIMESTAMP_MICROS = range(7, 11)
    UINT_8, UINT_16, UINT_32, UINT_64, INT_8, INT_16, INT_32, INT_64 = range(11, 19)


class Repetition:
    """FieldRepetitionType."""

    REQUIRED, OPTIONAL, REPEATED = range(3)


class Codec:
    """CompressionCodec; LZ4 has Hadoop's framing."""

    UNCOMPRESSED, SNAPPY, GZIP, LZO, BROTLI, LZ4, ZSTD, LZ4_RAW = range(8)


class Encoding:
    """Encoding; number 1 was never assigned."""

    PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, DELTA_BINARY_PACKED = 0, 2, 3, 4, 5
    DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY, BYTE_STREAM_SPLIT = range(6, 10)


class PageType:
    DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
