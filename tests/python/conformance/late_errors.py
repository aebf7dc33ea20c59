"""Error inputs that raise at the read the first time, and at the call the second time, by reason.

The number is the input's index in its operator's. errors.py fails on a late one that is not listed,
and on a listed one that raises at the call the first time.
"""

LATE_ERRORS: dict[str, list[str]] = {
    "an index out of bounds: only the data tells": [
        "gather 4",
        "scatter 3",
        "scatter_add 3",
        "nn.Embedding 0",
    ],
    "probabilities out of range: only data tells; later ones of this signature raise at the call": [
        "multinomial 7",
        "multinomial 12",
        "multinomial 14",
        "multinomial 19",
    ],
    "a number out of range, looked at by the kernel; numbers are no part of a signature": [
        "cauchy 0",
        "exponential 0",
        "geometric 0",
        "log_normal 0",
        "normal.in_place 0",
        "uniform 0",
        "masked_fill 1",
        "masked_fill 2",
    ],
    "PyTorch's shape code takes it, and the kernel does not": [
        "nn.functional.gelu 0",
        "nn.NLLLoss 0",
    ],
}
