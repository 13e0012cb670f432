// Attention of rows to the rows of the same text: all of it, or a window around each query.

#pragma once

#include "products.h"

#include <algorithm>
#include <vector>

// Attention of heads of width HEAD: QUERIES rows at a time, so that each loaded key and value is used several times.
// Each text has its own rows; the tokens of a head are filled up to whole blocks.
static const int QUERIES = 6, BLOCK = 2 * LANES;

static inline int64_t whole_blocks(int64_t tokens) { return (tokens + BLOCK - 1) / BLOCK * BLOCK; }

// Keys of a text that a query attends to: from `first` to the one before `last`.
struct Span {
    int64_t first, last;
};

// Exponentials of the scores of the keys in `span`; 0 for the others of the keys from `begin` to the one before `end`.
// The span is computed over its own whole blocks, so that every step is vectorised and other queries change no bit.
// Returns 1 divided by their sum.
static inline float softmax(float *scores, Span span, int64_t begin, int64_t end, float scale) {
    int64_t low = span.first / BLOCK * BLOCK, high = whole_blocks(span.last);
    std::fill(scores, scores + (low - begin), 0.0f);
    std::fill(scores + (high - begin), scores + (end - begin), 0.0f);
    float most = -3.0e38f, sum = 0.0f, *near = scores + (low - begin);
    int first = (int)(span.first - low), last = (int)(span.last - low), count = (int)(high - low);
    for (int t = 0; t < count; t++) {
        near[t] = t >= first && t < last ? near[t] * scale : -3.0e38f;
        most = near[t] > most ? near[t] : most;
    }
    for (int t = 0; t < count; t++) {
        near[t] = t >= first && t < last ? exponential(near[t] - most) : 0.0f;
        sum += near[t];
    }
    return 1.0f / sum;
}

// The two products are functions of their own, so that nothing else takes registers inside of their loops.
// scores: [QUERIES, count], of `query` and keys [count / BLOCK, HEAD, BLOCK]
template <int HEAD>
__attribute__((noinline)) static void score_keys(const float *const *query, const float *keys, float *scores,
                                                 int64_t count) {
    for (int64_t t = 0; t < count; t += BLOCK) {
        Lanes sums[QUERIES][2] = {};
        for (int k = 0; k < HEAD; k++) {
            const Lanes *key = (const Lanes *)(keys + t * HEAD + k * BLOCK);
            _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
                _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) sums[q][j] += query[q][k] * key[j];
        }
        _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
            _Pragma("GCC unroll 8") for (int j = 0; j < 2; j++) ((Lanes *)(scores + q * count + t))[j] = sums[q][j];
    }
}

// Number of vectors of values that are summed together, for heads of width HEAD.
template <int HEAD> constexpr int VALUES = HEAD / LANES < MOST_VALUES ? HEAD / LANES : MOST_VALUES;

