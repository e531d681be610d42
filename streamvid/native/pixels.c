/* Makes one picture of the model's tensor from planes of YUV: crops, resizes, converts, normalises and lays out.
 *
 * streamvid/color/render.py defines the result, and computes the same with NumPy on machines without a compiler. Called
 * through ctypes, which releases the GIL; the code allocates and keeps no memory, so any thread may call it.
 */
#include <stdint.h>
#include <string.h>

/* Compiled for three generations of x86-64, of which the dynamic loader chooses one; elsewhere for one. */
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
    int64_t stride;     /* bytes from one row to the next */
    int32_t step, wide; /* step: 2 where U and V are interleaved, else 1; wide: whether samples have 16 bits */
} sv_plane;

typedef struct {
    sv_plane planes[3];          /* Y, U, V */
    sv_axis rows[2], columns[2]; /* for luma, for chroma */
    float matrix[3][4];          /* samples -> R, G, B, 0 to 255; the last column is a constant */
    float mean[3], scale[3];     /* result: (rounded level - mean) * scale; not for uint8 */
    void *out;
    int64_t strides[3]; /* of channel, row, column, in elements */
    int32_t type;       /* 0: uint8, 1: float16, 2: bfloat16, 3: float32 */
} sv_picture;

/* Version of this interface, which streamvid/color/render.py compares: it may find an older build. */
int32_t sv_pixels_version(void) { return 2; }

#define ROWS 16  /* output rows that are made at a time: `mix_columns` works on one sample of each at once */
#define FEW 8    /* output rows of these that are mixed while their source rows are in memory as floats */
#define BLOCK 32 /* samples of a row whose sums stay in registers; rows in `scratch` are padded to a multiple */
#define EACH(n, count) for (int32_t n = 0; n < (count); n++)

/* The source samples that output samples `begin` to `end` - 1 are made of: the first, and their number. */
static void source_span(const sv_axis *axis, int32_t begin, int32_t end, int32_t *low, int32_t *count) {
    int32_t high = *low = axis->first[begin];
    for (int32_t n = begin + 1; n < end; n++) {
        if (axis->first[n] < *low) *low = axis->first[n];
        if (axis->first[n] > high) high = axis->first[n];
    }
    *count = high + axis->taps - *low;
}

/* Convert rows of a plane, from row `top` on, to floats: `count` samples from column `low` on, then zeros up to
 * `padded`. */
FAST static void widen(const sv_plane *plane, int32_t top, int32_t rows, int32_t low, int32_t count, int32_t padded,
                       float *restrict to) {
    EACH(y, rows) {
        const uint8_t *row = plane->data + (top + y) * plane->stride;
#define COPY(type, step)                                               \
    {                                                                  \
        const type *restrict from = (const type *)row + (int64_t)low * step; \
        EACH(x, count) to[x] = from[(int64_t)x * step];                \
    }
        if (plane->wide && plane->step == 1) COPY(uint16_t, 1)
        else if (plane->wide) COPY(uint16_t, 2)
        else if (plane->step == 1) COPY(uint8_t, 1)
        else COPY(uint8_t, 2)
        for (int32_t x = count; x < padded; x++) to[x] = 0;
        to += padded;
    }
}

/* Compute output row `y`, a weighted sum of source rows; `source` has the source rows from `top` on. */
FAST static void mix_rows(const float *restrict source, const sv_axis *rows, int32_t y, int32_t top, int32_t padded,
                          float *restrict line) {
    const float *first = source + (int64_t)(rows->first[y] - top) * padded;
    for (int32_t x = 0; x < padded; x += BLOCK) {
        float sum[BLOCK] = {0};
        EACH(t, rows->taps) {
            float weight = rows->weights[(int64_t)t * rows->out + y];
            const float *restrict from = first + (int64_t)t * padded + x;
            if (weight != 0) EACH(n, BLOCK) sum[n] += weight * from[n];
        }
        EACH(n, BLOCK) line[x + n] = sum[n];
    }
}

/* Transpose `lines` lines of `count` samples: to[x * across + n] = from[n * along + x]. */
FAST static void turn(const float *restrict from, int32_t along, int32_t lines, int32_t count, float *restrict to,
                      int32_t across) {
    int32_t whole_lines = 0, whole = 0;
#if defined(__GNUC__) && !defined(__clang__)
    typedef float four __attribute__((vector_size(16)));
    typedef int32_t order __attribute__((vector_size(16)));
    whole_lines = lines & ~3, whole = count & ~3;
    for (int32_t n = 0; n < whole_lines; n += 4)
        for (int32_t x = 0; x < whole; x += 4) {
            four a, b, c, d;
            const float *at = from + (int64_t)n * along + x;
            memcpy(&a, at, 16), memcpy(&b, at + along, 16);
            memcpy(&c, at + 2 * along, 16), memcpy(&d, at + 3 * along, 16);
            four ab = __builtin_shuffle(a, b, (order){0, 4, 1, 5}), cd = __builtin_shuffle(c, d, (order){0, 4, 1, 5});
            four ef = __builtin_shuffle(a, b, (order){2, 6, 3, 7}), gh = __builtin_shuffle(c, d, (order){2, 6, 3, 7});
            a = __builtin_shuffle(ab, cd, (order){0, 1, 4, 5}), b = __builtin_shuffle(ab, cd, (order){2, 3, 6, 7});
            c = __builtin_shuffle(ef, gh, (order){0, 1, 4, 5}), d = __builtin_shuffle(ef, gh, (order){2, 3, 6, 7});
            float *made = to + (int64_t)x * across + n;
            memcpy(made, &a, 16), memcpy(made + across, &b, 16);
            memcpy(made + 2 * across, &c, 16), memcpy(made + 3 * across, &d, 16);
        }
#endif
    EACH(n, lines)
        for (int32_t x = n < whole_lines ? whole : 0; x < count; x++)
            to[(int64_t)x * across + n] = from[(int64_t)n * along + x];
}

