"""Work in several processes: order, errors, and how far ahead the input is read."""

from collections.abc import Iterator

import pytest

from lightconv.data.workers import chunked, spread


def double(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return 2 * number


def test_chunks() -> None:
    assert list(chunked(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(chunked([], 2)) == []


def test_results_are_in_order_and_errors_arrive() -> None:
    for processes in (1, 2):
        assert list(spread(double, range(10), processes)) == list(range(0, 20, 2))
        results = spread(double, range(12, 30), processes)
        assert next(results) == 24
        with pytest.raises(ValueError, match="unlucky"):
            next(results)
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        list(spread(double, [], 0))


def test_the_input_is_read_as_it_is_needed() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(100, 200):
            read.append(number)
            yield number

    results = spread(double, numbers(), 2)
    assert next(results) == 200
    assert len(read) <= 4
    results.close()  # type: ignore[attr-defined]
