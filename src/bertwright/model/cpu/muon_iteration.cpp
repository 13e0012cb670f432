// Muon's iteration in bf16 (training/muon.py): products of bf16 with sums in fp32. A matrix is computed by one thread,
// in whose cache it stays, so the number of threads changes no bit.

#include "pairs.h"

#include <algorithm>
#include <vector>

#ifdef __AVX512BF16__
// out [count, width] = of_base · base + factor · left [count, inner] · weights, which are packed. `out` may be `base`.
// symmetric: the result and base are, so that one half of the products is enough.
static void multiply_add(const uint16_t *left, const uint16_t *weights, const uint16_t *base, float of_base, float factor,
                         uint16_t *out, int64_t count, int64_t inner, int64_t width, bool symmetric) {
    float sums[TILE * COLUMNS];
    uint16_t rounded[TILE * COLUMNS];
    for (int64_t c = 0; c < width; c += COLUMNS)
        for (int64_t r = 0; r < (symmetric ? c + COLUMNS : count); r += TILE) {
            pair_tile<false>(left + r * inner, inner, 2, weights + c * inner, sums, TILE, inner / 2, COLUMNS);
            for (int64_t i = 0; i < TILE; i++) {
                const uint16_t *before = base + (r + i) * width + c;
                for (int64_t k = 0; k < COLUMNS; k++)
                    rounded[i * COLUMNS + k] = round_to_half(of_base * widen(before[k]) + factor * sums[i * COLUMNS + k]);
                memcpy(out + (r + i) * width + c, rounded + i * COLUMNS, 2 * COLUMNS);
            }
            if (symmetric && r < c)
                for (int64_t k = 0; k < COLUMNS; k++)
                    for (int64_t i = 0; i < TILE; i++) out[(c + k) * width + r + i] = rounded[i * COLUMNS + k];
        }
}

// Memory for a matrix of no more rows than columns; both are filled up with 0 to multiples of COLUMNS.
struct Wide {
    int64_t rows, columns;
    std::vector<uint16_t> matrix, gram, polynomial, packed;

    Wide(int64_t outputs, int64_t inputs)
        : rows(whole(std::min(outputs, inputs))), columns(whole(std::max(outputs, inputs))), matrix(rows * columns),
          gram(rows * rows), polynomial(rows * rows), packed(rows * columns) {}

    static int64_t whole(int64_t number) { return (number + COLUMNS - 1) / COLUMNS * COLUMNS; }

    // matrix = a · matrix + (b · gram + c · gram²) · matrix, where gram is the matrix times itself transposed
    void iterate(float a, float b, float c) {
        auto row = [&](int64_t r) { return matrix.data() + r * columns; };
        auto gram_row = [&](int64_t r) { return gram.data() + r * rows; };
        std::fill(gram.begin(), gram.end(), 0);
        pack_columns(row, rows, packed.data(), columns);
        multiply_add(matrix.data(), packed.data(), gram.data(), 0.0f, 1.0f, gram.data(), rows, columns, rows, true);
        pack_rows(gram_row, rows, packed.data(), rows, rows);
        multiply_add(gram.data(), packed.data(), gram.data(), b, c, polynomial.data(), rows, rows, rows, true);
        pack_rows(row, rows, packed.data(), rows, columns);
        multiply_add(polynomial.data(), packed.data(), matrix.data(), a, 1.0f, matrix.data(), rows, rows, columns, false);
    }
};

static void iterate_each(const float *updates, float *out, const float *coefficients, int64_t iterations,
                         int64_t count, int64_t outputs, int64_t inputs) {
    Wide wide(outputs, inputs);
    int64_t row_step = outputs > inputs ? 1 : wide.columns, step = outputs > inputs ? wide.columns : 1;
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < count; number++) {
        const float *update = updates + number * outputs * inputs;
        double square = 0.0;
        for (int64_t i = 0; i < outputs * inputs; i++) square += (double)update[i] * update[i];
        float inverse = 1.0f / std::max((float)std::sqrt(square), 1e-7f);
        std::fill(wide.matrix.begin(), wide.matrix.end(), 0);
        for (int64_t r = 0; r < outputs; r++)
            for (int64_t i = 0; i < inputs; i++)
                wide.matrix[r * row_step + i * step] = round_to_half(update[r * inputs + i] * inverse);
        for (int64_t i = 0; i < iterations; i++) wide.iterate(coefficients[0], coefficients[1], coefficients[2]);
        float *result = out + number * outputs * inputs;
        for (int64_t r = 0; r < outputs; r++)
            for (int64_t i = 0; i < inputs; i++) result[r * inputs + i] = widen(wide.matrix[r * row_step + i * step]);
    }
}
#endif

// updates, out: [count, outputs, inputs]. Without products in bf16 (`multiplies_halves`) nothing is written.
extern "C" void iterate_muon(const float *updates, float *out, const float *coefficients, int64_t iterations,
                             int64_t count, int64_t outputs, int64_t inputs, int threads) {
#ifdef __AVX512BF16__
    WITH_THREADS iterate_each(updates, out, coefficients, iterations, count, outputs, inputs);
#endif
}
