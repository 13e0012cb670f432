// Functions of one number, and loops over rows, which all C++ files of this folder share.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define WITH_THREADS _Pragma("omp parallel num_threads(threads) if (threads > 1)")
#define EACH_ROW _Pragma("omp for schedule(static)") for (int64_t r = 0; r < count; r++)

// e^x for x <= 88, to 2e-7: a power of 2 times a polynomial of the rest.
static inline float exponential(float x) {
    float scaled = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    float whole = __builtin_floorf(scaled + 0.5f);
    float t = (scaled - whole) * 0.69314718f;
    float sum = 1.0f + t * (1.0f + t * (0.5f + t * (1.6666667e-1f + t * (4.1666667e-2f + t * (8.3333333e-3f + t * 1.3888889e-3f)))));
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return sum * power;
}

// bf16 is the upper half of a float.
static inline float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// The nearest bf16; of two that are as near the even one.
static inline uint16_t round_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Overloads for templates over the kind of a number: floats stay as they are.
static inline float widen(float value) { return value; }
static inline void store(uint16_t *to, float value) { *to = round_to_half(value); }
static inline void store(float *to, float value) { *to = value; }

// The normal distribution's cumulative probability of x, and its density at x; Abramowitz and Stegun 7.1.26, to 1.5e-7.
struct Normal {
    float below, density;
};
static inline Normal normal(float x) {
    float a = std::fabs(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float sum = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float power = exponential(-a * a), tail = 0.5f * sum * power;
    return {x < 0.0f ? tail : 1.0f - tail, 0.39894228f * power};
}

static inline float gelu(float x) { return x * normal(x).below; }

// x (1 + tanh y) / 2, which is x / (1 + e^-2y)
static inline float gelu_tanh(float x) {
    float twice = 1.59576912f * (x + 0.044715f * x * x * x);
    float power = exponential(-std::fabs(twice));
    return x * (twice < 0.0f ? power : 1.0f) / (1.0f + power);
}

// The numbers i and i + half of a head turned by the angles of its token; by a sign of -1, back. `to` may be `from`.
template <typename N>
static void turn_head(const N *from, const float *cosine, const float *sine, float sign, N *to, int64_t half) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float first = widen(from[i]), second = widen(from[i + half]), turned = sign * sine[i];
        store(to + i, first * cosine[i] - second * turned);
        store(to + i + half, second * cosine[i] + first * turned);
    }
}
