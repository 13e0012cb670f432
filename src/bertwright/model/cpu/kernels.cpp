// The steps between two matrix products, row by row, and a whole layer of BERT for few rows. kernels.py computes the
// same in torch, for machines where this file cannot be built.

#include "attention.h"

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

extern "C" int columns() { return COLUMNS; }

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
                       const int64_t *query_begins, const int64_t *positions, const int64_t *query_positions,
                       int64_t radius, int64_t batch, int64_t heads, int64_t head, int half, int threads) {
    Texts texts = {batch, begins, query_begins, positions, query_positions, radius};
    WITH_THREADS attend_all(query, key_value, out, texts, heads, head, half);
}

extern "C" int64_t rows_at_once() { return ROWS; }

// hidden: [tokens, width]; query_rows, out: [queries, width]; where all rows are queries, query_rows must be hidden
// itself; floats, bytes: memory for intermediate results, whose size FusedLayer.memory computes
extern "C" void layer(const Layer *layer, const float *hidden, const float *query_rows, float *out, float *floats,
                      void *bytes, const int64_t *begins, const int64_t *query_begins, int64_t batch, int threads) {
    Texts texts = {batch, begins, query_begins};
    Kind kind = layer->query.kind;
    int64_t width = layer->query.inner, wide = layer->expand.width;
    int64_t num_tokens = begins[batch], num_queries = query_begins[batch];
    float *key_value = floats, *query = key_value + num_tokens * 2 * width;
    int64_t most = std::min(ROWS, std::max(num_tokens, num_queries));
    float *middle = query + num_queries * width, *expanded = middle + most * width, *scales = expanded + most * wide;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        for (int64_t r = 0; r < num_tokens; r += ROWS) {
            int64_t count = std::min(ROWS, num_tokens - r);
            Input input = input_of(kind, hidden + r * width, bytes, scales, count, width);
            project(layer->key_value, input, key_value + r * 2 * width, count);
            if (query_rows == hidden) project(layer->query, input, query + r * width, count);
        }
        for (int64_t r = 0; r < num_queries && query_rows != hidden; r += ROWS) {
            int64_t count = std::min(ROWS, num_queries - r);
            Input input = input_of(kind, query_rows + r * width, bytes, scales, count, width);
            project(layer->query, input, query + r * width, count);
        }
        attend_all(query, key_value, query, texts, layer->heads, width / layer->heads, kind != WIDE);
        for (int64_t r = 0; r < num_queries; r += ROWS) {
            int64_t count = std::min(ROWS, num_queries - r);
            float *done = out + r * width;
            Input input = input_of(kind, query + r * width, bytes, scales, count, width);
            multiply(layer->output, input, middle, count);
            add_norm_rows(middle, input.scales, layer->output.bias, query_rows + r * width, layer->attention.gain,
                          layer->attention.shift, layer->attention.epsilon, count, width);
            input = input_of(kind, middle, bytes, scales, count, width);
            multiply(layer->expand, input, expanded, count);
            // Row by row, the scales of the input are read just before the scales of the output overwrite them.
            activate_rows(expanded, input.scales, layer->expand.bias, kind == NARROW ? (uint8_t *)bytes : nullptr, scales,
                          count, wide, layer->with_tanh);
            if (kind == HALF) halve_rows(expanded, (uint16_t *)bytes, count, wide);
            multiply(layer->contract, {expanded, bytes, input.scales}, done, count);
            add_norm_rows(done, input.scales, layer->contract.bias, middle, layer->feed_forward.gain,
                          layer->feed_forward.shift, layer->feed_forward.epsilon, count, width);
        }
    }
}
