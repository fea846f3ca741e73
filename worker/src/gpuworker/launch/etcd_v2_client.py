"""Subset of an etcd v2 client: what torchrun's etcd-v2 rendezvous calls, under the same names.

torchrun wants the package python-etcd, whose last release is of 2017 and which few images have. Where it is missing,
the launcher puts this file on torchrun's path as `etcd`. It imports nothing of gpuworker.
"""

import http.client
import json
import urllib.parse


class EtcdException(Exception):
    pass


class EtcdKeyNotFound(EtcdException):
    pass


class EtcdCompareFailed(EtcdException):
    pass


class EtcdAlreadyExist(EtcdException):
    pass


class EtcdEventIndexCleared(EtcdException):
    pass


class EtcdWatchTimedOut(EtcdException):
    pass


ERRORS = {100: EtcdKeyNotFound, 101: EtcdCompareFailed, 105: EtcdAlreadyExist, 401: EtcdEventIndexCleared}


class EtcdResult:
    def __init__(self, node, index):
        self.key, self.value = node["key"], node.get("value")
        self.modifiedIndex, self.etcd_index = node["modifiedIndex"], index
        self.children = [EtcdResult(child, index) for child in node.get("nodes", [])]


class Client:
    def __init__(self, host, port, read_timeout=60, protocol="http", **_):
        if protocol != "http":
            raise EtcdException(f"protocol {protocol}: only http, or install python-etcd")
        self.host, self.port, self.read_timeout = host, port, read_timeout

    def request(self, method, key, query=None, form=None, timeout=None):
        path = "/v2/keys" + urllib.parse.quote("/" + key.lstrip("/"))
        path += "?" + urllib.parse.urlencode(query) if query else ""
        body = urllib.parse.urlencode(form) if form else None
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout or self.read_timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = json.loads(response.read())
        except TimeoutError as error:
            raise EtcdWatchTimedOut(str(error)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EtcdException(f"etcd at {self.host}:{self.port}: {error}") from error
        finally:
            connection.close()
        if "errorCode" in data:
            raise ERRORS.get(data["errorCode"], EtcdException)(data["message"])
        return EtcdResult(data["node"], int(response.headers.get("X-Etcd-Index", 0)))

    def read(self, key):
        return self.request("GET", key)

    get = read

    def write(self, key, value, ttl=None, **conditions):
        form = {"value": value, **({"ttl": ttl} if ttl else {})}
        return self.request("PUT", key, {name: str(what).lower() for name, what in conditions.items()}, form)

    set = write

    def test_and_set(self, key, value, prev_value, ttl=None):
        query = {"prevValue": prev_value}
        return self.request("PUT", key, query, {"value": value, **({"ttl": ttl} if ttl else {})})

    def watch(self, key, index=None, timeout=None, recursive=False):
        query = {"wait": "true", "recursive": str(bool(recursive)).lower(), **({"waitIndex": index} if index else {})}
        return self.request("GET", key, query, timeout=timeout)
