"""The arguments of `serve` and `config`, as they are declared; quick to import, for `--help`."""

from __future__ import annotations

import argparse

from compactord.config.catalog_arguments import add_catalog_arguments

DEFAULT_PATH = "/etc/compactord/compactord.yaml"
_SERVE_EXAMPLES = """\
examples:
  compactord serve --warehouse /data/wh
  compactord serve --config config/compactord.yaml
  compactord serve --config compactord.yaml --set service.http.port=9500 --set log.level=debug
  COMPACTORD__CATALOGS__LAKE__WAREHOUSE=/data/wh compactord serve --config compactord.yaml

The start looks at every catalog. It ends at once when all are unusable for good: no such folder
(2), no permission (77). Stores that fail or do not answer are asked again while it runs.

signals: SIGTERM and SIGINT drain (running merges finish and are committed); a second one cancels;
SIGHUP reads the configuration again; SIGUSR1 writes the stacks of all threads to the log

exit codes: 0 stopped on request; 2 arguments or configuration, or no such warehouse; 69 no Spark
in time; 77 permission denied; 1 a defect of compactord
"""
_CONFIG_EXAMPLES = """\
examples:
  compactord config check --config config/compactord.yaml
  compactord config check --online --config config/compactord.yaml     # looks at the warehouses
  compactord config check --config config/compactord.yaml --json | jq .problems
  compactord config show --config config/compactord.yaml --set defaults.priority=80
  compactord config schema > compactord.schema.json

precedence, high to low: --set, COMPACTORD__SECTION__KEY in the environment, the file, defaults
"""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _SERVE_EXAMPLES
    _add_config_arguments(parser)
    parser.set_defaults(command=_serve, json=False, verbose=False)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _CONFIG_EXAMPLES
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, command, summary in (
        ("check", _check, "check the configuration and list all errors"),
        ("show", _show, "print every value in effect and where it came from"),
        ("schema", _schema, "print the JSON Schema of the file"),
    ):
        description = f"{summary[0].upper()}{summary[1:]}."
        action = actions.add_parser(name, help=summary, description=description, allow_abbrev=False)
        action.set_defaults(command=command, json=False, verbose=False)
        if name != "schema":
            _add_config_arguments(action)
            action.add_argument("--json", action="store_true", help="print one JSON object")
            action.set_defaults(figures_of_error=_problems_of_error)
        if name == "check":
            action.add_argument(
                "--online",
                action="store_true",
                help="also look at every catalog: is its warehouse there, may this user read it",
            )


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config", default=DEFAULT_PATH, metavar="FILE", help=f"default: {DEFAULT_PATH}"
    )
    where.add_argument(
        "--warehouse",
        metavar="W",
        help="the only warehouse, without a file: catalog `warehouse`, all defaults",
    )
    add_catalog_arguments(parser)
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value that overrides the file, e.g. limits.task_slots=2; may be repeated",
    )


def _serve(args: argparse.Namespace) -> int:
    from compactord.cli.serve import serve

    return serve(args)


def _problems_of_error(error: BaseException) -> dict[str, object]:
    from compactord.cli.serve import problems_of_error

    return problems_of_error(error)


def _check(args: argparse.Namespace) -> int:
    from compactord.cli.serve import check

    return check(args)


def _show(args: argparse.Namespace) -> int:
    from compactord.cli.serve import show

    return show(args)


def _schema(args: argparse.Namespace) -> int:
    from compactord.cli.serve import schema

    return schema(args)
