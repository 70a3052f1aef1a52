"""`compactord serve` and `compactord config`: the service put together."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from functools import partial

import tzlocal

from compactord import __version__, ids
from compactord.catalog.open import OpenStorage, open_catalog
from compactord.cli.loading import load_usable
from compactord.clock import Clock, SystemClock
from compactord.config.load import LoadedConfig
from compactord.config.show import effective_json, json_schema, show_text
from compactord.engine.base import Engine
from compactord.engine.spark import start_spark
from compactord.errors import UsageError
from compactord.service import signals
from compactord.service.daemon import Daemon
from compactord.service.http import HttpServer
from compactord.service.logs import configure_logs
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import Site
from compactord.storage.base import Storage
from compactord.storage.metered import MeteredStorage
from compactord.storage.open import open_storage

DEFAULT_PATH = "/etc/compactord/compactord.yaml"
_SERVE_EXAMPLES = """\
examples:
  compactord serve --config config/compactord.yaml
  compactord serve --config compactord.yaml --set service.http.port=9500 --set log.level=debug
  COMPACTORD__CATALOGS__LAKE__WAREHOUSE=/data/wh compactord serve --config compactord.yaml

signals: SIGTERM and SIGINT drain (running merges finish and are committed); a second one cancels;
SIGHUP reads the configuration again; SIGUSR1 writes the stacks of all threads to the log

exit codes: 0 stopped on request; 2 arguments or configuration; 69 no Spark or no catalog in time;
1 a defect of compactord
"""
_CONFIG_EXAMPLES = """\
examples:
  compactord config check --config config/compactord.yaml
  compactord config show --config config/compactord.yaml --set defaults.priority=80
  compactord config schema > compactord.schema.json

precedence, high to low: --set, COMPACTORD__SECTION__KEY in the environment, the file, defaults
"""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _SERVE_EXAMPLES
    _add_config_arguments(parser)
    parser.set_defaults(command=serve, json=False, verbose=False)


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
        if name != "schema":
            _add_config_arguments(action)
        action.set_defaults(command=command, json=False, verbose=False)


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", default=DEFAULT_PATH, metavar="FILE", help=f"default: {DEFAULT_PATH}"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value that overrides the file, e.g. limits.task_slots=2; may be repeated",
    )


def serve(args: argparse.Namespace, open_store: OpenStorage = open_storage) -> int:
    """Run the daemon until a signal ends it. Raises `UsageError` for what cannot be served."""
    read = partial(_load, args, open_store)
    loaded = read()
    config = loaded.config
    # A zone with its daylight saving rules, not only today's offset.
    zone = config.service.zone or _local_zone()
    clock = SystemClock(zone)
    instance = config.service.instance_name
    instance = socket.gethostname() if instance == "auto" else instance
    _configure_logs(loaded, instance=instance)
    metrics = Metrics(max_tables=config.metrics.max_tables, top_buckets=config.metrics.top_n)

    daemon = Daemon(
        loaded,
        clock=clock,
        zone=zone,
        owner=ids.this_process(),
        open_catalog=partial(
            open_catalog, open_storage=partial(_open_metered, metrics, clock, open_store)
        ),
        start_engine=partial(_start_engine, loaded),
        reload=read,
        apply_logs=partial(_configure_logs, instance=instance),
        metrics=metrics,
        instance=instance,
    )
    site = Site(
        status=daemon,
        metrics=metrics,
        clock=clock,
        config=lambda: effective_json(daemon.effective()),
        page=partial(render, daemon, clock=clock),
    )
    http = config.service.http
    with _http_server(HttpServer(site.answer, host=http.bind, port=http.port)) as server:
        host = "localhost" if http.bind in ("0.0.0.0", "::") else http.bind
        if sys.stderr is not None:
            with contextlib.suppress(OSError):  # the log says all that follows
                print(f"compactord {__version__} at http://{host}:{server.port}/", file=sys.stderr)
        with signals.handled(daemon):
            code = daemon.run()
    if daemon.has_stragglers:
        # The interpreter would wait for the threads left.
        sys.stdout.flush()
        os._exit(code)
    return code


def _local_zone() -> tzinfo:
    try:
        return tzlocal.get_localzone()
    except (LookupError, ValueError, OSError):
        named = os.environ.get("TZ")
        raise UsageError(
            f"this machine's time zone{f' (TZ={named})' if named else ''} has no name of the form "
            "Continent/City: set service.timezone, such as Asia/Shanghai or Etc/GMT-3"
        ) from None


def _load(args: argparse.Namespace, open_store: OpenStorage = open_storage) -> LoadedConfig:
    return load_usable(args.config, args.overrides, open_store)


def _configure_logs(loaded: LoadedConfig, *, instance: str) -> None:
    log = loaded.config.log
    configure_logs(
        level=log.level,
        format=log.format,
        stream=sys.stdout,
        instance=instance,
        version=__version__,
    )


def _open_metered(
    metrics: Metrics, clock: Clock, open_store: OpenStorage, warehouse: str
) -> tuple[Storage, str]:
    storage, root = open_store(warehouse)
    return MeteredStorage(storage, metrics.storage_request, clock), root


def _start_engine(loaded: LoadedConfig) -> Engine:
    spark = loaded.config.spark
    conf: Mapping[str, str] = {"spark.app.name": spark.app_name, **spark.conf}
    return start_spark(spark.master, conf)


@contextlib.contextmanager
def _http_server(server: HttpServer) -> Iterator[HttpServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _check(args: argparse.Namespace) -> int:
    loaded = _load(args)
    print(f"{loaded.path}: the configuration can be used")
    return 0


def _show(args: argparse.Namespace) -> int:
    for line in show_text(_load(args)):
        print(line)
    return 0


def _schema(args: argparse.Namespace) -> int:
    del args
    print(json.dumps(json_schema(), indent=2))
    return 0
