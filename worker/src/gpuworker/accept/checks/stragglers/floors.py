"""How much slower than the others a straggler is at least."""

# Smallest excess over the median that counts: healthy GPUs of one model differ by 5 %
# (stas00/ml-engineering), and 10 % is the tolerance of huggingface/gpu-fryer. Ranks of a rehearsal
# share cores: with other programs running, a healthy one took 1.8 times as long.
FLOOR = {"cuda": 0.10, "cpu": 1.0}
FEW = 5  # fewer values have no meaningful median absolute deviation
LATE_S = {"cuda": 0.005, "cpu": 0.15}  # delay that the OS scheduler may cause
MOST_FLOOR = 1.0  # whatever the deviation of the others


def latest_s(kind: str, usual_s: float) -> float:
    """Seconds after the others at which a rank is late, whose work takes `usual_s`. `kind`:
    "cuda" or "cpu".
    """
    return max(LATE_S[kind], FLOOR[kind] * usual_s)
