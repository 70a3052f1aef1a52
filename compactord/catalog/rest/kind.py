"""Static description of the REST catalog. Imports no HTTP package, for `--help`."""

from __future__ import annotations

from compactord.catalog.kinds import CatalogKind

_WHERE = """\
--metastore rest \\
      --catalog-option uri=https://catalog.example.com --catalog-option token.provider=bear \\
      --catalog-option 'token=${file:/run/secrets/token}'"""

_KEYS = ("dlf.access-key-id", "dlf.access-key-secret", "dlf.security-token")


REST = CatalogKind(
    name="rest",
    opener="compactord.catalog.rest.catalog:open_rest",
    options=(
        "uri",
        "prefix",
        "token",
        "token.provider",
        "data-token.enabled",
        *("dlf.region", "dlf.oss-endpoint", "dlf.signing-algorithm", *_KEYS),
        *("dlf.token-loader", "dlf.token-path"),
        *("dlf.token-ecs-metadata-url", "dlf.token-ecs-role-name"),
        # Caches of Java's own file systems.
        *("io-cache.enabled", "io-cache.policy", "io-cache.whitelist-path"),
    ),
    prefixes=("header.",),
    credentials=("token", *_KEYS),
    names_warehouse=True,
    install="pip install 'urllib3>=2.3,<3'",
    shown_options=("token", "token.provider", "dlf.region"),
    example_option="uri=https://catalog.example.com",
    examples={
        "compact": f"  compactord compact --warehouse lake --table sales.orders {_WHERE}",
    },
)
