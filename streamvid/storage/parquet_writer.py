"""Writes Parquet files that `read_parquet` reads within its limits."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.errors import InputError
from streamvid.storage.parquet import FIXED_LISTS, of_fixed_size, read_parquet, unreadable
from streamvid.storage.table_bounds import TooLargeError


def write_parquet(
    table: pa.Table,
    path: str | os.PathLike[str],
    *,
    group_rows: int,
    dictionary: bool | Sequence[str] = True,
    by_column: bool = False,
) -> None:
    """Write a Parquet file. If it would decompress to more than `read_parquet` takes from a file of its size, as
    columns of zeros do, it is written without compression and dictionaries.

    Args:
        table: the columns.
        path: the file.
        group_rows: rows of a row group.
        dictionary: names of the columns with a dictionary; True: all.
        by_column: whether the columns are read one by one, not together.

    Raises:
        InputError: it could not be read even so, as with very many columns that are mostly empty; or this version of
            PyArrow cannot read it, as a column of lists of fixed size has missing rows.
    """
    if int(pa.__version__.partition(".")[0]) < FIXED_LISTS:
        names = [name for name in of_fixed_size(table.schema, table.column_names) if table[name].null_count]
        if names:
            raise InputError(unreadable(names))
    problem = ""
    for compression, coded in (("zstd", dictionary), ("none", False)):
        with open(path, "wb") as file:  # of one that Arrow opened, its error at close has neither number nor name
            pq.write_table(table, file, compression=compression, use_dictionary=coded, row_group_size=group_rows)
        try:
            for names in [[name] for name in table.column_names] if by_column else [table.column_names]:
                read_parquet(os.fspath(path), lambda *_, names=names: names)
        except TooLargeError as error:
            problem = str(error).removeprefix("its ")
        else:
            return
    raise InputError(
        f"the metadata of {table.num_rows:,} clips could not be read again: {problem}; leave out columns, as those "
        "without values"
    )
