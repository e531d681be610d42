/* Drives streamvid/native/nvdec.c through the stand-in for the driver, under sanitizers: exercise DRIVER [threads]. */
#include "../../streamvid/native/nvdec.c"

typedef struct {
    uint32_t magic, seed;
    int32_t order;
    uint16_t width, height, coded_width, coded_height, left, top;
    uint8_t depth, surfaces, reorder, key, shown, broken;
    uint8_t pad[2];
} standin_packet;

enum { PACKETS = 12, JOBS = 24, TOGETHER = 3, SLOTS_USED = 5, LENGTH = 2 };

static void (*standin_fail)(const char *, int, int);
static void (*standin_counts)(int64_t *);
static void (*standin_synchronize)(void);
static unsigned (*standin_sample)(uint32_t, uint32_t, uint32_t);

#define EXPECT(condition, ...)                                   \
    do {                                                         \
        if (!(condition)) {                                      \
            fprintf(stderr, "%s:%d: %s; ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                        \
            fprintf(stderr, "\n");                               \
            exit(1);                                             \
        }                                                        \
    } while (0)

typedef struct {
    nvdec_staging staging;
    nvdec_session *session;
    long taken, wrong;
} lane;

static __thread lane *here;

static size_t height_of(int64_t job) {
    return 48 + 8 * (size_t)(job % 3);
}

/* Of picture (job, row) the seed is job * 100 + row: compare some samples of each. */
static int32_t take(void) {
    standin_synchronize();
    for (int n = 0; n < here->staging.count; n++) {
        uint32_t seed = (uint32_t)(here->staging.jobs[n] * 100 + here->staging.rows[n]);
        size_t columns = (size_t)here->staging.columns[n], rows = height_of(here->staging.jobs[n]);
        const uint8_t *luma = (const uint8_t *)(uintptr_t)here->staging.places[n];
        const uint8_t *chroma = luma + here->staging.chroma_at[n] - rows * columns;
        for (uint32_t row = 0; row < rows * 3 / 2; row += 7)
            for (uint32_t x = 0; x < 32; x += 5) {
                uint32_t coded_row = row < rows ? row + 2 : row - (uint32_t)rows + ((uint32_t)rows + 16) + 1;
                here->wrong += (row < rows ? luma : chroma)[row * columns + x] != (uint8_t)standin_sample(seed, coded_row, x + 4);
            }
    }
    here->taken += here->staging.count;
    return 0;
}

static void open_lane(lane *l, int delay) {
    l->staging = (nvdec_staging){.slots = SLOTS_USED};
    nvdec_options options = {.codec = 4, .bit_depth = 8, .max_width = 64, .max_height = 64, .delay = delay,
                             .surfaces = 2, .staging = &l->staging, .full = take};
    char error[400];
    l->session = nvdec_open(&options, error, sizeof error);
}

/* Groups of pictures with B-frames, of which every other is wanted, in one call. */
static int decode_some(lane *l, int64_t first, int count, int lies) {
    static const int32_t order[PACKETS] = {0, 3, 1, 2, 6, 4, 5, 9, 7, 8, 11, 10};
    static const uint8_t header[] = {0, 0, 0, 1, 0x67};
    uint8_t packets[TOGETHER][PACKETS * (LENGTH + sizeof(standin_packet))];
    int64_t tables[TOGETHER][3 * PACKETS];
    nvdec_job jobs[TOGETHER];
    for (int i = 0; i < count; i++) {
        int64_t number = first + i;
        int lenient = number % 7 == 6;
        int32_t width = 32 + 16 * (int)(number % 4), height = (int)height_of(number);
        /* Some have a length before each packet, and a header. */
        int length_size = number % 3 ? LENGTH : 0, header_size = length_size ? (int)sizeof header : 0;
        uint8_t *at = packets[i];
        for (int n = 0; n < PACKETS; n++) {
            standin_packet one = {
                .seed = (uint32_t)(number * 100 + order[n]), .order = order[n], .width = (uint16_t)width,
                .height = (uint16_t)height, .coded_width = (uint16_t)(width + 16),
                .coded_height = (uint16_t)(height + 16), .left = 4, .top = 2, .depth = 8,
                .surfaces = (uint8_t)(6 + number % 2), .reorder = 2, .key = n == 0, .shown = 1};
            if (length_size) *at++ = 0, *at++ = sizeof one + (lies && n == 5);
            memcpy(at, &one, sizeof one);
            at += sizeof one;
            tables[i][n] = length_size + (int64_t)sizeof one;
            tables[i][PACKETS + n] = order[n] % 2 ? order[n] : NOT_WANTED;
            tables[i][2 * PACKETS + n] = 1000 + order[n];
        }
        jobs[i] = (nvdec_job){number, width, height, PACKETS, number % 2 || lenient, lenient,
                              !lenient && number % 5 == 1, length_size, header_size, header, packets[i], tables[i]};
    }
    return nvdec_decode(l->session, jobs, count);
}

static int run(lane *l, int delay) {
    here = l;
    l->taken = 0;
    open_lane(l, delay);
    if (!l->session) return -1;
    int status = 0;
    for (int64_t n = 0; n < JOBS && !status; n += TOGETHER) status = decode_some(l, n, TOGETHER, 0);
    if (!status) status = nvdec_flush(l->session);
    if (!status) take();
    EXPECT(!l->wrong, "%ld samples are wrong", l->wrong);
    EXPECT(status || l->taken == JOBS * PACKETS / 2, "%ld pictures", l->taken);
    EXPECT(status || l->staging.confirmed == JOBS, "%ld are confirmed", (long)l->staging.confirmed);
    EXPECT(!status || *nvdec_error(l->session), "no reason is given");
    EXPECT(!nvdec_close(l->session), "it cannot be closed");
    return status;
}

static void *thread(void *argument) {
    lane *l = argument;
    for (int n = 0; n < 6; n++) EXPECT(!run(l, n % 5), "a session failed beside others");
    return NULL;
}

static void *stopped(void *argument) {
    lane *l = here = argument;
    int status = 0;
    for (int64_t n = 0; n < 100000 && !status; n++) status = decode_some(l, n, 1, 0);
    EXPECT(status == NVDEC_STOPPED, "status %d", status);
    return NULL;
}

int main(int count, char **arguments) {
    EXPECT(count > 1, "the driver's path is missing");
    int only_threads = count > 2;
    EXPECT(nvdec_load("nowhere.so", "nowhere.so"), "what is not there was loaded");
    const char *error = nvdec_load(arguments[1], arguments[1]);
    EXPECT(!error, "%s", error);
    void *library = dlopen(arguments[1], RTLD_NOW);
    *(void **)&standin_fail = dlsym(library, "standin_fail");
    *(void **)&standin_counts = dlsym(library, "standin_counts");
    *(void **)&standin_synchronize = dlsym(library, "standin_synchronize");
    *(void **)&standin_sample = dlsym(library, "standin_sample");

    lane lanes[7] = {0};
    for (int delay = 0; delay < 5; delay++)
        EXPECT(!run(&lanes[0], delay), "status with a delay of %d", delay);

    /* Each call of the driver fails once, wherever it is; what was opened is closed all the same. */
#define NAME(library, name, symbol, types) symbol,
    const char *names[] = {FUNCTIONS(NAME)};
    for (size_t n = 0; only_threads == 0 && n < sizeof names / sizeof *names; n++)
        for (int nth = 1; nth < 400; nth = nth * 3 / 2 + 1) {
            standin_fail(names[n], nth, 999);
            run(&lanes[0], 2);
            standin_fail("", 0, 0);
        }
    pthread_t threads[7];
    for (int n = 0; n < 7; n++) pthread_create(&threads[n], NULL, thread, &lanes[n]);
    for (int n = 0; n < 7; n++) pthread_join(threads[n], NULL);

    here = &lanes[0];
    open_lane(&lanes[0], 2);
    EXPECT(decode_some(&lanes[0], 1, 1, 1) == NVDEC_STREAM, "a length that leads out of its packet is taken");
    EXPECT(!nvdec_close(lanes[0].session), "a session that failed cannot be closed");

    open_lane(&lanes[0], 2);
    pthread_create(&threads[0], NULL, stopped, &lanes[0]);
    nvdec_stop(lanes[0].session);
    pthread_join(threads[0], NULL);
    EXPECT(!nvdec_close(lanes[0].session), "a stopped session cannot be closed");

    int64_t counts[2];
    standin_counts(counts);
    EXPECT(!counts[0], "%ld objects of the driver are open", (long)counts[0]);
    puts("fine");
    return 0;
}
