"""The variables that the launcher reads."""

__version__ = '2.99.0'  # fmt: skip
cuda: str | None = None
