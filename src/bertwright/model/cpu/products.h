// Matrix products of rows with packed weights, in fp32, bf16 and 8 bits, and what prepares and finishes their rows.
//
// A row of a product holds sums. They still have to be multiplied by the scale of the row (none: 1), and the bias has to
// be added. Loops are divided among the threads of the enclosing parallel region; each loop ends with a barrier.

#pragma once

#include "rows.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

// Quantise a row to 8 bits around 128; returns the scale.
static inline float narrow(const float *row, uint8_t *out, int64_t width) {
    float most = 0.0f;
    for (int64_t i = 0; i < width; i++) most = std::fabs(row[i]) > most ? std::fabs(row[i]) : most;
    float scale = most > 0.0f ? most / 127.0f : 1.0f, inverse = 1.0f / scale;
    for (int64_t i = 0; i < width; i++) out[i] = (uint8_t)(int32_t)(row[i] * inverse + 128.5f);
    return scale;
}

static inline float scale_of(const float *scales, int64_t row) { return scales ? scales[row] : 1.0f; }

static void quantise_rows(const float *rows, uint8_t *out, float *scales, int64_t count, int64_t width) {
    EACH_ROW scales[r] = narrow(rows + r * width, out + r * width, width);
}

static void halve_rows(const float *rows, uint16_t *out, int64_t count, int64_t width) {
    EACH_ROW for (int64_t i = 0; i < width; i++) out[r * width + i] = round_to_half(rows[r * width + i]);
}

static void finish_rows(float *rows, const float *scales, const float *bias, int64_t count, int64_t width) {
    EACH_ROW {
        float *row = rows + r * width, scale = scale_of(scales, r);
        for (int64_t i = 0; i < width; i++) row[i] = row[i] * scale + bias[i];
    }
}

// A vector must be one register of the processor, and the sums of a tile must fit into its registers: otherwise the
// compiler keeps them in memory, which takes ten times as long. A tile is TILE or QUERIES rows high and two vectors wide,
// that of the values MOST_VALUES vectors. AVX-512 has 32 registers of 16 floats, AVX 16 of 8; all others have 4 floats.
#if defined(__AVX512F__)
static const int LANES = 16, MOST_VALUES = 4, TILE = 8;
#elif defined(__AVX__)
static const int LANES = 8, MOST_VALUES = 2, TILE = 6;
#else
static const int LANES = 4, MOST_VALUES = 2, TILE = 6;
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Matrix products. With few rows reading the weights dominates; the call of a library would cost as much as the product.
// weights: [width / COLUMNS, inner, COLUMNS], in bf16 [width / COLUMNS, inner / 2, COLUMNS, 2], with 8 bits
// [width / COLUMNS, inner / 4, COLUMNS, 4]. A tile function computes `num` rows of COLUMNS sums; row: TILE pointers.
static const int COLUMNS = 2 * LANES;

// Calls tile(row, weights, ahead, num, sums) for each tile of the product of `rows`. Where there are several, the first
// two of the columns also read the weights of the next columns into the cache: from `ahead` on, a vector in each step.
template <typename Number, typename Weight, typename Tile>
static void each_tile(const Number *rows, const Weight *weights, float *sums, int64_t count, int64_t inner, int64_t width,
                      Tile tile) {
    static const int64_t PART = 8 * TILE;
#pragma omp for collapse(2) schedule(static)
    for (int64_t c = 0; c < width; c += COLUMNS)
        for (int64_t begin = 0; begin < count; begin += PART)
            for (int64_t r = begin; r < count && r < begin + PART; r += TILE) {
                const Number *row[TILE];
                for (int i = 0; i < TILE; i++) row[i] = rows + (r + i < count ? r + i : count - 1) * inner;
                const Weight *part = weights + c * inner, *ahead = part;
                if (count > TILE && r < 2 * TILE && c + COLUMNS < width) ahead += (COLUMNS + r / TILE * LANES) * inner;
                tile(row, part, ahead, count - r < TILE ? count - r : TILE, sums + r * width + c);
            }
}

static inline void wide_tile(const float *const *row, const float *weights, const float *ahead, float *sums, int64_t num,
                             int64_t inner, int64_t width) {
    Lanes tile[TILE][2] = {};
    for (int64_t k = 0; k < inner; k++) {
        __builtin_prefetch(ahead + k * LANES, 0, 2);
        const Lanes *weight = (const Lanes *)(weights + k * COLUMNS);
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
            _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) tile[i][j] += row[i][k] * weight[j];
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++)
            if (i < num) ((Lanes *)(sums + i * width))[j] = tile[i][j];
}

