"""Columns of lists keep their types: in the parquet, when they are read, and where datasets differ."""

from __future__ import annotations

import datetime
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns, from_parquet
from streamvid.dataset.selection import repeats, select_rows
from streamvid.errors import DatasetError, InputError
from streamvid.inspection.verify import verify
from streamvid.packing.lists import ParsedList, read_list
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.pack import pack
from streamvid.packing.typed_columns import column_type, unify_schemas
from streamvid.storage.parquet import MAX_LISTS
from streamvid.storage.table_bounds import MAX_COLUMNS
from tests.support.meta_json import meta_columns as parsed
from tests.support.packed import NATURAL_ORDER, make_videos
from tests.support.tables import metadata_of

DAY, MOMENT = datetime.date(2024, 5, 6), datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
VALUES: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "int8": (pa.int8(), [-128, 127, None], pa.int64()),
    "uint16": (pa.uint16(), [65535, None, 0], pa.int64()),
    "uint32": (pa.uint32(), [4294967295, 0, None], pa.int64()),
    "int64": (pa.int64(), [-(1 << 63), (1 << 63) - 1, None], pa.int64()),
    "uint64": (pa.uint64(), [(1 << 63) - 1, 1, None], pa.int64()),
    "small uint64": (pa.uint64(), [1, 2, None], pa.int64()),
    "float32": (pa.float32(), [0.1, None, 2.5], pa.float64()),
    "float64": (pa.float64(), [0.1, None, 1e300], pa.float64()),
    "bool": (pa.bool_(), [True, None, False], pa.bool_()),
    "text": (pa.string(), ["é", "", None], pa.large_string()),
    "date": (pa.date32(), [DAY, None, DAY], pa.large_string()),
    "time": (pa.time64("us"), [MOMENT.time(), None, MOMENT.time()], pa.large_string()),
    "timestamp": (pa.timestamp("us"), [MOMENT, None, MOMENT], pa.large_string()),
    "in a zone": (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=datetime.UTC), None, None], pa.large_string()),
    "seconds": (pa.timestamp("s"), [MOMENT.replace(microsecond=0), None, None], pa.large_string()),
    "milliseconds": (pa.timestamp("ms"), [MOMENT.replace(microsecond=123000), None, None], pa.large_string()),
    "list": (pa.list_(pa.int16()), [[1, 2], [], None], pa.list_(pa.int64())),
    "texts": (pa.list_(pa.string()), [["a"], [None], None], pa.list_(pa.large_string())),
    "lists": (pa.list_(pa.list_(pa.float32())), [[[0.5], []], None, []], pa.list_(pa.list_(pa.float64()))),
    "dates": (pa.list_(pa.date32()), [[DAY], None, []], pa.list_(pa.large_string())),
    "nothing": (pa.null(), [None, None, None], pa.null()),
}


def through_a_list(path: Path, consumed: tuple[str, ...] = ()) -> tuple[list[str], pa.Table]:
    """The JSON of each row, and the columns of a shard with all of them."""
    lists = MetadataLists()
    lists.add(read_list(str(path)), consumed, "list")
    metadata = lists.finish(pa.schema([]))
    rows = [(row,) for row in range(len(metadata.number))]
    return [metadata.json(row) for row in rows], metadata.columns([(row, {}) for row in rows])


def write_or_skip(table: pa.Table, path: Path) -> None:
    """Write a table with views, which old PyArrow does not write."""
    try:
        pq.write_table(table, path)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"PyArrow {pa.__version__}: {error}")


