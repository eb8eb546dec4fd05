"""The credentials of an AWS profile that have to be fetched, through botocore.

botocore knows every kind of profile: SSO, roles, `credential_process`, web identities. It fetches
credentials again before they expire, so a mount may run for longer than they are valid.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chunkstore.errors import ChunkStoreError, Denied, Unavailable

_TTL: Final = timedelta(minutes=6)
"""The time for which obstore is told that an answer is valid.

obstore asks again 5 minutes before the end, thus after a minute. An answer of botocore is valid for
10 minutes or more, if the issuer grants that much.
"""


class ProfileCredentials:
    """A credential provider of obstore for one profile; the first call fetches.

    Raises `ValueError` if botocore is missing. obstore makes one call at a time.
    """

    def __init__(self, profile: str, region: str | None) -> None:
        try:
            import botocore.session
        except ModuleNotFoundError:
            raise ValueError(
                f"the credentials of AWS profile {profile} have to be fetched, "
                "and botocore, which does that, is missing; run pip install 'dieselfs[aws]'"
            ) from None
        self._profile = profile
        self._session = botocore.session.Session(profile=profile)
        self._session.set_config_variable("region", region)
        self._credentials: Any = None

    def __call__(self) -> dict[str, Any]:
        """Return keys, a session token, and the time until which obstore may use them."""
        try:
            self._credentials = self._credentials or self._session.get_credentials()
            keys = self._credentials.get_frozen_credentials()
        except Exception as error:
            raise self._translated(error) from error
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _TTL,
        }

    def _translated(self, error: Exception) -> ChunkStoreError:
        """Return `Unavailable` if the issuer of the credentials did not answer, else `Denied`."""
        from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

        status = 0
        if isinstance(error, ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        kind = (
            Unavailable
            if isinstance(error, ConnectionError | HTTPClientError) or status >= 500
            else Denied
        )
        reason = " ".join(f"{error}".split()) or type(error).__name__
        return kind(f"cannot fetch the credentials of AWS profile {self._profile}: {reason}")
