// The steps between two matrix products, row by row, and a whole layer for few rows. kernels.py computes the
// same in torch, for machines where this file cannot be built.
//
// A row of a product holds sums. They still have to be multiplied by the scale of the row (none: 1), and the bias has to
// be added. Loops are divided among the threads of the enclosing parallel region; each loop ends with a barrier.

#include "rows.h"

#include <vector>

#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

// x times the normal distribution's cumulative probability of x; Abramowitz and Stegun 7.1.26, to 1.5e-7.
static inline float gelu(float x) {
    float a = std::fabs(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float sum = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float tail = 0.5f * sum * exponential(-a * a);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

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
// that of the values VALUES vectors. AVX-512 has 32 registers of 16 floats, AVX 16 of 8; all others have 4 floats.
#if defined(__AVX512F__)
static const int LANES = 16, VALUES = 4, TILE = 8;
#elif defined(__AVX__)
static const int LANES = 8, VALUES = 2, TILE = 6;
#else
static const int LANES = 4, VALUES = 2, TILE = 6;
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Attention of heads of width 64: QUERIES rows at a time, so that each loaded key and value is used several times.
static const int QUERIES = 6, HEAD = 64, BLOCK = 2 * LANES, PART = VALUES * LANES;

// Exponentials of the scores, over whole blocks, so that every step is vectorised; returns 1 divided by their sum.
static inline float softmax(float *scores, const uint8_t *keep, int64_t padded) {
    float most = -3.0e38f, sum = 0.0f;
    for (int64_t t = 0; t < padded; t++) {
        scores[t] = keep[t] ? scores[t] * 0.125f : -3.0e38f;
        most = scores[t] > most ? scores[t] : most;
    }
    for (int64_t t = 0; t < padded; t++) {
        scores[t] = keep[t] ? exponential(scores[t] - most) : 0.0f;
        sum += scores[t];
    }
    return 1.0f / sum;
}

// The two products are functions of their own, so that nothing else takes registers inside of their loops.
// scores: [QUERIES, padded], of `query` and keys [padded / BLOCK, HEAD, BLOCK]
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

// out: the first `num` sums of the values [HEAD / PART, tokens, PART], each times its score and the factor of the query
__attribute__((noinline)) static void add_values(const float *const *scores, const float *factors, const float *values,
                                                 float *out, int64_t num, int64_t tokens, int64_t width) {
    for (int k = 0; k < HEAD; k += PART) {
        Lanes sums[QUERIES][VALUES] = {};
        for (int64_t t = 0; t < tokens; t++) {
            const Lanes *value = (const Lanes *)(values + k * tokens + t * PART);
            _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
                _Pragma("GCC unroll 8") for (int j = 0; j < VALUES; j++) sums[q][j] += scores[q][t] * value[j];
        }
        _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
            _Pragma("GCC unroll 8") for (int j = 0; j < VALUES; j++)
                if (q < num) ((Lanes *)(out + q * width + k))[j] = sums[q][j] * factors[q];
    }
}

// Copy the keys and values of a head to contiguous memory: in their original layout the rows are so far apart that they
// evict each other from the cache.
static void gather(const float *from, float *keys, float *values, int64_t tokens, int64_t width) {
    float part[BLOCK][HEAD + 1] = {};
    for (int64_t t = 0; t < tokens; t += BLOCK) {
        int64_t num = tokens - t < BLOCK ? tokens - t : BLOCK;
        for (int64_t i = 0; i < num; i++) {
            const float *row = from + (t + i) * 2 * width;
            memcpy(part[i], row, HEAD * sizeof(float));
            for (int k = 0; k < HEAD; k += PART)
                memcpy(values + k * tokens + (t + i) * PART, row + width + k, PART * sizeof(float));
            for (int k = HEAD; k < 2 * HEAD; k += 16) {  // prefetch the next head, a line of the cache at a time
                __builtin_prefetch(row + k);
                __builtin_prefetch(row + width + k);
            }
        }
        for (int k = 0; k < HEAD; k++)
            for (int i = 0; i < BLOCK; i++) keys[t * HEAD + k * BLOCK + i] = part[i][k];
    }
}

// query, out: [batch, queries, width]; key_value: [batch, tokens, 2 width]; keep: [batch, tokens]
static void attend_all(const float *query, const float *key_value, const uint8_t *keep, float *out, int64_t batch,
                       int64_t queries, int64_t tokens, int64_t heads) {
    int64_t width = heads * HEAD, padded = (tokens + BLOCK - 1) / BLOCK * BLOCK;
    std::vector<float> keys(HEAD * padded), values(HEAD * tokens), scores(QUERIES * padded);
    std::vector<uint8_t> kept(padded);
    float *row[QUERIES], factors[QUERIES];
    for (int i = 0; i < QUERIES; i++) row[i] = scores.data() + i * padded;
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++) {
            memcpy(kept.data(), keep + b * tokens, tokens);
            gather(key_value + b * tokens * 2 * width + h * HEAD, keys.data(), values.data(), tokens, width);
            for (int64_t q = 0; q < queries; q += QUERIES) {
                int64_t num = queries - q < QUERIES ? queries - q : QUERIES, at = (b * queries + q) * width + h * HEAD;
                const float *chosen[QUERIES];
                for (int i = 0; i < QUERIES; i++) chosen[i] = query + at + (i < num ? i : num - 1) * width;
                score_keys(chosen, keys.data(), scores.data(), padded);
                for (int i = 0; i < QUERIES; i++) factors[i] = softmax(row[i], kept.data(), padded);
                add_values(row, factors, values.data(), out + at, num, tokens, width);
            }
        }
}

// Matrix products of few rows. Reading the weights dominates; the call of a library would cost as much as the product.
// weights: [width / COLUMNS, inner, COLUMNS], with 8 bits [width / COLUMNS, inner / 4, COLUMNS, 4]
static const int COLUMNS = 2 * LANES;

extern "C" int columns() { return COLUMNS; }

static void multiply(const float *rows, const float *weights, float *sums, int64_t count, int64_t inner, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t c = 0; c < width; c += COLUMNS)
        for (int64_t r = 0; r < count; r += TILE) {
            const float *row[TILE], *part = weights + c * inner;
            for (int i = 0; i < TILE; i++) row[i] = rows + (r + i < count ? r + i : count - 1) * inner;
            Lanes tile[TILE][2] = {};
            for (int64_t k = 0; k < inner; k++) {
                const Lanes *weight = (const Lanes *)(part + k * COLUMNS);
                _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++)
                    _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) tile[i][j] += row[i][k] * weight[j];
            }
            for (int i = 0; i < TILE && r + i < count; i++)
                _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) ((Lanes *)(sums + (r + i) * width + c))[j] = tile[i][j];
        }
}

