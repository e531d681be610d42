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

/* To be changed with anything that streamvid/color/render.py relies on: an old build may lie beside a new one. */
int32_t sv_pixels_version(void) { return 1; }

static void source_span(const sv_axis *axis, int32_t *low, int32_t *count) {
    int32_t high = *low = axis->first[0];
    for (int32_t n = 1; n < axis->out; n++) {
        if (axis->first[n] < *low) *low = axis->first[n];
        if (axis->first[n] > high) high = axis->first[n];
    }
    *count = high + axis->taps - *low;
}

#define ROWS 16 /* rows that are made at a time, so that the other axis needs no gathering */
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

/* A row becomes a column: to[0], to[ROWS] ... */
static void stand_up(const float *restrict line, int32_t count, float *restrict to) {
    EACH(x, count) to[(int64_t)ROWS * x] = line[x];
}

/* The same along the other axis, of ROWS rows at a time that stand beside each other. */
FAST static void mix_columns(const float *restrict lines, const sv_axis *columns, int32_t low, float *restrict out) {
    EACH(x, columns->out) {
        float sum[ROWS] = {0};
        EACH(t, columns->taps) {
            float weight = columns->weights[(int64_t)t * columns->out + x];
            const float *restrict from = lines + (int64_t)ROWS * (columns->first[x] - low + t);
            EACH(r, ROWS) sum[r] += weight * from[r];
        }
        EACH(r, ROWS) out[(int64_t)ROWS * x + r] = sum[r];
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

/* One channel of the ROWS rows that stand beside each other, of which `rows` are wanted. */
FAST static void write_channel(const sv_picture *p, int c, int32_t y, int32_t rows, const float *restrict luma,
                               const float *restrict u, const float *restrict v, float *restrict made) {
    int32_t width = p->columns[0].out, count = ROWS * width;
    float a = p->matrix[c][0], b = p->matrix[c][1], d = p->matrix[c][2], e = p->matrix[c][3];
    float mean = p->type ? p->mean[c] : 0, scale = p->type ? p->scale[c] : 1;
    int64_t step = p->strides[2];
    EACH(n, count) {
        int32_t level = (int32_t)(a * luma[n] + b * u[n] + d * v[n] + e + 0.5f);
        level = level > 0 ? level : 0;
        level = level < 255 ? level : 255;
        made[n] = ((float)level - mean) * scale;
    }
#define STORE(type, value)                                                                        \
    {                                                                                             \
        type *restrict packed = (type *)(made + count);                                           \
        EACH(n, count) packed[n] = value(made[n]);                                                \
        EACH(r, rows) {                                                                           \
            type *restrict out = (type *)p->out + c * p->strides[0] + (y + r) * p->strides[1];    \
            if (step == 1) EACH(x, width) out[x] = packed[ROWS * x + r];                          \
            else EACH(x, width) out[step * x] = packed[ROWS * x + r];                             \
        }                                                                                         \
    }
#define BYTE(level) (uint8_t)(int32_t)(level)
    if (p->type == 0) STORE(uint8_t, BYTE)
    else if (p->type == 1) STORE(uint16_t, half_of)
    else if (p->type == 2) STORE(uint16_t, bfloat_of)
    else STORE(float, )
}

/* `scratch` has room for ROWS + 1 of the longest rows of samples, and for 5 * ROWS output rows. */
void sv_render(const sv_picture *p, float *scratch) {
    int32_t low[2], count[2], height = p->rows[0].out;
    int64_t size = (int64_t)ROWS * p->columns[0].out;
    for (int i = 0; i < 2; i++) source_span(&p->columns[i], &low[i], &count[i]);
    int32_t longest = count[0] > count[1] ? count[0] : count[1];
    float *made = scratch, *line = made + 5 * size, *lines = line + longest;
    for (int32_t y = 0; y < height; y += ROWS) {
        int32_t rows = height - y < ROWS ? height - y : ROWS;
        if (rows < ROWS) memset(lines, 0, sizeof *lines * ROWS * longest); /* what is not wanted must be numbers, too */
        for (int i = 0; i < 3; i++) {
            EACH(r, rows) {
                mix_rows(&p->planes[i], &p->rows[i > 0], y + r, low[i > 0], count[i > 0], line);
                stand_up(line, count[i > 0], lines + r);
            }
            mix_columns(lines, &p->columns[i > 0], low[i > 0], made + i * size);
        }
        for (int c = 0; c < 3; c++) write_channel(p, c, y, rows, made, made + size, made + 2 * size, made + 3 * size);
    }
}