#ifdef __AVX512BF16__
// Noinline, so that nothing else takes registers inside of its loop.
__attribute__((noinline)) static void half_tile(const uint16_t *const *row, const uint16_t *weights, const uint16_t *ahead,
                                                float *sums, int64_t num, int64_t inner, int64_t width) {
    __m512 tile[TILE][2] = {};
    for (int64_t k = 0; k < inner; k += 2) {
        __builtin_prefetch(ahead + k * LANES, 0, 2);
        __m512bh left = (__m512bh)_mm512_loadu_si512(weights + k * COLUMNS);
        __m512bh right = (__m512bh)_mm512_loadu_si512(weights + k * COLUMNS + COLUMNS);
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++) {
            int32_t two;
            memcpy(&two, row[i] + k, 4);
            __m512bh repeated = (__m512bh)_mm512_set1_epi32(two);
            tile[i][0] = _mm512_dpbf16_ps(tile[i][0], repeated, left);
            tile[i][1] = _mm512_dpbf16_ps(tile[i][1], repeated, right);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++)
            if (i < num) _mm512_storeu_ps(sums + i * width + j * LANES, tile[i][j]);
}
#endif

#ifdef __AVX512VNNI__
// offsets: amount that the offset 128 of the rows adds to each sum; scales: scale of each column
static inline void narrow_tile(const uint8_t *const *row, const int8_t *weights, const int8_t *ahead,
                               const int32_t *offsets, const float *scales, float *sums, int64_t num, int64_t inner,
                               int64_t width) {
    __m512i tile[TILE][2] = {};
    for (int64_t k = 0; k < inner; k += 4) {
        __builtin_prefetch(ahead + k * LANES, 0, 2);
        __m512i left = _mm512_loadu_si512(weights + k * COLUMNS), right = _mm512_loadu_si512(weights + k * COLUMNS + 64);
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++) {
            int32_t four;
            memcpy(&four, row[i] + k, 4);
            __m512i repeated = _mm512_set1_epi32(four);
            tile[i][0] = _mm512_dpbusd_epi32(tile[i][0], repeated, left);
            tile[i][1] = _mm512_dpbusd_epi32(tile[i][1], repeated, right);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) {
            __m512i whole = _mm512_sub_epi32(tile[i][j], _mm512_loadu_si512(offsets + j * LANES));
            __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(scales + j * LANES));
            if (i < num) _mm512_storeu_ps(sums + i * width + j * LANES, scaled);
        }
}
#endif

enum Kind : int64_t { WIDE, HALF, NARROW };

struct Product {
    Kind kind;
    int64_t inner, width;
    const void *weights;
    const int32_t *offsets;      // with 8 bits
    const float *column_scales;  // with 8 bits
    const float *bias;
};

struct Norm {
    const float *gain, *shift;  // shift: null where the norm has none
    float epsilon;
};

// A layer of BERT or of ModernBERT. `attention` and `feed_forward` follow the two parts of BERT's layer; in ModernBERT's
// they come before the parts, and the gain of `attention` is null where there is none.
struct Layer {
    int64_t heads, with_tanh;
    Product query, key_value, output, expand, contract;
    Norm attention, feed_forward;
};

// Rows, and the same in the precision of a product; 8-bit rows have their scales beside them (else null).
struct Input {
    const float *wide;
    void *narrow;
    float *scales;
};

static void multiply(const Product &product, const Input &input, float *sums, int64_t count) {
    int64_t inner = product.inner, width = product.width;
    if (product.kind == WIDE)
        each_tile(input.wide, (const float *)product.weights, sums, count, inner, width,
                  [&](auto row, auto weights, auto ahead, int64_t num, float *at) {
                      wide_tile(row, weights, ahead, at, num, inner, width);
                  });
#ifdef __AVX512BF16__
    if (product.kind == HALF)
        each_tile((const uint16_t *)input.narrow, (const uint16_t *)product.weights, sums, count, inner, width,
                  [&](auto row, auto weights, auto ahead, int64_t num, float *at) {
                      half_tile(row, weights, ahead, at, num, inner, width);
                  });
#endif
#ifdef __AVX512VNNI__
    if (product.kind == NARROW)
        each_tile((const uint8_t *)input.narrow, (const int8_t *)product.weights, sums, count, inner, width,
                  [&](auto row, auto weights, auto ahead, int64_t num, float *at) {
                      int64_t c = (weights - (const int8_t *)product.weights) / inner;
                      narrow_tile(row, weights, ahead, product.offsets + c, product.column_scales + c, at, num, inner,
                                  width);
                  });
#endif
}

// narrow, scales: memory for the rows in the precision of the product
static Input input_of(Kind kind, const float *rows, void *narrow, float *scales, int64_t count, int64_t width) {
    if (kind == NARROW) quantise_rows(rows, (uint8_t *)narrow, scales, count, width);
    if (kind == HALF) halve_rows(rows, (uint16_t *)narrow, count, width);
    return {rows, narrow, kind == NARROW ? scales : nullptr};
}

static void project(const Product &product, const Input &input, float *sums, int64_t count) {
    multiply(product, input, sums, count);
    finish_rows(sums, input.scales, product.bias, count, product.width);
}

static const int64_t ROWS = 512;  // of a product at a time, so that what is between two products stays in the cache
