"""Rows of a Parquet file, a few at a time: a row group may be larger than the memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

ROWS = 64  # decoded at a time
BUFFER_BYTES = 1 << 20  # read at a time, of each column


def read_rows(path: Path, keys: Collection[str], wanted: Callable[[float], bool]) -> Iterator[tuple[int, dict]]:
    """Number, from 1 on, and columns of the rows of some row groups. Values that are null are left out.

    `wanted` gets the place of a row group in the file, from 0 to below 1. Raises ValueError if the file is not whole.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            columns = [name for name in file.schema_arrow.names if name in keys]
            if not columns:
                raise LookupError(f"none of the known columns: found {', '.join(file.schema_arrow.names)}")
            number = 0
            for group in range(file.num_row_groups):
                if not wanted(group / file.num_row_groups):
                    number += file.metadata.row_group(group).num_rows
                    continue
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=columns, use_threads=False):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, without_nulls(row)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"not a whole Parquet file: {error}") from None


def without_nulls(value: object) -> object:
    """All rows have all columns; a key that a line of JSON would not have is null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value
