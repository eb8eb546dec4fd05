"""The addresses `s3://`, `gs://` and `az://` of places in cloud stores, and access to them.

    s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=REGION
    gs://BUCKET/PREFIX
    az://CONTAINER/PREFIX?account=NAME

With `anonymous=true` requests are not signed. An address holds no credentials. These come from the
environment in the form that each provider's own tools read (`AWS_…`, `GOOGLE_…`, `AZURE_…`), for S3
also from a profile in `~/.aws` (`aws_profile`), and else from the machine's role.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from chunkstore.stores.aws_profile import aws_settings
from chunkstore.stores.cloud_aws_credentials import ProfileCredentials
from chunkstore.stores.cloud_errors import brief

Opened: TypeAlias = S3Store | GCSStore | AzureStore

REQUEST_TIMEOUT_S: Final = 18
"""Seconds for a whole request with its body, below the 20 s of `chunkstore.stores.deadline`."""
_CONNECT_TIMEOUT_S: Final = 3
_NO_RETRIES: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
"""obstore does not retry: `chunkstore.stores.retrying` does, in the same way for all stores."""
_RETRIES_OF_PARTS: Final[Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
"""The retries of a multipart upload, for each part alone.

A source that can be read only once cannot be sent again from its beginning, and one of 10 GB has
640 parts.
"""
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"endpoint", "region", "anonymous"}),
    "gs": frozenset({"endpoint", "anonymous"}),
    "az": frozenset({"account", "endpoint", "anonymous"}),
}
_VARIABLES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "s3": {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    },
    "gs": {"endpoint": ("STORAGE_EMULATOR_HOST",)},
    "az": {
        "account": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
        "account_key": ("AZURE_STORAGE_KEY",),
        "endpoint": ("AZURE_STORAGE_ENDPOINT",),
    },
}
"""Scheme -> setting -> the variables that give it if the address does not; the first one counts."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9._$-]+")
_ENDPOINT: Final[Mapping[str, str]] = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """A bucket (Azure: container) and the prefix of all keys in it."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> CloudLocation:
        """Return the location of an address; raise `ValueError` with the reason if invalid."""
        parts = urlsplit(url, allow_fragments=False)
        allowed = _OPTIONS[parts.scheme]
        if not parts.netloc:
            raise ValueError("the address names no bucket")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise ValueError(
                "the address of a bucket must not contain a user, a password or a port: "
                "credentials come from the environment"
            )
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError("the name of a bucket has only letters, digits and . - _")
        options = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
        unknown = sorted(set(options) - allowed)
        if unknown:
            raise ValueError(
                f"{unknown[0]}= is not an option of {parts.scheme}:// "
                f"({', '.join(sorted(allowed))} are); credentials come from the environment"
            )
        prefix = unquote(parts.path).strip("/")
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise ValueError("the prefix has an empty component, . or ..")
        return cls(parts.scheme, parts.netloc, prefix, options)

    @property
    def shown(self) -> str:
        """The store's address without its prefix, for messages: it has no credentials."""
        endpoint = self.options.get("endpoint")
        return f"{self.scheme}://{self.bucket}" + (f" at {endpoint}" if endpoint else "")

    @property
    def is_ordered(self) -> bool:
        """False for S3's directory buckets, whose listings have no order."""
        return not (self.scheme == "s3" and self.bucket.endswith("--x-s3"))

    @property
    def lists_from_a_key(self) -> bool:
        """True if the store itself begins a listing at a key; from others all keys would come."""
        return self.scheme in ("s3", "gs") and self.is_ordered

    def open(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        retries_parts: bool = False,
        past_caches: bool = False,
    ) -> Opened:
        """Return the store with connections of its own, without a request to it.

        `past_caches` asks the caches and proxies in front of the store not to answer themselves.
        Raises `ValueError` for an invalid configuration.
        """
        config = self.config(environment)
        endpoint = config.get(_ENDPOINT[self.scheme], "")
        provider: dict[str, Any] = {}
        if profile := config.pop("profile", None):
            provider["credential_provider"] = ProfileCredentials(profile, config.get("region"))
        client: Any = {
            "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
            "allow_http": endpoint.startswith("http://"),
        }
        if past_caches:
            client["default_headers"] = {"cache-control": "no-cache", "pragma": "no-cache"}
        if self.scheme == "s3" and (authority := environment.get("AWS_CA_BUNDLE")):
            client["root_certificate"] = _content(authority)
        kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[self.scheme]
        try:
            opened: Opened = kind(
                self.bucket,
                prefix=self.prefix or None,
                config=config,
                client_options=client,
                retry_config=_RETRIES_OF_PARTS if retries_parts else _NO_RETRIES,
                **provider,
            )
        except exceptions.BaseError as error:
            raise ValueError(
                f"{brief(str(error))}; docs/stores.md lists the variables of the environment to set"
            ) from None
        return opened

    def config(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the configuration under obstore's names, and for S3 perhaps a `profile`.

        obstore reads all other variables of the environment itself. Raises `ValueError` for an
        invalid configuration.
        """
        anonymous = self.options.get("anonymous", "").lower() in ("1", "true", "yes")
        config: dict[str, Any] = {}
        if self.scheme == "s3":
            config = {} if anonymous else aws_settings(environment)
            # A bulk delete answers with a success that hides each refusal, and some servers lack
            # it.
            config["disable_bulk_delete"] = True
        elif self.scheme == "az":
            config = _azure_connection(environment)
        elif environment.get("STORAGE_EMULATOR_HOST"):
            config["bearer_token"] = "none"  # an emulator asks for no credentials
        for option, variables in _VARIABLES[self.scheme].items():
            given = (self.options.get(option), *map(environment.get, variables))
            if value := next(filter(None, given), None):
                config[option] = value
        if "endpoint" in config:
            config[_ENDPOINT[self.scheme]] = _endpoint(config.pop("endpoint"))
        if "account" in config:
            config["account_name"] = config.pop("account")
        if anonymous:
            config["skip_signature"] = True
        return config


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError(
            "an endpoint must not contain a user or a password; "
            "credentials come from the environment"
        )
    sound = url.isascii() and url.isprintable() and " " not in url and parts.port != 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not sound:
        raise ValueError(f"the endpoint {url} is not a URL; begin it with http:// or https://")
    return url.rstrip("/")


def _azure_connection(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `AZURE_STORAGE_CONNECTION_STRING`, which obstore does not read."""
    value = environment.get("AZURE_STORAGE_CONNECTION_STRING", "")
    fields = dict(field.split("=", 1) for field in value.split(";") if "=" in field)
    names = {
        "AccountName": "account",
        "AccountKey": "account_key",
        "SharedAccessSignature": "sas_key",
        "BlobEndpoint": "endpoint",
    }
    return {ours: fields[theirs] for theirs, ours in names.items() if fields.get(theirs)}


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(
            f"cannot read {file}: {error.strerror}; correct or unset AWS_CA_BUNDLE"
        ) from None
