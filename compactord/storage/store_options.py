"""Options of object stores under Paimon's names, as the library wants them."""

from __future__ import annotations

from collections.abc import Mapping

from compactord.errors import UsageError

_S3 = {
    "endpoint": "endpoint",
    "access-key": "access_key_id",
    "access.key": "access_key_id",
    "secret-key": "secret_access_key",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "region": "region",
    "endpoint.region": "region",
}
_S3_PREFIXES = ("s3.", "s3a.", "fs.s3a.")
_PATH_STYLE = ("path.style.access", "path-style-access")


def service_of(
    scheme: str, authority: str, options: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """The library's name of a URL's store, and its options.

    `authority` is what stands between `//` and the path. `options` are those of the catalog; their
    values may be references, which stay as they are. Raises `UsageError` for unknown options.
    """
    if scheme not in ("s3", "s3a", "s3n"):
        raise UsageError(f"{scheme}://{authority}: options of this store are not known yet")
    found = {"bucket": authority, "enable_virtual_host_style": "true"}
    for key, value in options.items():
        prefix = next((prefix for prefix in _S3_PREFIXES if key.startswith(prefix)), None)
        if prefix is None:
            continue
        name = key.removeprefix(prefix)
        if name in _PATH_STYLE:
            found["enable_virtual_host_style"] = "false" if value == "true" else "true"
        elif name in _S3:
            found[_S3[name]] = value
        else:
            raise UsageError(f"option {key} of {scheme}://{authority} is not known")
    if "endpoint" in found:
        found.setdefault("region", "us-east-1")
    return "s3", found
