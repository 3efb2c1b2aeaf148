"""What ends a measurement early: too little memory, or an error that the next one need not share."""

import torch

_NO_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""The CPU's allocator; CUDA's, which torch, the driver and cuBLAS each say in words of their own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device, or the machine, has not that much memory.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    >>> is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def first_sentence(error: BaseException) -> str:
    """Return what torch said first: its runtime wraps the cause in a long report.

    >>> first_sentence(RuntimeError("\\nCUDA error: no kernel image is available. Compile with DEBUG"))
    'CUDA error: no kernel image is available'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.split(". ")[0].rstrip(".")
