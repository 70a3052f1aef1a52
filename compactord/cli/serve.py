"""`compactord serve` and `compactord config`: the service put together."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import tzinfo
from functools import partial

import structlog
import tzlocal

from compactord import __version__
from compactord.cli.loading import (
    check_online,
    load_usable,
    open_section,
    warn_of_options,
    without_effect,
)
from compactord.cli.registries import Registries, registries_of
from compactord.cli.running import DENIED, FAILED, OK, USAGE, answer, exit_code, say
from compactord.clock import Clock, SystemClock
from compactord.config.load import LoadedConfig, effective_json, json_schema, show_text
from compactord.config.policy import NAMELESS, catalog_keys, refuse_catalog_arguments
from compactord.config.problems import ConfigInvalid, Problem
from compactord.errors import AccessDenied, UsageError
from compactord.service.codec import plain_fields
from compactord.service.daemon import Daemon, handled
from compactord.service.http import HttpServer
from compactord.service.logs import configure_logs
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import PROBES, Site
from compactord.storage.base import Storage
from compactord.storage.calls import Breakers
from compactord.storage.open import scheme_of
from compactord.storage.requests import metered

_log = structlog.get_logger()


def serve(args: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it. Raises `UsageError` for what cannot be served."""
    registries, read = registries_of(args), partial(_load, args)
    loaded = read()
    config = loaded.config
    # A zone with its daylight saving rules, not only today's offset.
    zone = config.service.zone or local_zone()
    clock = SystemClock(zone)
    instance = config.service.instance_name
    instance = socket.gethostname() if instance == "auto" else instance
    _configure_logs(loaded, instance=instance)
    _require_catalogs(loaded, clock, registries)
    metrics = Metrics(
        max_tables=config.metrics.max_tables,
        top_buckets=config.metrics.top_n,
        kinds=registries.maintenance(config.recovery),
    )
    breakers = Breakers(clock.steady_ms)
    measured = registries.stores.wrapped(partial(_metered, metrics, breakers, clock))
    daemon = Daemon(
        loaded,
        clock=clock,
        worker=registries.worker(config.spark, zone),
        open_catalog=partial(
            open_section,
            registries=replace(registries, stores=measured),
            zone=config.service.zone,
        ),
        start_engine=partial(registries.start_engine, config.spark.master, config.spark.settings),
        reload=read,
        apply_logs=partial(_configure_logs, instance=instance),
        metrics=metrics,
        breakers=breakers,
        instance=instance,
        kinds=registries.maintenance,
    )
    site = Site(
        status=daemon,
        metrics=metrics,
        clock=clock,
        config=lambda: effective_json(daemon.effective()),
        page=partial(render, daemon, clock=clock),
    )
    http = config.service.http
    server = HttpServer(site.answer, host=http.bind, port=http.port, urgent=PROBES)
    try:
        host = "localhost" if http.bind in ("0.0.0.0", "::") else http.bind
        _log.info("http_listening", address=f"http://{host}:{server.port}/", bind=http.bind)
        with handled(daemon):
            code = daemon.run()
    finally:
        server.stop()
    threads = set(threading.enumerate()) - {threading.main_thread()}
    if daemon.has_stragglers or not all(thread.daemon for thread in threads):
        # The interpreter would wait for the threads left. The log is written line by line.
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


def _load(args: argparse.Namespace) -> LoadedConfig:
    registries = registries_of(args)
    if args.warehouse is None:
        refuse_catalog_arguments(args)
        return load_usable(args.config, args.overrides, registries)
    return load_usable(None, [*_only_catalog(args), *args.overrides], registries)


def _only_catalog(args: argparse.Namespace) -> Iterator[str]:
    """The arguments that say what kind of catalog --warehouse is, as values of a configuration."""
    keys = catalog_keys(args)
    options = {f"options.{key}": text for key, text in keys.pop("options").items()}
    # A folder's name is no reference and no YAML.
    place = {"warehouse": args.warehouse.replace("${", "$${")}
    for key, text in (place | keys | options).items():
        yield f"catalogs.{NAMELESS}.{key}={json.dumps(text)}"


def _require_catalogs(loaded: LoadedConfig, clock: Clock, registries: Registries) -> None:
    """Check all catalogs; the start goes on while one can be used, or may be before long.

    Raises `ConfigInvalid`, or `AccessDenied` where permission is all that is missing.
    """
    found = check_online(loaded, clock, registries, commits=True)
    warn_of_options(loaded.config, loaded.config.catalogs, registries.stores)
    for trouble, _ in found:
        _log.warning("catalog_unavailable", catalog=trouble.catalog, error=str(trouble.error))
    if sum(not trouble.may_pass for trouble, _ in found) < len(loaded.config.catalogs):
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


def _metered(
    metrics: Metrics, breakers: Breakers, clock: Clock, storage: Storage, location: str
) -> Storage:
    storage = breakers.behind(storage, "/".join(location.split("/")[:3]))
    return metered(storage, metrics.storage_request, clock, store=scheme_of(location))


def check(args: argparse.Namespace) -> int:
    loaded, registries = _load(args), registries_of(args)
    config = loaded.config
    found = check_online(loaded, SystemClock(), registries) if args.online else []
    for _, problem in found:
        say(f"compactord: {problem}")
    warnings = [
        f"catalogs.{name}.options.{option} has no effect on the store of the warehouse"
        for name, options in without_effect(config, config.catalogs, registries.stores)
        for option in options
    ]
    for warning in () if args.json else warnings:
        say(f"compactord: warning: {warning}")
    looked = ", and so can its catalogs" if args.online else ""
    usable = f"{loaded.path}: the configuration can be used{looked}"
    problems = [_problem_json(problem) for _, problem in found]
    told = {"path": loaded.path, "usable": not found, "problems": problems, "warnings": warnings}
    answer(args, told, [] if found else [usable])
    # What the configuration, then what permissions have to mend; the rest may heal.
    codes = {exit_code(trouble.error) for trouble, _ in found}
    return next((code for code in (USAGE, DENIED, FAILED) if code in codes), OK)


def figures_of_error(error: BaseException) -> dict[str, object]:
    """What `config check --json` and `config show --json` print beside an error."""
    problems = error.problems if isinstance(error, ConfigInvalid) else ()
    return {"usable": False, "problems": [_problem_json(problem) for problem in problems]}


def _problem_json(problem: Problem) -> dict[str, object]:
    shown = ("file", "line", "key", "value", "expected", "hint")
    return {"origin": str(problem.origin), **plain_fields(shown, problem)}


def show(args: argparse.Namespace) -> int:
    loaded = _load(args)
    origins = {key: str(origin) for key, origin in loaded.origins.items()}
    found = {"path": loaded.path, "values": effective_json(loaded), "origins": origins}
    answer(args, found, show_text(loaded))
    return OK


def schema(args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(registries_of(args).kinds), indent=2))
    return OK
