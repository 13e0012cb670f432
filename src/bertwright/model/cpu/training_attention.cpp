// Attention of training in bf16, and its gradient. Inputs, probabilities and what is multiplied with them are bf16; all
// sums are fp32. A head of a text is computed by one thread, so the number of threads changes no bit.

#include "pairs.h"

#include <algorithm>
#include <vector>

// Tensor [batch, tokens, heads, width] in any order of memory; the numbers of a head lie side by side.
// steps: numbers from one text, head and token to the next
struct Heads {
    uint16_t *first;
    const int64_t *steps;

    uint16_t *row(int64_t text, int64_t head, int64_t token) const {
        return first + text * steps[0] + head * steps[1] + token * steps[2];
    }
    // The function of a token, from `begin` on, that gives its row.
    auto rows(int64_t text, int64_t head, int64_t begin) const {
        return [at = row(text, head, begin), step = steps[2]](int64_t token) { return at + token * step; };
    }
};

// keep: 1 for keys that a query may attend to. keep_steps: bytes from one text and query to the next.
// bits: random numbers [batch, heads, queries, tokens]; a probability is dropped where its number is below `least`, and
// multiplied by `factor` elsewhere. Null without dropout.
// probabilities: [batch, heads, queries, padded], before dropout; the keys that fill up the last block have 0.
struct Attention {
    int64_t batch, heads, queries, tokens, width;
    Heads query, key, value;
    const uint8_t *keep;
    const int64_t *keep_steps;
    const int16_t *bits;
    int64_t least;
    float factor;
    uint16_t *probabilities;

    int64_t padded() const { return (tokens + COLUMNS - 1) / COLUMNS * COLUMNS; }
    float scale() const { return 1.0f / std::sqrt((float)width); }
    int64_t number(int64_t text, int64_t head, int64_t q) const { return (text * heads + head) * queries + q; }
    uint16_t *shares(int64_t text, int64_t head, int64_t q) const { return probabilities + number(text, head, q) * padded(); }
    const uint8_t *kept(int64_t text, int64_t q) const { return keep + text * keep_steps[0] + q * keep_steps[1]; }
    const int16_t *drawn(int64_t text, int64_t head, int64_t q) const { return bits + number(text, head, q) * tokens; }
};

#ifdef __AVX512BF16__
static const int64_t CHUNK = 64;  // queries at a time, so that what is computed for them stays in the cache

// Rows of a head for `pair_tile`, and the numbers from one to the next: TILE of them where they lie, fewer in a copy.
struct Tile {
    const uint16_t *rows;
    int64_t step;
};
static inline Tile tile_of(const Heads &from, int64_t text, int64_t head, int64_t first, int64_t num, uint16_t *copy,
                           int64_t width) {
    if (num == TILE) return {from.row(text, head, first), from.steps[2]};
    for (int64_t i = 0; i < num; i++) memcpy(copy + i * width, from.row(text, head, first + i), 2 * width);
    return {copy, width};
}

static void round_row(const float *row, uint16_t *to, int64_t width) {
    for (int64_t i = 0; i < width; i++) to[i] = round_to_half(row[i]);
}

// Probabilities of the keys that are kept, from scores; all keys are equal where none is kept. They are NaN where a
// score is infinite or NaN, which comparisons of floats do not find here.
static void soften(const float *scores, const uint8_t *keep, float scale, float *powers, uint16_t *out, int64_t tokens) {
    static const uint32_t EXPONENT = 0x7f800000;
    float most = -3.0e38f, sum = 0.0f;
    uint32_t broken = 0;
    for (int64_t t = 0; t < tokens; t++) {
        uint32_t bits;
        memcpy(&bits, scores + t, 4);
        broken |= (bits & EXPONENT) == EXPONENT && keep[t];
    }
    if (broken) return (void)std::fill(out, out + tokens, 0x7fc0);
    for (int64_t t = 0; t < tokens; t++) {
        powers[t] = keep[t] ? scores[t] * scale : -3.0e38f;
        most = powers[t] > most ? powers[t] : most;
    }
    for (int64_t t = 0; t < tokens; t++) {
        powers[t] = keep[t] ? exponential(powers[t] - most) : 0.0f;
        sum += powers[t];
    }
    if (sum == 0.0f) {
        std::fill(powers, powers + tokens, 1.0f);
        sum = (float)tokens;
    }
    float inverse = 1.0f / sum;
    for (int64_t t = 0; t < tokens; t++) out[t] = round_to_half(powers[t] * inverse);
}