@pytest.mark.parametrize("name", VALUES)
def test_a_parquet_list_keeps_its_types(tmp_path: Path, name: str) -> None:
    kind, values, used = VALUES[name]
    given_table = pa.table({"path": ["a", "b", "c"], "x": pa.array(values, type=kind)})
    pq.write_table(given_table, tmp_path / "list.parquet")
    metas, made = through_a_list(tmp_path / "list.parquet", ("path",))
    assert made.schema.names == ["meta_x"]
    assert made["meta_x"].type == (pa.timestamp("ms") if name == "seconds" else kind)
    assert made["meta_x"].to_pylist() == given_table["x"].to_pylist()
    pq.write_table(made, tmp_path / "made.parquet")
    found = from_parquet(pq.read_table(tmp_path / "made.parquet").rename_columns(["x"]))
    assert found.parquet_types == {"x": str(made["meta_x"].type).replace("item: ", "")}
    assert found.get("x").type == used
    if "date" not in name and "time" not in name and name not in ("in a zone", "seconds", "milliseconds", "dates"):
        # What comes out is what the JSON would have given.
        by_json = parsed(metas, ["a", "b", "c"])["x"]
        if name not in ("float32", "lists"):  # text has the shortest number that is this float32
            assert found.get("x").to_pylist() == by_json.to_pylist()
    elif name == "date":
        assert found.get("x").to_pylist() == ["2024-05-06", None, "2024-05-06"]


def test_whole_numbers_beyond_int64_are_text(tmp_path: Path) -> None:
    given = [(1 << 64) - 1, None, (1 << 53) + 1]
    table = pa.table({"path": ["a", "b", "c"], "x": pa.array(given, pa.uint64()), "y": [2.0**64, None, 0.5]})
    pq.write_table(table, tmp_path / "l.parquet")
    rows = [{"path": name, "x": x, "y": y} for name, x, y in zip("abc", given, table["y"].to_pylist(), strict=True)]
    (tmp_path / "l.jsonl").write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    (tmp_path / "l.csv").write_text("x,path,y\n18446744073709551615,a,1e20\n,b,1e19\n9007199254740993,c,-1e300\n")
    for name, missing in (("l.parquet", None), ("l.jsonl", None), ("l.csv", "")):
        metas, made = through_a_list(tmp_path / name, ("path",))
        texts = ["18446744073709551615", missing, "9007199254740993"]
        assert made["meta_x"].to_pylist() == [json.loads(meta)["x"] for meta in metas] == texts
        assert made["meta_y"].type == pa.float64()


def test_lists_of_whole_numbers_beyond_int64_are_text(tmp_path: Path) -> None:
    """No list of a dataset holds them: from JSONL they came rounded, and a shard with those of Parquet could not be
    read."""
    given = [[(1 << 64) - 1, 1], None, [(1 << 53) + 1]]
    pq.write_table(
        pa.table({"path": ["a", "b", "c"], "x": pa.array(given, pa.list_(pa.uint64()))}), tmp_path / "l.parquet"
    )
    rows = [{"path": n, "x": x, "y": {"of": x}, "z": [[2.0**64], [x and 1]]} for n, x in zip("abc", given, strict=True)]
    (tmp_path / "l.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    texts = ["[18446744073709551615,1]", None, "[9007199254740993]"]
    for name in ("l.parquet", "l.jsonl"):
        metas, made = through_a_list(tmp_path / name, ("path",))
        assert made["meta_x"].to_pylist() == [json.loads(meta)["x"] for meta in metas] == texts
    assert made["meta_y"].to_pylist() == ['{"of":[18446744073709551615,1]}', '{"of":null}', '{"of":[9007199254740993]}']
    assert made["meta_z"].type == pa.list_(pa.list_(pa.float64()))


def test_columns_without_a_type_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text(
        '{"path": "a", "box": {"w": 1}, "boxes": [{"w": 1}], "day": "2024-01-02", "at": "2024-01-02 03:04:05"}\n'
    )
    metas, made = through_a_list(tmp_path / "l.jsonl", ("path",))
    columns = made.schema
    assert columns.field("meta_box").type == columns.field("meta_boxes").type == pa.string()
    assert columns.field("meta_at").type == pa.timestamp("ms")
    row = made.to_pylist()[0]
    assert row["meta_box"] == '{"w":1}'
    assert row["meta_boxes"] == '[{"w":1}]'
    assert row["meta_at"] == datetime.datetime(2024, 1, 2, 3, 4, 5)
    assert json.loads(metas[0])["at"] == "2024-01-02 03:04:05"
    assert column_type(pa.dictionary(pa.int8(), pa.string())) == pa.string()
    assert column_type(pa.float16()) == pa.float32()
    assert column_type(pa.large_list(pa.large_string())) == pa.list_(pa.string())


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.int8(), pa.float64()),
        (pa.uint8(), pa.uint64(), pa.uint64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.bool_(), pa.int64(), pa.string()),
        (pa.string(), pa.int64(), pa.string()),
        (pa.date32(), pa.timestamp("s"), pa.string()),
        (pa.list_(pa.int8()), pa.list_(pa.float64()), pa.list_(pa.float64())),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int8()), pa.list_(pa.string()), pa.string()),
    ],
)
def test_one_column_of_two_lists(one: pa.DataType, two: pa.DataType, both: pa.DataType) -> None:
    for first, second in ((one, two), (two, one)):
        assert (
            unify_schemas([pa.schema({"x": first}), pa.schema({"x": second, "y": pa.null()})]).field("x").type == both
        )


