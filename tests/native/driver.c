/* Stands in for libcuda and libnvcuvid: host memory for the GPU's, made-up pictures for decoded ones, errors on demand.
 *
 * Packets are `standin_packet`s, some behind a start code, whose pictures are a function of their seed; or, where a
 * hook is set, whatever that understands, which gives pictures back through `standin_picture`. The parser works as NVIDIA's does: it decodes a
 * picture when the next packet or the end comes, hands pictures out in the order of display, and holds some back; it
 * takes times that never fall from packet to packet for those of decoding, and gives them out in their own order. What
 * the real one leaves undefined is an error here: calls without a context, more surfaces than were opened, decoders
 * changed outside of the sequence callback, pictures decoded while all output surfaces are mapped (the real one waits
 * for ever). Mapping is queued until somebody waits for it: what a surface holds then is what comes out, and what is
 * unmapped before is lost.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../streamvid/native/nvcuvid.h"

enum { SURFACES = 64, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, UNKNOWN = 999 };

typedef struct {
    uint32_t magic, seed;
    int32_t order; /* of display, within a group of pictures */
    uint16_t width, height, coded_width, coded_height, left, top;
    uint8_t depth, surfaces, reorder, key, shown, broken;
    uint8_t pad[2];
} standin_packet;

typedef struct {
    unsigned char *samples;
    size_t bytes;
} surface;

typedef struct {
    CUVIDDECODECREATEINFO info;
    surface surfaces[SURFACES];
    unsigned char *mapped[SURFACES];
    int busy, overrun; /* with this picture and those before, if not 0, less 1; what it writes comes too late */
} decoder;

typedef struct {
    CUVIDPICPARAMS params; /* all that the caller sees */
    CUVIDEOFORMAT format;
    const unsigned char *samples; /* coded size, rows without a gap */
} coded_picture;

typedef struct {
    int index, order;
    long long time;
} waiting_picture;

typedef struct {
    CUVIDPARSERPARAMS params;
    CUVIDEOFORMAT format;
    int surfaces, count, reorder;
    waiting_picture waiting[SURFACES];
    standin_packet pending;
    long long pending_time, last_time;
    int has_pending, said, falls; /* whether times ever fell from one packet to the next */
} parser;

typedef int (*hook)(void *, const unsigned char *, int64_t, int64_t, int64_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[64];
    int nth, result;
} failing;
static int64_t open_objects, sessions_opened;
static int spoil_kind, spoil_nth;
static hook hooked;
static void (*entered)(const char *);
static __thread int depth_of_contexts;
static __thread int within_sequence;

/* What is queued on the stream, which all sessions share, until it is waited for. */
typedef struct {
    unsigned char *to;
    const unsigned char *from;
    size_t to_pitch, from_pitch, bytes, rows;
} queued_copy;

static pthread_mutex_t stream = PTHREAD_MUTEX_INITIALIZER;
static queued_copy queue[256];
static unsigned char *unmapped[256]; /* that the queue may still read */
static int queued, kept;

static void work_off(void) {
    for (int n = 0; n < queued; n++)
        for (size_t row = 0; row < queue[n].rows; row++)
            memcpy(queue[n].to + row * queue[n].to_pitch, queue[n].from + row * queue[n].from_pitch, queue[n].bytes);
    queued = 0;
    while (kept) free(unmapped[--kept]);
}

void standin_synchronize(void) {
    pthread_mutex_lock(&stream);
    work_off();
    pthread_mutex_unlock(&stream);
}

static void enqueue(queued_copy copy) {
    pthread_mutex_lock(&stream);
    if (queued == 256) work_off();
    queue[queued++] = copy;
    pthread_mutex_unlock(&stream);
}

/* Queue a copy, as a kernel that reads a mapped picture. */
void standin_copy(unsigned char *to, const unsigned char *from, int64_t bytes) {
    enqueue((queued_copy){to, from, 0, 0, (size_t)bytes, 1});
}

static void count(int64_t by) {
    pthread_mutex_lock(&lock);
    open_objects += by;
    pthread_mutex_unlock(&lock);
}

/* Whether this call of a function is to fail. */
static int fails(const char *name) {
    if (entered) entered(name);
    int result = 0;
    pthread_mutex_lock(&lock);
    if (!strcmp(failing.name, name) && failing.nth > 0 && !--failing.nth) result = failing.result;
    pthread_mutex_unlock(&lock);
    return result;
}
#define MAY_FAIL(needs_context)                                      \
    do {                                                             \
        int result_ = fails(__func__);                               \
        if (result_) return result_;                                 \
        if ((needs_context) && !depth_of_contexts) return INVALID_CONTEXT; \
    } while (0)

