"""`compactord serve` and `compactord config`: loads the configuration and assembles the service."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from datetime import tzinfo
from functools import partial

import structlog
import tzlocal

from compactord import __version__, ids
from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.catalog.trouble import CatalogTrouble, check_catalogs
from compactord.cli.catalog_arguments import catalog_keys, refuse_catalog_arguments
from compactord.cli.registries import Registries, registries_of
from compactord.cli.running import DENIED, FAILED, OK, USAGE, answer, exit_code, say
from compactord.clock import Clock, SystemClock
from compactord.config.choices import UnlockedWriters
from compactord.config.load import LoadedConfig, effective_json, json_schema, load_config, show_text
from compactord.config.model import CatalogSection, Http, ServiceConfig
from compactord.config.policy import NAMELESS, unmatched_patterns, unmatched_text
from compactord.config.problems import ConfigInvalid, Problem
from compactord.engine.kinds import SPARK, check_engine, engine_of, masters_text
from compactord.engine.masters import is_local, shown_master
from compactord.errors import (
    AccessDenied,
    CatalogOptionInvalid,
    NotAWarehouse,
    StoreMissing,
    TableNotFound,
    UnsafeStore,
    UsageError,
)
from compactord.service.codec import plain_fields
from compactord.service.daemon import Daemon, handled
from compactord.service.http import HttpServer
from compactord.service.logs import configure_logs
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.registry import list_catalog
from compactord.service.site import PROBES, Site
from compactord.storage.base import Storage
from compactord.storage.calls import Breakers
from compactord.storage.open import Stores, scheme_of
from compactord.storage.requests import metered
from compactord.text import has_reference, is_secret_option, redact_value

_log = structlog.get_logger()
# Given to threads that are about to end, before the process ends without them.
_THREADS_END_S = 1.0
NO_LITERAL = (
    "${file:/path} or ${env:NAME}, which workers on other machines read there, or no key at all, "
    "for variables and roles of the machines: keys are not sent to them"
)


def load_usable(path: str | None, overrides: Sequence[str], registries: Registries) -> LoadedConfig:
    """The configuration of the file, if any, the environment and `overrides` (`key=value`).

    Raises `ConfigInvalid` with all problems, including valid values that make serving impossible.
    Opens stores without a request.
    """
    loaded = load_config(path, environ=os.environ, overrides=overrides, known=registries)
    if found := list(_unusable(loaded, registries)):
        raise ConfigInvalid(found, digest=loaded.digest)
    return loaded


def open_configured(config: ServiceConfig, name: str, registries: Registries) -> Catalog:
    """The catalog of this name. Raises `UsageError` as `open_catalog` does."""
    return open_section(config.catalogs[name], registries, zone=config.service.zone)


def open_section(
    section: CatalogSection, registries: Registries, *, zone: tzinfo | None
) -> Catalog:
    """The catalog of one section of the configuration. Raises `UsageError` as `open_catalog`."""
    return open_catalog(
        section.warehouse,
        registries.stores,
        metastore=section.metastore,
        options=section.options,
        zone=zone,
        is_guarded=section.unlocked_writers is UnlockedWriters.GUARDED,
        settle_ms=section.settle_ms,
        creates_root=section.create,
        allow_http=section.allow_http,
        allow_schemes=section.allow_schemes,
        kinds=registries.kinds,
    )


def refuse_literal_secrets(config: ServiceConfig, master: str | None, stores: Stores) -> None:
    """Raises `UsageError` for keys of stores in the configuration with workers elsewhere."""
    if is_local(master):
        return
    for catalog in config.catalogs.values():
        for key in _literal_secrets(catalog, stores):
            raise CatalogOptionInvalid(key, NO_LITERAL)


def _location(catalog: CatalogSection, stores: Stores) -> str | None:
    """See `CatalogKind.location_of`."""
    return catalog.kind.location_of(catalog.warehouse, stores)


def _literal_secrets(catalog: CatalogSection, stores: Stores) -> Sequence[str]:
    """Keys of options whose secret values would have to be sent to workers."""
    location = _location(catalog, stores)
    if location is not None:
        return stores.literal_secrets(location, catalog.options)
    # The catalog's service names the stores later.
    return [
        key
        for key, text in catalog.options.items()
        if stores.has_option(key) and is_secret_option(key) and not has_reference(text)
    ]


def warn_of_options(config: ServiceConfig, names: Iterable[str], stores: Stores) -> None:
    """Log which options of stores have no effect in these catalogs, which have been opened."""
    for name, found in without_effect(config, names, stores):
        _log.warning("options_without_effect", catalog=name, options=found)


def without_effect(
    config: ServiceConfig, names: Iterable[str], stores: Stores
) -> Iterator[tuple[str, Sequence[str]]]:
    """Catalogs with options that their warehouses' stores do not know, and these."""
    for name in names:
        section = config.catalogs[name]
        location = _location(section, stores)
        found = () if location is None else stores.without_effect(location, section.options)
        if found:
            yield name, found