def test_empty_dates_and_nanoseconds_of_a_csv(tmp_path: Path) -> None:
    """In the columns they are null, and microseconds; in the JSON they stay as they were written."""
    (tmp_path / "l.csv").write_text("day,at\n2024-01-02,2024-01-02 03:04:05.123456789\n,\n")
    metas, made = through_a_list(tmp_path / "l.csv")
    assert made.schema.types == [pa.date32(), pa.timestamp("us")]
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, 123456)
    assert made.to_pylist() == [
        {"meta_day": datetime.date(2024, 1, 2), "meta_at": at},
        {"meta_day": None, "meta_at": None},
    ]
    assert metas == ['{"day":"2024-01-02","at":"2024-01-02 03:04:05.123456789"}', '{"day":"","at":""}']


def test_columns_of_a_csv_without_a_name_are_left_out(tmp_path: Path) -> None:
    """The index of pandas, and empty columns of spreadsheets."""
    lines = (",path,day,,n,", "0,a.mp4,2024-01-01,,1,", "1,b.mp4,2024-01-02,,18446744073709551615,")
    (tmp_path / "l.csv").write_text("\n".join(lines))
    rows = read_list(str(tmp_path / "l.csv"))
    assert rows.table.schema.names == rows.typed.schema.names == ["path", "day", "n"]
    assert rows.table.to_pylist()[1] == {"path": "b.mp4", "day": "2024-01-02", "n": "18446744073709551615"}
    assert rows.typed["day"].to_pylist() == [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]


def test_a_column_of_numbers_may_be_called_video(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,video\na.mp4,007\n")
    metas, made = through_a_list(tmp_path / "l.csv", ("path",))
    assert (metas, made.to_pylist()) == (['{"video":"007"}'], [{"meta_video": "007"}])


def test_dates_that_python_lacks_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"day": pa.array([10**7], pa.date32())}), tmp_path / "l.parquet")
    with pytest.raises(InputError, match=r"column 'day' of list holds date32\[day\] outside of the years"):
        through_a_list(tmp_path / "l.parquet")


def test_text_without_an_own_buffer_and_times_in_lists(tmp_path: Path) -> None:
    moments = pa.array([[1_714_979_289_123_456_789], None], pa.list_(pa.timestamp("ns")))
    table = pa.table({"text": pa.array(["a", None], pa.string_view()), "at": moments})
    write_or_skip(table, tmp_path / "l.parquet")
    metas, made = through_a_list(tmp_path / "l.parquet")
    assert made.schema.types == [pa.string(), pa.list_(pa.timestamp("us"))]
    assert [json.loads(meta) for meta in metas] == [
        {"text": "a", "at": ["2024-05-06T07:08:09.123456"]},
        {"text": None, "at": None},
    ]


