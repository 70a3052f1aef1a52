"""The options of a Hive catalog: hive-site.xml, over it those of the catalog, as in Java.

Source: hive/HiveCatalog.java (`createHiveConf`).
"""

from __future__ import annotations

import importlib
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compactord.catalog.hive.login import Login, Security, kerberos, plain
from compactord.catalog.hive.wire import BATCH, BATCH_MAX
from compactord.catalog.options import read_option
from compactord.errors import CatalogOptionInvalid
from compactord.paimon.options.values import boolean, duration_ms, integer
from compactord.storage.hadoop import default_fs, site_properties
from compactord.text import has_credentials

_ADDRESS = re.compile(r"(?:thrift://)?(?:\[([^]/@]+)\]|([^:/@,\[\]]+)):([0-9]{1,5})/?")
_FORMS = "thrift://host:9083, or several with commas"
_CLIENT = "org.apache.hadoop.hive.metastore.HiveMetaStoreClient"
_PRINCIPALS = re.compile(r"[^\s/@]+/[^\s/@]+@[^\s/@]+")
_GSSAPI = "pip install 'gssapi>=1.8,<2'"
_BATCH_DEFAULT = 300
_DEFAULT_FS = "fs.defaultFS"
# Ways of metastores that are not served, by the option that asks for them.
_UNSERVED = {
    "hive.metastore.thrift.framed.transport.enabled": "framed messages are not served",
    "hive.metastore.thrift.compact.protocol.enabled": "the compact protocol is not served",
}
_TLS, _CERTIFICATES = "hive.metastore.use.SSL", "hive.metastore.truststore.path"
_SASL, _PRINCIPAL = "hive.metastore.sasl.enabled", "hive.metastore.kerberos.principal"
_TOKENS = "hive.metastore.token.signature"
_MODE = "hive.metastore.client.auth.mode"
_USER, _PASSWORD = "hive.metastore.client.plain.username", "hive.metastore.client.plain.password"
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveOptions:
    """What a Hive catalog is told.

    `default_fs` is the store of locations without a scheme; empty: the local file system.
    `forget_ms` is after how long the metastore drops a lock that nobody prolongs.
    """

    addresses: tuple[Address, ...]
    location_in_properties: bool
    batch_size: int
    default_fs: str
    is_locked: bool
    lock_sleep_max_ms: int
    lock_timeout_ms: int
    forget_ms: int
    security: Security

    @property
    def shown(self) -> str:
        return ",".join(f"thrift://{host}:{port}" for host, port in self.addresses)


def hive_options(
    options: Mapping[str, str],
    store_options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
    *,
    is_locked: bool,
) -> HiveOptions:
    """The options of a Hive catalog; `is_locked`: whether it has a lock by default.

    Raises `CatalogOptionInvalid`.
    """
    site = _hive_site(options, environment)
    merged = {**site, **options}
    for key, why in _UNSERVED.items():
        if read_option(merged, key, boolean, False):
            where = "" if key in options else " (it is true in hive-site.xml)"
            raise CatalogOptionInvalid(key, f"false: {why}{where}")
    if merged.get("metastore.client.class", _CLIENT) != _CLIENT:
        raise CatalogOptionInvalid("metastore.client.class", f"{_CLIENT}: others are not served")
    if options.get("lock.type", "hive") != "hive":
        raise CatalogOptionInvalid("lock.type", "hive, the only lock that is supported here")
    given_fs = store_options.get(f"hadoop.{_DEFAULT_FS}", store_options.get(_DEFAULT_FS))
    batch_size = read_option(merged, BATCH, integer, _BATCH_DEFAULT)
    return HiveOptions(
        addresses=_addresses(options.get("uri") or merged.get("hive.metastore.uris", "")),
        location_in_properties=read_option(merged, "location-in-properties", boolean, False),
        batch_size=min(batch_size, BATCH_MAX) if batch_size > 0 else _BATCH_DEFAULT,
        default_fs=given_fs or site.get(_DEFAULT_FS) or default_fs(store_options, environment),
        is_locked=read_option(options, "lock.enabled", boolean, is_locked),
        lock_sleep_max_ms=read_option(merged, "lock-check-max-sleep", duration_ms, 8_000),
        lock_timeout_ms=read_option(merged, "lock-acquire-timeout", duration_ms, 8 * 60_000),
        forget_ms=read_option(merged, "hive.txn.timeout", _hive_duration_ms, 300_000),
        security=Security(tls=_tls(merged), login=_login(merged)),
    )


def _tls(merged: Mapping[str, str]) -> ssl.SSLContext | None:
    if not read_option(merged, _TLS, boolean, False):
        return None
    try:
        return ssl.create_default_context(cafile=merged.get(_CERTIFICATES) or None)
    except OSError:
        raise CatalogOptionInvalid(
            _CERTIFICATES,
            "a file of certificates in PEM, or nothing for the system's. Java's key stores are not "
            "read: keytool -exportcert -rfc writes PEM",
        ) from None


def _login(merged: Mapping[str, str]) -> Login | None:
    """As in Java, Kerberos comes before a password."""
    if read_option(merged, _SASL, boolean, False):
        if merged.get(_TOKENS):
            raise CatalogOptionInvalid(_TOKENS, "nothing: delegation tokens are not served")
        principal = merged.get(_PRINCIPAL, "")
        if _PRINCIPALS.fullmatch(principal) is None:
            raise CatalogOptionInvalid(_PRINCIPAL, "the metastore's, such as hive/_HOST@REALM")
        try:
            return kerberos(principal, importlib.import_module("gssapi"))
        except ImportError:
            raise CatalogOptionInvalid(_SASL, f"false, unless gssapi is there: {_GSSAPI}") from None
    mode = merged.get(_MODE, "NOSASL").upper()
    if mode == "PLAIN":
        for key in (_USER, _PASSWORD):
            if not merged.get(key) or "\0" in merged[key]:
                raise CatalogOptionInvalid(key, f"what {_MODE}=PLAIN needs")
        return plain(merged[_USER], merged[_PASSWORD])
    if mode != "NOSASL":
        raise CatalogOptionInvalid(_MODE, "NOSASL or PLAIN: others are not served")
    return None


def _hive_duration_ms(text: str) -> int:
    """Seconds where there is no unit."""
    found_ms = int(text) * 1000 if text.isdecimal() else duration_ms(text)
    if found_ms <= 0:
        raise ValueError("a time above 0")
    return found_ms


def _addresses(uris: str) -> tuple[Address, ...]:
    found = []
    for uri in filter(None, map(str.strip, uris.split(","))):
        parts = _ADDRESS.fullmatch(uri)
        if parts is None or has_credentials(uri):
            raise CatalogOptionInvalid("uri", _FORMS)
        found.append((parts[1] or parts[2], int(parts[3])))
    if not found:
        raise CatalogOptionInvalid("uri", f"{_FORMS}; or hive.metastore.uris in hive-site.xml")
    return tuple(found)


def _hive_site(options: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
    folder = options.get("hive-conf-dir") or environment.get("HIVE_CONF_DIR")
    return site_properties(Path(folder) / "hive-site.xml", "hive-conf-dir") if folder else {}