// offsets: amount that the offset 128 of the rows adds to each sum; column_scales: scale of each column
static void multiply_narrow(const uint8_t *rows, const int8_t *weights, const int32_t *offsets,
                            const float *column_scales, float *sums, int64_t count, int64_t inner, int64_t width) {
#ifdef __AVX512VNNI__
#pragma omp for schedule(static)
    for (int64_t c = 0; c < width; c += COLUMNS)
        for (int64_t r = 0; r < count; r += TILE) {
            const uint8_t *row[TILE];
            for (int i = 0; i < TILE; i++) row[i] = rows + (r + i < count ? r + i : count - 1) * inner;
            const int8_t *part = weights + c * inner;
            __m512i tile[TILE][2] = {};
            for (int64_t k = 0; k < inner; k += 4) {
                __m512i left = _mm512_loadu_si512(part + k * COLUMNS), right = _mm512_loadu_si512(part + k * COLUMNS + 64);
                _Pragma("GCC unroll 8") for (int i = 0; i < TILE; i++) {
                    int32_t four;
                    memcpy(&four, row[i] + k, 4);
                    __m512i repeated = _mm512_set1_epi32(four);
                    tile[i][0] = _mm512_dpbusd_epi32(tile[i][0], repeated, left);
                    tile[i][1] = _mm512_dpbusd_epi32(tile[i][1], repeated, right);
                }
            }
            for (int i = 0; i < TILE && r + i < count; i++)
                for (int j = 0; j < 2; j++) {
                    int64_t at = c + j * LANES;
                    __m512i whole = _mm512_sub_epi32(tile[i][j], _mm512_loadu_si512(offsets + at));
                    _mm512_storeu_ps(sums + (r + i) * width + at,
                                     _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(column_scales + at)));
                }
        }
