"""What the Hive catalog says of itself."""

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
        # Of Java's clients and of changes to tables, which are not made here.
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
