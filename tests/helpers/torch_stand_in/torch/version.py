"""As far as the launcher reads it."""

__version__ = '2.99.0'  # fmt: skip
cuda: str | None = None
