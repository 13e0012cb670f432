// A whole layer of ModernBERT for few rows, and its steps between two matrix products. kernels.py and modern_encoder.py
// compute the same in torch, for machines where this file cannot be built.

#include "attention.h"

static void norm_rows(const float *rows, const Norm &norm, float *out, int64_t count, int64_t width) {
    EACH_ROW {
        const float *row = rows + r * width;
        float *to = out + r * width, sum = 0.0f, squares = 0.0f;
        for (int64_t i = 0; i < width; i++) sum += row[i];
        float mean = sum / width;
        for (int64_t i = 0; i < width; i++) squares += (row[i] - mean) * (row[i] - mean);
        float factor = 1.0f / std::sqrt(squares / width + norm.epsilon);
        for (int64_t i = 0; i < width; i++) to[i] = (row[i] - mean) * factor * norm.gain[i];
        if (norm.shift)
            for (int64_t i = 0; i < width; i++) to[i] += norm.shift[i];
    }
}

// Add the product and its bias to `before`.
static void add_rows(float *rows, const float *scales, const float *bias, const float *before, int64_t count,
                     int64_t width) {
    EACH_ROW {
        float *row = rows + r * width, scale = scale_of(scales, r);
        for (int64_t i = 0; i < width; i++) row[i] = row[i] * scale + bias[i] + before[r * width + i];
    }
}

// Turn the heads of rows that are `step` numbers apart, in place. turn: cosine and sine of the angles of `length`
// positions.
static void turn_rows(float *rows, int64_t step, const int64_t *positions, const float *turn, int64_t length,
                      int64_t heads, int64_t head, int64_t count) {
    EACH_ROW {
        const float *cosine = turn + positions[r] * head, *sine = cosine + length * head;
        for (int64_t h = 0; h < heads; h++) {
            float *at = rows + r * step + h * head;
            turn_head(at, cosine, sine, 1.0f, at, head / 2);
        }
    }
}

// rows: sums of twice `width` numbers, values and gates. out: GELU of each value, times its gate. narrowed: memory for the
// same in 8 bits, null where the rows are not quantised; out_scales: scales of the quantised rows, may be `scales`.
static void gate_rows(const float *rows, const float *scales, const float *bias, float *out, uint8_t *narrowed,
                      float *out_scales, int64_t count, int64_t width, int with_tanh) {
    EACH_ROW {
        const float *values = rows + 2 * r * width, *gates = values + width, *gate_bias = bias + width;
        float *to = out + r * width, scale = scale_of(scales, r);
        if (with_tanh)
            for (int64_t i = 0; i < width; i++)
                to[i] = gelu_tanh(values[i] * scale + bias[i]) * (gates[i] * scale + gate_bias[i]);
        else
            for (int64_t i = 0; i < width; i++)
                to[i] = gelu(values[i] * scale + bias[i]) * (gates[i] * scale + gate_bias[i]);
        if (narrowed) out_scales[r] = narrow(to, narrowed + r * width, width);
    }
}

extern "C" void turn_in_place(float *rows, int64_t step, const int64_t *positions, const float *turn, int64_t length,
                              int64_t heads, int64_t head, int64_t count, int threads) {
    WITH_THREADS turn_rows(rows, step, positions, turn, length, heads, head, count);
}

extern "C" void gate_sums(const float *rows, const float *scales, const float *bias, float *out, int with_tanh,
                          int64_t count, int64_t width, int threads) {
    WITH_THREADS gate_rows(rows, scales, bias, out, nullptr, nullptr, count, width, with_tanh);
}

// Cosine and sine of the angles of `length` positions, and the window; see `Texts`.
struct View {
    const float *turn;
    int64_t length, radius;
};

// hidden: [tokens, width]; query_rows, out: [queries, width]; where all rows are queries, query_rows must be hidden
// itself; floats, bytes: memory for intermediate results, whose size FusedLayer.memory computes
extern "C" void modern_layer(const Layer *layer, const View *view, const float *hidden, const float *query_rows,
                             float *out, float *floats, void *bytes, const int64_t *begins, const int64_t *query_begins,
                             const int64_t *positions, const int64_t *query_positions, int64_t batch, int threads) {
    bool sees_all = view->radius < 0;
    Texts texts = {batch, begins, query_begins, sees_all ? nullptr : positions, query_positions, view->radius};
    Kind kind = layer->query.kind;
    int64_t width = layer->query.inner, inner = layer->contract.inner, heads = layer->heads, head = width / heads;
    int64_t num_tokens = begins[batch], num_queries = query_begins[batch];
    float *key_value = floats, *query = key_value + num_tokens * 2 * width;
    int64_t most = std::min(ROWS, std::max(num_tokens, num_queries));
    float *middle = query + num_queries * width, *normed = middle + most * width, *expanded = normed + most * width;
    float *gated = expanded + 2 * most * inner, *scales = gated + most * inner;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        auto normed_input = [&](const float *rows, const Norm &norm, int64_t count) {
            if (norm.gain) norm_rows(rows, norm, normed, count, width);
            return input_of(kind, norm.gain ? normed : rows, bytes, scales, count, width);
        };
        auto project_query = [&](const Input &input, int64_t r, int64_t count) {
            project(layer->query, input, query + r * width, count);
            turn_rows(query + r * width, width, query_positions + r, view->turn, view->length, heads, head, count);
        };
        for (int64_t r = 0; r < num_tokens; r += ROWS) {
            int64_t count = std::min(ROWS, num_tokens - r);
            float *keys = key_value + r * 2 * width;
            Input input = normed_input(hidden + r * width, layer->attention, count);
            project(layer->key_value, input, keys, count);
            turn_rows(keys, 2 * width, positions + r, view->turn, view->length, heads, head, count);
            if (query_rows == hidden) project_query(input, r, count);
        }
        for (int64_t r = 0; r < num_queries && query_rows != hidden; r += ROWS) {
            int64_t count = std::min(ROWS, num_queries - r);
            project_query(normed_input(query_rows + r * width, layer->attention, count), r, count);
        }
        attend_all(query, key_value, query, texts, heads, head, kind != WIDE);
        for (int64_t r = 0; r < num_queries; r += ROWS) {
            int64_t count = std::min(ROWS, num_queries - r);
            Input input = input_of(kind, query + r * width, bytes, scales, count, width);
            multiply(layer->output, input, middle, count);
            add_rows(middle, input.scales, layer->output.bias, query_rows + r * width, count, width);
            input = normed_input(middle, layer->feed_forward, count);
            multiply(layer->expand, input, expanded, count);
            // Row by row, the scales of the input are read just before the scales of the output overwrite them.
            gate_rows(expanded, input.scales, layer->expand.bias, gated, kind == NARROW ? (uint8_t *)bytes : nullptr,
                      scales, count, inner, layer->with_tanh);
            if (kind == HALF) halve_rows(gated, (uint16_t *)bytes, count, inner);
            multiply(layer->contract, {gated, bytes, input.scales}, out + r * width, count);
            add_rows(out + r * width, input.scales, layer->contract.bias, middle, count, width);
        }
    }
}
