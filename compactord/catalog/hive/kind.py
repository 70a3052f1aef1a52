"""Static description of the Hive catalog. Imports no Thrift, for `--help`."""

from __future__ import annotations

from compactord.catalog.kinds import CatalogKind

_WHERE = "--metastore hive \\\n      --catalog-option uri=thrift://metastore:9083"

HIVE = CatalogKind(
    name="hive",
    opener="compactord.catalog.hive.catalog:open_hive",
    options=(
        "uri",
        "hive-conf-dir",
        "location-in-properties",
        "metastore.client.class",
        # Options of Java's clients and of changes to tables, which compactord never makes.
        "client-pool-size",
        "client-pool-cache.eviction-interval-ms",
        "client-pool-cache.keys",
        "alter-table-cascade",
    ),
    prefixes=("hive.",),
    locates_tables=True,
    has_lock=True,
    install="pip install 'thrift>=0.25,<1'",
    shown_options=("hive-conf-dir", "location-in-properties"),
    example_option="uri=thrift://metastore:9083",
    examples={
        "compact": f"  compactord compact --warehouse s3://bucket/wh --table sales.orders {_WHERE}",
    },
)
