"""`compactord serve` and `compactord config`: the service put together."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import partial

import structlog
import tzlocal

from compactord import __version__, ids
from compactord.catalog.look import CatalogTrouble
from compactord.catalog.open import OpenStorage, open_catalog
from compactord.cli.loading import all_unusable, load_usable, look_online
from compactord.cli.running import DENIED, FAILED, OK, USAGE, exit_code, say
from compactord.clock import Clock, SystemClock
from compactord.config.load import LoadedConfig
from compactord.config.problems import ConfigInvalid
from compactord.config.show import effective_json, json_schema, show_text
from compactord.engine.base import Engine
from compactord.engine.spark import start_spark
from compactord.errors import AccessDenied, UsageError
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

_log = structlog.get_logger()
DEFAULT_PATH = "/etc/compactord/compactord.yaml"
_SERVE_EXAMPLES = """\
examples:
  compactord serve --config config/compactord.yaml
  compactord serve --config compactord.yaml --set service.http.port=9500 --set log.level=debug
  COMPACTORD__CATALOGS__LAKE__WAREHOUSE=/data/wh compactord serve --config compactord.yaml

The start looks at every catalog. It ends at once when all are unusable for good: no such folder
(2), no permission (77). For stores that fail or do not answer it waits startup.timeout.

signals: SIGTERM and SIGINT drain (running merges finish and are committed); a second one cancels;
SIGHUP reads the configuration again; SIGUSR1 writes the stacks of all threads to the log

exit codes: 0 stopped on request; 2 arguments or configuration, or no such warehouse; 69 no Spark
or no catalog in time; 77 permission denied; 1 a defect of compactord
"""
_CONFIG_EXAMPLES = """\
examples:
  compactord config check --config config/compactord.yaml
  compactord config check --online --config config/compactord.yaml     # looks at the warehouses
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
        if name == "check":
            action.add_argument(
                "--online",
                action="store_true",
                help="also look at every catalog: is its warehouse there, may this user read it",
            )
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
    zone = config.service.zone or local_zone()
    clock = SystemClock(zone)
    instance = config.service.instance_name
    instance = socket.gethostname() if instance == "auto" else instance
    _configure_logs(loaded, instance=instance)
    _require_catalogs(loaded, clock, open_store)
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


def local_zone() -> tzinfo:
    """The machine's zone, with its rules. Raises `UsageError` where it has no name."""
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


def _require_catalogs(loaded: LoadedConfig, clock: Clock, open_store: OpenStorage) -> None:
    """Look at all catalogs; the start goes on while one can be used, or may be before long.

    Raises `ConfigInvalid`, or `AccessDenied` where permission is all that is missing.
    """
    found = look_online(loaded, clock, open_store)
    for trouble, _ in found:
        _log.warning("catalog_unavailable", catalog=trouble.catalog, reason=str(trouble.error))
    if not all_unusable(loaded, found):
        return
    if all(isinstance(trouble.error, AccessDenied) for trouble, _ in found):
        raise found[0][0].error
    raise ConfigInvalid([problem for _, problem in found])


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
    found = look_online(loaded, SystemClock()) if args.online else []
    for _, problem in found:
        say(f"compactord: {problem}")
    if found:
        return _code_of([trouble for trouble, _ in found])
    looked = ", and so can its catalogs" if args.online else ""
    print(f"{loaded.path}: the configuration can be used{looked}")
    return OK


def _code_of(troubles: Sequence[CatalogTrouble]) -> int:
    """2 for what the configuration, 77 for what permissions have to mend; 3: it may heal."""
    codes = {exit_code(trouble.error) for trouble in troubles}
    return next(code for code in (USAGE, DENIED, FAILED) if code in codes)


def _show(args: argparse.Namespace) -> int:
    for line in show_text(_load(args)):
        print(line)
    return 0


def _schema(args: argparse.Namespace) -> int:
    del args
    print(json.dumps(json_schema(), indent=2))
    return 0
