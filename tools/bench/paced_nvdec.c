/* libcuda and libnvcuvid of a GPU that is not there, whose engines take a fixed time for each picture: nothing is
 * decoded, and no memory is touched. `tools/bench/feeding.py` sees by it what the host makes the engines wait for.
 *
 * As on an H200: decoding is queued, some pictures at a time for each decoder; mapping a picture waits until it is
 * decoded; a decoder keeps the engine that it was opened on; the parser hands pictures out in the order of their times,
 * and holds some back. A copy takes COPY_NS.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../streamvid/native/nvcuvid.h"

enum { MOST_ENGINES = 16, SURFACES = 64, QUEUED = 8, REORDER = 2, COPY_NS = 40000 };

typedef struct {
    pthread_mutex_t lock;
    int64_t free_at, first, pictures, idle, gaps;
} engine;

typedef struct {
    engine *on;
    int64_t done_at[SURFACES], ring[QUEUED];
    unsigned next;
} decoder;

typedef struct {
    CUVIDPARSERPARAMS params;
    int surfaces, count;
    struct {
        int index;
        long long time;
    } waiting[SURFACES];
} parser;

static engine engines[MOST_ENGINES];
static int engine_count = 7;
static int64_t picture_ns = 720000;
static int width = 1280, height = 720;
static int opened;

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void sleep_until(int64_t at) {
    struct timespec until = {at / 1000000000LL, at % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
}

/* ---- for the benchmark ---- */

void paced_set(int count, int64_t nanoseconds, int wide, int high) {
    engine_count = count, picture_ns = nanoseconds, width = wide, height = high;
    for (int n = 0; n < MOST_ENGINES; n++) pthread_mutex_init(&engines[n].lock, NULL);
}

/* Forget what was counted. */
void paced_reset(void) {
    for (int n = 0; n < engine_count; n++) {
        pthread_mutex_lock(&engines[n].lock);
        engines[n].first = engines[n].pictures = engines[n].idle = engines[n].gaps = 0;
        pthread_mutex_unlock(&engines[n].lock);
    }
}

/* Of an engine, since then: pictures; nanoseconds from the first one's start to the last one's end; of these it had
 * nothing to do; how often. */
void paced_counts(int number, int64_t found[4]) {
    engine *e = &engines[number];
    pthread_mutex_lock(&e->lock);
    found[0] = e->pictures, found[1] = e->pictures ? e->free_at - e->first : 0, found[2] = e->idle, found[3] = e->gaps;
    pthread_mutex_unlock(&e->lock);
}

/* ---- libcuda ---- */

static char nothing[1];
CUresult cuInit(unsigned flags) { return (int)flags * 0; }
CUresult cuDeviceGet(CUdevice *device, int number) { return *device = number, 0; }
CUresult cuGetErrorName(CUresult result, const char **name) { return *name = result ? "an error" : "none", 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)(void *)nothing, device * 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return device * 0; }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return !context; }
CUresult cuCtxPopCurrent_v2(CUcontext *context) { return *context = NULL, 0; }
CUresult cuStreamSynchronize(CUstream stream) { return (void)stream, 0; }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { return *address = (uintptr_t)nothing, (int)(bytes * 0); }
CUresult cuMemFree_v2(CUdeviceptr address) { return (int)(address * 0); }
CUresult cuModuleLoadData(CUmodule *module, const void *text) {
    return *module = (CUmodule)(void *)nothing, (void)text, 0;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return *function = (CUfunction)module, (void)name, 0;
}
CUresult cuModuleUnload(CUmodule module) { return (void)module, 0; }
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,
                        unsigned threads_y, unsigned threads_z, unsigned shared, CUstream stream, void **parameters,
                        void **extra) {
    (void)function, (void)blocks, (void)blocks_y, (void)blocks_z, (void)threads, (void)threads_y, (void)threads_z;
    return (void)shared, (void)stream, (void)parameters, (void)extra, 0;
}
/* An event is the time at which the copy before it is done. */
CUresult cuEventCreate(CUevent *made, unsigned flags) { return *made = calloc(1, sizeof(int64_t)), (int)flags * 0; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
    return (void)stream, *(int64_t *)(void *)event = now() + COPY_NS, 0;
}
CUresult cuEventQuery(CUevent event) { return now() < *(int64_t *)(void *)event ? 600 : 0; }
CUresult cuEventSynchronize(CUevent event) { return sleep_until(*(int64_t *)(void *)event), 0; }
CUresult cuEventDestroy_v2(CUevent event) { return free(event), 0; }

