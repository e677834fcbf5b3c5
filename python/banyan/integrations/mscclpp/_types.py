"""Types of elements and of packets."""

from __future__ import annotations

import enum


class DataType(enum.Enum):
    """Type of the elements of a run, by MSCCL++'s names.

    Sums of ``float8_e4m3fnuz``, ``float8_e5m2fnuz`` and ``float8_e4m3b15`` are not possible.
    """

    int32 = 0
    uint32 = 1
    float16 = 2
    float32 = 3
    bfloat16 = 4
    float8_e4m3fn = 5
    float8_e4m3fnuz = 6
    float8_e5m2 = 7
    float8_e5m2fnuz = 8
    uint8 = 9
    float8_e4m3b15 = 10


#: DLPack's code and bits of each type.
DLPACK = {
    DataType.int32: (0, 32),
    DataType.uint32: (1, 32),
    DataType.float16: (2, 16),
    DataType.float32: (2, 32),
    DataType.bfloat16: (4, 16),
    DataType.float8_e4m3fn: (10, 8),
    DataType.float8_e4m3fnuz: (11, 8),
    DataType.float8_e5m2: (12, 8),
    DataType.float8_e5m2fnuz: (13, 8),
    DataType.uint8: (1, 8),
    DataType.float8_e4m3b15: (9, 8),
}


class PacketType(enum.Enum):
    """Form of packets. Banyan's packets have a form of their own, so this changes nothing."""

    LL8 = 0
    LL16 = 1
