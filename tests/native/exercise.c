/* Drives streamvid/native/nvdec.c through the stand-in for the driver, under sanitizers: exercise DRIVER [threads]. */
#include "../../streamvid/native/nvdec.c"

typedef struct {
    uint32_t magic, seed;
    int32_t order;
    uint16_t width, height, coded_width, coded_height, left, top;
    uint8_t depth, surfaces, reorder, key, shown, broken;
    uint8_t pad[2];
} standin_packet;

enum { PACKETS = 12, JOBS = 24, TOGETHER = 3, SLOTS_USED = 5, LENGTH = 2, AHEAD = 40, KEPT = 16 };

static int (*standin_fail)(const char *, int, int);
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
    uint8_t packets[PACKETS * (LENGTH + sizeof(standin_packet))];
    int64_t table[3 * PACKETS];
} given;

typedef struct {
    nvdec_staging staging;
    nvdec_session *session;
    long taken, wrong;
    int ahead;
    given given[KEPT];
} lane;

static size_t height_of(int64_t job) {
    return 48 + 8 * (size_t)(job % 3);
}

/* Of some jobs only a part is read. */
static nvdec_window window_of(int64_t job, int32_t width) {
    int32_t height = (int32_t)height_of(job), edge = job % 4 == 2 ? 10 : 0;
    return (nvdec_window){edge, height - edge, edge, width - edge};
}

/* Of picture (job, row) the seed is job * 100 + row: compare some samples of each. */
static void take(lane *l) {
    standin_synchronize();
    for (int k = 0; k < l->staging.count; k++) {
        int n = (l->staging.first + k) % l->staging.slots;
        uint32_t seed = (uint32_t)(l->staging.jobs[n] * 100 + l->staging.rows[n]);
        size_t columns = (size_t)l->staging.columns[n], rows = height_of(l->staging.jobs[n]);
        const uint8_t *luma = (const uint8_t *)(uintptr_t)l->staging.places[n];
        const uint8_t *chroma = luma + l->staging.chroma_at[n] - rows * columns;
        nvdec_window part = window_of(l->staging.jobs[n], 32);
        for (uint32_t row = 0; row < rows * 3 / 2; row += 7)
            for (uint32_t x = (uint32_t)part.left; x < (uint32_t)part.right; x += 5) {
                int32_t line = (int32_t)(row < rows ? row : 2 * (row - (uint32_t)rows));
                if (line < part.top || line >= part.bottom) continue;
                uint32_t coded_row = row < rows ? row + 2 : row - (uint32_t)rows + ((uint32_t)rows + 16) + 1;
                l->wrong += (row < rows ? luma : chroma)[row * columns + x] != (uint8_t)standin_sample(seed, coded_row, x + 4);
            }
    }
    l->taken += l->staging.count;
    l->staging.count = 0;
}

static void open_lane(lane *l, int delay, int ahead) {
    l->staging = (nvdec_staging){.slots = SLOTS_USED};
    l->ahead = ahead;
    nvdec_options options = {.codec = 4, .bit_depth = 8, .max_width = 64, .max_height = 64, .delay = delay,
                             .surfaces = 2, .staging = &l->staging};
    char error[400];
    l->session = nvdec_open(&options, error, sizeof error);
}

/* Give jobs, and take pictures until the call is done. */
static int decode(lane *l, const nvdec_job *jobs, int count, int draining) {
    int status = nvdec_decode(l->session, jobs, count, l->ahead, draining);
    while (!status && (l->staging.pending || l->staging.count > SLOTS_USED / 2)) {
        take(l);
        if (l->staging.pending) status = nvdec_decode(l->session, NULL, 0, l->ahead, 0);
    }
    return status;
}

/* Groups of pictures with B-frames, of which every other is wanted, in one call. What jobs point to belongs to the lane:
 * it is read behind the call. */
static int decode_some(lane *l, int64_t first, int count, int lies) {
    static const int32_t order[PACKETS] = {0, 3, 1, 2, 6, 4, 5, 9, 7, 8, 11, 10};
    static const uint8_t header[] = {0, 0, 0, 1, 0x67};
    nvdec_job jobs[TOGETHER];
    for (int i = 0; i < count; i++) {
        int64_t number = first + i;
        int lenient = number % 7 == 6;
        int32_t width = 32 + 16 * (int)(number % 4), height = (int)height_of(number);
        /* Some have a length before each packet, and a header. */
        int length_size = number % 3 ? LENGTH : 0, header_size = length_size ? (int)sizeof header : 0;
        given *one_job = &l->given[number % KEPT];
        uint8_t *at = one_job->packets;
        int64_t *table = one_job->table;
        for (int n = 0; n < PACKETS; n++) {
            standin_packet one = {
                .seed = (uint32_t)(number * 100 + order[n]), .order = order[n], .width = (uint16_t)width,
                .height = (uint16_t)height, .coded_width = (uint16_t)(width + 16),
                .coded_height = (uint16_t)(height + 16), .left = 4, .top = 2, .depth = 8,
                .surfaces = (uint8_t)(6 + number % 2), .reorder = 2, .key = n == 0, .shown = 1};
            if (length_size) *at++ = 0, *at++ = sizeof one + (lies && n == 5);
            memcpy(at, &one, sizeof one);
            at += sizeof one;
            table[n] = length_size + (int64_t)sizeof one;
            table[PACKETS + n] = order[n] % 2 ? order[n] : NOT_WANTED;
            table[2 * PACKETS + n] = 1000 + order[n];
        }
        jobs[i] = (nvdec_job){number, width, height, window_of(number, width), PACKETS, number % 2 || lenient, lenient,
                              !lenient && number % 5 == 1, length_size, header_size, header, one_job->packets, table};
    }
    return decode(l, jobs, count, 0);
}

