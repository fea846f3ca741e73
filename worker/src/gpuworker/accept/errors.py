"""Errors that end a check, as findings: the part and the kind, from the type and the code of the
error.
"""

from __future__ import annotations

import dataclasses

from gpuworker.judgement.report import FAIL, INCOMPLETE, Problem

# cudaError_t -> verdict, kind, and CUDA's own words, which are all that torch before 2.8 gives.
CUDA = {
    2: (INCOMPLETE, "cuda-memory", "out of memory"),
    46: (INCOMPLETE, "cuda-busy", "busy or unavailable"),
    214: (FAIL, "cuda-reset", "uncorrectable ECC error"),
    219: (FAIL, "cuda-reset", "uncorrectable NVLink error"),
    700: (INCOMPLETE, "cuda-reset", "illegal memory access"),
    714: (FAIL, "cuda-reset", "hardware stack error"),
    715: (INCOMPLETE, "cuda-reset", "illegal instruction"),
    716: (INCOMPLETE, "cuda-reset", "misaligned address"),
    719: (FAIL, "cuda-reset", "unspecified launch failure"),
    802: (INCOMPLETE, "fabric-manager", "system not yet initialized"),
}


class PartError(RuntimeError):
    """An error of the work on one part: a device, or a rank."""

    def __init__(self, part: str, error: Exception) -> None:
        super().__init__(f"{part}: {words_of(error)}")
        self.part, self.error = part, error


class BrokenWorldError(RuntimeError):
    """A rank ended before it returned its result. `problem`: as a finding."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.reason)
        self.problem = problem


def problem_of(error: Exception) -> Problem:
    if isinstance(error, BrokenWorldError):
        return dataclasses.replace(error.problem, reason=words_of(error))
    parts, cause = ([error.part], error.error) if isinstance(error, PartError) else ([], error)
    verdict, kind = kind_of(cause)
    return Problem(verdict, kind, words_of(error) if cause is error else str(error), parts)


def kind_of(error: Exception) -> tuple[str, str]:
    """Verdict and kind."""
    code, text = getattr(error, "error_code", None), str(error)
    if type(error).__name__ == "OutOfMemoryError":  # of torch's allocator
        code = 2
    if code not in CUDA and "CUDA" in text:
        code = next((known for known, (*_, words) in CUDA.items() if words in text), None)
    if code in CUDA:
        return CUDA[code][:2]
    return INCOMPLETE, "cuda-error" if "CUDA" in text or type(
        error
    ).__name__ == "AcceleratorError" else "check-failed"


def words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
