"""Requests to the collector, from a pod or for a person who waits."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request

from gpuworker.fleet.http_handler import DIGEST_HEADER, NONCE_HEADER, POSTED, SIGNATURE_HEADER
from gpuworker.runtime.message_auth import sign

TIMEOUT_S = 10.0
MOST_BYTES = 65536  # of an answer


class EveryStatus(urllib.request.HTTPErrorProcessor):
    """Hands on answers of every status."""

    def http_response(self, request: object, response: object) -> object:
        return response

    https_response = http_response


# The collector is in the cluster, and behind no proxy.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), EveryStatus)


def ask(address: str, data: bytes | None = None, key: bytes = b"") -> tuple[int, str]:
    """Status and text of the answer, or 0 and why there is none. With `data` it is a POST, with a
    key signed for a nonce of the collector.
    """
    try:
        headers = {"Content-Type": "application/json"}
        if data is not None and key:
            headers |= signature(address, data, key)
        request = urllib.request.Request(address, data, headers)
        with DIRECT.open(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, f"{address}: {getattr(error, 'reason', error)}"


def signature(address: str, data: bytes, key: bytes) -> dict[str, str]:
    """Headers of a message."""
    _, nonce = ask(f"{address.rpartition('/')[0]}/nonce")
    digest = hashlib.sha256(data).hexdigest()
    signed = sign(key, POSTED, nonce, digest)
    return {NONCE_HEADER: nonce, DIGEST_HEADER: digest, SIGNATURE_HEADER: signed}