/* The weighted sums along the other axis, for ROWS rows at a time; samples of one column are adjacent in memory. */
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

/* float16 of a finite value, rounded to nearest, ties to even (IEEE 754), also where the result is subnormal. */
static inline uint16_t half_of(float value) {
    const int32_t tiny = 0x3F000000; /* bits of 0.5: adding 0.5 rounds at the last bit of float16's subnormals */
    int32_t bits, sign, small;
    float shifted, half = 0.5f;
    memcpy(&bits, &value, 4);
    sign = bits & INT32_MIN;
    bits ^= sign;
    memcpy(&shifted, &bits, 4);
    shifted += half;
    memcpy(&small, &shifted, 4);
    small -= tiny;
    int32_t normal = (bits - 0x37FFF001 + ((bits >> 13) & 1)) >> 13;
    /* Masks and signed comparisons instead of branches, so that compilers vectorise it for AVX2, too. */
    int32_t is_small = -(bits < 0x38800000), is_infinite = -(bits >= 0x477FF000);
    int32_t made = (small & is_small) | (normal & ~is_small);
    made = (0x7C00 & is_infinite) | (made & ~is_infinite);
    return (uint16_t)(made | ((uint32_t)sign >> 16));
}

static inline uint16_t bfloat_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

/* Convert one channel of a row to the output's dtype, and write it. */
FAST static void write_row(const sv_picture *p, int c, int32_t y, const float *restrict luma, const float *restrict u,
                           const float *restrict v, float *restrict made) {
    int32_t width = p->columns[0].out;
    float a = p->matrix[c][0], b = p->matrix[c][1], d = p->matrix[c][2], e = p->matrix[c][3];
    float mean = p->type ? p->mean[c] : 0, scale = p->type ? p->scale[c] : 1;
    int64_t step = p->strides[2], at = c * p->strides[0] + y * p->strides[1];
    EACH(x, width) {
        int32_t level = (int32_t)(a * luma[x] + b * u[x] + d * v[x] + e + 0.5f);
        level = level > 0 ? level : 0;
        level = level < 255 ? level : 255;
        made[x] = ((float)level - mean) * scale;
    }
#define STORE(type, value)                                            \
    {                                                                 \
        type *restrict out = (type *)p->out + at;                     \
        if (step == 1) EACH(x, width) out[x] = value(made[x]);        \
        else EACH(x, width) out[step * x] = value(made[x]);           \
    }
#define BYTE(level) (uint8_t)(int32_t)(level)
    if (p->type == 0) STORE(uint8_t, BYTE)
    else if (p->type == 1) STORE(uint16_t, half_of)
    else if (p->type == 2) STORE(uint16_t, bfloat_of)
    else STORE(float, )
}

/* Make one picture. streamvid/color/render.py allocates `scratch`, and computes its size from the same constants. */
void sv_render(const sv_picture *p, float *scratch) {
    int32_t height = p->rows[0].out, width = p->columns[0].out, low[2], count[2], padded[2], longest = 0;
    int64_t size = (int64_t)ROWS * width;
    for (int i = 0; i < 2; i++) {
        source_span(&p->columns[i], 0, width, &low[i], &count[i]);
        padded[i] = (count[i] + BLOCK - 1) / BLOCK * BLOCK;
        longest = padded[i] > longest ? padded[i] : longest;
    }
    float *made = scratch, *mixed = made + 3 * size, *row = mixed + size, *few = row + width;
    float *lines = few + FEW * longest, *source = lines + ROWS * longest;
    for (int32_t y = 0; y < height; y += ROWS) {
        int32_t rows = height - y < ROWS ? height - y : ROWS;
        if (rows < ROWS) memset(lines, 0, sizeof *lines * ROWS * longest); /* sums of missing rows are computed, too */
        for (int i = 0; i < 3; i++) {
            const sv_axis *down = &p->rows[i > 0];
            int32_t from = low[i > 0], samples = count[i > 0], along = padded[i > 0];
            for (int32_t r = 0; r < rows; r += FEW) {
                int32_t some = rows - r < FEW ? rows - r : FEW, top, sources;
                source_span(down, y + r, y + r + some, &top, &sources);
                widen(&p->planes[i], top, sources, from, samples, along, source);
                EACH(n, some) mix_rows(source, down, y + r + n, top, along, few + (int64_t)n * along);
                turn(few, along, some, samples, lines + r, ROWS);
            }
            mix_columns(lines, &p->columns[i > 0], from, mixed);
            turn(mixed, ROWS, width, rows, made + i * size, width);
        }
        EACH(r, rows)
            for (int c = 0; c < 3; c++) {
                const float *luma = made + (int64_t)r * width;
                write_row(p, c, y + r, luma, luma + size, luma + 2 * size, row);
            }
    }
}