def problem_at(loaded: LoadedConfig, key: str, value: str, expected: str) -> Problem:
    """A problem with a value of the configuration; a value given by reference is not shown."""
    shown = loaded.references.get(key, redact_value(key, value))
    return Problem(origin=loaded.origin(key), key=key, value=shown, expected=expected)


def check_online(
    loaded: LoadedConfig,
    clock: Clock,
    registries: Registries,
    *,
    commits: bool = False,
) -> list[tuple[CatalogTrouble, Problem]]:
    """Troubles of the catalogs themselves, each with its place in the configuration.

    `commits` also tests the stores, which writes an object into each.
    """
    config = loaded.config
    catalogs = {name: open_configured(config, name, registries) for name in config.catalogs}
    found = check_catalogs(catalogs, clock, commits=commits)
    return [(each, _problem_of(loaded, catalogs[each.catalog], each)) for each in found]


def _problem_of(loaded: LoadedConfig, catalog: Catalog, trouble: CatalogTrouble) -> Problem:
    name = trouble.catalog
    section = loaded.config.catalogs[name]
    if trouble.advice:
        wait = "; serve would wait for it" if trouble.may_pass else ""
        expected = f"a catalog that can be opened ({trouble.error}){wait}"
        key = f"catalogs.{name}.options.uri"
        return problem_at(loaded, key, section.options.get("uri", ""), expected)
    match trouble.error:
        case TableNotFound():
            expected = "a folder that exists: create it, mount it first, or set create: true"
        case StoreMissing() as error:
            expected = f"a store that exists ({error})"
        case NotAWarehouse() as error:
            expected = f"{error.warehouse} ({error})"
        case UsageError() | UnsafeStore() as error:
            expected = f"a warehouse whose snapshots are safe ({error})"
        case error if trouble.may_pass:
            expected = f"a warehouse that answers ({error}); serve would wait for it"
        case error:
            expected = f"a folder that this user may read ({error})"
    return problem_at(loaded, f"catalogs.{name}.warehouse", section.warehouse, expected)


def _unusable(loaded: LoadedConfig, registries: Registries) -> Iterator[Problem]:
    """Well-formed values that make serving impossible."""
    master = loaded.config.spark.master
    kind = engine_of(master, registries.engines)
    if master is not None and kind is None:
        expected = masters_text(registries.engines)
        yield problem_at(loaded, "spark.master", shown_master(master), expected)
    for name, value in loaded.config.spark.conf.items():
        instead = (kind or SPARK).instead(name, master)
        if instead is not None:
            expected = f"no such setting, as it has no effect: {instead}"
            yield problem_at(loaded, f"spark.conf.{name}", value, expected)
    for name in loaded.config.catalogs:
        yield from _unusable_catalog(loaded, name, registries)


def _unusable_catalog(loaded: LoadedConfig, name: str, registries: Registries) -> Iterator[Problem]:
    catalog, here = loaded.config.catalogs[name], f"catalogs.{name}"
    stores = registries.stores
    key, value = f"{here}.warehouse", catalog.warehouse
    try:
        location = _location(catalog, stores)
        if location is not None:
            stores.open(location, catalog.options)
        key, value = f"{here}.metastore", catalog.metastore
        open_configured(loaded.config, name, registries)
    except CatalogOptionInvalid as error:
        text = catalog.options.get(error.key, "")
        yield problem_at(loaded, f"{here}.options.{error.key}", text, error.expected)
        return
    except UsageError as error:
        expected = str(error)
        if key.endswith(".warehouse"):
            expected = f"a folder, or the URL of a store that can be opened ({error})"
            if loaded.reference(key) is not None:
                # The error names the value.
                expected = "a folder, or the URL of a store that can be opened"
        yield problem_at(loaded, key, value, expected)
        return
    if not is_local(loaded.config.spark.master):
        for literal in _literal_secrets(catalog, stores):
            text = catalog.options[literal]
            yield problem_at(loaded, f"{here}.options.{literal}", text, NO_LITERAL)