def test_numbers_of_16_bits(tmp_path: Path) -> None:
    """Old PyArrow gives them to Python as NumPy's, for which JSON has no form."""
    half = pa.array(np.array([0.5, 65504], np.float16))
    pair = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4, dtype=np.float16)), 2)
    box = pa.StructArray.from_arrays([half], ["w"])
    pq.write_table(pa.table({"half": half, "pair": pair, "box": box}), tmp_path / "l.parquet")
    metas, made = through_a_list(tmp_path / "l.parquet")
    assert made.schema.types == [pa.float32(), pa.list_(pa.float32()), pa.string()]
    assert [json.loads(meta) for meta in metas] == [
        {"half": 0.5, "pair": [0.0, 1.0], "box": {"w": 0.5}},
        {"half": 65504.0, "pair": [2.0, 3.0], "box": {"w": 65504.0}},
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary_view()], ids=str)
def test_binary_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    write_or_skip(pa.table({"path": ["a", "b"], "x": pa.array([b"a", b"b"], kind)}), tmp_path / "l.parquet")
    rows = read_list(str(tmp_path / "l.parquet")).take(np.array([1]))
    with pytest.raises(InputError, match=r"the column 'x' of list holds .*binary, which JSON has no form for"):
        MetadataLists().add(rows, (), "list")


def test_more_numbers_than_32_bits_count() -> None:
    """Of embeddings, for instance. The lists of a shard have offsets of 32 bits again."""
    metadata = metadata_of(pa.table({"x": pa.array([[1.0, 2.0], None, []], pa.list_(pa.float32()))}))
    assert metadata.table.schema.field("x").type == pa.large_list(pa.float32())
    assert metadata.columns([((0,), {})]).schema.field("meta_x").type == pa.list_(pa.float32())


def test_slices_of_nested_lists(tmp_path: Path) -> None:
    """Arrow's own cast fails for some of these, also to the type that they have."""
    pairs = pa.array([[n, None] for n in range(6)], pa.list_(pa.float32(), 2)).slice(2, 3)
    nothing = pa.array([[None], [], [None, None]] * 2, pa.list_(pa.null())).slice(1, 3)
    metadata = metadata_of(pa.table({"pair": pairs, "nothing": nothing, "text": pa.array(["a", "b", "c"])}))
    assert metadata.part([1, 2]).columns([((2,), {}), ((1,), {})]).to_pylist() == [
        {"meta_pair": [4.0, None], "meta_nothing": [None], "meta_text": "c"},
        {"meta_pair": [3.0, None], "meta_nothing": [None, None], "meta_text": "b"},
    ]


def test_rows_of_several_lists() -> None:
    """Later rows take precedence, with their nulls; a column has one type for all lists."""
    lists = MetadataLists()
    first = pa.table({"n": [1, 2, 3], "x": ["a", "b", "c"], "box": [{"w": 1}] * 3})
    second = pa.table({"x": [0.5, None], "n": pa.array([7, None], pa.int8())})
    assert [lists.add(ParsedList(table, table), (), "list") for table in (first, second)] == [0, 3]
    metadata = lists.finish(pa.schema({"end": pa.float64()}))
    rows = [(0,), (1, 3), (1, 4), (), (4,)]
    own: list[dict[str, float]] = [{}, {}, {"end": 2.5}, {"end": 1.0}, {}]
    assert [metadata.json(*pair) for pair in zip(rows, own, strict=True)] == [
        '{"n":1,"x":"a","box":{"w":1}}',
        '{"n":7,"x":0.5,"box":{"w":1}}',
        '{"n":null,"x":null,"box":{"w":1},"end":2.5}',
        '{"end":1.0}',
        '{"x":null,"n":null}',
    ]
    wanted = {
        "meta_end": [None, None, 2.5, 1.0, None],
        "meta_n": [1, 7, None, None, None],
        "meta_x": ["a", "0.5", None, None, None],
        "meta_box": ['{"w":1}', '{"w":1}', '{"w":1}', None, None],
    }
    assert metadata.columns(list(zip(rows, own, strict=True))).to_pydict() == wanted
    # The part that a group of clips needs has the same numbers, and no other rows.
    part = metadata.part([4, 1, 1])
    assert (part.number.tolist(), part.schema) == ([1, 4], metadata.schema)
    assert part.columns(list(zip(rows, own, strict=True))[2:]).to_pydict() == {
        name: values[2:] for name, values in wanted.items()
    }
    assert part.json((1, 4)) == metadata.json((1, 4))


