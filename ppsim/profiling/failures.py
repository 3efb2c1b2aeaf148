"""Errors that end a measurement early: too little memory, or an error that may not affect the next measurement."""

import torch

_NO_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of the CPU's allocator and of CUDA (torch, the driver and cuBLAS each have their own wording)."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that device or host memory is exhausted.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    >>> is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error's root cause, which torch wraps in a long report.

    >>> first_sentence(RuntimeError("\\nCUDA error: no kernel image is available. Compile with DEBUG"))
    'CUDA error: no kernel image is available'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.split(". ")[0].rstrip(".")
