"""From a location and the options of a catalog to how opendal opens the store.

Options of other kinds of stores are not looked at, as each of Paimon's FileIOs takes its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.redaction import is_secret
from compactord.references import has_reference
from compactord.storage.objects.azure import azure_service
from compactord.storage.objects.gcs import gcs_service
from compactord.storage.objects.options import StoreService
from compactord.storage.objects.oss import oss_service
from compactord.storage.objects.s3 import s3_service

S3, GCS, OSS = ("s3", "s3a", "s3n"), ("gs",), ("oss",)
AZURE = ("abfs", "abfss", "wasb", "wasbs")
SCHEMES = (*S3, *GCS, *AZURE, *OSS)
_FAMILIES = ("fs.s3a.", "fs.gs.", "fs.azure.", "fs.wasb.", "fs.oss.")
# How the keys of stores begin, whichever store reads them.
PREFIXES = ("s3.", "s3a.", "fs.", "gs.", "azure.", "hadoop.fs.", "fsspec.")


def service_of(scheme: str, authority: str, options: Mapping[str, str]) -> StoreService:
    """The store at `scheme://authority`. Reads what references to values that are no secrets name.

    Raises `UsageError` for a location without a bucket, `CatalogOptionInvalid` for an option that
    is unknown or cannot be honoured.
    """
    if not authority:
        raise UsageError(f"{scheme}://: a bucket is missing, as in {scheme}://bucket/wh")
    for key in options:
        bare = key.removeprefix("hadoop.")
        if bare.startswith("fs.") and not bare.startswith(_FAMILIES):
            near = difflib.get_close_matches(bare[: bare.find(".", 3) + 1], _FAMILIES, n=1)
            hint = f"; did you mean {near[0]}*?" if near else ""
            raise CatalogOptionInvalid(key, f"one of {'*, '.join(_FAMILIES)}*{hint}")
    if scheme in AZURE:
        return azure_service(scheme, authority, options)
    if scheme in GCS:
        return gcs_service(authority, options)
    if scheme in OSS:
        return oss_service(authority, options)
    return s3_service(authority, options)


def literal_secrets(location: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of options whose secret values stand there themselves, not as references.

    Raises as `service_of`.
    """
    scheme, colon, rest = location.partition("://")
    if not colon or scheme.lower() not in SCHEMES:
        # Those of fsspec have their names from whoever wrote the store.
        given = ((key, text) for key, text in options.items() if key.startswith("fsspec."))
        return tuple(k for k, text in given if is_secret(k, text) and not has_reference(text))
    found = service_of(scheme.lower(), rest.partition("/")[0], options)
    return tuple(key for key in found.secrets.values() if not has_reference(options[key]))