// The probabilities that dropout keeps, multiplied by its factor.
static void drop(const uint16_t *shares, const int16_t *bits, int64_t least, float factor, uint16_t *out,
                 int64_t tokens) {
    for (int64_t t = 0; t < tokens; t++) out[t] = bits[t] >= least ? round_to_half(widen(shares[t]) * factor) : 0;
}

// Gradients of the scores of a query, from those of its probabilities after dropout.
static void soften_back(const uint16_t *shares, const uint8_t *keep, const int16_t *bits, int64_t least, float factor,
                        float scale, float *steps, uint16_t *out, int64_t tokens) {
    float mean = 0.0f;
    if (bits)
        for (int64_t t = 0; t < tokens; t++) steps[t] = bits[t] >= least ? steps[t] * factor : 0.0f;
    for (int64_t t = 0; t < tokens; t++) mean += widen(shares[t]) * steps[t];
    for (int64_t t = 0; t < tokens; t++)
        out[t] = keep[t] ? round_to_half(widen(shares[t]) * (steps[t] - mean) * scale) : 0;
}

// context: [batch, queries, heads, width]
static void attend_training(const Attention &a, const Heads &context) {
    int64_t width = a.width, padded = a.padded();
    std::vector<uint16_t> keys(padded * width), values(padded * width), queries(TILE * width), dropped(TILE * padded);
    std::vector<float> scores(TILE * padded), powers(padded), sums(TILE * width);
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++) {
            pack_columns(a.key.rows(b, h, 0), a.tokens, keys.data(), width);
            pack_rows(a.value.rows(b, h, 0), a.tokens, values.data(), padded, width);
            for (int64_t q = 0; q < a.queries; q += TILE) {
                int64_t num = std::min<int64_t>(a.queries - q, TILE);
                Tile tile = tile_of(a.query, b, h, q, num, queries.data(), width);
                for (int64_t t = 0; t < padded; t += COLUMNS)
                    pair_tile<false>(tile.rows, tile.step, 2, keys.data() + t * width, scores.data() + t, num, width / 2,
                                     padded);
                bool is_direct = !a.bits && num == TILE;
                for (int64_t i = 0; i < num; i++) {
                    uint16_t *shares = a.shares(b, h, q + i);
                    soften(scores.data() + i * padded, a.kept(b, q + i), a.scale(), powers.data(), shares, a.tokens);
                    std::fill(shares + a.tokens, shares + padded, 0);
                    uint16_t *out = dropped.data() + i * padded;
                    if (a.bits)
                        drop(shares, a.drawn(b, h, q + i), a.least, a.factor, out, a.tokens);
                    else if (!is_direct)
                        memcpy(out, shares, 2 * padded);
                }
                const uint16_t *kept = is_direct ? a.shares(b, h, q) : dropped.data();
                for (int64_t k = 0; k < width; k += COLUMNS)
                    pair_tile<false>(kept, padded, 2, values.data() + k * padded, sums.data() + k, num,
                                     padded / 2, width);
                for (int64_t i = 0; i < num; i++) round_row(sums.data() + i * width, context.row(b, h, q + i), width);
            }
        }
}

// rows: bf16 [count, padded]. weights: [count, width], as `pack_rows` packs CHUNK of them. To the sums [padded, width] the
// product of the transposed rows and the weights is added. pairs: memory for as many rows.
static void add_products(const uint16_t *rows, const uint16_t *weights, int64_t count, uint16_t *pairs, float *sums,
                         int64_t padded, int64_t width) {
    for (int64_t i = 0; i < count; i += 2)
        zip(rows + i * padded, rows + (i + 1 < count ? i + 1 : i) * padded, pairs + i * padded, padded);
    for (int64_t t = 0; t < padded; t += TILE)
        for (int64_t k = 0; k < width; k += COLUMNS)
            pair_tile<true>(pairs + 2 * t, 2, 2 * padded, weights + k * CHUNK, sums + t * width + k, TILE, (count + 1) / 2,
                            width);
}