static int run_lane(lane *l, int delay, int ahead) {
    l->taken = 0;
    open_lane(l, delay, ahead);
    if (!l->session) return -1;
    int status = 0;
    for (int64_t n = 0; n < JOBS && !status; n += TOGETHER) status = decode_some(l, n, TOGETHER, 0);
    if (!status) status = decode(l, NULL, 0, 1);
    if (!status) take(l);
    EXPECT(!l->wrong, "%ld samples are wrong", l->wrong);
    EXPECT(status || l->taken == JOBS * PACKETS / 2, "%ld pictures", l->taken);
    EXPECT(status || l->staging.confirmed == JOBS, "%ld are confirmed", (long)l->staging.confirmed);
    EXPECT(!status || *nvdec_error(l->session), "no reason is given");
    EXPECT(!nvdec_close(l->session), "it cannot be closed");
    return status;
}

static void *thread(void *argument) {
    lane *l = argument;
    for (int n = 0; n < 6; n++) EXPECT(!run_lane(l, n % 5, n % 2 * AHEAD), "a session failed beside others");
    return NULL;
}

static void *stopped(void *argument) {
    lane *l = argument;
    int status = 0;
    for (int64_t n = 0; n < 100000 && !status; n++) status = decode_some(l, n, 1, 0);
    EXPECT(status == NVDEC_STOPPED, "status %d", status);
    return NULL;
}

/* Turns that do not run out belong to one thread at a time, in the order in which they were asked for. */
static void *turn_by_turn(void *unused) {
    static int64_t last; /* written by many threads, one after another */
    for (int n = 0; n < 500; n++) {
        nvdec_begin_turn();
        pthread_mutex_lock(&turns.lock);
        int mine = turns.number == my_turn;
        if (mine) turns.end = INT64_MAX;
        pthread_mutex_unlock(&turns.lock);
        if (mine) {
            EXPECT(my_turn > last, "turn %ld is after %ld", (long)my_turn, (long)last);
            last = my_turn;
        }
        if (n % 50) nvdec_end_turn(); /* or begin the next at once */
    }
    nvdec_end_turn();
    return unused;
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

    static lane lanes[7];
    for (int delay = 0; delay < 5; delay++)
        for (int ahead = 0; ahead <= AHEAD; ahead += AHEAD / 2)
            EXPECT(!run_lane(&lanes[0], delay, ahead), "status with a delay of %d, %d ahead", delay, ahead);

    /* Each call of the driver fails once, wherever it is; what was opened is closed all the same. */
#define NAME(library, name, symbol, types) symbol,
    const char *names[] = {FUNCTIONS(NAME)};
    for (size_t n = 0; only_threads == 0 && n < sizeof names / sizeof *names; n++)
        for (int nth = 1, away = 0; nth < 400 && !away; nth = nth * 3 / 2 + 1) {
            standin_fail(names[n], nth, 999);
            run_lane(&lanes[0], 2, nth % 2 * AHEAD);
            away = standin_fail("", 0, 0); /* there are not as many calls */
        }
    pthread_t threads[7];
    for (int n = 0; n < 7; n++) pthread_create(&threads[n], NULL, thread, &lanes[n]);
    for (int n = 0; n < 7; n++) pthread_join(threads[n], NULL);

    for (int n = 0; n < 7; n++) pthread_create(&threads[n], NULL, turn_by_turn, NULL);
    for (int n = 0; n < 7; n++) pthread_join(threads[n], NULL);

    open_lane(&lanes[0], 2, 0);
    EXPECT(decode_some(&lanes[0], 1, 1, 1) == NVDEC_STREAM, "a length that leads out of its packet is taken");
    EXPECT(!nvdec_close(lanes[0].session), "a session that failed cannot be closed");

    open_lane(&lanes[0], 2, AHEAD);
    EXPECT(!decode_some(&lanes[0], 1, TOGETHER, 0), "what waits is refused");
    EXPECT(!nvdec_close(lanes[0].session), "a session with jobs that wait cannot be closed");

    open_lane(&lanes[0], 2, 0);
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