def test_more_columns_than_a_file_may_have_are_refused_before_any_video_is_read() -> None:
    table = pa.table({f"c{n}": [n] for n in range(MAX_COLUMNS)})
    lists = MetadataLists()
    lists.add(ParsedList(table, table), (), "list")
    with pytest.raises(InputError, match=r"are 20,0.., where 20,000 are the most: leave some out"):
        lists.finish(pa.schema([]))


def test_a_list_of_many_rows_stays_in_arrow() -> None:
    """Rows are Python objects a few thousand at a time; a text of 100 characters alone would take 150 bytes."""
    count = 50_000
    table = pa.table({"text": [f"{n:0100}" for n in range(count)], "n": range(count)})
    lists = MetadataLists()
    tracemalloc.start()
    lists.add(ParsedList(table, table), (), "list")
    part = lists.finish(pa.schema([])).part([count - 1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert part.json((count - 1,)) == f'{{"text":"{count - 1:0100}","n":{count - 1}}}'
    assert peak < 100 * count


SCALARS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(SCALARS, st.none() | st.text(st.characters(codec="utf-8"))), min_size=1, max_size=6))
def test_typed_columns_have_the_values_of_the_json(rows: list[tuple[Any, str | None]]) -> None:
    """Out of typed columns comes what comes out of the JSON."""
    kind = pa.float64() if any(isinstance(number, float) for number, _ in rows) else pa.int64()
    numbers = pa.array([None if n is None else float(n) if kind == pa.float64() else n for n, _ in rows], kind)
    metadata = metadata_of(pa.table({"n": numbers, "t": pa.array([text for _, text in rows], pa.string())}))
    clips = [(row,) for row in range(len(rows))]
    wanted = parsed([metadata.json(clip) for clip in clips], [f"k{i}" for i in range(len(rows))])
    found = from_parquet(metadata.columns([(clip, {}) for clip in clips]).rename_columns(["n", "t"]))
    assert found.get("n").to_pylist() == wanted["n"].to_pylist()
    assert found.get("t").to_pylist() == wanted["t"].to_pylist()


# Datasets