// arrived: gradient of the context. The others receive the gradients of queries, keys and values.
static void attend_back(const Attention &a, const Heads &arrived, const Heads &of_query, const Heads &of_key,
                        const Heads &of_value) {
    int64_t width = a.width, padded = a.padded();
    std::vector<uint16_t> keys(padded * width), values(padded * width), steps(TILE * width), step_rows(CHUNK * width),
        query_rows(CHUNK * width), shares(CHUNK * padded), scores(CHUNK * padded), pairs(CHUNK * padded);
    std::vector<float> of_shares(TILE * padded), sums(TILE * width), key_sums(padded * width), value_sums(padded * width);
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++) {
            pack_rows(a.key.rows(b, h, 0), a.tokens, keys.data(), padded, width);
            pack_columns(a.value.rows(b, h, 0), a.tokens, values.data(), width);
            std::fill(key_sums.begin(), key_sums.end(), 0.0f);
            std::fill(value_sums.begin(), value_sums.end(), 0.0f);
            for (int64_t q = 0; q < a.queries; q += CHUNK) {
                int64_t count = std::min(a.queries - q, CHUNK);
                pack_rows(arrived.rows(b, h, q), count, step_rows.data(), CHUNK, width);
                pack_rows(a.query.rows(b, h, q), count, query_rows.data(), CHUNK, width);
                for (int64_t r = 0; r < count; r += TILE) {
                    int64_t num = std::min<int64_t>(count - r, TILE);
                    Tile tile = tile_of(arrived, b, h, q + r, num, steps.data(), width);
                    for (int64_t t = 0; t < padded; t += COLUMNS)
                        pair_tile<false>(tile.rows, tile.step, 2, values.data() + t * width, of_shares.data() + t, num,
                                         width / 2, padded);
                    for (int64_t i = r; i < r + num; i++) {
                        const uint16_t *before = a.shares(b, h, q + i);
                        const int16_t *bits = a.bits ? a.drawn(b, h, q + i) : nullptr;
                        if (bits) drop(before, bits, a.least, a.factor, shares.data() + i * padded, a.tokens);
                        soften_back(before, a.kept(b, q + i), bits, a.least, a.factor, a.scale(),
                                    of_shares.data() + (i - r) * padded, scores.data() + i * padded, a.tokens);
                    }
                    for (int64_t k = 0; k < width; k += COLUMNS)
                        pair_tile<false>(scores.data() + r * padded, padded, 2, keys.data() + k * padded,
                                         sums.data() + k, num, padded / 2, width);
                    for (int64_t i = 0; i < num; i++)
                        round_row(sums.data() + i * width, of_query.row(b, h, q + r + i), width);
                }
                add_products(scores.data(), query_rows.data(), count, pairs.data(), key_sums.data(), padded, width);
                add_products(a.bits ? shares.data() : a.shares(b, h, q), step_rows.data(), count, pairs.data(),
                             value_sums.data(), padded, width);
            }
            for (int64_t t = 0; t < a.tokens; t++) {
                round_row(key_sums.data() + t * width, of_key.row(b, h, t), width);
                round_row(value_sums.data() + t * width, of_value.row(b, h, t), width);
            }
        }
}
#endif

// sizes: batch, heads, queries, tokens, width. tensors: queries, keys, values and context. steps: three of each tensor.
extern "C" void attend_forward(const int64_t *sizes, uint16_t *const *tensors, const int64_t *steps, const uint8_t *keep,
                               const int64_t *keep_steps, const int16_t *bits, int64_t least, float factor,
                               uint16_t *probabilities, int threads) {
#ifdef __AVX512BF16__
    Heads heads[4];
    for (int i = 0; i < 4; i++) heads[i] = {tensors[i], steps + 3 * i};
    Attention attention = {sizes[0], sizes[1], sizes[2],   sizes[3], sizes[4], heads[0], heads[1],
                           heads[2], keep,     keep_steps, bits,     least,    factor,   probabilities};
    WITH_THREADS attend_training(attention, heads[3]);
#endif
}

// tensors: queries, keys, values, gradient of the context, and gradients of queries, keys and values, which are written.
extern "C" void attend_backward(const int64_t *sizes, uint16_t *const *tensors, const int64_t *steps,
                                const uint8_t *keep, const int64_t *keep_steps, const int16_t *bits, int64_t least,
                                float factor, uint16_t *probabilities, int threads) {
#ifdef __AVX512BF16__
    Heads heads[7];
    for (int i = 0; i < 7; i++) heads[i] = {tensors[i], steps + 3 * i};
    Attention attention = {sizes[0], sizes[1], sizes[2],   sizes[3], sizes[4], heads[0], heads[1],
                           heads[2], keep,     keep_steps, bits,     least,    factor,   probabilities};
    WITH_THREADS attend_back(attention, heads[3], heads[4], heads[5], heads[6]);
#endif
}
