// Steps of training that torch computes in several passes: the exponentials and sums of the vocabulary loss in bf16;
// dropout, rotary positions and gated GELU in bf16 and fp32, where N is the kind of a number. All are computed as floats.
// Each row, and each column of the sums, is computed by one thread, so the number of threads changes no bit.

#include "rows.h"

// tile: logits of the columns from `first` on, without bias, which become e^(logit + bias); 0 where the row's label is.
// sums: the sum of each row is added.
static void raise_rows(uint16_t *tile, const float *bias, const int64_t *labels, float *sums, int64_t first,
                       int64_t count, int64_t width) {
    EACH_ROW {
        uint16_t *row = tile + r * width;
        int64_t label = labels[r] - first;
        if (label >= 0 && label < width) row[label] = 0xff80;  // -infinity
        float sum = 0.0f;
        for (int64_t i = 0; i < width; i++) {
            float logit = widen(row[i]) + bias[i];
            float power = exponential(logit > 88.0f ? 88.0f : logit);
            sum += power;
            row[i] = round_to_half(power);
        }
        if (label >= 0 && label < width) row[label] = 0;
        sums[r] += sum;
    }
}

// out: for each column the sum of its values, each times the weight of its row
static void weigh_columns(const uint16_t *tile, const float *weights, float *out, int64_t count, int64_t width) {
    static const int64_t COLUMNS = 64;
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < width; begin += COLUMNS) {
        int64_t num = width - begin < COLUMNS ? width - begin : COLUMNS;
        float sums[COLUMNS] = {};
        for (int64_t r = 0; r < count; r++) {
            const uint16_t *row = tile + r * width + begin;
            if (num == COLUMNS)
                for (int64_t i = 0; i < COLUMNS; i++) sums[i] += weights[r] * widen(row[i]);
            else
                for (int64_t i = 0; i < num; i++) sums[i] += weights[r] * widen(row[i]);
        }
        memcpy(out + begin, sums, num * sizeof(float));
    }
}

// parts: queries, keys and values. steps: for each of them the numbers from one text, token and head to the next.
// turn: cosine and sine of the angles of `length` positions. out: for each token its queries and keys, turned, and its
// values.
template <typename N>
static void turn_rows(const void *const *parts, const int64_t *steps, const float *turn, N *out, int64_t length,
                      int64_t heads, int64_t width, float sign, int64_t count) {
    EACH_ROW {
        int64_t text = r / length, token = r % length;
        const float *cosine = turn + token * width, *sine = cosine + length * width;
        N *to = out + 3 * heads * width * r;
        for (int part = 0; part < 3; part++) {
            const int64_t *step = steps + 3 * part;
            const N *from = (const N *)parts[part] + text * step[0] + token * step[1];
            for (int64_t h = 0; h < heads; h++, from += step[2], to += width)
                if (part < 2)
                    turn_head(from, cosine, sine, sign, to, width / 2);
                else
                    memcpy(to, from, width * sizeof(N));
        }
    }
}

// bits: a random number for each number of the rows. out: 0 where it is below `least`, elsewhere the number times `factor`.
template <typename N>
static void drop_rows(const N *rows, const int16_t *bits, int64_t least, float factor, N *out, int64_t count,
                      int64_t width) {
    EACH_ROW {
        const N *from = rows + width * r;
        const int16_t *drawn = bits + width * r;
        N *to = out + width * r;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) store(to + i, drawn[i] >= least ? widen(from[i]) * factor : 0.0f);
    }
}

// rows: twice `width` numbers, values and gates. out: GELU of each value, times its gate.
template <typename N>
static void gate_rows(const N *rows, N *out, int64_t count, int64_t width) {
    EACH_ROW {
        const N *values = rows + 2 * width * r, *gates = values + width;
        N *to = out + width * r;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) store(to + i, gelu(widen(values[i])) * widen(gates[i]));
    }
}

// gradient: that of the result of `gate_rows`. out: that of its rows.
template <typename N>
static void gate_back(const N *rows, const N *gradient, N *out, int64_t count, int64_t width) {
    EACH_ROW {
        const N *values = rows + 2 * width * r, *gates = values + width, *arrived = gradient + width * r;
        N *to_values = out + 2 * width * r, *to_gates = to_values + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float value = widen(values[i]), step = widen(arrived[i]);
            Normal at = normal(value);
            store(to_values + i, (at.below + value * at.density) * step * widen(gates[i]));
            store(to_gates + i, value * at.below * step);
        }
    }
}

extern "C" void exponentials(uint16_t *tile, const float *bias, const int64_t *labels, float *sums, int64_t first,
                             int64_t count, int64_t width, int threads) {
    WITH_THREADS raise_rows(tile, bias, labels, sums, first, count, width);
}

extern "C" void column_sums(const uint16_t *tile, const float *weights, float *out, int64_t count, int64_t width,
                            int threads) {
    WITH_THREADS weigh_columns(tile, weights, out, count, width);
}

// Call a template for bf16 where `is_half`, else for fp32.
#define OF_KIND(call)       \
    if (is_half) {          \
        using N = uint16_t; \
        call;               \
    } else {                \
        using N = float;    \
        call;               \
    }

extern "C" void turn(const void *const *parts, const int64_t *steps, const float *turn, void *out, int64_t length,
                     int64_t heads, int64_t width, float sign, int is_half, int64_t count, int threads) {
    WITH_THREADS { OF_KIND(turn_rows(parts, steps, turn, (N *)out, length, heads, width, sign, count)) }
}

extern "C" void drop(const void *rows, const int16_t *bits, int64_t least, float factor, void *out, int is_half,
                     int64_t count, int64_t width, int threads) {
    WITH_THREADS { OF_KIND(drop_rows((const N *)rows, bits, least, factor, (N *)out, count, width)) }
}

extern "C" void gate(const void *rows, void *out, int is_half, int64_t count, int64_t width, int threads) {
    WITH_THREADS { OF_KIND(gate_rows((const N *)rows, (N *)out, count, width)) }
}

extern "C" void gate_gradient(const void *rows, const void *gradient, void *out, int is_half, int64_t count,
                              int64_t width, int threads) {
    WITH_THREADS { OF_KIND(gate_back((const N *)rows, (const N *)gradient, (N *)out, count, width)) }
}