def serve(args: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it. Raises `UsageError` for what cannot be served."""
    # Java fails without /proc as well: the error would blame it.
    ids.this_process()
    others = set(threading.enumerate())
    registries, read = registries_of(args), partial(_load, args)
    loaded = read()
    config = loaded.config
    # A zone with its daylight saving rules, not only today's offset.
    zone = config.service.zone or local_zone()
    clock = SystemClock(zone)
    instance = config.service.instance_name
    instance = socket.gethostname() if instance == "auto" else instance
    _configure_logs(loaded, instance=instance)
    spark = config.spark
    check_engine(spark.master, spark.settings, registries.engines).check(spark.master)
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
        start_engine=partial(registries.start_engine, spark.master, spark.settings),
        reload=read,
        apply_logs=partial(_configure_logs, instance=instance),
        metrics=metrics,
        breakers=breakers,
        instance=instance,
        kinds=registries.maintenance,
        observers=registries.observers,
    )
    code = _run(daemon, metrics, clock, config.service.http)
    _end_threads(set(threading.enumerate()) - others, code, is_safe=not daemon.has_stragglers)
    return code


def _end_threads(ours: Set[threading.Thread], code: int, *, is_safe: bool) -> None:
    """End the process at once if the interpreter would wait for one of our threads."""
    threads = [thread for thread in ours if not thread.daemon]
    for thread in threads:
        thread.join(_THREADS_END_S / len(threads))
    if not is_safe or any(thread.is_alive() for thread in threads):
        # The log is written line by line.
        sys.stdout.flush()
        os._exit(code)


def _run(daemon: Daemon, metrics: Metrics, clock: Clock, http: Http) -> int:
    """Serve HTTP while the daemon runs; its exit code. Raises `UsageError` for the address."""
    site = Site(
        status=daemon,
        metrics=metrics,
        clock=clock,
        config=lambda: effective_json(daemon.effective()),
        page=partial(render, daemon, clock=clock),
    )
    server = HttpServer(site.answer, host=http.bind, port=http.port, urgent=PROBES)
    try:
        host = "localhost" if http.bind in ("0.0.0.0", "::") else http.bind
        _log.info("http_listening", address=f"http://{host}:{server.port}/", bind=http.bind)
        with handled(daemon):
            return daemon.run()
    finally:
        server.stop()


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
    """The arguments for the catalog of --warehouse, as values of a configuration."""
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
    if sum(not trouble.may_pass for trouble, _ in found) < len(loaded.config.catalogs):
        for trouble, _ in found:
            _log.warning("catalog_unavailable", catalog=trouble.catalog, error=str(trouble.error))
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
    troubled = {trouble.catalog for trouble, _ in found}
    warnings = list(_unmatched(loaded, registries, troubled)) if args.online else []
    warnings += [
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
    # Errors of the configuration first, then of permissions; other errors may be temporary.
    codes = {exit_code(trouble.error) for trouble, _ in found}
    return next((code for code in (USAGE, DENIED, FAILED) if code in codes), OK)


def _unmatched(
    loaded: LoadedConfig, registries: Registries, troubled: Collection[str]
) -> Iterator[str]:
    """Patterns that match no table, judged by listings of the catalogs without trouble."""
    config, clock = loaded.config, SystemClock()
    listings = [
        list_catalog(name, open_configured(config, name, registries), lambda: loaded, clock)
        for name in config.catalogs.keys() - troubled
    ]
    tables = {name for each in listings for name in (*each.found, *each.excluded)}
    listed = {each.catalog for each in listings if not each.error}
    failed = config.catalogs.keys() - listed
    for key, unmatched in unmatched_patterns(config, tables, listed, failed).items():
        yield f"a pattern matches no table: {unmatched_text(loaded, key, unmatched, tables)}"


def figures_of_error(error: BaseException) -> dict[str, object]:
    """The figures that `config check --json` and `config show --json` add to an error."""
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