/* ---- for tests ---- */

/* The nth call from now on of a function fails with an error; 0: none does. Returns how many calls the last failure that
 * was asked for is still away, 0 if it has come. */
int standin_fail(const char *name, int nth, int result) {
    pthread_mutex_lock(&lock);
    int away = failing.nth;
    strncpy(failing.name, name, sizeof failing.name - 1);
    failing.nth = nth;
    failing.result = result;
    pthread_mutex_unlock(&lock);
    return away;
}

/* Packets go to this, with their flags and times; first, when a parser is made, none with its codec as the time. */
void standin_hook(hook parse) {
    hooked = parse;
}

/* The nth picture from now on that is shown is lost (1), comes twice (2) or has another's time (3). */
void standin_spoil(int kind, int nth) {
    pthread_mutex_lock(&lock);
    spoil_kind = kind;
    spoil_nth = nth;
    pthread_mutex_unlock(&lock);
}

/* Is called at the beginning of each call of the driver. */
void standin_entered(void (*call)(const char *)) {
    entered = call;
}

/* Parsers, decoders, mapped pictures and contexts that are open; decoders that ever were. */
void standin_counts(int64_t found[2]) {
    pthread_mutex_lock(&lock);
    found[0] = open_objects;
    found[1] = sessions_opened;
    pthread_mutex_unlock(&lock);
}

/* ---- libcuda ---- */

CUresult cuInit(unsigned flags) {
    MAY_FAIL(0);
    return flags ? INVALID_VALUE : 0;
}

CUresult cuDeviceGet(CUdevice *device, int number) {
    MAY_FAIL(0);
    *device = number;
    return number ? 101 : 0;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
    *name = result == UNKNOWN ? "CUDA_ERROR_UNKNOWN" : result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    MAY_FAIL(0);
    count(1);
    *context = (CUcontext)&open_objects;
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    count(-1);
    MAY_FAIL(0);
    return 0;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    MAY_FAIL(0);
    if (context != (CUcontext)&open_objects) return INVALID_CONTEXT;
    depth_of_contexts++;
    return 0;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    (void)context;
    MAY_FAIL(1);
    depth_of_contexts--;
    return 0;
}

CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    standin_synchronize();
    MAY_FAIL(1);
    return 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    MAY_FAIL(1);
    *address = (uintptr_t)malloc(bytes);
    count(1);
    return 0;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    int result = fails(__func__);
    const unsigned char *memory = (void *)(uintptr_t)address, *end = memory + malloc_usable_size((void *)memory);
    pthread_mutex_lock(&stream);
    for (int n = 0; n < queued; n++) /* it may still be read or written */
        if ((queue[n].from >= memory && queue[n].from < end) || (queue[n].to >= memory && queue[n].to < end))
            result = INVALID_VALUE;
    work_off();
    pthread_mutex_unlock(&stream);
    free((void *)(uintptr_t)address);
    count(-1);
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *text) {
    MAY_FAIL(1);
    *module = (CUmodule)strdup(text);
    count(1);
    return 0;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    MAY_FAIL(1);
    char entry[64];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    *function = (CUfunction)strstr((const char *)module, entry);
    return *function ? 0 : NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule module) {
    int result = fails(__func__);
    free(module);
    count(-1);
    return result;
}

/* The only kernel is `copy_lines`. */
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,
                        unsigned threads_y, unsigned threads_z, unsigned shared, CUstream stream, void **parameters,
                        void **extra) {
    (void)stream;
    MAY_FAIL(1);
    if (!function || !blocks || blocks_y * blocks_z != 1 || !threads || threads_y * threads_z != 1 || shared || extra)
        return INVALID_VALUE;
    size_t pitch = *(unsigned *)parameters[2], width = *(unsigned *)parameters[3], units = *(unsigned *)parameters[4];
    enqueue((queued_copy){*(unsigned char **)parameters[0], *(const unsigned char **)parameters[1], width * 16, pitch * 16,
                          width * 16, units / width});
    return 0;
}