LIST = "path,label,score,take,good,day,text,width\n" + "".join(
    f"{name},{'cat' if i % 2 else 'dog'},{i / 4},{i},{'true' if i > 2 else 'false'},2024-01-0{i + 1},t{i},w{i}\n"
    for i, name in enumerate(NATURAL_ORDER[:5])
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole` has typed columns in two shards."""
    root = tmp_path_factory.mktemp("typed")
    make_videos(root / "in")
    (root / "list.csv").write_text(LIST)
    pack([root / "in"], root / "whole", labels=root / "list.csv", shard_size=40_000, progress=False)
    return root


def test_all_shards_have_the_same_columns(folder: Path) -> None:
    schemas = [pq.read_schema(path) for path in sorted(folder.glob("whole/shards/*.parquet"))]
    assert len(schemas) > 1
    assert all(schema == schemas[0] for schema in schemas)
    typed = {field.name: field.type for field in schemas[0] if field.name.startswith("meta_")}
    assert typed == {
        "meta_score": pa.float64(), "meta_take": pa.int64(), "meta_good": pa.bool_(), "meta_day": pa.date32(),
        "meta_text": pa.string(), "meta_width": pa.string(),
    }  # fmt: skip


def test_typed_columns_are_read_back(folder: Path) -> None:
    dataset = Dataset.open(folder / "whole")
    found = dataset.to_arrow()
    assert {"score", "take", "good", "day", "text", "meta.width"} <= set(found.column_names)
    assert found["day"].to_pylist() == [f"2024-01-0{i}" for i in range(1, 6)] + [None]
    assert dataset.columns.batch("text", [5, 0]) == ["", "t0"]
    scores = dataset.columns.batch("score", [0, 1, 5])
    assert isinstance(scores, np.ndarray)
    assert np.array_equal(scores, [0, 0.25, np.nan], equal_nan=True)
    assert select_rows(dataset, where='take >= 2 and day < "2024-01-05" and not good').tolist() == [2]
    rows = select_rows(dataset, where='score is not None and meta.width != "w0"')
    assert rows.tolist() == [1, 2, 3, 4]
    assert repeats(dataset, rows, "score").tolist() == [0.25, 0.5, 0.75, 1.0]


def test_samplers_still_see_the_json(folder: Path) -> None:
    assert json.loads(Dataset.open(folder / "whole").clips.meta[1])["day"] == "2024-01-02"


def test_lists_that_are_nested_deeply(folder: Path, tmp_path: Path) -> None:
    """PyArrow writes what it does not read back."""
    kinds: dict[int, str] = {}
    for depth in (MAX_LISTS, MAX_LISTS + 1, 60):
        rows = [{"path": "a/one.mp4", "x": "[" * depth + "1.5" + "]" * depth}, {"path": "top.avi", "x": "null"}]
        text = "".join(f'{{"path": "{row["path"]}", "x": {row["x"]}}}\n' for row in rows)
        (tmp_path / "list.jsonl").write_text(text)
        pack([folder / "in"], tmp_path / f"ds{depth}", metadata=[tmp_path / "list.jsonl"], progress=False)
        dataset = Dataset.open(tmp_path / f"ds{depth}")
        assert json.loads(dataset.clips.meta[0])["x"] == json.loads(rows[0]["x"])
        column = dataset.columns.meta_column("x")
        kinds[depth] = str(column.type)[:5]
        assert column[0].as_py() in (rows[0]["x"], json.loads(rows[0]["x"]))
    assert kinds == {MAX_LISTS: "list<", MAX_LISTS + 1: "large", 60: "large"}
    texts: pa.DataType = pa.string()
    for _ in range(MAX_LISTS + 1):
        texts = pa.list_(texts)
    assert (column_type(texts), column_type(texts.value_type)) == (pa.string(), texts.value_type)


def test_adding_videos_with_another_list(folder: Path, tmp_path: Path) -> None:
    import shutil

    (tmp_path / "more/v").mkdir(parents=True)
    shutil.copy(folder / "in/a/one.mp4", tmp_path / "more/v/new.mp4")
    (tmp_path / "more/list.csv").write_text("path,label,score,take,mood,good\nv/new.mp4,cat,7,2.5,calm,maybe\n")
    grown = Path(shutil.copytree(folder / "whole", tmp_path / "grown"))
    pack([tmp_path / "more/list.csv"], grown, append=True, shard_size=40_000, progress=False)
    dataset = Dataset.open(grown)
    assert len(dataset) == 7
    assert dataset.columns.batch("mood", range(7)) == [""] * 6 + ["calm"]
    assert dataset.to_arrow(["score"])["score"].to_pylist()[-1] == 7.0
    assert dataset.to_arrow(["take"])["take"].to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0, None, 2.5]
    assert dataset.to_arrow(["text"])["text"].to_pylist()[-1] is None
    with pytest.raises(DatasetError, match=r"column 'good' holds truth values in .* and text in .*: pack one of them"):
        dataset.to_arrow(["good"])
    assert select_rows(dataset, where="score == 7").tolist() == [6]


def test_joined_datasets(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("path,score,take,text,more\na/one.mp4,2,1,5,x\ntop.avi,3,2,6,y\n")
    pack([folder / "in"], tmp_path / "other", metadata=[tmp_path / "other.csv"], progress=False)
    joined_dataset = ConcatDataset([Dataset.open(folder / "whole"), Dataset.open(tmp_path / "other")])
    assert joined_dataset.to_arrow(["score"])["score"].to_pylist()[5:] == [None, 2.0, None, None, None, None, 3.0]
    assert joined_dataset.to_arrow(["take"])["take"].type == pa.int64()
    assert joined_dataset.columns.batch("more", [0, 6]) == ["", "x"]
    with pytest.raises(DatasetError, match="column 'text' holds text in dataset 'whole' and whole numbers in dataset"):
        joined_dataset.to_arrow(["text"])
    assert "text" in joined_dataset.columns.names


def test_types_that_cannot_be_used_are_said_when_asked_for() -> None:
    fields = from_parquet(pa.table({"blob": pa.array([b"x"]), "n": pa.array([1])}))
    assert fields.names == ("n", "blob")
    assert fields.get("n").to_pylist() == [1]
    with pytest.raises(DatasetError, match="the column 'blob' holds binary"):
        fields.get("blob")
    both = concat_columns([ColumnBlock(1, fields, "a"), ColumnBlock(2, MetaColumns({"n": pa.array([0.5, None])}), "b")])
    assert both.get("n").to_pylist() == [1.0, 0.5, None]
    with pytest.raises(DatasetError, match=r"a: the column 'blob' holds binary.*: pack one of them again"):
        both.get("blob")


def test_what_the_json_has_as_other_text_is_no_damage(folder: Path, tmp_path: Path) -> None:
    name, other = NATURAL_ORDER[:2]
    (tmp_path / "l.csv").write_text(f"path,day,at\n{name},2024-01-02,1960-01-02 03:04:05.123456789\n{other},,\n")
    (tmp_path / "n.csv").write_text(f"path,n\n{name},9007199254740993\n")
    (tmp_path / "f.csv").write_text(f"path,n\n{other},0.5\n")
    lists = [tmp_path / name for name in ("l.csv", "n.csv", "f.csv")]
    pack([folder / "in"], tmp_path / "ds", metadata=lists, progress=False)
    assert Dataset.open(tmp_path / "ds").columns.get("day").to_pylist() == ["2024-01-02", *[None] * 5]
    assert verify(tmp_path / "ds", progress=False).ok


def test_nan_and_infinity_are_kept(folder: Path, tmp_path: Path) -> None:
    """In Parquet and in memory as numbers; in the JSON, which has no such numbers, as the texts of protobuf's."""
    values = [math.nan, math.inf, -math.inf, None, 0.5, 1.5]
    lists = [[value, 1.0] for value in values]
    struct = [{"x": value} for value in values]
    rows = pa.table({"path": NATURAL_ORDER, "score": values, "both": lists, "inside": struct})
    pq.write_table(rows.set_column(1, "score", pa.array(values, pa.float32())), tmp_path / "list.parquet")
    pack([folder / "in"], tmp_path / "ds", metadata=[tmp_path / "list.parquet"], progress=False)
    assert verify(tmp_path / "ds", progress=False).problems == ()
    dataset = Dataset.open(tmp_path / "ds")
    (parquet,) = (tmp_path / "ds/shards").glob("*.parquet")
    for found in (pq.read_table(parquet)["meta_score"], dataset.to_arrow(["score"])["score"]):
        assert repr(found.to_pylist()) == repr(values)
    assert repr(dataset.to_arrow(["both"])["both"].to_pylist()) == repr(lists)
    np.testing.assert_array_equal(dataset.columns.batch("score", range(3)), values[:3])
    metas = [json.loads(text) for text in dataset.clips.meta]
    assert [meta["score"] for meta in metas] == ["NaN", "Infinity", "-Infinity", None, 0.5, 1.5]
    assert metas[1] == {"score": "Infinity", "both": ["Infinity", 1.0], "inside": {"x": "Infinity"}}
    assert select_rows(dataset, where="score > 1").tolist() == [1, 5]
    assert select_rows(dataset, where="score is None").tolist() == [0, 3]
    assert select_rows(dataset, where="score != 0.5").tolist() == [1, 2, 5]