/* ---- libnvcuvid ---- */

CUresult cuvidGetDecoderCaps(CUVIDDECODECAPS *caps) {
    caps->bIsSupported = 1;
    caps->nNumNVDECs = (unsigned char)engine_count;
    caps->nMinWidth = caps->nMinHeight = 16;
    caps->nMaxWidth = caps->nMaxHeight = 8192;
    return 0;
}

CUresult cuvidCreateDecoder(CUvideodecoder *made, CUVIDDECODECREATEINFO *info) {
    (void)info;
    decoder *d = calloc(1, sizeof *d);
    d->on = &engines[__atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED) % engine_count];
    *made = d;
    return 0;
}

CUresult cuvidReconfigureDecoder(CUvideodecoder handle, CUVIDRECONFIGUREDECODERINFO *info) {
    return (void)handle, (void)info, 0;
}

CUresult cuvidDestroyDecoder(CUvideodecoder handle) { return free(handle), 0; }

CUresult cuvidDecodePicture(CUvideodecoder handle, CUVIDPICPARAMS *params) {
    decoder *d = handle;
    sleep_until(d->ring[d->next % QUEUED]);
    engine *e = d->on;
    pthread_mutex_lock(&e->lock);
    int64_t at = now(), start = at > e->free_at ? at : e->free_at;
    if (!e->pictures++)
        e->first = start;
    else if (at > e->free_at)
        e->idle += at - e->free_at, e->gaps++;
    e->free_at = start + picture_ns;
    d->done_at[params->CurrPicIdx] = d->ring[d->next++ % QUEUED] = e->free_at;
    pthread_mutex_unlock(&e->lock);
    return 0;
}

CUresult cuvidMapVideoFrame64(CUvideodecoder handle, int index, unsigned long long *address, unsigned *pitch,
                              CUVIDPROCPARAMS *how) {
    (void)how;
    sleep_until(((decoder *)handle)->done_at[index]);
    *address = (uintptr_t)nothing;
    *pitch = (unsigned)(width + 511) / 512 * 512;
    return 0;
}

CUresult cuvidUnmapVideoFrame64(CUvideodecoder handle, unsigned long long address) {
    return (void)handle, (int)(address * 0);
}

CUresult cuvidCreateVideoParser(CUvideoparser *made, CUVIDPARSERPARAMS *params) {
    parser *p = calloc(1, sizeof *p);
    p->params = *params;
    *made = p;
    return 0;
}

CUresult cuvidDestroyVideoParser(CUvideoparser handle) { return free(handle), 0; }

static int show_down_to(parser *p, int left) {
    while (p->count > left) {
        int first = 0;
        for (int n = 1; n < p->count; n++)
            if (p->waiting[n].time < p->waiting[first].time) first = n;
        CUVIDPARSERDISPINFO shown = {
            .picture_index = p->waiting[first].index, .progressive_frame = 1, .timestamp = p->waiting[first].time};
        p->waiting[first] = p->waiting[--p->count];
        if (!p->params.pfnDisplayPicture(p->params.pUserData, &shown)) return 0;
    }
    return 1;
}

CUresult cuvidParseVideoData(CUvideoparser handle, CUVIDSOURCEDATAPACKET *packet) {
    parser *p = handle;
    if (packet->flags & CUVID_PKT_ENDOFSTREAM) return !show_down_to(p, 0);
    if (!p->surfaces) {
        CUVIDEOFORMAT format = {.codec = p->params.CodecType, .chroma_format = cudaVideoChromaFormat_420,
                                .min_num_decode_surfaces = 6 + REORDER, .coded_width = (unsigned)(width + 15) / 16 * 16,
                                .coded_height = (unsigned)(height + 15) / 16 * 16, .display_area = {0, 0, width, height}};
        if (!(p->surfaces = p->params.pfnSequenceCallback(p->params.pUserData, &format))) return 1;
    }
    CUVIDPICPARAMS coded = {0};
    for (int n = 0; n < p->count; n++)
        if (p->waiting[n].index == coded.CurrPicIdx) coded.CurrPicIdx++, n = -1;
    if (!p->params.pfnDecodePicture(p->params.pUserData, &coded)) return 1;
    p->waiting[p->count].index = coded.CurrPicIdx;
    p->waiting[p->count++].time = packet->timestamp;
    return !show_down_to(p, REORDER + (int)p->params.ulMaxDisplayDelay);
}