CUresult cuEventCreate(CUevent *made, unsigned flags) {
    MAY_FAIL(1);
    if (flags != (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return INVALID_VALUE;
    *made = malloc(1);
    count(1);
    return 0;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    MAY_FAIL(1);
    return 0;
}

/* What was recorded is not done before somebody waits for it. */
CUresult cuEventQuery(CUevent event) {
    (void)event;
    MAY_FAIL(1);
    pthread_mutex_lock(&stream);
    int waits = queued;
    pthread_mutex_unlock(&stream);
    return waits ? NOT_READY : 0;
}

CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    MAY_FAIL(1);
    standin_synchronize();
    return 0;
}

CUresult cuEventDestroy_v2(CUevent event) {
    int result = fails(__func__);
    free(event);
    count(-1);
    return result;
}

/* ---- decoders ---- */

CUresult cuvidGetDecoderCaps(CUVIDDECODECAPS *caps) {
    MAY_FAIL(1);
    caps->bIsSupported = caps->nBitDepthMinus8 < 3;
    caps->nNumNVDECs = 7;
    caps->nMinWidth = 48;
    caps->nMinHeight = 16;
    caps->nMaxWidth = caps->nMaxHeight = 4096;
    return 0;
}

CUresult cuvidCreateDecoder(CUvideodecoder *made, CUVIDDECODECREATEINFO *info) {
    MAY_FAIL(1);
    if (!within_sequence || info->ulWidth > info->ulMaxWidth || info->ulHeight > info->ulMaxHeight ||
        info->ulNumDecodeSurfaces > SURFACES || !info->ulNumDecodeSurfaces || info->ulTargetWidth % 2 ||
        info->ulTargetHeight % 2 || info->ulNumOutputSurfaces < 1)
        return INVALID_VALUE;
    decoder *d = calloc(1, sizeof *d);
    d->info = *info;
    *made = d;
    count(1);
    pthread_mutex_lock(&lock);
    sessions_opened++;
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuvidReconfigureDecoder(CUvideodecoder handle, CUVIDRECONFIGUREDECODERINFO *info) {
    MAY_FAIL(1);
    decoder *d = handle;
    if (!within_sequence || info->ulWidth > d->info.ulMaxWidth || info->ulHeight > d->info.ulMaxHeight ||
        info->ulNumDecodeSurfaces > d->info.ulNumDecodeSurfaces)
        return INVALID_VALUE;
    d->info.ulWidth = d->info.ulTargetWidth = info->ulWidth;
    d->info.ulHeight = d->info.ulTargetHeight = info->ulHeight;
    d->overrun = d->busy;
    /* Nothing of the former size is left. */
    for (int n = 0; n < SURFACES; n++) {
        free(d->surfaces[n].samples);
        d->surfaces[n] = (surface){0};
    }
    return 0;
}

CUresult cuvidDestroyDecoder(CUvideodecoder handle) {
    decoder *d = handle;
    int result = fails(__func__);
    standin_synchronize();
    for (int n = 0; n < SURFACES; n++) free(d->surfaces[n].samples);
    for (int n = 0; n < SURFACES; n++)
        if (d->mapped[n]) result = INVALID_VALUE;
    free(d);
    count(-1);
    return result;
}

CUresult cuvidDecodePicture(CUvideodecoder handle, CUVIDPICPARAMS *params) {
    MAY_FAIL(1);
    decoder *d = handle;
    const coded_picture *picture = (const coded_picture *)params;
    size_t sample = d->info.bitDepthMinus8 ? 2 : 1, bytes = d->info.ulWidth * d->info.ulHeight * 3 / 2 * sample;
    if ((unsigned long)params->CurrPicIdx >= d->info.ulNumDecodeSurfaces ||
        picture->format.coded_width != d->info.ulWidth || picture->format.coded_height != d->info.ulHeight)
        return INVALID_VALUE;
    unsigned long mapped = 0;
    for (int n = 0; n < SURFACES; n++) mapped += d->mapped[n] != NULL;
    if (mapped >= d->info.ulNumOutputSurfaces) return UNKNOWN;
    surface *s = &d->surfaces[params->CurrPicIdx];
    if (s->bytes != bytes) {
        free(s->samples);
        s->samples = malloc(bytes);
        s->bytes = bytes;
    }
    memcpy(s->samples, picture->samples, bytes);
    if (d->overrun) memset(s->samples, 0xAB, bytes / 2);
    d->overrun = 0;
    d->busy = params->CurrPicIdx + 1;
    return 0;
}

static size_t pitch_of(const decoder *d) {
    return (d->info.ulTargetWidth * (d->info.bitDepthMinus8 ? 2 : 1) + 511) / 512 * 512;
}

CUresult cuvidMapVideoFrame64(CUvideodecoder handle, int index, unsigned long long *address, unsigned *pitch,
                              CUVIDPROCPARAMS *how) {
    MAY_FAIL(1);
    (void)how;
    decoder *d = handle;
    unsigned long n = 0;
    while (n < SURFACES && d->mapped[n]) n++;
    if (index < 0 || index >= SURFACES || !d->surfaces[index].samples || n >= d->info.ulNumOutputSurfaces)
        return INVALID_VALUE;
    if (index + 1 == d->busy) d->busy = 0;
    size_t wide = pitch_of(d), rows = d->info.ulTargetHeight * 3 / 2,
           line = d->info.ulTargetWidth * (d->info.bitDepthMinus8 ? 2 : 1);
    d->mapped[n] = malloc(wide * rows);
    memset(d->mapped[n], 0xEE, wide * rows);
    enqueue((queued_copy){d->mapped[n], d->surfaces[index].samples, wide, line, line, rows});
    *address = (uintptr_t)d->mapped[n];
    *pitch = (unsigned)wide;
    count(1);
    return 0;
}

CUresult cuvidUnmapVideoFrame64(CUvideodecoder handle, unsigned long long address) {
    decoder *d = handle;
    int result = fails(__func__);
    for (int n = 0; n < SURFACES; n++)
        if (d->mapped[n] && (uintptr_t)d->mapped[n] == address) {
            pthread_mutex_lock(&stream);
            if (kept == 256) work_off();
            /* Something else is made there at once. */
            for (int i = 0; i < queued; i++)
                if (queue[i].to == d->mapped[n]) queue[i].rows = 0;
            memset(d->mapped[n], 0xDD, pitch_of(d) * d->info.ulTargetHeight * 3 / 2);
            unmapped[kept++] = d->mapped[n];
            pthread_mutex_unlock(&stream);
            d->mapped[n] = NULL;
            count(-1);
            return result;
        }
    return INVALID_VALUE;
}

/* ---- parsers ---- */

static int show(parser *p, int which) {
    if (!p->falls)
        for (int n = 0; n < p->count; n++)
            if (p->waiting[n].time < p->waiting[which].time) {
                long long least = p->waiting[n].time;
                p->waiting[n].time = p->waiting[which].time;
                p->waiting[which].time = least;
            }
    waiting_picture one = p->waiting[which];
    p->waiting[which] = p->waiting[--p->count];
    int spoil = 0;
    pthread_mutex_lock(&lock);
    if (spoil_nth > 0 && !--spoil_nth) spoil = spoil_kind;
    pthread_mutex_unlock(&lock);
    if (spoil == 1) return 1;
    CUVIDPARSERDISPINFO shown = {
        .picture_index = one.index, .progressive_frame = 1, .timestamp = one.time + (spoil == 3 ? 40 : 0)};
    int result = p->params.pfnDisplayPicture(p->params.pUserData, &shown);
    return spoil == 2 && result ? p->params.pfnDisplayPicture(p->params.pUserData, &shown) : result;
}

static int show_down_to(parser *p, int left) {
    while (p->count > left) {
        int first = 0;
        for (int n = 1; n < p->count; n++)
            if (p->waiting[n].order < p->waiting[first].order) first = n;
        if (!show(p, first)) return 0;
    }
    return 1;
}

static int decode(parser *p, const CUVIDEOFORMAT *format, const unsigned char *samples, int order, long long time,
                  int shown) {
    if (!p->said || memcmp(format, &p->format, sizeof *format)) {
        if (!show_down_to(p, 0)) return 0;
        p->format = *format;
        within_sequence = 1;
        int surfaces = p->params.pfnSequenceCallback(p->params.pUserData, &p->format);
        within_sequence = 0;
        if (!surfaces) return 0;
        p->surfaces = surfaces > 1 ? surfaces : (int)p->params.ulMaxNumDecodeSurfaces;
        p->said = 1;
    }
    if (p->count >= p->surfaces && !show_down_to(p, p->surfaces - 1)) return 0;
    coded_picture coded = {.format = *format, .samples = samples};
    for (int n = 0; n < p->count; n++)
        if (p->waiting[n].index == coded.params.CurrPicIdx) coded.params.CurrPicIdx++, n = -1;
    if (!p->params.pfnDecodePicture(p->params.pUserData, &coded.params)) return 0;
    if (shown) p->waiting[p->count++] = (waiting_picture){coded.params.CurrPicIdx, order, time};
    return show_down_to(p, p->reorder + (int)p->params.ulMaxDisplayDelay);
}

/* Sample x of a row of a plane: what tests compare with. */
unsigned standin_sample(uint32_t seed, uint32_t row, uint32_t x) {
    uint32_t h = seed * 2654435761u ^ row * 40503u ^ x * 2246822519u;
    return (h ^ h >> 13) * 3266489917u >> 16;
}

static int decode_pending(parser *p) {
    if (!p->has_pending) return 1;
    p->has_pending = 0;
    const standin_packet *packet = &p->pending;
    if (packet->broken) return 0;
    CUVIDEOFORMAT format;
    memset(&format, 0, sizeof format);
    format.codec = p->params.CodecType;
    format.chroma_format = cudaVideoChromaFormat_420;
    format.bit_depth_luma_minus8 = format.bit_depth_chroma_minus8 = (unsigned char)(packet->depth - 8);
    format.min_num_decode_surfaces = packet->surfaces;
    format.coded_width = packet->coded_width;
    format.coded_height = packet->coded_height;
    format.display_area =
        (CUVIDRECT){packet->left, packet->top, packet->left + packet->width, packet->top + packet->height};
    p->reorder = packet->reorder;
    if (packet->key && !show_down_to(p, 0)) return 0;
    size_t sample = packet->depth > 8 ? 2 : 1, columns = packet->coded_width, rows = packet->coded_height * 3u / 2;
    unsigned char *samples = malloc(columns * rows * sample);
    for (size_t row = 0; row < rows; row++)
        for (size_t x = 0; x < columns; x++) {
            unsigned value = standin_sample(packet->seed, (uint32_t)row, (uint32_t)x);
            if (sample == 2)
                ((uint16_t *)samples)[row * columns + x] = (uint16_t)value;
            else
                samples[row * columns + x] = (unsigned char)value;
        }
    int result = decode(p, &format, samples, packet->order, p->pending_time, packet->shown);
    free(samples);
    return result;
}

CUresult cuvidCreateVideoParser(CUvideoparser *made, CUVIDPARSERPARAMS *params) {
    MAY_FAIL(1);
    parser *p = calloc(1, sizeof *p);
    p->params = *params;
    *made = p;
    count(1);
    return !hooked || hooked(p, NULL, 0, 0, p->params.CodecType) ? 0 : UNKNOWN;
}

CUresult cuvidDestroyVideoParser(CUvideoparser handle) {
    int result = fails(__func__);
    free(handle);
    count(-1);
    return result;
}

CUresult cuvidParseVideoData(CUvideoparser handle, CUVIDSOURCEDATAPACKET *packet) {
    MAY_FAIL(1);
    parser *p = handle;
    int end = (packet->flags & CUVID_PKT_ENDOFSTREAM) != 0;
    if (hooked) {
        int64_t size = (int64_t)packet->payload_size, flags = (int64_t)packet->flags;
        return hooked(p, packet->payload, size, flags, packet->timestamp) ? 0 : UNKNOWN;
    }
    if (!decode_pending(p)) return UNKNOWN;
    if (!end) {
        static const unsigned char before[] = {0, 0, 0, 1, 0x67, 0, 0, 0, 1}; /* a header and a start code, or less */
        size_t more = packet->payload_size - sizeof p->pending;
        if ((more && more != 4 && more != sizeof before) || memcmp(packet->payload, before + sizeof before - more, more))
            return INVALID_VALUE;
        memcpy(&p->pending, packet->payload + more, sizeof p->pending);
        p->pending_time = packet->timestamp;
        p->falls |= packet->timestamp < p->last_time;
        p->last_time = packet->timestamp;
        p->has_pending = 1;
        return 0;
    }
    return show_down_to(p, 0) ? 0 : UNKNOWN;
}

/* For hooks: a picture that is decoded and shown at once; samples in rows of the coded width. 0: a callback failed. */
int standin_picture(void *handle, int64_t time, int width, int height, int coded_width, int coded_height, int depth,
                    int surfaces, const unsigned char *samples) {
    parser *p = handle;
    CUVIDEOFORMAT format;
    memset(&format, 0, sizeof format);
    format.codec = p->params.CodecType;
    format.chroma_format = cudaVideoChromaFormat_420;
    format.bit_depth_luma_minus8 = format.bit_depth_chroma_minus8 = (unsigned char)(depth - 8);
    format.min_num_decode_surfaces = (unsigned char)surfaces;
    format.coded_width = (unsigned)coded_width;
    format.coded_height = (unsigned)coded_height;
    format.display_area = (CUVIDRECT){0, 0, width, height};
    p->reorder = -(int)p->params.ulMaxDisplayDelay;
    return decode(p, &format, samples, 0, time, 1);
}
