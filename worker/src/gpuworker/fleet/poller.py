"""Fetching reports: the collector requests them from the pods of a Service, one round after the other."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import http.client
import socket
import threading
import time
from http import HTTPStatus

from gpuworker.fleet.http_handler import FETCHED, NONCE_HEADER, SIGNATURE_HEADER, at_most
from gpuworker.fleet.pod_list import PodList
from gpuworker.fleet.report_sources import MOST_REPORT_BYTES, from_text
from gpuworker.fleet.report_store import ReportStore
from gpuworker.runtime.message_auth import matches, new_nonce

MOST_REQUESTS = 16
REFRESH_S = 60
REQUEST_TIMEOUT_S = 5  # without an answer
FETCH_S = 20.0  # for all of it
NOT_SIGNED = "the report has no valid signature: its sender has not the key of this release"
NO_REPORT, NO_ANSWER = "no report yet", "no answer"
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)


class Poller:
    """Fetches the reports of all pods of a Service into `store`. With a key they must be signed.

    A pod without a report is asked in every round; one with a report, a minute later, and then for changes only.
    """

    def __init__(self, store: ReportStore, host: str, port: int, key: bytes = b"", pods: PodList | None = None) -> None:
        self.store, self.host, self.port, self.key, self.pods = store, host, port, key, pods
        self.fetched: dict[str, float] = {}  # address -> when its report was fetched
        self.tags: dict[str, str] = {}  # address -> ETag of its report that was taken
        self.present: set[str] = set()
        self.reading = threading.Lock()  # one at a time: a parsed report takes some ten times its size of memory

    def poll(self) -> None:
        self.present = self.resolve()
        self.fetched = {address: when for address, when in self.fetched.items() if address in self.present}
        self.tags = {address: tag for address, tag in self.tags.items() if address in self.fetched}
        # The name of a pod that has ended still resolves. Such a pod has submitted its report before.
        running = sorted(self.present - self.store.submitters)
        due = [a for a in running if time.monotonic() - self.fetched.get(a, -REFRESH_S) >= REFRESH_S]
        pending, unreadable, silent = set(), {}, set()
        with concurrent.futures.ThreadPoolExecutor(MOST_REQUESTS) as pool:
            for address, problem in zip(due, pool.map(self.fetch, due), strict=True):
                if not problem:
                    self.fetched[address] = time.monotonic()
                    continue
                self.fetched.pop(address, None)
                self.tags.pop(address, None)
                if problem in (NO_REPORT, NO_ANSWER):
                    pending.add(address)
                    silent |= {address} if problem == NO_ANSWER else set()
                else:
                    unreadable[address] = problem
        unreported = {}
        if self.pods and (pending or self.store.waiting()):
            self.pods.refresh()
            unreported = self.pods.without_report(self.store.reported(), self.store.sources, silent)
            pending -= frozenset().union(*(pod.addresses for pod in self.pods.listed))
        self.store.update(self.present, pending, unreadable, unreported)

    def resolve(self) -> set[str]:
        """Addresses of all pods. An unknown name is a Service without pods; other DNS errors change nothing."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return set() if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else self.present
        return {address[0] for *_, address in found}

    def fetch(self, address: str) -> str:
        """Take the report of a pod. Returns "" or the problem; NO_REPORT also stands for the report of another run.

        NO_ANSWER: not even the refusal of a pod that tests and does not listen yet.
        """
        nonce = new_nonce()
        headers = {NONCE_HEADER: nonce} | ({"If-None-Match": self.tags[address]} if address in self.tags else {})
        try:
            status, answer, data = self._get(address, headers)
        except (OSError, http.client.HTTPException) as error:
            silent = isinstance(error, TimeoutError) or getattr(error, "errno", 0) in UNREACHABLE
            return NO_ANSWER if silent else NO_REPORT
        if status == HTTPStatus.NOT_MODIFIED and address in self.tags:
            return "" if self._is_signed(answer, nonce, b"") else NOT_SIGNED
        if status != HTTPStatus.OK:
            return NO_REPORT
        if len(data) > MOST_REPORT_BYTES:
            return f"the report has more than {MOST_REPORT_BYTES} bytes"
        if not self._is_signed(answer, nonce, data):
            return NOT_SIGNED
        with self.reading:
            (source, *_) = from_text(address, data)
            if source.report is None:
                return source.error
            status, why = self.store.add(source.report, address)
        if status == HTTPStatus.OK:
            self.tags[address] = answer.get("ETag", "")
            return ""
        return why if status == HTTPStatus.INSUFFICIENT_STORAGE else NO_REPORT

    def _get(self, address: str, headers: dict[str, str]) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body. No proxy, because the pods are in the cluster, and no redirection out of it."""
        connection = http.client.HTTPConnection(address, self.port, timeout=REQUEST_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.connect()
            with at_most(FETCH_S, connection.sock):
                connection.request("GET", "/report.json", headers=headers)
                with connection.getresponse() as response:
                    return response.status, response.headers, response.read(MOST_REPORT_BYTES + 1)

    def _is_signed(self, headers: http.client.HTTPMessage, nonce: str, data: bytes) -> bool:
        return not self.key or matches(headers.get(SIGNATURE_HEADER, ""), self.key, FETCHED, nonce, data)
