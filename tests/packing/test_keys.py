"""Keys of sources and clips."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from streamvid.packing.keys import KEY_MAX, clip_key, make_keys, uncut_key

NAMES = st.text(
    alphabet=st.one_of(st.sampled_from("aAbB01_-. /~é視\n'\"<"), st.characters(codec="utf-8")), min_size=1, max_size=120
)


def test_keys_stay_readable() -> None:
    assert make_keys(["clip_1-a.mp4"]) == ["clip_1-a"]
    (key,) = make_keys(["train/my clip.mp4"])
    assert re.fullmatch(r"train_my_clip-[0-9a-f]{8}", key)


def test_colliding_keys_all_get_digits_and_others_none() -> None:
    x, y, other = make_keys(["x.mp4", "X.mkv", "other.mp4"])
    assert re.fullmatch(r"x-[0-9a-f]{8}", x)
    assert re.fullmatch(r"X-[0-9a-f]{8}", y)
    assert other == "other"


def test_a_name_that_looks_like_anothers_digits() -> None:
    plain, _ = make_keys(["x.mp4", "x.mkv"])
    keys = make_keys(["x.mp4", "x.mkv", f"{plain}.mp4"])
    assert len({key.casefold() for key in keys}) == 3


@given(st.lists(NAMES, unique=True, max_size=30))
def test_keys_are_valid_unique_and_independent_of_order(given_names: list[str]) -> None:
    keys = make_keys(given_names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key) for key in keys)
    assert len({key.casefold() for key in keys}) == len(keys)
    backwards = make_keys(given_names[::-1])[::-1]
    assert keys == backwards


@given(NAMES, st.lists(NAMES, max_size=5))
def test_a_key_changes_only_where_it_collides(name: str, others: list[str]) -> None:
    alone = make_keys([name])[0]
    rest = [other for other in dict.fromkeys(others) if other != name]
    # Keys that others might get, plain or with digits: none may be the same as ours, or ours must give way.
    taken = {key.casefold() for other in rest for key in make_keys([other])}
    if alone.casefold() not in taken:
        assert make_keys([name, *rest])[0] == alone


def test_keys_of_clips_stay_short_and_apart() -> None:
    assert clip_key("a", "_000001") == "a_000001"
    keys = {clip_key(end * KEY_MAX, suffix) for end in "ab" for suffix in ("_000000", "_000001")}
    keys |= {clip_key("a" * (KEY_MAX - 1) + "c", "_000000")}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {KEY_MAX}


def test_the_key_of_what_stays_whole_is_that_of_no_clip() -> None:
    assert uncut_key("b_000000.jpg", "b_000000", {"a", "b_000000"}) == "b_000000"
    assert uncut_key("A_00000.jpg", "A_00000", {"a", "a_00000"}) == "A_00000"
    assert re.fullmatch(r"A_000000-[0-9a-f]{8}", uncut_key("A_000000.jpg", "A_000000", {"a", "a_000000"}))
