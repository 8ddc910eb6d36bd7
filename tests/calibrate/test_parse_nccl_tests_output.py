"""Output of nccl-tests in the forms of several versions; the samples are written here."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.calibrate.parse_nccl_tests_output import (
    NcclPoint,
    parse_nccl_tests,
    points_by_group,
    read_nccl_tests,
)
from shardwright.errors import DataError, ShardwrightError
from tests.tiers import examples

NEW = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   101 on    node-a device  0 [0000:19:00] Some GPU
#  Rank  1 Group  0 Pid   101 on    node-a device  1 [0000:3b:00] Some GPU
#  Rank  2 Group  0 Pid   101 on    node-a device  2 [0000:4c:00] Some GPU
#  Rank  3 Group  0 Pid   101 on    node-a device  3 [0000:5d:00] Some GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    50.00   20.97   31.46       0    40.00   26.21   39.32       0
     4194304       1048576     float     sum      -1   100.00   41.94   62.91       0    90.00   46.60   69.91     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 50.9
"""  # noqa: E501 - the lines are as nccl-tests prints them
# An older form: no root, an error column, redop left empty by an all_to_all, launched by mpirun
# without a list of ranks.
OLD = """\
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
[1,0]<stdout>:#                                                       out-of-place                       in-place
[1,0]<stdout>:#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
[1,0]<stdout>:#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:  268435456       8388608     float            520000    0.52    0.455  0e+00   519562    0.52    0.455  1e+00
[1,0]<stdout>:  536870912      16777216     float           1040000    0.52    0.455  0e+00  1041299    0.52    0.455  1e+00
"""  # noqa: E501 - the lines are as nccl-tests prints them
IN_PLACE_FIRST = """\
# all_gather_perf
# Rank 0 Pid 1 on a device 0
# Rank 1 Pid 2 on b device 0
#                                    in-place                       out-of-place
#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)     (ms)  (GB/s)  (GB/s)             (ms)  (GB/s)  (GB/s)
        2048           512      2.0    1.00    0.50       0      3.0    0.68    0.34       0
"""


def test_columns_are_found_by_their_header() -> None:
    points = parse_nccl_tests(NEW)
    assert len(points) == 4
    assert points[0] == NcclPoint(
        collective="all_reduce",
        num_devices=4,
        volume=2**20,
        seconds=50e-6,
        dtype="float",
        in_place=False,
    )
    assert [p.seconds for p in points] == pytest.approx([50e-6, 40e-6, 100e-6, 90e-6])
    assert [p.in_place for p in points] == [False, True, False, True]
    assert points_by_group(points) == {
        ("all_reduce", 4): ((2**20, pytest.approx(50e-6)), (2**22, pytest.approx(100e-6)))
    }


def test_old_output_with_prefix_empty_redop_and_no_ranks() -> None:
    points = parse_nccl_tests(OLD, name="logs/alltoall_perf.log")
    assert {(p.collective, p.num_devices, p.dtype) for p in points} == {("all_to_all", 8, "float")}
    assert [(p.volume, p.seconds) for p in points if not p.in_place] == [
        (2**28, pytest.approx(0.52)),
        (2**29, pytest.approx(1.04)),
    ]


def test_halves_may_be_swapped_and_in_other_units() -> None:
    points = parse_nccl_tests(IN_PLACE_FIRST)
    assert [(p.in_place, p.seconds, p.num_devices) for p in points] == [
        (True, pytest.approx(2e-3), 2),
        (False, pytest.approx(3e-3), 2),
    ]
    assert points_by_group(points)[("all_gather", 2)] == ((2048, pytest.approx(3e-3)),)


def test_a_table_of_one_half_and_tests_after_one_another() -> None:
    half = [line for line in NEW.splitlines() if "Avg" not in line]
    cut = [
        line[:92] if line.lstrip("# ")[:4] in ("size", "1048", "4194") else line for line in half
    ]
    both = "\n".join(cut) + "\n" + IN_PLACE_FIRST
    groups = points_by_group(parse_nccl_tests(both))
    assert set(groups) == {("all_reduce", 4), ("all_gather", 2)}
    assert len(groups[("all_reduce", 4)]) == 2


def test_columns_in_another_order() -> None:
    text = (
        "# reduce_scatter_perf\n# size count busbw algbw time type redop\n 1024 256 0.75 1.0 8.0"
        " float sum\n"
    )
    (point,) = parse_nccl_tests(text)
    assert point == NcclPoint(
        collective="reduce_scatter",
        num_devices=4,
        volume=1024,
        seconds=8e-6,
        dtype="",
        in_place=False,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no table"),
        ("hello\n", "has no table"),
        (NEW.split("     1048576")[0], "has no table"),
        (OLD, "does not say which collective"),
        (
            NEW.replace("Rank", "Bank").replace("20.97", "0.00").replace("26.21", "0.00"),
            "how many devices",
        ),
    ],
)
def test_what_cannot_be_used(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as raised:
        parse_nccl_tests(text, name="out.txt")
    assert raised.value.hint


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"
    with pytest.raises(DataError, match="cannot read"):
        read_nccl_tests(path)
    path.write_text(NEW)
    assert read_nccl_tests(path) == parse_nccl_tests(NEW)


lines = st.sampled_from([*NEW.splitlines(), *OLD.splitlines(), *IN_PLACE_FIRST.splitlines()])
WORDS = (
    "size count type redop time algbw busbw # (B) (us) 0 -1 1e999 nan N/A 123456789012345678901 ²"
    " float all_reduce_perf"
)
words = st.sampled_from(WORDS.split(" "))


@examples(25, 500)
@given(
    st.lists(lines | st.text(max_size=20) | st.lists(words, max_size=14).map(" ".join), max_size=12)
)
def test_any_text_is_points_or_an_error_of_the_project(parts: list[str]) -> None:
    with suppress(ShardwrightError):
        points = parse_nccl_tests("\n".join(parts))
        assert all(p.seconds > 0 and p.volume > 0 and p.num_devices > 1 for p in points)
