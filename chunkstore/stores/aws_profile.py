"""Credentials and settings of S3 from the places where the AWS tools look for them.

These are the environment, and then a profile of `~/.aws`. Keys in the environment take precedence
over those of a profile, as in the AWS tools. The two are never mixed, because a key of one with the
session token of the other would be refused. The region and endpoint of the profile apply in both
cases. botocore fetches the keys of a profile that has none of its own but names a role, SSO or a
process (`cloud_aws_credentials`); obstore would use the machine's role instead.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from typing import Any, Final

_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_SETTINGS: Final = {"region": "region", "endpoint_url": "endpoint"}
_FETCHED_BY: Final = {
    "role_arn",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "login_session",
}
"""Settings of a profile whose keys have to be fetched."""
_OF_THE_MACHINE: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables of clusters that give credentials to their containers: obstore uses them."""


def aws_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return keys, region and endpoint under obstore's names.

    `profile` stands in place of the keys if botocore has to fetch those of that profile. obstore
    reads all other variables of the environment itself. Raises `ValueError` for a profile that is
    missing, and for half a pair of keys.
    """
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    found = _profile(name, environment)
    if named and not found and not environment.get("AWS_ACCESS_KEY_ID"):
        raise ValueError(f"~/.aws has no profile {name}; correct or unset AWS_PROFILE")
    settings = {ours: found[theirs] for theirs, ours in _SETTINGS.items() if theirs in found}
    given = [
        name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if environment.get(name)
    ]
    if len(given) == 1:
        raise ValueError(
            f"only {given[0]} is in the environment; "
            "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if given:
        return settings
    keys = {ours: found[theirs] for theirs, ours in _KEYS.items() if theirs in found}
    if keys and not {"access_key_id", "secret_access_key"} <= keys.keys():
        raise ValueError(
            f"profile {name} of ~/.aws has only one of "
            "aws_access_key_id and aws_secret_access_key; add the other"
        )
    machine_has_some = any(environment.get(name) for name in _OF_THE_MACHINE)
    if not keys and _FETCHED_BY & found.keys() and (named or not machine_has_some):
        return settings | {"profile": name}
    return settings | keys


def _profile(name: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the profile's settings in the two files, or an empty mapping."""
    home = environment.get("HOME") or "~"
    credentials = _ini(environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials")
    settings = _ini(environment.get("AWS_CONFIG_FILE") or f"{home}/.aws/config")
    return {
        **_section(settings, name if name == "default" else f"profile {name}"),
        **_section(credentials, name),
    }


def _ini(name: str) -> configparser.RawConfigParser:
    """Return what a file says; nothing for one that is missing, or below an unknown home."""
    parsed, path = configparser.RawConfigParser(), os.path.expanduser(name)
    try:
        parsed.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"cannot read {path}: {type(error).__name__}; correct the file"
        ) from None  # the error quotes lines of the file
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; correct its mode, or AWS_CONFIG_FILE"
        ) from None
    return parsed


def _section(parsed: configparser.RawConfigParser, name: str) -> Mapping[str, str]:
    return dict(parsed[name]) if parsed.has_section(name) else {}
