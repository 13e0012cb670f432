"""bytes of a foreign file → their CRC-32C (polynomial 1EDC6F41, bits reflected), the checksum in TensorFlow's files.

Eight tables of remainders take eight bytes at a step. numba, which is a core dependency, compiles that to more than a
gigabyte a second, so the checksums of a large checkpoint cost less than reading it and no other package is needed.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bertwright.compiled import compiled

_POLYNOMIAL = np.uint32(0x82F63B78)  # 1EDC6F41 with its bits in reverse
_ALL = np.uint32(0xFFFFFFFF)
_8, _16, _24 = np.uint32(8), np.uint32(16), np.uint32(24)


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of `data`, 0 to 2**32 - 1; a contiguous array of bytes is not copied."""
    given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view()
    given.flags.writeable = False  # one kind of array, one compiled function
    return int(_extended(_ALL, given, _TABLES) ^ _ALL)


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C as TensorFlow stores it: rotated by 15 bits, plus a constant.

    So the checksum of bytes that hold checksums does not degenerate.
    """
    plain = crc32c(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tables() -> npt.NDArray[np.uint32]:
    """`[k, byte]`: the remainder of a byte that k zero bytes follow."""
    tables = np.empty((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ _POLYNOMIAL * (tables[0] & 1)
    for before, after in pairwise(tables):
        after[:] = tables[0][before & 255] ^ before >> 8
    return tables


_TABLES = _tables()


@compiled
def _extended(state: np.uint32, data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.uint32:
    whole = data.size - data.size % 8
    for at in range(0, whole, 8):
        state = (
            tables[7, np.uint8(state) ^ data[at]]
            ^ tables[6, np.uint8(state >> _8) ^ data[at + 1]]
            ^ tables[5, np.uint8(state >> _16) ^ data[at + 2]]
            ^ tables[4, np.uint8(state >> _24) ^ data[at + 3]]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
    for at in range(whole, data.size):
        state = tables[0, np.uint8(state) ^ data[at]] ^ state >> _8
    return state
