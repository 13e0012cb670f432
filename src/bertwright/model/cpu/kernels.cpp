// The steps between two matrix products, row by row, and a whole layer for few rows. kernels.py computes the
// same in torch, for machines where this file cannot be built.
//
// A row of a product holds sums. They still have to be multiplied by the scale of the row (none: 1), and the bias has to
// be added. Loops are divided among the threads of the enclosing parallel region; each loop ends with a barrier.

#include "rows.h"

#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

// x (1 + tanh y) / 2, which is x / (1 + e^-2y)
static inline float gelu_tanh(float x) {
    float twice = 1.59576912f * (x + 0.044715f * x * x * x);
    float power = exponential(-std::fabs(twice));
    return x * (twice < 0.0f ? power : 1.0f) / (1.0f + power);
}

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

// out: null where the rows are not quantised; out_scales: scales of the quantised rows
static void activate_rows(float *rows, const float *scales, const float *bias, uint8_t *out, float *out_scales,
                          int64_t count, int64_t width, int with_tanh) {
    EACH_ROW {
        float *row = rows + r * width, scale = scale_of(scales, r);
        if (with_tanh)
            for (int64_t i = 0; i < width; i++) row[i] = gelu_tanh(row[i] * scale + bias[i]);
        else
            for (int64_t i = 0; i < width; i++) row[i] = gelu(row[i] * scale + bias[i]);
        if (out) out_scales[r] = narrow(row, out + r * width, width);
    }
}

// LayerNorm of the product plus `before`
static void add_norm_rows(float *rows, const float *scales, const float *bias, const float *before, const float *gain,
                         const float *shift, float epsilon, int64_t count, int64_t width) {
    EACH_ROW {
        float *row = rows + r * width, scale = scale_of(scales, r), sum = 0.0f, squares = 0.0f;
        const float *old = before + r * width;
        for (int64_t i = 0; i < width; i++) sum += row[i] = row[i] * scale + bias[i] + old[i];
        float mean = sum / width;
        for (int64_t i = 0; i < width; i++) squares += (row[i] - mean) * (row[i] - mean);
        float factor = 1.0f / std::sqrt(squares / width + epsilon);
        for (int64_t i = 0; i < width; i++) row[i] = (row[i] - mean) * factor * gain[i] + shift[i];
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

extern "C" int columns() { return COLUMNS; }

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

// Attention of heads of width HEAD: QUERIES rows at a time, so that each loaded key and value is used several times.
// Each text has its own rows; the tokens of a head are filled up to whole blocks.
static const int QUERIES = 6, BLOCK = 2 * LANES;

static inline int64_t whole_blocks(int64_t tokens) { return (tokens + BLOCK - 1) / BLOCK * BLOCK; }

// Exponentials of the scores of `tokens` keys, over whole blocks, so that every step is vectorised; 0 for the rest of
// the last block. Returns 1 divided by their sum.
static inline float softmax(float *scores, int tokens, float scale) {
    float most = -3.0e38f, sum = 0.0f;
    int padded = (int)whole_blocks(tokens);
    for (int t = 0; t < padded; t++) {
        scores[t] = t < tokens ? scores[t] * scale : -3.0e38f;
        most = scores[t] > most ? scores[t] : most;
    }
    for (int t = 0; t < padded; t++) {
        scores[t] = t < tokens ? exponential(scores[t] - most) : 0.0f;
        sum += scores[t];
    }
    return 1.0f / sum;
}

// The two products are functions of their own, so that nothing else takes registers inside of their loops.
// scores: [QUERIES, padded], of `query` and keys [padded / BLOCK, HEAD, BLOCK]
template <int HEAD>
__attribute__((noinline)) static void score_keys(const float *const *query, const float *keys, float *scores,
                                                 int64_t padded) {
    for (int64_t t = 0; t < padded; t += BLOCK) {
        Lanes sums[QUERIES][2] = {};
        for (int k = 0; k < HEAD; k++) {
            const Lanes *key = (const Lanes *)(keys + t * HEAD + k * BLOCK);
            _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
                _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) sums[q][j] += query[q][k] * key[j];
        }
        _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
            _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) ((Lanes *)(scores + q * padded + t))[j] = sums[q][j];
    }
}

// Number of vectors of values that are summed together, for heads of width HEAD.
template <int HEAD> constexpr int VALUES = HEAD / LANES < MOST_VALUES ? HEAD / LANES : MOST_VALUES;

