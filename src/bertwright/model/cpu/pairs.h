// Products of bf16 rows with weights in pairs of numbers, and how rows become such weights; sums are fp32.

#pragma once

#include "products.h"

#ifdef __AVX512BF16__
// sums [num, width]: for each row and COLUMNS columns the sum over pairs of numbers, times weights [pairs, COLUMNS, 2].
// The pair p of a row i is at left[i * row_step + p * pair_step]; TILE rows are read. ADD: to add to the sums.
template <bool ADD>
__attribute__((noinline)) static void pair_tile(const uint16_t *left, int64_t row_step, int64_t pair_step,
                                                const uint16_t *weights, float *sums, int64_t num, int64_t pairs,
                                                int64_t width) {
    __m512 tile[TILE][2];
    _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++)
            tile[i][j] = ADD && i < num ? _mm512_loadu_ps(sums + i * width + j * LANES) : _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        __m512bh low = (__m512bh)_mm512_loadu_si512(weights + 2 * p * COLUMNS);
        __m512bh high = (__m512bh)_mm512_loadu_si512(weights + 2 * p * COLUMNS + COLUMNS);
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++) {
            int32_t two;
            memcpy(&two, left + i * row_step + p * pair_step, 4);
            __m512bh repeated = (__m512bh)_mm512_set1_epi32(two);
            tile[i][0] = _mm512_dpbf16_ps(tile[i][0], repeated, low);
            tile[i][1] = _mm512_dpbf16_ps(tile[i][1], repeated, high);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++)
            if (i < num) _mm512_storeu_ps(sums + i * width + j * LANES, tile[i][j]);
}

// A square of 16 rows of 16 pairs of numbers, the rows as columns.
static inline void transpose_pairs(__m512i *rows) {
    __m512i even[16];
    for (int i = 0; i < 16; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(rows[i], rows[i + 1]), b = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        __m512i c = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
        even[i] = _mm512_unpacklo_epi64(a, c), even[i + 1] = _mm512_unpackhi_epi64(a, c);
        even[i + 2] = _mm512_unpacklo_epi64(b, d), even[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(even[i], even[i + 4], 0x88), b = _mm512_shuffle_i32x4(even[i], even[i + 4], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(even[i + 8], even[i + 12], 0x88);
        __m512i d = _mm512_shuffle_i32x4(even[i + 8], even[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_i32x4(a, c, 0x88), rows[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        rows[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88), rows[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// Rows as weights of sums over the numbers of a row: [num / COLUMNS, width / 2, COLUMNS, 2]; `num` is filled up with 0.
// row(i): where a row begins
template <typename Row>
static void pack_columns(Row row, int64_t num, uint16_t *to, int64_t width) {
    __m512i square[16];
    for (int64_t begin = 0; begin < num; begin += COLUMNS)
        for (int64_t i = begin; i < begin + COLUMNS; i += 16)
            for (int64_t k = 0; k < width; k += 32) {
                for (int j = 0; j < 16; j++)
                    square[j] = i + j < num ? _mm512_loadu_si512(row(i + j) + k) : _mm512_setzero_si512();
                transpose_pairs(square);
                uint16_t *block = to + begin * width + k * COLUMNS + 2 * (i - begin);
                for (int j = 0; j < 16; j++) _mm512_storeu_si512(block + 2 * j * COLUMNS, square[j]);
            }
}

// Two rows of `width` numbers, a multiple of 32, as pairs of numbers.
static inline void zip(const uint16_t *first, const uint16_t *second, uint16_t *to, int64_t width) {
    alignas(64) static const uint16_t LOW[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i low = _mm512_load_si512(LOW), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t i = 0; i < width; i += 32) {
        __m512i a = _mm512_loadu_si512(first + i), b = _mm512_loadu_si512(second + i);
        _mm512_storeu_si512(to + 2 * i, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(to + 2 * i + 32, _mm512_permutex2var_epi16(a, high, b));
    }
}

// Rows as weights of sums over the rows: [width / COLUMNS, padded / 2, COLUMNS, 2]; they are filled up with rows of 0.
template <typename Row>
static void pack_rows(Row row, int64_t num, uint16_t *to, int64_t padded, int64_t width) {
    static const uint16_t zeros[COLUMNS] = {};
    for (int64_t i = 0; i < padded; i += 2)
        for (int64_t k = 0; k < width; k += COLUMNS)
            zip(i < num ? row(i) + k : zeros, i + 1 < num ? row(i + 1) + k : zeros, to + k * padded + i * COLUMNS,
                COLUMNS);
}
#endif
