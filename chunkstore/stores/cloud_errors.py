"""The translation of obstore's exceptions into those of `chunkstore.errors`.

Two sources decide: the status of the answer, and the code in its XML (S3, Google and Azure all send
`<Code>`). obstore's own classes are not enough: a refused listing is its `GenericError`, and so are
an expired token and a wrong region. An error that no repetition can repair must not become
`Unavailable`, for which training waits minutes. A message has the store's reason and the remedy,
and never a credential: obstore leaves those out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from obstore import exceptions

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Denied,
    NotFound,
    StoreFull,
    Unavailable,
)

_STATUS: Final = re.compile(r"\b(?:status )?code: (\d{3})\b")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_FULL: Final = re.compile("QuotaExceeded|EntityTooLarge|InsufficientStorage")
_ROLE: Final = re.compile(
    r"169\.254\.|metadata\.google\.internal|/latest/(api/token|meta-data)|/computeMetadata/"
    r"|/metadata/identity"
)
"""Addresses where a cloud machine asks for the credentials of its role, account or identity."""
_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_BEYOND_THE_END: Final = re.compile("status 416|Wanted range starting at")
_UNDECIDED: Final = frozenset(
    {"ConditionalRequestConflict", "OperationAborted", "ContainerBeingDeleted"}
)
"""Codes that come with the status of a taken name but only ask for a repetition."""
_ELSEWHERE: Final = re.compile(
    "redirect without LOCATION|AuthorizationHeaderMalformed|PermanentRedirect"
    "|IllegalLocationConstraint"
)
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"|source: (TimedOut)')
"""A pattern for the debugging output that follows the first line of a message."""
_REQUEST: Final = re.compile(
    r"Error performing (\w+) (\S+) in \S+ - (?:Server returned non-2xx |HTTP error: )?"
)
_OBSTORE: Final = re.compile(r"^Generic \w+ error: (?:Error performing list request: )?")
"""A pattern for text that tells a user nothing, or differs each time."""
_PROVIDER: Final = re.compile(r"External AWS credential provider: (\w+): (.*)")
"""A pattern for an error of `cloud_aws_credentials`, of which obstore keeps only the text."""
_FOREIGN: Final = "Encountered object with invalid path"
_ADVICE: Final = (
    (
        re.compile("Expired|TokenRefreshRequired|RequestExpired"),
        "the credentials have expired: get new ones and run the command again",
    ),
    (
        re.compile("RequestTimeTooSkewed|RequestTimeSkewed"),
        "the clock of this machine is wrong, "
        "and requests are signed with the time: correct the clock",
    ),
    (
        re.compile(
            "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity"
            "|AuthenticationFailed|NoAuthenticationInformation|AuthorizationFailure"
            "|InvalidClientTokenId|UnrecognizedClient"
        ),
        "the store rejects these credentials",
    ),
)
_CREDENTIALS: Final[Mapping[str, str]] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
    "add ?anonymous=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file that holds them; "
    "add ?anonymous=true for a public bucket",
    "az": "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; "
    "add ?anonymous=true for a public container",
}


def translated(error: Exception, key: str, scheme: str) -> ChunkStoreError | Exception:
    """Return the error of a call about `key` (or a prefix) as one of `chunkstore.errors`.

    An error that does not come from the store is returned unchanged.
    """
    if isinstance(error, ChunkStoreError) or not isinstance(error, exceptions.BaseError | OSError):
        return error
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else ""
    where = f"{key}: " if key else ""
    if found := _PROVIDER.search(text):
        return (Unavailable if found[1] == "Unavailable" else Denied)(found[2])
    if _ROLE.search(text):
        return Unavailable(
            "no credentials are set, and the request for those of this machine's role failed: "
            f"{_CREDENTIALS[scheme]} ({brief(text)})"
        )
    if found := _CERTIFICATE.search(text):
        return Denied(
            f"the certificate of the store is not trusted ({found[1]}); "
            "set SSL_CERT_FILE (S3: AWS_CA_BUNDLE) to a file with the certificate of its authority"
        )
    if _NO_BUCKET.search(text):
        return Denied("the bucket does not exist: create it, or correct the address of the store")
    if _FULL.search(code) or status == 507:
        return StoreFull(f"{where}{_answer_of(text, status, code)}")
    if _ELSEWHERE.search(text):
        return Denied(
            "the bucket is in another region or at another endpoint "
            f"({_answer_of(text, status, code)}): add region= or endpoint= to its address"
        )
    for codes, advice in _ADVICE:
        if codes.search(code):
            return Denied(
                f"{where}{advice}; {_CREDENTIALS[scheme]} ({_answer_of(text, status, code)})"
            )
    if status in (401, 403) or isinstance(
        error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
    ):
        return Denied(
            f"{where}the store denies access with these credentials: {_CREDENTIALS[scheme]} "
            f"({_answer_of(text, status, code)})"
        )
    if _FOREIGN in text:
        return Denied(
            "the store contains an object with a name that cannot be listed "
            f"({brief(text)}); move it away, or give the store a prefix of its own"
        )
    if status in (405, 501):
        return Denied(
            f"{where}the store does not support this request ({_answer_of(text, status, code)}); "
            "docs/stores.md lists what a store must support"
        )
    match error:
        case FileNotFoundError():
            return NotFound(key)
        case exceptions.AlreadyExistsError() if code not in _UNDECIDED:
            return AlreadyExists(key)
    return Unavailable(f"{where}{brief(text)}")


def is_beyond_the_end(error: Unavailable) -> bool:
    """Return whether the requested range lies beyond the object's end.

    The store reports this (status 416), or obstore does.
    """
    return bool(_BEYOND_THE_END.search(str(error)))


def ignores_the_range(error: Unavailable) -> bool:
    """Return whether a request for a range was answered with 200, as no store does.

    Such an answer is the page of a proxy, which says that all is well.
    """
    return "non-partial response when range requested" in str(error)


def is_refusal(error: Exception) -> bool:
    """Return whether the store answered with a refusal (a status from 300 to 499)."""
    return bool((found := _STATUS.search(str(error))) and 300 <= int(found[1]) < 500) or bool(
        _ELSEWHERE.search(str(error))
    )


def lacks_e_tag(error: Exception) -> bool:
    """Return whether the answer was a success without an ETag, which every store sends."""
    return "ETag Header missing" in str(error)


def brief(text: str) -> str:
    """Return one of obstore's messages as one line.

    The line includes the cause from the debugging output that follows the message.
    """
    line, _, details = text.strip().partition("\n")
    if line.endswith("error sending request") and (cause := _CAUSE.search(details)):
        line = cause[1] or "no answer in time"
        line = f"{found[0]}{line}" if (found := _REQUEST.search(text)) else line
    line = _REQUEST.sub(r"\1 \2: ", _OBSTORE.sub("", line)).replace("status code:", "status")
    if code := _CODE.search(line):
        line = f"{line.partition('<')[0]}{_code_and_message(line, code[1])}"
    line = line.rstrip(": ")
    return line if len(line) <= 400 else f"{line[:400]}…"


def _answer_of(text: str, status: int | None, code: str) -> str:
    """Return the store's answer, without place and time."""
    if not code:
        return f"status {status}" if status else brief(text)
    return _code_and_message(text, code)


def _code_and_message(text: str, code: str) -> str:
    message = found[1] if (found := _MESSAGE.search(text)) else ""
    return f"{code}: {message[:200]}" if message else code