// out: the first `num` sums of the values [HEAD / part, tokens, part], each times its score and the factor of the query
template <int HEAD>
__attribute__((noinline)) static void add_values(const float *const *scores, const float *factors, const float *values,
                                                 float *out, int64_t num, int64_t tokens, int64_t width) {
    const int count = VALUES<HEAD>, part = count * LANES;
    for (int k = 0; k < HEAD; k += part) {
        Lanes sums[QUERIES][count] = {};
        for (int64_t t = 0; t < tokens; t++) {
            const Lanes *value = (const Lanes *)(values + k * tokens + t * part);
            _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
                _Pragma("GCC unroll 8") for (int j = 0; j < count; j++) sums[q][j] += scores[q][t] * value[j];
        }
        _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
            _Pragma("GCC unroll 8") for (int j = 0; j < count; j++)
                if (q < num) ((Lanes *)(out + q * width + k))[j] = sums[q][j] * factors[q];
    }
}

// Copy the keys and values of a head to contiguous memory: in their original layout the rows are so far apart that they
// evict each other from the cache.
template <int HEAD>
static void gather(const float *from, float *keys, float *values, int64_t tokens, int64_t width) {
    const int values_part = VALUES<HEAD> * LANES;
    float part[BLOCK][HEAD + 1] = {};
    for (int64_t t = 0; t < tokens; t += BLOCK) {
        int64_t num = tokens - t < BLOCK ? tokens - t : BLOCK;
        for (int64_t i = 0; i < num; i++) {
            const float *row = from + (t + i) * 2 * width;
            memcpy(part[i], row, HEAD * sizeof(float));
            for (int k = 0; k < HEAD; k += values_part)
                memcpy(values + k * tokens + (t + i) * values_part, row + width + k, values_part * sizeof(float));
            for (int k = HEAD; k < 2 * HEAD; k += 16) {  // prefetch the next head, a line of the cache at a time
                __builtin_prefetch(row + k);
                __builtin_prefetch(row + width + k);
            }
        }
        for (int k = 0; k < HEAD; k++)
            for (int i = 0; i < BLOCK; i++) keys[t * HEAD + k * BLOCK + i] = part[i][k];
    }
}

// Texts whose rows follow each other. begins: [batch + 1]
struct Texts {
    int64_t batch;
    const int64_t *begins, *query_begins;

    int64_t tokens(int64_t text) const { return begins[text + 1] - begins[text]; }
    int64_t queries(int64_t text) const { return query_begins[text + 1] - query_begins[text]; }
    int64_t longest() const {
        int64_t most = 0;
        for (int64_t b = 0; b < batch; b++) most = tokens(b) > most ? tokens(b) : most;
        return most;
    }
};

// query, out: [queries, width], may be the same memory; key_value: [tokens, 2 width]
template <int HEAD>
static void attend_wide(const float *query, const float *key_value, float *out, const Texts &texts, int64_t heads) {
    int64_t width = heads * HEAD, longest = whole_blocks(texts.longest());
    std::vector<float> keys(HEAD * longest), values(HEAD * longest), scores(QUERIES * longest);
    float *row[QUERIES], factors[QUERIES];
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < texts.batch; b++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t tokens = texts.tokens(b), queries = texts.queries(b), padded = whole_blocks(tokens);
            for (int i = 0; i < QUERIES; i++) row[i] = scores.data() + i * padded;
            gather<HEAD>(key_value + texts.begins[b] * 2 * width + h * HEAD, keys.data(), values.data(), tokens, width);
            for (int64_t q = 0; q < queries; q += QUERIES) {
                int64_t num = queries - q < QUERIES ? queries - q : QUERIES;
                int64_t at = (texts.query_begins[b] + q) * width + h * HEAD;
                const float *chosen[QUERIES];
                for (int i = 0; i < QUERIES; i++) chosen[i] = query + at + (i < num ? i : num - 1) * width;
                score_keys<HEAD>(chosen, keys.data(), scores.data(), padded);
                for (int i = 0; i < QUERIES; i++) factors[i] = softmax(row[i], (int)tokens, 1.0f / std::sqrt((float)HEAD));
                add_values<HEAD>(row, factors, values.data(), out + at, num, tokens, width);
            }
        }
}

