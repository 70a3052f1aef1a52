"""The arguments that say what kind of catalog a warehouse is; quick to import, for `--help`."""

from __future__ import annotations

import argparse

from compactord.catalog.registry import CATALOGS
from compactord.config.choices import UnlockedWriters


def add_catalog_arguments(parser: argparse.ArgumentParser) -> None:
    """What kind of catalog `--warehouse` is."""
    examples = [kind.example_option for kind in CATALOGS.values() if kind.example_option]
    parser.add_argument(
        "--metastore",
        choices=tuple(CATALOGS),
        help="kind of the catalog of --warehouse (default: filesystem)",
    )
    parser.add_argument(
        "--unlocked-writers",
        choices=[each.value for each in UnlockedWriters],
        help="what to do with a --warehouse on S3, GCS or Azure whose writers take no lock: refuse "
        "it (default), or compact guarded (docs/operations.md)",
    )
    parser.add_argument(
        "--catalog-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the catalog of --warehouse under Paimon's name, such as "
        f"{' or '.join([*examples, 's3.endpoint=…'])}; may be repeated. Other users can see "
        "command lines: write secrets as ${env:NAME} or ${file:/path}",
    )
