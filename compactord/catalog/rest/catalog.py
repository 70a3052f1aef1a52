"""The REST catalog: its server lists the tables, each with its own location.

Sources: rest/RESTCatalog.java, catalog/CatalogUtils.java (`loadTable`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import tzlocal

from compactord.catalog.access import TableAccess
from compactord.catalog.base import (
    Catalog,
    CatalogPlace,
    Check,
    TableList,
    Verdict,
    nearest_names,
    parse_name,
)
from compactord.catalog.rest.access import (
    InternalTable,
    RestTable,
    ServedTable,
    TableOnServer,
    served_schema,
    served_table,
)
from compactord.catalog.rest.client import NoSuchResource, RestClient, is_text, url_of
from compactord.catalog.rest.publisher import RestPublisher
from compactord.catalog.rest.vended import VendedSpec, client_of, secrets_of, without_secrets
from compactord.errors import (
    AccessDenied,
    CatalogOptionInvalid,
    CatalogUnavailable,
    CompactordError,
    ErrorAtPath,
    TableNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.paimon import paths
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef, branch_of
from compactord.storage.base import Storage
from compactord.storage.calls import Breaker, Breakers
from compactord.text import has_credentials

_SHOWN_MAX = 100


class RestCatalog(Catalog):
    warehouse_storage = None

    def __init__(self, place: CatalogPlace, given: Mapping[str, str], client: RestClient) -> None:
        self.warehouse = client.uri
        self._place = place
        # Options as configured, without secrets.
        self._given = given
        self._client = client
        self._zone = place.zone or tzlocal.get_localzone()

    def check_access(self) -> None:
        self._client.get("databases", query={"maxResults": "1"})

    def list_tables(self) -> TableList:
        """See `Catalog`. Skips views and tables of other formats."""
        return TableList.of(self._databases(), self._tables_of)

    def _databases(self) -> Iterator[str]:
        for name in self._client.pages("databases", key="databases"):
            if not isinstance(name, str):
                raise self._no_database(name)
            yield name

    def _no_database(self, found: object) -> CatalogUnavailable:
        text = f"answered with a database {repr(found)[:_SHOWN_MAX]}"
        return CatalogUnavailable(self._client.uri, text)

    def _tables_of(self, database: str) -> Iterator[TableRef]:
        if not is_text(database):
            raise self._no_database(database)
        parts = ("databases", database, "table-details")
        url, nonsense = "/".join((self._client.uri, *parts)), None
        try:
            for item in self._client.pages(*parts, key="tableDetails"):
                try:
                    found = served_table(item, url)
                except CatalogUnavailable as error:
                    nonsense = nonsense or error
                    continue
                if found.type == "table":
                    yield self._ref(database, found)
        except NoSuchResource as error:
            # The server itself reports a database dropped meanwhile; a gateway's 404 is an error.
            if error.kind.upper() != "DATABASE":
                raise
        if nonsense is not None:
            raise nonsense

    def find_table(self, name: str) -> TableRef:
        database, table, branch = parse_name(name, self.list_tables)
        try:
            found = TableOnServer(self._client, database, table).load()
        except TableNotFound as error:
            raise TableNotFound(f"{error}{nearest_names(name, self.list_tables)}") from None
        return branch_of(self._ref(database, found), branch)

    def open(self, table: TableRef) -> TableAccess:
        """See `Catalog`. Reads the table from the server."""
        server = TableOnServer(self._client, table.database, table.name)
        found = server.load()
        if found.type != "table":
            reason = f"option type={found.type} is not supported"
            raise UnsupportedTable(table.full_name, [reason])
        try:
            storage, path = self._located(table, found)
        except UsageError as error:
            raise UnsupportedTable(table.full_name, [str(error)]) from error
        ref = replace(table, location=path, identity=found.id)
        if found.is_external:
            safe = self._place.publishing(storage, path).access(ref)
            schema = served_schema(found, storage, ref)
            return RestTable(
                ref=ref, storage=storage, publisher=safe.publisher, server=server, opened=schema
            )
        schema = served_schema(found, storage, ref)
        options = parse_options(schema, {})
        spec = partial(
            paths.partition_spec,
            fields=schema.partition_fields,
            default_name=options.partition_default_name,
            legacy_name=options.partition_legacy_name,
        )
        publisher = RestPublisher(server, storage, spec, self._zone)
        return InternalTable(
            ref=ref,
            storage=storage,
            publisher=publisher,
            events=server,
            server=server,
            opened=schema,
        )

    def _located(self, table: TableRef, found: ServedTable) -> tuple[Storage, str]:
        """The table's store and its path there. As in Java, only internal tables have tokens."""
        place, options = self._place, self._client.options
        is_lent = options.get("data-token.enabled", "").lower() == "true" and not found.is_external
        if not is_lent and not secrets_of(self._client):
            return place.locate(found.path, options, self._client.served)
        spec = VendedSpec(
            location=found.path,
            warehouse=place.warehouse,
            table=(table.database, table.name) if is_lent else None,
            options=tuple(sorted(self._given.items())),
        )
        return spec.opened(place.locate, self._client.breaker)

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        self._client.breaker = breakers.of_server(self._client.uri)
        return (self._client.breaker,)

    def checks(self) -> Iterator[Check]:
        """Whether requests use TLS, if they leave this machine."""
        if not _is_private(self._client.uri):
            yield Check(
                name="TLS",
                verdict=Verdict.WARNING,
                found=f"{self._client.uri} is contacted without TLS (allow_http is set)",
                advice="enable TLS on the server and use an https:// uri",
            )

    def advice(self, error: CompactordError) -> str:
        if not (isinstance(error, ErrorAtPath) and error.path.startswith(self._client.uri)):
            return ""
        if isinstance(error, AccessDenied):
            return "correct token or the dlf.* options, or let this user in on the server"
        return "correct uri and warehouse, or repair the server"

    def _ref(self, database: str, found: ServedTable) -> TableRef:
        path = self._place.path_of(found.path, self._client.options, self._client.served)
        return TableRef(database=database, name=found.name, location=path, identity=found.id)


def _is_private(url: str) -> bool:
    """Whether requests are encrypted, or do not leave this machine."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "http":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"


def open_rest(place: CatalogPlace) -> RestCatalog:
    """The catalog for these options; sends no request.

    Raises `CatalogOptionInvalid`.
    """
    uri = place.values.get("uri", "")
    if not uri or has_credentials(uri) or "?" in uri:
        raise CatalogOptionInvalid(
            "uri", "the server's address, such as https://catalog.example.com"
        )
    if not (place.allows_http or _is_private(url_of(uri))):
        raise CatalogOptionInvalid(
            "uri",
            "https://…, because anyone on the network path can read the token and act as the "
            "server; allow_http: true on this catalog (--allow-http) permits requests without TLS",
        )
    given = without_secrets(place.store_options)
    return RestCatalog(place, given, client_of(given, place.values, place.warehouse))
