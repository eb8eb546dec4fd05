"""Where objects lie in a cloud store, and how one gets at them: `s3://`, `gs://` and `az://` addresses.

    s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=REGION      anonymous=true reads without signing
    gs://BUCKET/PREFIX
    az://CONTAINER/PREFIX?account=NAME

An address holds no credentials: those come from the environment as each provider's own tools read them (`AWS_…`, `GOOGLE_…`, `AZURE_…`), for S3 also
from the profile that `AWS_PROFILE` names in `~/.aws`, else from the machine's role.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

Opened: TypeAlias = S3Store | GCSStore | AzureStore

REQUEST_TIMEOUT_S: Final = 18
"""For a whole request with its body: below the 20 s after which `chunkstore.stores.deadline` gives it up."""
_CONNECT_TIMEOUT_S: Final = 3
_NO_RETRIES: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
"""`chunkstore.stores.retrying` does it, for all stores alike."""
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"endpoint", "region", "anonymous"}),
    "gs": frozenset({"anonymous"}),
    "az": frozenset({"account", "endpoint", "anonymous"}),
}


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """A place in a store that exists: a bucket (Azure: container) and what all keys begin with."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> CloudLocation:
        """Raises `ValueError` that says what is wrong."""
        parts = urlsplit(url, allow_fragments=False)
        allowed = _OPTIONS[parts.scheme]
        if not parts.netloc:
            raise ValueError("it names no bucket")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise ValueError(
                "an address of a bucket has no user, password or port: credentials come from the environment"
            )
        options = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
        unknown = sorted(set(options) - allowed)
        if unknown:
            raise ValueError(
                f"{unknown[0]}= is not an option of {parts.scheme}:// ({', '.join(sorted(allowed))} are);"
                " credentials come from the environment"
            )
        prefix = unquote(parts.path).strip("/")
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise ValueError("a prefix has no empty parts, and no . or ..")
        return cls(parts.scheme, parts.netloc, prefix, options)

    def open(self, environment: Mapping[str, str] = os.environ) -> Opened:
        """The store, not asked for anything yet. `ValueError` if what is configured makes no sense."""
        prefix = self.prefix or None
        anonymous = self.options.get("anonymous", "").lower() in ("1", "true", "yes")
        retry = _NO_RETRIES
        match self.scheme:
            case "s3":
                config: Any = self.s3_config(environment)
                if anonymous:
                    config["skip_signature"] = True
                client = _client_options(config.get("endpoint"))
                return S3Store(
                    self.bucket,
                    prefix=prefix,
                    config=config,
                    client_options=client,
                    retry_config=retry,
                )
            case "gs":
                google: Any = {"skip_signature": True} if anonymous else {}
                return GCSStore(
                    self.bucket,
                    prefix=prefix,
                    config=google,
                    client_options=_client_options(None),
                    retry_config=retry,
                )
            case _:
                azure: Any = {"skip_signature": True} if anonymous else {}
                if "account" in self.options:
                    azure["account_name"] = self.options["account"]
                endpoint = self.options.get("endpoint")
                if endpoint:
                    azure["endpoint"] = endpoint
                return AzureStore(
                    self.bucket,
                    prefix=prefix,
                    config=azure,
                    client_options=_client_options(endpoint),
                    retry_config=retry,
                )

    def s3_config(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """As obstore names it; what the environment says besides, obstore reads itself. `ValueError` for a profile that can't be used."""
        config = _aws_profile(environment)
        endpoint = (
            self.options.get("endpoint")
            or environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
        )
        region = (
            self.options.get("region")
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
        )
        if endpoint:
            config["endpoint"] = endpoint
        if region:
            config["region"] = region
        return config


def _client_options(endpoint: str | None) -> Any:
    return {
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
    }


def _aws_profile(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the chosen profile of `~/.aws` says, as obstore names it; empty if the environment has credentials itself."""
    named = environment.get("AWS_PROFILE")
    if environment.get("AWS_ACCESS_KEY_ID") and not named:
        return {}
    name, home = named or "default", Path(environment.get("HOME") or Path.home()) / ".aws"
    credentials = _ini(Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"))
    settings = _ini(Path(environment.get("AWS_CONFIG_FILE") or home / "config"))
    found = {
        **_section(settings, name if name == "default" else f"profile {name}"),
        **_section(credentials, name),
    }
    if named and not found:
        raise ValueError(f"AWS_PROFILE is {name}, and ~/.aws has no such profile")
    if named and "aws_access_key_id" not in found:
        raise ValueError(
            f"profile {name} of ~/.aws has no keys of its own: put them into the environment by"
            f' `eval "$(aws configure export-credentials --profile {name} --format env)"`'
        )
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
        "endpoint_url": "endpoint",
    }
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def _ini(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    try:
        parsed.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} can't be read: {type(error).__name__}"
        ) from None  # it quotes lines
    return parsed


def _section(parsed: configparser.ConfigParser, name: str) -> Mapping[str, str]:
    return dict(parsed[name]) if parsed.has_section(name) or name == parsed.default_section else {}
