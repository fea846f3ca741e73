"""Collector of the results of all ranks: prints them as a table and exits."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

results: dict[int, list[dict]] = {}  # by rank, so a rank that runs twice counts once
ranks = 1


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        global ranks
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ranks, results[message["rank"]] = message["ranks"], message["results"]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        print(f"RECEIVED results of {len(results)} of {ranks} ranks", flush=True)


server = HTTPServer(("", 8080), Handler)
while len(results) < ranks:
    server.handle_request()
table = sorted(
    (result for part in results.values() for result in part), key=lambda result: result["loss"]
)
print("RATE      MOMENTUM  LOSS")
for result in table:
    print("{rate:<9} {momentum:<9} {loss:.3g}".format(**result))
print("BEST rate {rate}, momentum {momentum}".format(**table[0]))
