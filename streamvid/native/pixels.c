/* Planes of YUV -> one picture of the model's tensor: crop, resize, convert, normalise and lay out, in one pass.
 *
 * streamvid/color/render.py has the definition, and the same in NumPy for machines without a compiler. Called through
 * ctypes, which lets go of the GIL; nothing is allocated and nothing kept, so any thread may call it.
 */
#include <stdint.h>
#include <string.h>

/* Compiled for three generations of x86-64; the loader chooses. Others get what the compiler is told. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif

/* Along one axis, output sample n is the sum over t of weights[t * out + n] * source[first[n] + t]. */
typedef struct {
    int32_t out, taps;
    const int32_t *first; /* [out]; first + taps <= the source's length */
    const float *weights; /* [taps, out] */
} sv_axis;

typedef struct {
    const uint8_t *data;
    int64_t stride;     /* bytes from a row to the next */
    int32_t step, wide; /* samples from one to the next, 2 where U and V are interleaved; whether they have 16 bits */
} sv_plane;

typedef struct {
    sv_plane planes[3];          /* Y, U, V */
    sv_axis rows[2], columns[2]; /* of luma, of chroma */
    float matrix[3][4];          /* samples -> R, G, B, 0 to 255; the last column is added */
    float mean[3], scale[3];     /* (rounded level - mean) * scale, but for uint8 */
    void *out;
    int64_t strides[3]; /* of channel, row, column, in elements */
    int32_t type;       /* 0: uint8, 1: float16, 2: bfloat16, 3: float32 */
} sv_picture;

static void source_span(const sv_axis *axis, int32_t *low, int32_t *count) {
    int32_t high = *low = axis->first[0];
    for (int32_t n = 1; n < axis->out; n++) {
        if (axis->first[n] < *low) *low = axis->first[n];
        if (axis->first[n] > high) high = axis->first[n];
    }
    *count = high + axis->taps - *low;
}

#define EACH(n, count) for (int32_t n = 0; n < (count); n++)

/* A weighted sum of rows: `count` samples from column `low` on. */
FAST static void mix_rows(const sv_plane *plane, const sv_axis *rows, int32_t y, int32_t low, int32_t count,
                          float *restrict line) {
    EACH(t, rows->taps) {
        float weight = rows->weights[(int64_t)t * rows->out + y];
        const uint8_t *row = plane->data + (rows->first[y] + t) * plane->stride;
#define ADD(type, step)                                                                         \
    {                                                                                           \
        const type *restrict from = (const type *)row + (int64_t)low * step;                    \
        if (t) EACH(x, count) line[x] += weight * from[step * x];                               \
        else EACH(x, count) line[x] = weight * from[step * x];                                  \
    }
        if (t && weight == 0) continue;
        if (plane->wide && plane->step == 1) ADD(uint16_t, 1)
        else if (plane->wide) ADD(uint16_t, 2)
        else if (plane->step == 1) ADD(uint8_t, 1)
        else ADD(uint8_t, 2)
    }
}

FAST static void mix_columns(const float *restrict line, const sv_axis *columns, float *restrict out) {
    const int32_t *restrict first = columns->first;
    EACH(t, columns->taps) {
        const float *restrict weights = columns->weights + (int64_t)t * columns->out, *restrict from = line + t;
        if (t) EACH(x, columns->out) out[x] += weights[x] * from[first[x]];
        else EACH(x, columns->out) out[x] = weights[x] * from[first[x]];
    }
}

/* Rounds to nearest, ties to even, as IEEE 754 does, subnormal numbers as well; values are finite. */
static inline uint16_t half_of(float value) {
    const uint32_t tiny = 0x3F000000u; /* 0.5: added, it rounds at the last bit of float16's subnormal numbers */
    uint32_t bits, sign, small;
    float shifted, half = 0.5f;
    memcpy(&bits, &value, 4);
    sign = bits & 0x80000000u;
    bits ^= sign;
    memcpy(&shifted, &bits, 4);
    shifted += half;
    memcpy(&small, &shifted, 4);
    small -= tiny;
    uint32_t normal = (bits + 0xC8000FFFu + ((bits >> 13) & 1)) >> 13;
    uint32_t made = bits < 0x38800000u ? small : normal;
    made = bits >= 0x477FF000u ? 0x7C00u : made;
    return (uint16_t)(made | sign >> 16);
}

static inline uint16_t bfloat_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

FAST static void write_channel(const sv_picture *p, int c, int32_t y, const float *restrict luma,
                               const float *restrict u, const float *restrict v, float *restrict made) {
    int32_t width = p->columns[0].out;
    float a = p->matrix[c][0], b = p->matrix[c][1], d = p->matrix[c][2], e = p->matrix[c][3];
    float mean = p->type ? p->mean[c] : 0, scale = p->type ? p->scale[c] : 1;
    int64_t at = c * p->strides[0] + y * p->strides[1], step = p->strides[2];
    EACH(x, width) {
        float level = a * luma[x] + b * u[x] + d * v[x] + e;
        level = level > 0 ? level : 0;
        level = level < 255 ? level : 255;
        made[x] = ((float)(int32_t)(level + 0.5f) - mean) * scale;
    }
#define STORE(type, value)                                      \
    {                                                           \
        type *restrict out = (type *)p->out + at;               \
        if (step == 1) EACH(x, width) out[x] = value(made[x]);  \
        else EACH(x, width) out[step * x] = value(made[x]);     \
    }
#define BYTE(level) (uint8_t)(int32_t)(level)
    if (p->type == 0) STORE(uint8_t, BYTE)
    else if (p->type == 1) STORE(uint16_t, half_of)
    else if (p->type == 2) STORE(uint16_t, bfloat_of)
    else STORE(float, )
}

/* `scratch` has room for the source columns of a luma row and four output rows. */
void sv_render(const sv_picture *p, float *scratch) {
    int32_t low[2], count[2], width = p->columns[0].out;
    for (int i = 0; i < 2; i++) source_span(&p->columns[i], &low[i], &count[i]);
    float *made = scratch, *line = scratch + 4 * (int64_t)width;
    EACH(y, p->rows[0].out) {
        for (int i = 0; i < 3; i++) {
            mix_rows(&p->planes[i], &p->rows[i > 0], y, low[i > 0], count[i > 0], line);
            mix_columns(line - low[i > 0], &p->columns[i > 0], made + (int64_t)i * width);
        }
        for (int c = 0; c < 3; c++)
            write_channel(p, c, y, made, made + width, made + 2 * (int64_t)width, made + 3 * (int64_t)width);
    }
}
