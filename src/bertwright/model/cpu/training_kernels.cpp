// Steps of training in bf16 that torch computes in several passes: the exponentials and sums of the vocabulary loss,
// rotary positions, and gated GELU.
// Numbers are read and written as bf16, and computed as floats.
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

// rows: queries, keys and values of each token, each of `heads` times `width` numbers. turn: cosine and sine of the
// angles of `length` positions. out: the rows, with numbers i and i + width / 2 of queries and keys turned; by a sign
// of -1, back.
static void turn_rows(const uint16_t *rows, const float *turn, uint16_t *out, int64_t length, int64_t heads,
                      int64_t width, float sign, int64_t count) {
    int64_t half = width / 2, values = heads * width;
    EACH_ROW {
        const float *cosine = turn + r % length * width, *sine = cosine + length * width;
        const uint16_t *from = rows + 3 * values * r;
        uint16_t *to = out + 3 * values * r;
        for (int64_t h = 0; h < 2 * heads; h++, from += width, to += width) {
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float first = widen(from[i]), second = widen(from[i + half]), turned = sign * sine[i];
                to[i] = round_to_half(first * cosine[i] - second * turned);
                to[i + half] = round_to_half(second * cosine[i] + first * turned);
            }
        }
        memcpy(to, from, values * sizeof(uint16_t));
    }
}

// rows: twice `width` numbers, values and gates. out: GELU of each value, times its gate.
static void gate_rows(const uint16_t *rows, uint16_t *out, int64_t count, int64_t width) {
    EACH_ROW {
        const uint16_t *values = rows + 2 * width * r, *gates = values + width;
        uint16_t *to = out + width * r;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = round_to_half(gelu(widen(values[i])) * widen(gates[i]));
    }
}

// gradient: that of the result of `gate_rows`. out: that of its rows.
static void gate_back(const uint16_t *rows, const uint16_t *gradient, uint16_t *out, int64_t count, int64_t width) {
    EACH_ROW {
        const uint16_t *values = rows + 2 * width * r, *gates = values + width, *arrived = gradient + width * r;
        uint16_t *to_values = out + 2 * width * r, *to_gates = to_values + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float value = widen(values[i]), step = widen(arrived[i]);
            Normal at = normal(value);
            to_values[i] = round_to_half((at.below + value * at.density) * step * widen(gates[i]));
            to_gates[i] = round_to_half(value * at.below * step);
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

extern "C" void turn(const uint16_t *rows, const float *turn, uint16_t *out, int64_t length, int64_t heads,
                     int64_t width, float sign, int64_t count, int threads) {
    WITH_THREADS turn_rows(rows, turn, out, length, heads, width, sign, count);
}

extern "C" void gate(const uint16_t *rows, uint16_t *out, int64_t count, int64_t width, int threads) {
    WITH_THREADS gate_rows(rows, out, count, width);
}

extern "C" void gate_gradient(const uint16_t *rows, const uint16_t *gradient, uint16_t *out, int64_t count,
                              int64_t width, int threads) {
    WITH_THREADS gate_back(rows, gradient, out, count, width);
}