#ifdef __AVX512BF16__
// Copy the keys and values of a head in bf16, as the weights of two products: keys [padded / COLUMNS, HEAD / 2, COLUMNS,
// 2], values [HEAD / COLUMNS, padded / 2, COLUMNS, 2]. Tokens that fill up the last block are 0.
template <int HEAD>
static void gather_half(const float *from, uint16_t *keys, uint16_t *values, int64_t tokens, int64_t width) {
    int64_t padded = whole_blocks(tokens);
    uint16_t part[BLOCK][HEAD + 2];
    for (int64_t t = 0; t < padded; t += BLOCK) {
        for (int i = 0; i < BLOCK; i++)
            if (t + i < tokens) {
                const float *row = from + (t + i) * 2 * width;
                for (int k = 0; k < HEAD; k++) part[i][k] = round_to_half(row[k]);
                for (int k = 0; k < HEAD; k += COLUMNS) {
                    uint16_t *value = values + k * padded + (t + i) / 2 * 2 * COLUMNS + i % 2;
                    for (int j = 0; j < COLUMNS; j++) value[2 * j] = round_to_half(row[width + k + j]);
                }
            } else {
                memset(part[i], 0, sizeof(part[i]));
                for (int k = 0; k < HEAD; k += COLUMNS)
                    for (int j = 0; j < COLUMNS; j++) values[k * padded + (t + i) / 2 * 2 * COLUMNS + i % 2 + 2 * j] = 0;
            }
        for (int k = 0; k < HEAD; k += 2)
            for (int i = 0; i < BLOCK; i++) memcpy(keys + t * HEAD + k * BLOCK + 2 * i, part[i] + k, 4);
    }
}

// The same as attend_wide; queries, keys, values and probabilities are rounded to bf16, their sums are fp32.
template <int HEAD>
static void attend_half(const float *query, const float *key_value, float *out, const Texts &texts, int64_t heads) {
    int64_t width = heads * HEAD, longest = whole_blocks(texts.longest());
    std::vector<uint16_t> keys(HEAD * longest), values(HEAD * longest), shares(TILE * longest);
    std::vector<float> scores(TILE * longest);
    uint16_t chosen[TILE][HEAD];
    const uint16_t *chosen_row[TILE], *share_row[TILE];
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < texts.batch; b++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t tokens = texts.tokens(b), queries = texts.queries(b), padded = whole_blocks(tokens);
            for (int i = 0; i < TILE; i++) chosen_row[i] = chosen[i], share_row[i] = shares.data() + i * padded;
            gather_half<HEAD>(key_value + texts.begins[b] * 2 * width + h * HEAD, keys.data(), values.data(), tokens, width);
            for (int64_t q = 0; q < queries; q += TILE) {
                int64_t num = queries - q < TILE ? queries - q : TILE;
                int64_t at = (texts.query_begins[b] + q) * width + h * HEAD;
                for (int64_t i = 0; i < num; i++)
                    for (int k = 0; k < HEAD; k++) chosen[i][k] = round_to_half(query[at + i * width + k]);
                for (int64_t t = 0; t < padded; t += BLOCK)
                    half_tile(chosen_row, keys.data() + t * HEAD, keys.data() + t * HEAD, scores.data() + t, num, HEAD, padded);
                for (int64_t i = 0; i < num; i++) {
                    float *row = scores.data() + i * padded;
                    float factor = softmax(row, (int)tokens, 1.0f / std::sqrt((float)HEAD));
                    uint16_t *share = shares.data() + i * padded;
                    for (int64_t t = 0; t < padded; t++) share[t] = round_to_half(row[t] * factor);
                }
                for (int k = 0; k < HEAD; k += COLUMNS)
                    half_tile(share_row, values.data() + k * padded, values.data() + k * padded, out + at + k, num, padded, width);
            }
        }
}
#endif

// half: whether to multiply in bf16, where this library can
static void attend_all(const float *query, const float *key_value, float *out, const Texts &texts, int64_t heads,
                       int64_t head, bool half) {
#ifdef __AVX512BF16__
    if (half && head == 64) return attend_half<64>(query, key_value, out, texts, heads);
    if (half) return attend_half<32>(query, key_value, out, texts, heads);
#endif
    if (head == 64) return attend_wide<64>(query, key_value, out, texts, heads);
    attend_wide<32>(query, key_value, out, texts, heads);
}

extern "C" int multiplies_halves() {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

extern "C" int multiplies_bytes() {
#ifdef __AVX512VNNI__
    return 1;
#else
    return 0;
#endif
}

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
    const float *gain, *shift;
    float epsilon;
};

struct Layer {
    int64_t heads, with_tanh;
    Product query, key_value, output, expand, contract;
    Norm attention, out;
};

// Rows, and the same in the precision of a product; 8-bit rows have their scales beside them.
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

extern "C" void quantise(const float *rows, uint8_t *out, float *scales, int64_t count, int64_t width, int threads) {
    WITH_THREADS quantise_rows(rows, out, scales, count, width);
}