#endif
}

extern "C" int multiplies_bytes() {
#ifdef __AVX512VNNI__
    return 1;
#else
    return 0;
#endif
}

struct Product {
    int64_t inner, width;
    const void *weights;
    const int32_t *offsets;  // null in fp32
    const float *column_scales, *bias;
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

// Rows in the precision of a product; 8-bit rows have their scales beside them.
struct Input {
    const float *wide;
    uint8_t *narrow;
    float *scales;
};

static void multiply(const Product &product, const Input &input, float *sums, int64_t count) {
    if (product.offsets)
        multiply_narrow(input.narrow, (const int8_t *)product.weights, product.offsets, product.column_scales, sums,
                        count, product.inner, product.width);
    else
        multiply(input.wide, (const float *)product.weights, sums, count, product.inner, product.width);
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

extern "C" void attend(const float *query, const float *key_value, const uint8_t *keep, float *out, int64_t batch,
                       int64_t queries, int64_t tokens, int64_t heads, int threads) {
    WITH_THREADS attend_all(query, key_value, keep, out, batch, queries, tokens, heads);
}

// hidden: [batch, tokens, width]; query_rows, out: [batch, queries, width]; where all rows are queries, query_rows must
// be hidden itself; floats, bytes: memory for intermediate results, whose size cpu/encoder.py computes
extern "C" void layer(const Layer *layer, const float *hidden, const float *query_rows, const uint8_t *keep, float *out,
                      float *floats, uint8_t *bytes, int64_t batch, int64_t queries, int64_t tokens, int threads) {
    int64_t width = layer->query.inner, wide = layer->expand.width;
    int64_t num_tokens = batch * tokens, num_queries = batch * queries;
    bool narrow = layer->query.offsets != nullptr;
    float *key_value = floats, *query = key_value + num_tokens * 2 * width, *context = query + num_queries * width;
    float *middle = context + num_queries * width, *expanded = middle + num_queries * width;
    float *scales = expanded + num_queries * wide;
    float *row_scales = narrow ? scales : nullptr;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        auto input_of = [&](const float *rows, int64_t count) -> Input {
            if (narrow) quantise_rows(rows, bytes, scales, count, width);
            return {rows, bytes, scales};
        };
        Input input = input_of(hidden, num_tokens);
        multiply(layer->key_value, input, key_value, num_tokens);
        finish_rows(key_value, row_scales, layer->key_value.bias, num_tokens, 2 * width);
        if (query_rows != hidden) input = input_of(query_rows, num_queries);
        multiply(layer->query, input, query, num_queries);
        finish_rows(query, row_scales, layer->query.bias, num_queries, width);
        attend_all(query, key_value, keep, context, batch, queries, tokens, layer->heads);
        multiply(layer->output, input_of(context, num_queries), middle, num_queries);
        add_norm_rows(middle, row_scales, layer->output.bias, query_rows, layer->attention.gain, layer->attention.shift,
                      layer->attention.epsilon, num_queries, width);
        multiply(layer->expand, input_of(middle, num_queries), expanded, num_queries);
        // Row by row, the scales of the input are read just before the scales of the output overwrite them.
        activate_rows(expanded, row_scales, layer->expand.bias, narrow ? bytes : nullptr, scales, num_queries, wide,
                      layer->with_tanh);
        multiply(layer->contract, {expanded, bytes, scales}, out, num_queries);
        add_norm_rows(out, row_scales, layer->contract.bias, middle, layer->out.gain, layer->out.shift,
                      layer->out.epsilon, num_queries, width);
    }
}