// out: the first `num` sums of the values [HEAD / part, tokens, part] of the tokens from `begin` to the one before `end`,
// each times its score and the factor of the query
template <int HEAD>
__attribute__((noinline)) static void add_values(const float *const *scores, const float *factors, const float *values,
                                                 float *out, int64_t num, int64_t begin, int64_t end, int64_t tokens,
                                                 int64_t width) {
    const int count = VALUES<HEAD>, part = count * LANES;
    for (int k = 0; k < HEAD; k += part) {
        Lanes sums[QUERIES][count] = {};
        for (int64_t t = begin; t < end; t++) {
            const Lanes *value = (const Lanes *)(values + k * tokens + t * part);
            _Pragma("GCC unroll 8") for (int q = 0; q < QUERIES; q++)
                _Pragma("GCC unroll 8") for (int j = 0; j < count; j++) sums[q][j] += scores[q][t - begin] * value[j];
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

// Texts whose rows follow each other. begins: [batch + 1]. radius: number of positions that a query attends to on each
// side, where `positions` of all rows and of the queries are given; without them it attends to its whole text.
struct Texts {
    int64_t batch;
    const int64_t *begins, *query_begins, *positions = nullptr, *query_positions = nullptr;
    int64_t radius = 0;

    int64_t tokens(int64_t text) const { return begins[text + 1] - begins[text]; }
    int64_t queries(int64_t text) const { return query_begins[text + 1] - query_begins[text]; }
    int64_t longest() const {
        int64_t most = 0;
        for (int64_t b = 0; b < batch; b++) most = tokens(b) > most ? tokens(b) : most;
        return most;
    }
    Span span(int64_t text, int64_t query) const {
        if (!positions) return {0, tokens(text)};
        const int64_t *first = positions + begins[text], *last = positions + begins[text + 1];
        int64_t at = query_positions[query_begins[text] + query];
        return {std::lower_bound(first, last, at - radius) - first, std::upper_bound(first, last, at + radius) - first};
    }
};

// The blocks that hold the keys of `num` queries from `query` on, and the span of each of `most` queries; the last one
// stands for those beyond `num`.
static Span blocks_of(const Texts &texts, int64_t text, int64_t query, int64_t num, Span *spans, int most) {
    Span all = {texts.tokens(text), 0};
    for (int i = 0; i < most; i++) {
        spans[i] = i < num ? texts.span(text, query + i) : spans[num - 1];
        all = {std::min(all.first, spans[i].first), std::max(all.last, spans[i].last)};
    }
    return {all.first / BLOCK * BLOCK, whole_blocks(all.last)};
}

// query, out: [queries, width], may be the same memory; key_value: [tokens, 2 width]
template <int HEAD>
static void attend_wide(const float *query, const float *key_value, float *out, const Texts &texts, int64_t heads) {
    int64_t width = heads * HEAD, longest = whole_blocks(texts.longest());
    std::vector<float> keys(HEAD * longest), values(HEAD * longest), scores(QUERIES * longest);
    float *row[QUERIES], factors[QUERIES];
    Span spans[QUERIES];
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < texts.batch; b++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t tokens = texts.tokens(b), queries = texts.queries(b);
            gather<HEAD>(key_value + texts.begins[b] * 2 * width + h * HEAD, keys.data(), values.data(), tokens, width);
            for (int64_t q = 0; q < queries; q += QUERIES) {
                int64_t num = queries - q < QUERIES ? queries - q : QUERIES;
                int64_t at = (texts.query_begins[b] + q) * width + h * HEAD;
                const float *chosen[QUERIES];
                for (int i = 0; i < QUERIES; i++) chosen[i] = query + at + (i < num ? i : num - 1) * width;
                auto [begin, end] = blocks_of(texts, b, q, num, spans, QUERIES);
                for (int i = 0; i < QUERIES; i++) row[i] = scores.data() + i * (end - begin);
                score_keys<HEAD>(chosen, keys.data() + begin * HEAD, scores.data(), end - begin);
                for (int i = 0; i < QUERIES; i++)
                    factors[i] = softmax(row[i], spans[i], begin, end, 1.0f / std::sqrt((float)HEAD));
                add_values<HEAD>(row, factors, values.data(), out + at, num, begin, std::min(end, tokens), tokens, width);
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
    Span spans[TILE];
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
                auto [begin, end] = blocks_of(texts, b, q, num, spans, TILE);
                int64_t count = end - begin;
                for (int64_t t = begin; t < end; t += BLOCK) {
                    const uint16_t *block = keys.data() + t * HEAD;
                    half_tile(chosen_row, block, block, scores.data() + t - begin, num, HEAD, count);
                }
                for (int64_t i = 0; i < num; i++) {
                    float *row = scores.data() + i * count;
                    float factor = softmax(row, spans[i], begin, end, 1.0f / std::sqrt((float)HEAD));
                    uint16_t *share = shares.data() + i * padded;
                    for (int64_t t = 0; t < count; t++) share[t] = round_to_half(row[t] * factor);
                }
                for (int k = 0; k < HEAD; k += COLUMNS) {
                    const uint16_t *value = values.data() + k * padded + begin * COLUMNS;
                    half_tile(share_row, value, value, out + at + k, num, count, width);
                }
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