extern "C" void finish(float *rows, const float *scales, const float *bias, int64_t count, int64_t width, int threads) {
    WITH_THREADS finish_rows(rows, scales, bias, count, width);
}

extern "C" void activate(float *rows, const float *scales, const float *bias, uint8_t *out, float *out_scales,
                         int64_t count, int64_t width, int with_tanh, int threads) {
    WITH_THREADS activate_rows(rows, scales, bias, out, out_scales, count, width, with_tanh);
}

extern "C" void add_norm(float *rows, const float *scales, const float *bias, const float *before, const float *gain,
                         const float *shift, float epsilon, int64_t count, int64_t width, int threads) {
    WITH_THREADS add_norm_rows(rows, scales, bias, before, gain, shift, epsilon, count, width);
}

extern "C" void attend(const float *query, const float *key_value, float *out, const int64_t *begins,
                       const int64_t *query_begins, int64_t batch, int64_t heads, int64_t head, int half, int threads) {
    WITH_THREADS attend_all(query, key_value, out, {batch, begins, query_begins}, heads, head, half);
}

static const int64_t ROWS = 512;  // of a product at a time, so that what is between two products stays in the cache

extern "C" int64_t rows_at_once() { return ROWS; }

// hidden: [tokens, width]; query_rows, out: [queries, width]; where all rows are queries, query_rows must be hidden
// itself; floats, bytes: memory for intermediate results, whose size cpu/encoder.py computes
extern "C" void layer(const Layer *layer, const float *hidden, const float *query_rows, float *out, float *floats,
                      void *bytes, const int64_t *begins, const int64_t *query_begins, int64_t batch, int threads) {
    Texts texts = {batch, begins, query_begins};
    Kind kind = layer->query.kind;
    int64_t width = layer->query.inner, wide = layer->expand.width;
    int64_t num_tokens = begins[batch], num_queries = query_begins[batch];
    float *key_value = floats, *query = key_value + num_tokens * 2 * width;
    int64_t most = num_tokens > num_queries ? num_tokens : num_queries;
    most = most < ROWS ? most : ROWS;
    float *middle = query + num_queries * width, *expanded = middle + most * width, *scales = expanded + most * wide;
    float *row_scales = kind == NARROW ? scales : nullptr;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        auto input_of = [&](const float *rows, int64_t count) -> Input {
            if (kind == NARROW) quantise_rows(rows, (uint8_t *)bytes, scales, count, width);
            if (kind == HALF) halve_rows(rows, (uint16_t *)bytes, count, width);
            return {rows, bytes, scales};
        };
        auto project = [&](const Product &product, const Input &input, float *sums, int64_t count) {
            multiply(product, input, sums, count);
            finish_rows(sums, row_scales, product.bias, count, product.width);
        };
        for (int64_t r = 0; r < num_tokens; r += ROWS) {
            int64_t count = num_tokens - r < ROWS ? num_tokens - r : ROWS;
            Input input = input_of(hidden + r * width, count);
            project(layer->key_value, input, key_value + r * 2 * width, count);
            if (query_rows == hidden) project(layer->query, input, query + r * width, count);
        }
        for (int64_t r = 0; r < num_queries && query_rows != hidden; r += ROWS) {
            int64_t count = num_queries - r < ROWS ? num_queries - r : ROWS;
            project(layer->query, input_of(query_rows + r * width, count), query + r * width, count);
        }
        attend_all(query, key_value, query, texts, layer->heads, width / layer->heads, kind != WIDE);
        for (int64_t r = 0; r < num_queries; r += ROWS) {
            int64_t count = num_queries - r < ROWS ? num_queries - r : ROWS;
            float *done = out + r * width;
            multiply(layer->output, input_of(query + r * width, count), middle, count);
            add_norm_rows(middle, row_scales, layer->output.bias, query_rows + r * width, layer->attention.gain,
                          layer->attention.shift, layer->attention.epsilon, count, width);
            multiply(layer->expand, input_of(middle, count), expanded, count);
            // Row by row, the scales of the input are read just before the scales of the output overwrite them.
            activate_rows(expanded, row_scales, layer->expand.bias, kind == NARROW ? (uint8_t *)bytes : nullptr, scales,
                          count, wide, layer->with_tanh);
            if (kind == HALF) halve_rows(expanded, (uint16_t *)bytes, count, wide);
            multiply(layer->contract, {expanded, bytes, scales}, done, count);
            add_norm_rows(done, row_scales, layer->contract.bias, middle, layer->out.gain, layer->out.shift,
                          layer->out.epsilon, count, width);
        }
    }
}
