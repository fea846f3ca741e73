"""Evaluator: measures each checkpoint on points outside the training data and sends the loss to the trainer."""

import io
import os
import time
import urllib.error
import urllib.request

import torch
from model import network, points

TRAINER, PATIENCE_S = f"http://trainer-0.{os.environ['SKYPILOT_JOBGROUP_NAME']}:8080", 120


def checkpoint(epoch: int) -> bytes | None:
    """Checkpoint of an epoch, once it exists. None if the trainer has exited."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{TRAINER}/{epoch}.pt", timeout=10) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        except OSError:
            if epoch > 0:
                return None
        time.sleep(0.1)
    raise SystemExit(f"no checkpoint of epoch {epoch} within {PATIENCE_S} s")


model, epoch = network(), 0
x, y = points(1000, seed=0)
while data := checkpoint(epoch):
    model.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(x), y).item()
    print(f"MEASURED epoch {epoch}, loss {loss:.4f}", flush=True)
    request = urllib.request.Request(f"{TRAINER}/{epoch}", f"{loss:.6f}".encode(), method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    epoch += 1
