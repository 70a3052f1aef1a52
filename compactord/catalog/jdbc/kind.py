"""Static description of the JDBC catalog. Imports no database package, for `--help`."""

from __future__ import annotations

from compactord.catalog.kinds import CatalogKind

_WHERE = """\
--metastore jdbc \\
      --catalog-option uri=jdbc:postgresql://db/paimon --catalog-option jdbc.user=me \\
      --catalog-option 'jdbc.password=${file:/run/secrets/db}'"""


JDBC = CatalogKind(
    name="jdbc",
    opener="compactord.catalog.jdbc.catalog:open_jdbc",
    options=("uri", "catalog-key", "client-pool-size", "lock-key-max-length"),
    prefixes=("jdbc.",),
    credentials=("jdbc.user", "jdbc.password"),
    has_lock=True,
    install="pip install 'psycopg[binary]>=3.2,<4' 'pymysql[rsa]>=1.1,<2' 'sqlalchemy>=2.0,<3'",
    shown_options=("uri", "jdbc.user", "jdbc.password", "lock.enabled"),
    example_option="uri=jdbc:sqlite:/data/catalog.db",
    examples={
        "compact": f"  compactord compact --warehouse s3://bucket/wh --table sales.orders {_WHERE}",
        "register": f"  compactord catalog register --warehouse s3://lake/wh --all {_WHERE} "
        "> register.sql",
    },
)
