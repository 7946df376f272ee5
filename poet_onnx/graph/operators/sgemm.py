"""How MLAS, the library of ONNX Runtime's products, shares out a product of floats, and in what order it adds up.

As in onnxruntime/core/mlas/lib/sgemm.cpp, and tried with onnxruntime 1.32 and onnxruntime-training 1.19.2. A product is
cut for threads, along its columns if there are more of them than rows. Each thread adds up some terms of its part after
the others: 128, or more where its part has few columns. So the bits of an element depend on the number of threads, and
on how large the product is that it is a part of.
"""

from __future__ import annotations

import math

FLOPS_PER_THREAD = 64 * 1024  # MLAS_SGEMM_THREAD_COMPLEXITY: multiply-adds that are worth a thread
MOST_THREADS = 16  # MLAS_MAXIMUM_THREAD_COUNT
COLUMN_ALIGNMENT = 16  # MLAS_SGEMM_STRIDEN_THREAD_ALIGN
_STRIDE_COLUMNS, _STRIDE_TERMS = 128, 128  # MLAS_SGEMM_STRIDEN, MLAS_SGEMM_STRIDEK
_LEAST_STRIDE_COLUMNS = 16


def terms_at_once(rows: int, columns: int, terms: int, threads: int) -> tuple[int, ...]:
    """Return how many terms are added up in one go, for each 16 columns of a product.

    0 where a thread has a single row, which other kernels multiply: in another order.

    Args:
        rows: of the product.
        columns: of the product.
        terms: of the sum that each element is.
        threads: of the session, inside an operator.
    """
    blocks = math.ceil(columns / COLUMN_ALIGNMENT)
    wanted = min(rows * columns * terms // FLOPS_PER_THREAD + 1, threads)
    if columns <= rows:
        least_rows = rows // min(wanted, rows)
        return (0 if least_rows == 1 else _terms(columns, terms),) * blocks
    if rows == 1:
        return (0,) * blocks
    used = min(wanted, blocks)
    found: list[int] = []
    for number in range(used):
        own = blocks // used + (number < blocks % used)
        width = min(own * COLUMN_ALIGNMENT, columns - len(found) * COLUMN_ALIGNMENT)
        found += [_terms(width, terms)] * own
    return tuple(found)


def _terms(columns: int, terms: int) -> int:
    """Return how many terms a thread with so many columns adds up in one go."""
    stride_columns, stride_terms = _STRIDE_COLUMNS, _STRIDE_TERMS
    while columns < terms and stride_columns > _LEAST_STRIDE_COLUMNS and stride_columns // 2 >= columns:
        stride_columns, stride_terms = stride_columns // 2, stride_terms * 2
    return min(stride_terms, terms)
