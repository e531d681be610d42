/* NVDEC decode sessions: a call takes the packets of several jobs and returns copies of their wanted pictures.
 *
 * streamvid/decode/nvdec_library.py loads this module through ctypes, which releases the GIL in its calls. The driver's
 * libraries are opened at run time. Each session has a thread that decodes its jobs one after another, also while the
 * caller is in Python. Only one thread at a time may use a session; any other may only call `nvdec_stop`.
 *
 * Each packet gets a unique timestamp, which identifies its picture, so that lost and repeated pictures are noticed.
 * Timestamps follow presentation order: if they rose from packet to packet, NVIDIA's parser would take them for
 * decoding times, and reassign them. After an error a session can only be closed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvcuvid.h"

#define API __attribute__((visibility("default")))

enum {
    NVDEC_DRIVER = 1, /* the driver refused a call */
    NVDEC_STREAM,     /* the stream differs from what its job says */
    NVDEC_PICTURES,   /* pictures were lost or repeated */
    NVDEC_STOPPED,    /* `nvdec_stop` was called */
    NVDEC_CALLER,     /* invalid arguments */
};
enum { CUDA_ERROR_NOT_READY = 600 };
enum {
    WAITING = 1 << 8, /* most pictures that may be in a decoder; a power of two */
    TIME_BITS = 16,   /* low bits of a timestamp: 0, except where the parser has invented one by adding milliseconds */
    NOT_WANTED = -1,
    NOT_SHOWN = -2,
    SLOTS = 128,      /* largest capacity of the staging memory, in pictures */
    TURN_NS = 10000000, /* longest turn (see `turns`) */
    GIVEN = 256,      /* capacity of a session's queue of jobs */
    MOST_SURFACES = 32, /* limit of a decoder's surfaces, unless the stream itself needs more */
    LOOK_NS = 200000, /* how long a thread polls an event before it sleeps */
    ALIGNED = 64,     /* both ends of a copied line are moved outwards to a multiple of so many bytes */
    COPY_BLOCKS = 32, COPY_THREADS = 256, /* of the kernel that copies a picture */
};

#define FUNCTIONS(X)                                                                                 \
    X(cuda, cuInit, "cuInit", (unsigned))                                                            \
    X(cuda, cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                           \
    X(cuda, cuGetErrorName, "cuGetErrorName", (CUresult, const char **))                             \
    X(cuda, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))           \
    X(cuda, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                   \
    X(cuda, cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                    \
    X(cuda, cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *))                                    \
    X(cuda, cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                  \
    X(cuda, cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                    \
    X(cuda, cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                \
    X(cuda, cuModuleLoadData, "cuModuleLoadData", (CUmodule *, const void *))                        \
    X(cuda, cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))      \
    X(cuda, cuModuleUnload, "cuModuleUnload", (CUmodule))                                            \
    X(cuda, cuLaunchKernel, "cuLaunchKernel",                                                        \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuda, cuEventCreate, "cuEventCreate", (CUevent *, unsigned))                                   \
    X(cuda, cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                     \
    X(cuda, cuEventQuery, "cuEventQuery", (CUevent))                                                 \
    X(cuda, cuEventSynchronize, "cuEventSynchronize", (CUevent))                                     \
    X(cuda, cuEventDestroy, "cuEventDestroy_v2", (CUevent))                                          \
    X(cuvid, cuvidGetDecoderCaps, "cuvidGetDecoderCaps", (CUVIDDECODECAPS *))                        \
    X(cuvid, cuvidCreateVideoParser, "cuvidCreateVideoParser", (CUvideoparser *, CUVIDPARSERPARAMS *)) \
    X(cuvid, cuvidParseVideoData, "cuvidParseVideoData", (CUvideoparser, CUVIDSOURCEDATAPACKET *))   \
    X(cuvid, cuvidDestroyVideoParser, "cuvidDestroyVideoParser", (CUvideoparser))                    \
    X(cuvid, cuvidCreateDecoder, "cuvidCreateDecoder", (CUvideodecoder *, CUVIDDECODECREATEINFO *))  \
    X(cuvid, cuvidReconfigureDecoder, "cuvidReconfigureDecoder",                                     \
      (CUvideodecoder, CUVIDRECONFIGUREDECODERINFO *))                                               \
    X(cuvid, cuvidDestroyDecoder, "cuvidDestroyDecoder", (CUvideodecoder))                           \
    X(cuvid, cuvidDecodePicture, "cuvidDecodePicture", (CUvideodecoder, CUVIDPICPARAMS *))           \
    X(cuvid, cuvidMapVideoFrame, "cuvidMapVideoFrame64",                                             \
      (CUvideodecoder, int, unsigned long long *, unsigned *, CUVIDPROCPARAMS *))                    \
    X(cuvid, cuvidUnmapVideoFrame, "cuvidUnmapVideoFrame64", (CUvideodecoder, unsigned long long))

static struct {
    pthread_mutex_t lock;
    int loaded;
#define DECLARE(library, name, symbol, types) CUresult(*name) types;
    FUNCTIONS(DECLARE)
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The staged pictures (copies of wanted pictures, of which the caller has not yet queued the conversion) and the
 * progress of the jobs, at the end of the last call. The caller owns it, and may read it between calls. The arrays are
 * rings of `slots` pictures. Once the caller has queued the conversion of the staged pictures ("handed them over"), it
 * sets `count` to 0. */
typedef struct {
    int64_t confirmed;    /* all wanted pictures of jobs with a lower number have been staged */
    int64_t packets;      /* fed so far; may be read during a call, too */
    int64_t last;         /* number of the job that was begun last: memory of earlier jobs may be freed */
    int64_t done, nanoseconds; /* packets of the jobs that are fed completely, and the time that feeding took */
    int32_t slots;        /* capacity: at most SLOTS */
    int32_t first, count; /* the staged pictures: index of the first, and their number */
    int32_t pending;      /* the call returned early: hand the pictures over, and call again */
    int64_t jobs[SLOTS];      /* number of the picture's job */
    uint64_t places[SLOTS];   /* device address at which the displayed area would begin; memory has only its window */
    int64_t chroma_at[SLOTS]; /* bytes from there to the chroma */
    int32_t rows[SLOTS];      /* the picture's row in the output, from `nvdec_job.table` */
    int32_t columns[SLOTS];   /* pitch in samples */
} nvdec_staging;

typedef struct {
    int32_t device, codec, bit_depth; /* codec: cudaVideoCodec */
    int32_t max_width, max_height;    /* largest pictures, for which the first decoder is opened */
    int32_t surfaces;                 /* decode surfaces beyond the minimum of the stream */
    int32_t delay;                    /* pictures by which the parser delays output, so that mapping need not wait */
    CUstream stream;                  /* on which pictures are copied, and the caller reads them */
    nvdec_staging *staging;
} nvdec_options;

/* The part of the displayed area that is read, in luma samples; `top` and `left` are even. */
typedef struct {
    int32_t top, bottom, left, right;
} nvdec_window;

typedef struct {
    int64_t number;        /* increases from job to job */
    int32_t width, height; /* of the displayed area */
    nvdec_window window;
    int32_t packets;
    int32_t alone;               /* drain the decoder before this job */
    int32_t lenient;             /* unwanted pictures may be missing; the decoder has no other job */
    int32_t untimed;             /* match pictures by order, because the parser reassigns this stream's timestamps */
    int32_t length_size;         /* bytes of the length before each NAL unit; 0: packets are passed on as they are */
    int32_t header_size;
    const uint8_t *header;       /* fed before the first packet, such as parameter sets */
    const uint8_t *data;         /* the packets, one after another */
    const int64_t *table;        /* three numbers per packet, in three arrays one after another: its size in bytes; its
                                    picture's row in the output, NOT_WANTED or NOT_SHOWN; its picture's rank in display
                                    order. The ranks are consecutive numbers */
} nvdec_job;

typedef struct {
    uint64_t number; /* rank in display order over all jobs, from 1 */
    int64_t job;
    nvdec_window window;
    int32_t row, done;
} picture;

typedef struct {
    nvdec_options options;
    CUdevice device;
    CUcontext context;
    CUvideoparser parser;
    CUvideodecoder decoder;
    CUVIDEOFORMAT format;         /* the decoder's current format */
    int max_width, max_height;    /* the decoder's maximum */
    int surfaces;                 /* the decoder's decode surfaces */
    int32_t width, height;        /* of the jobs in the decoder */
    int lenient, untimed;         /* of the last job */
    int last;                     /* surface of the picture that was passed to the decoder last, or -1 */
    int empty;                    /* no picture was passed to the decoder since it was drained */
    int inside;                   /* packets were fed since the decoder was drained */
    uint64_t begin, end;          /* numbers of the last job's pictures: the first, and the last plus 1 */
    uint64_t oldest;              /* the lowest number of a picture that has not come out */
    int64_t job;                  /* number of the last job */
    uint64_t fed;                 /* packets since the session was opened */
    picture waiting[WAITING];
    uint8_t *packet;              /* buffer of `capacity` bytes, for a packet as the parser takes it */
    int64_t capacity;
    CUdeviceptr memory;           /* the staged pictures: `slots` of `slot` bytes each */
    size_t slot;
    CUmodule module;              /* holds `copy_lines` */
    CUfunction copy_lines;
    CUevent copied;               /* recorded after the last copy */
    int64_t opened, reconfigured; /* how often the decoder was */
    atomic_int stop, busy;
    int status;                   /* of the thread: 0, or the first error */
    char error[400];
    pthread_mutex_t lock;         /* protects all fields below, except atomic ones */
    pthread_cond_t changed;
    pthread_t thread;
    int started, quit;
    int failed;                   /* `status`, once the thread has ended */
    int draining;                 /* drain the decoder after the queued jobs */
    int emptying;                 /* the thread waits until all staged pictures have been handed over */
    nvdec_job given[GIVEN];       /* the queue of jobs, a ring */
    int64_t put, next;            /* number of jobs that were queued, and that were begun */
    atomic_llong queued, ahead;   /* packets of queued jobs that are not fed, and the number at which a call returns */
    atomic_llong confirmed;
    int64_t done, nanoseconds;    /* as in `nvdec_staging` */
    int64_t staged, told, taken;  /* number of pictures that were staged, told to the caller, and handed over */
} nvdec_session;

static int fail(nvdec_session *s, int status, const char *format, ...) {
    if (!s->status) {
        va_list values;
        va_start(values, format);
        vsnprintf(s->error, sizeof s->error, format, values);
        va_end(values);
        s->status = status;
    }
    return 0;
}

static int check(nvdec_session *s, const char *name, CUresult result) {
    if (!result) return 1;
    const char *text = NULL;
    driver.cuGetErrorName(result, &text);
    return fail(s, NVDEC_DRIVER, "%s: %s (%d)", name, text ? text : "unknown error", result);
}
#define CALL(s, name, ...) check(s, #name, driver.name(__VA_ARGS__))

/* Version of this interface: the caller refuses a module of another version. */
API int nvdec_version(void) {
    return 8;
}

/* Open the driver's libraries, once per process. Returns NULL, or an error message. */
API const char *nvdec_load(const char *cuda_name, const char *cuvid_name) {
    static char error[400];
    pthread_mutex_lock(&driver.lock);
    const char *missing = NULL;
    if (!driver.loaded) {
        /* They are never closed: the driver's threads may outlive all sessions. */
        void *cuda = dlopen(cuda_name, RTLD_NOW | RTLD_LOCAL), *cuvid = NULL;
        if (cuda) cuvid = dlopen(cuvid_name, RTLD_NOW | RTLD_LOCAL);
        if (!cuda || !cuvid) missing = dlerror();
#define LOAD(library, name, symbol, types) \
    if (!missing && !(*(void **)&driver.name = dlsym(library, symbol))) missing = "the driver has no " symbol;
        FUNCTIONS(LOAD)
        if (missing) snprintf(error, sizeof error, "%s", missing);
        driver.loaded = !missing;
    }
    pthread_mutex_unlock(&driver.lock);
    return missing ? error : NULL;
}

static int enter(nvdec_session *s) {
    return CALL(s, cuCtxPushCurrent, s->context);
}

static int leave(nvdec_session *s) {
    CUcontext mine;
    CALL(s, cuCtxPopCurrent, &mine);
    return s->status;
}

static int get_context(nvdec_session *s, int device) {
    if (!driver.loaded) return fail(s, NVDEC_CALLER, "nvdec_load was not called, or failed");
    return CALL(s, cuInit, 0) && CALL(s, cuDeviceGet, &s->device, device) &&
           CALL(s, cuDevicePrimaryCtxRetain, &s->context, s->device);
}

/* ---- called by the parser ---- */

/* Wait until at most `most` pictures are staged. Memory of pictures that were handed over may be written at once: all
 * work on it is queued on one stream. */
static int wait_for_slots(nvdec_session *s, int64_t most) {
    pthread_mutex_lock(&s->lock);
    while (s->staged - s->taken > most && !atomic_load(&s->stop) && !s->quit) {
        s->emptying = !most;
        pthread_cond_broadcast(&s->changed);
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->emptying = 0;
    int enough = s->staged - s->taken <= most;
    pthread_mutex_unlock(&s->lock);
    return enough || fail(s, NVDEC_STOPPED, "the session was given up");
}

static void close_decoder(nvdec_session *s) {
    if (!s->decoder) return;
    CALL(s, cuvidDestroyDecoder, s->decoder);
    s->decoder = NULL;
}

static void free_memory(nvdec_session *s) {
    if (!s->memory) return;
    /* The stream may still read staged pictures, or write the picture that was mapped last. */
    CALL(s, cuStreamSynchronize, s->options.stream);
    CALL(s, cuMemFree, s->memory);
    s->memory = 0;
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static int larger(int a, int b) {
    return a > b ? a : b;
}

static int even(int a) {
    return (a + 1) / 2 * 2;
}

/* The decoder outputs the whole coded area, unscaled; `copy` crops. */
static CUVIDSHORTRECT whole(const CUVIDEOFORMAT *format) {
    return (CUVIDSHORTRECT){0, 0, (short)format->coded_width, (short)format->coded_height};
}

static int open_decoder(nvdec_session *s, const CUVIDEOFORMAT *format) {
    free_memory(s);
    close_decoder(s);
    s->max_width = larger(s->max_width, (int)format->coded_width);
    s->max_height = larger(s->max_height, (int)format->coded_height);
    s->slot = aligned((size_t)s->max_width * (s->options.bit_depth > 8 ? 2 : 1)) * (size_t)even(s->max_height) * 3 / 2;
    if (!CALL(s, cuMemAlloc, &s->memory, s->slot * (size_t)s->options.staging->slots)) return 0;
    CUVIDDECODECREATEINFO info = {
        .CodecType = format->codec,
        .ChromaFormat = format->chroma_format,
        .bitDepthMinus8 = format->bit_depth_luma_minus8,
        .OutputFormat = format->bit_depth_luma_minus8 ? cudaVideoSurfaceFormat_P016 : cudaVideoSurfaceFormat_NV12,
        .ulCreationFlags = cudaVideoCreate_PreferCUVID,
        .ulNumDecodeSurfaces = (unsigned long)s->surfaces,
        .ulNumOutputSurfaces = 2,
        .ulWidth = format->coded_width,
        .ulHeight = format->coded_height,
        .ulTargetWidth = format->coded_width,
        .ulTargetHeight = format->coded_height,
        .display_area = whole(format),
        .ulMaxWidth = (unsigned long)s->max_width,
        .ulMaxHeight = (unsigned long)s->max_height,
    };
    s->opened++;
    return CALL(s, cuvidCreateDecoder, &s->decoder, &info);
}

/* Wait until all pictures are decoded, by mapping the last one. A reconfiguration needs it: the driver gives the memory
 * of pictures that were never mapped to pictures of the new size without waiting until they are decoded. */
static void finish_decoding(nvdec_session *s) {
    CUVIDPROCPARAMS how = {.progressive_frame = 1, .output_stream = s->options.stream};
    unsigned long long mapped;
    unsigned pitch;
    if (s->last >= 0 && !driver.cuvidMapVideoFrame(s->decoder, s->last, &mapped, &pitch, &how))
        CALL(s, cuvidUnmapVideoFrame, s->decoder, mapped);
    s->last = -1;
}

static int reconfigure(nvdec_session *s, const CUVIDEOFORMAT *format) {
    CUVIDRECONFIGUREDECODERINFO info = {
        .ulWidth = format->coded_width,
        .ulHeight = format->coded_height,
        .ulTargetWidth = format->coded_width,
        .ulTargetHeight = format->coded_height,
        .ulNumDecodeSurfaces = (unsigned)s->surfaces,
        .display_area = whole(format),
    };
    s->reconfigured++;
    return CALL(s, cuStreamSynchronize, s->options.stream) && CALL(s, cuvidReconfigureDecoder, s->decoder, &info);
}

/* Whether the stream's displayed area has the size that the dataset says, and lies within the coded area. */
static int is_as_told(nvdec_session *s, const CUVIDEOFORMAT *format) {
    const CUVIDRECT *shown = &format->display_area;
    int width = shown->right - shown->left, height = shown->bottom - shown->top;
    if (width != s->width || height != s->height || shown->left < 0 || shown->top < 0 ||
        shown->right > (int)format->coded_width || shown->bottom > (int)format->coded_height || shown->left % 2 ||
        shown->top % 2)
        return fail(s, NVDEC_STREAM, "decodes to %dx%d, its dataset says %dx%d", width, height, s->width, s->height);
    return 1;
}

/* The parser calls this before the first picture, and where the format changes. Returns the number of decode surfaces,
 * or 0 for an error. */
static int on_sequence(void *user, CUVIDEOFORMAT *format) {
    nvdec_session *s = user;
    if (s->status) return 0;
    const CUVIDRECT *shown = &format->display_area;
    int depth = 8 + larger(format->bit_depth_luma_minus8, format->bit_depth_chroma_minus8);
    if (format->codec != s->options.codec || format->chroma_format != cudaVideoChromaFormat_420 ||
        depth != s->options.bit_depth)
        return fail(s, NVDEC_STREAM, "decodes to %d bits, chroma format %d, its dataset says %d bits and 4:2:0", depth,
                    format->chroma_format, s->options.bit_depth);
    if (!is_as_told(s, format)) return 0;
    int least = format->min_num_decode_surfaces, need = least + s->options.surfaces;
    if (need > MOST_SURFACES) need = larger(least, MOST_SURFACES);
    int fits = s->decoder && need <= s->surfaces && (int)format->coded_width <= s->max_width &&
               (int)format->coded_height <= s->max_height;
    int same = s->format.coded_width == format->coded_width && s->format.coded_height == format->coded_height &&
               !memcmp(&s->format.display_area, shown, sizeof *shown);
    if (!fits || !same) {
        if (!s->empty) return fail(s, NVDEC_STREAM, "changes its format between two key frames");
        s->surfaces = larger(s->surfaces, need);
        if (!fits && !wait_for_slots(s, 0)) return 0;
        finish_decoding(s);
        if (!(fits ? reconfigure(s, format) : open_decoder(s, format))) return 0;
    }
    s->format = *format;
    return s->surfaces;
}

static int on_decode(void *user, CUVIDPICPARAMS *coded) {
    nvdec_session *s = user;
    if (s->status) return 0;
    if (!s->decoder || coded->CurrPicIdx < 0 || coded->CurrPicIdx >= s->surfaces)
        return fail(s, NVDEC_STREAM, "the parser has no surface for a picture");
    /* Checked here, too: the parser does not call `on_sequence` for a stream of the same format as the one before. */
    if (!is_as_told(s, &s->format)) return 0;
    s->empty = 0;
    s->last = coded->CurrPicIdx;
    return CALL(s, cuvidDecodePicture, s->decoder, coded);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000 * (int64_t)time.tv_sec + time.tv_nsec;
}

/* Poll for LOOK_NS, then sleep: a small copy takes some microseconds, and a sleeping thread may take 0.2 ms to wake up.
 * The limit is a time, not a number of polls, because sched_yield may take milliseconds on a busy machine. */
static int wait_for_copy(nvdec_session *s) {
    int64_t end = now() + LOOK_NS;
    do {
        CUresult result = driver.cuEventQuery(s->copied);
        if (result != CUDA_ERROR_NOT_READY) return check(s, "cuEventQuery", result);
        sched_yield();
    } while (now() < end);
    return CALL(s, cuEventSynchronize, s->copied);
}

/* A kernel, in PTX, that copies `count` units of 16 bytes to `to`, from lines of `width` units that are `pitch` units
 * apart. Beside a model it takes less time from the model's kernels than cuMemcpy2D does: its few blocks leave most of
 * the GPU to them (docs/performance.md, "What a loader costs the model"). Each thread has four loads in flight. */
#define EACH(X) X(0) X(1) X(2) X(3)
#define LOAD_UNIT(k)                                   \
    "setp.lt.u32 within" #k ", unit" #k ", n;\n"       \
    "div.u32 y, unit" #k ", w;\n"                      \
    "mul.lo.u32 x, y, w;\n"                            \
    "sub.u32 x, unit" #k ", x;\n"                      \
    "mad.lo.u32 x, y, p, x;\n"                         \
    "mad.wide.u32 address, x, 16, source;\n"           \
    "@within" #k " ld.global.cs.v4.u32 loaded" #k ", [address];\n"
#define STORE_UNIT(k)                                  \
    "mad.wide.u32 address, unit" #k ", 16, target;\n"  \
    "@within" #k " st.global.v4.u32 [address], loaded" #k ";\n" \
    "mad.lo.u32 unit" #k ", threads, 4, unit" #k ";\n"
static const char COPY_LINES[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry copy_lines(.param .u64 to, .param .u64 from, .param .u32 pitch, .param .u32 width,\n"
    ".param .u32 count)\n"
    "{\n"
    ".reg .pred within<4>;\n"
    ".reg .u32 p, w, n, x, y, threads, unit<4>;\n"
    ".reg .v4 .u32 loaded0, loaded1, loaded2, loaded3;\n"
    ".reg .u64 target, source, address;\n"
    "ld.param.u64 target, [to];\n"
    "ld.param.u64 source, [from];\n"
    "ld.param.u32 p, [pitch];\n"
    "ld.param.u32 w, [width];\n"
    "ld.param.u32 n, [count];\n"
    "cvta.to.global.u64 target, target;\n"
    "cvta.to.global.u64 source, source;\n"
    "mov.u32 x, %ntid.x;\n"
    "mov.u32 y, %nctaid.x;\n"
    "mul.lo.u32 threads, x, y;\n"
    "mov.u32 y, %ctaid.x;\n"
    "mul.lo.u32 y, x, y;\n"
    "mov.u32 x, %tid.x;\n"
    "add.u32 unit0, x, y;\n"
    "add.u32 unit1, unit0, threads;\n"
    "add.u32 unit2, unit1, threads;\n"
    "add.u32 unit3, unit2, threads;\n"
    "more:\n" EACH(LOAD_UNIT) EACH(STORE_UNIT)
    "setp.lt.u32 within0, unit0, n;\n"
    "@within0 bra more;\n"
    "ret;\n"
    "}\n";

/* Queue the copy of lines to memory without gaps. Addresses, `line` and `pitch` are multiples of 16, in bytes. */
static int copy_lines(nvdec_session *s, CUdeviceptr to, CUdeviceptr from, size_t pitch, size_t line, size_t lines) {
    if ((to | from | pitch | line) % 16) return fail(s, NVDEC_DRIVER, "maps pictures at addresses that are not aligned");
    unsigned apart = (unsigned)(pitch / 16), width = (unsigned)(line / 16), units = width * (unsigned)lines;
    void *parameters[] = {&to, &from, &apart, &width, &units};
    return CALL(s, cuLaunchKernel, s->copy_lines, COPY_BLOCKS, 1, 1, COPY_THREADS, 1, 1, 0, s->options.stream, parameters,
                NULL);
}

/* Copy the window of a picture to the next slot. One copy takes all lines from the window's first line of luma to its
 * last line of chroma, because it costs less than a copy of each plane, although those have fewer lines. Then wait for
 * the copy before the picture is unmapped, because the driver may decode the next picture into this memory without
 * waiting for work on the stream: seen on a busy GPU. Pictures also came out wrong when several stayed mapped while
 * others were decoded. */
static int copy(nvdec_session *s, const CUVIDPARSERDISPINFO *shown, const picture *wanted) {
    nvdec_staging *staging = s->options.staging;
    if (!wait_for_slots(s, staging->slots - 1)) return 0;
    int32_t n = (int32_t)(s->staged % staging->slots);
    const nvdec_window *window = &wanted->window;
    const CUVIDRECT *area = &s->format.display_area;
    size_t sample = s->options.bit_depth > 8 ? 2 : 1, before = (size_t)area->left * sample,
           left = (before + (size_t)window->left * sample) / ALIGNED * ALIGNED,
           line = aligned(before + (size_t)window->right * sample) - left,
           lines = (size_t)even((int)s->format.coded_height), top = (size_t)area->top,
           first = top + (size_t)window->top, end = lines + (top + (size_t)even(window->bottom)) / 2;
    CUdeviceptr place = s->memory + s->slot * (size_t)n;
    CUVIDPROCPARAMS how = {
        .progressive_frame = shown->progressive_frame,
        .second_field = shown->repeat_first_field + 1,
        .top_field_first = shown->top_field_first,
        .unpaired_field = shown->repeat_first_field < 0,
        .output_stream = s->options.stream,
    };
    unsigned long long mapped;
    unsigned pitch;
    if (!CALL(s, cuvidMapVideoFrame, s->decoder, shown->picture_index, &mapped, &pitch, &how)) return 0;
    int copied = copy_lines(s, place, mapped + first * pitch + left, pitch, line, end - first) &&
                 (s->copied || CALL(s, cuEventCreate, &s->copied, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) &&
                 CALL(s, cuEventRecord, s->copied, s->options.stream) && wait_for_copy(s);
    if (!CALL(s, cuvidUnmapVideoFrame, s->decoder, mapped) || !copied) return 0;
    staging->jobs[n] = wanted->job;
    staging->rows[n] = wanted->row;
    staging->places[n] = place - (size_t)window->top * line + before - left;
    staging->chroma_at[n] = (int64_t)((lines - top + top / 2) * line);
    staging->columns[n] = (int32_t)(line / sample);
    pthread_mutex_lock(&s->lock);
    if (2 * (++s->staged - s->taken) > staging->slots) pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 1;
}

static void settle(nvdec_session *s) {
    const picture *one;
    while (one = &s->waiting[s->oldest % WAITING], one->number == s->oldest && one->done) s->oldest++;
    atomic_store(&s->confirmed, s->oldest < s->begin ? one->job : s->job + (s->oldest == s->end));
}

static int on_display(void *user, CUVIDPARSERDISPINFO *shown) {
    nvdec_session *s = user;
    if (s->status) return 0;
    if (!shown) return 1;
    uint64_t number = (uint64_t)shown->timestamp >> TIME_BITS;
    int ours = !(shown->timestamp & ((1 << TIME_BITS) - 1));
    if (s->untimed) number = s->oldest, ours = 1;
    picture *one = &s->waiting[number % WAITING];
    if (!ours || one->number != number || one->done || (!s->lenient && number != s->oldest))
        return s->lenient || fail(s, NVDEC_PICTURES, "a picture comes out of the decoder that is not the next one");
    if (one->row >= 0 && !copy(s, shown, one)) return 0;
    one->done = 1;
    settle(s);
    return 1;
}

/* ---- the thread ---- */

static int parse(nvdec_session *s, const uint8_t *data, int64_t size, uint64_t number) {
    CUVIDSOURCEDATAPACKET packet = {
        .flags = data ? CUVID_PKT_TIMESTAMP : CUVID_PKT_ENDOFSTREAM,
        .payload = data,
        .payload_size = (unsigned long)size,
        .timestamp = (long long)(number << TIME_BITS),
    };
    /* If a callback has failed, it has set the error. */
    CUresult result = driver.cuvidParseVideoData(s->parser, &packet);
    return !s->status && check(s, "cuvidParseVideoData", result);
}

static int drain(nvdec_session *s) {
    if (!s->inside) return 1;
    s->inside = 0;
    if (!parse(s, NULL, 0, 0)) return 0;
    s->empty = 1;
    if (s->oldest < s->end)
        return fail(s, NVDEC_PICTURES, "%d pictures do not come out of the decoder", (int)(s->end - s->oldest));
    return 1;
}

/* Packet `n` of a job as the parser takes it: the first packet has the header before it, and NAL units have start codes
 * (Annex B of ITU-T H.264 and H.265) in place of lengths (ISO/IEC 14496-15). Changes `size` accordingly. Returns NULL
 * if a NAL unit does not end within the packet. */
static const uint8_t *as_parsed(nvdec_session *s, const nvdec_job *job, int32_t n, const uint8_t *data, int64_t *size) {
    int64_t header = n ? 0 : job->header_size, from = 0, to = header, length_size = job->length_size, end = *size;
    if (!header && !length_size) return data;
    int64_t most = header + 4 * end; /* at worst a length and a unit of 1 byte each become 5 bytes */
    if (most > s->capacity) {
        free(s->packet);
        s->capacity = (s->packet = malloc((size_t)most)) ? most : 0;
        if (!s->packet) return (void)fail(s, NVDEC_CALLER, "out of memory"), NULL;
    }
    if (header) memcpy(s->packet, job->header, (size_t)header);
    while (from < end) {
        int64_t unit = end;
        if (length_size) {
            unit = 0;
            for (int64_t k = 0; k < length_size && from < end; k++) unit = unit << 8 | data[from++];
            if (!unit || unit > end - from) {
                fail(s, NVDEC_STREAM, "has a NAL unit that does not end within its packet");
                return NULL;
            }
            memcpy(s->packet + to, (uint8_t[]){0, 0, 0, 1}, 4);
            to += 4;
        }
        memcpy(s->packet + to, data + from, (size_t)unit);
        to += unit, from += unit;
    }
    *size = to;
    return s->packet;
}

/* Count a packet that was fed, and wake the caller when `ahead` packets are left. */
static void fed(nvdec_session *s) {
    if (atomic_fetch_sub(&s->queued, 1) - 1 != atomic_load(&s->ahead)) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int feed(nvdec_session *s, const nvdec_job *job) {
    if ((job->alone || job->width != s->width || job->height != s->height) && !drain(s)) return 0;
    s->width = job->width;
    s->height = job->height;
    s->lenient = job->lenient;
    s->untimed = job->untimed;
    s->job = job->number;
    s->begin = s->end;
    s->end += (uint64_t)job->packets;
    const uint8_t *data = job->data;
    const int64_t *sizes = job->table, *rows = sizes + job->packets, *ranks = rows + job->packets;
    int64_t least = INT64_MAX;
    for (int32_t n = 0; n < job->packets; n++) least = ranks[n] < least ? ranks[n] : least;
    for (int32_t n = 0; n < job->packets; n++) {
        if (atomic_load(&s->stop)) return fail(s, NVDEC_STOPPED, "the session was given up");
        uint64_t number = s->begin + (uint64_t)(ranks[n] - least);
        if (number - s->oldest >= WAITING) return fail(s, NVDEC_PICTURES, "pictures do not come out of the decoder");
        int32_t row = (int32_t)rows[n];
        int done = row == NOT_SHOWN || (row == NOT_WANTED && job->lenient);
        s->waiting[number % WAITING] = (picture){number, job->number, job->window, row, done};
        s->inside = 1;
        __atomic_store_n(&s->options.staging->packets, (int64_t)++s->fed, __ATOMIC_RELAXED);
        settle(s);
        int64_t size = sizes[n];
        const uint8_t *packet = as_parsed(s, job, n, data, &size);
        if (!packet || !parse(s, packet, size, number)) return 0;
        data += sizes[n];
        if (n + 1 < job->packets) fed(s);
    }
    settle(s);
    return 1;
}

/* The session's thread: decodes queued jobs until the session is closed or fails. */
static void *run(void *session) {
    nvdec_session *s = session;
    int works = enter(s);
    pthread_mutex_lock(&s->lock);
    while (!s->quit && !s->status) {
        int more = s->next < s->put;
        if (!more && !s->draining) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        const nvdec_job *job = &s->given[s->next % GIVEN];
        int64_t packets = more ? job->packets : 0;
        s->next += more;
        pthread_mutex_unlock(&s->lock);
        int64_t began = now();
        if (!more)
            drain(s);
        else if (feed(s, job))
            fed(s);
        pthread_mutex_lock(&s->lock);
        s->done += packets;
        s->nanoseconds += now() - began;
        if (!more) s->draining = 0;
        pthread_cond_broadcast(&s->changed);
    }
    s->failed = s->status;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (works) leave(s);
    return NULL;
}

/* ---- called by the caller ---- */

/* Threads that work in Python take turns, in the order in which they ask. Without turns, many threads would wait for
 * the GIL, and pass it on whenever a function releases it; each such switch takes long, because a thread has to wake
 * up. */
typedef struct turn {
    struct turn *next;
    int64_t number;
    int begun;
    pthread_cond_t begins;
} turn;

static struct {
    pthread_mutex_t lock;
    turn *first, *last;    /* turns that wait */
    int64_t asked, number; /* number of the turn that was asked for last, and of the current turn; 0: no turn */
    int64_t end;           /* when the current turn ends in any case, as its thread may be stuck */
} turns = {.lock = PTHREAD_MUTEX_INITIALIZER};
static __thread int64_t my_turn;

static void next_turn(void) {
    turn *first = turns.first;
    turns.number = first ? first->number : 0;
    turns.end = now() + TURN_NS;
    if (!first) return;
    turns.first = first->next;
    first->begun = 1;
    pthread_cond_signal(&first->begins);
}

/* End the calling thread's turn, if it has one. */
API void nvdec_end_turn(void) {
    pthread_mutex_lock(&turns.lock);
    if (my_turn && turns.number == my_turn) next_turn();
    my_turn = 0;
    pthread_mutex_unlock(&turns.lock);
}

/* Begin a turn of the calling thread; waits for the turns that others have asked for before. */
API void nvdec_begin_turn(void) {
    nvdec_end_turn();
    pthread_mutex_lock(&turns.lock);
    turn mine = {.number = my_turn = ++turns.asked};
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&mine.begins, &clock);
    pthread_condattr_destroy(&clock);
    turns.last = *(turns.first ? &turns.last->next : &turns.first) = &mine;
    while (!mine.begun) {
        struct timespec end = {.tv_sec = turns.end / 1000000000, .tv_nsec = turns.end % 1000000000};
        if (!turns.number || turns.end <= now())
            next_turn();
        else
            pthread_cond_timedwait(&mine.begins, &turns.lock, &end);
    }
    pthread_cond_destroy(&mine.begins);
    pthread_mutex_unlock(&turns.lock);
}

/* Queue jobs, which continue the stream of the previous jobs; with `draining`, the decoder is drained after them.
 * Returns when at most `ahead` packets are left to be fed, the queue is at most half full, and the decoder is drained
 * if that was asked for. Returns early, with `staging.pending` set, when more than half of the slots are taken, or when
 * the thread waits for all pictures to be handed over. Before it returns, it waits for a turn of the calling thread,
 * which lasts until the thread's next call. The memory that jobs point to must stay valid until `staging.last` is a
 * later job, the decoder is drained, or the session is closed. */
API int nvdec_decode(nvdec_session *s, const nvdec_job *jobs, int32_t count, int32_t ahead, int32_t draining) {
    nvdec_staging *staging = s->options.staging;
    nvdec_end_turn();
    if (atomic_exchange(&s->busy, 1)) return NVDEC_CALLER;
    pthread_mutex_lock(&s->lock);
    if (!s->started) s->started = !pthread_create(&s->thread, NULL, run, s);
    if (!s->started || s->put - s->next + count >= GIVEN) {
        pthread_mutex_unlock(&s->lock);
        atomic_store(&s->busy, 0);
        return NVDEC_CALLER;
    }
    if (!staging->count) s->taken = s->told;
    for (int n = 0; n < count; n++) {
        s->given[s->put++ % GIVEN] = jobs[n];
        atomic_fetch_add(&s->queued, jobs[n].packets);
    }
    s->draining |= draining;
    atomic_store(&s->ahead, ahead);
    pthread_cond_broadcast(&s->changed);
    int64_t staged;
    while (staged = s->staged - s->taken,
           staging->pending = s->draining || atomic_load(&s->queued) > ahead || 2 * (s->put - s->next) > GIVEN,
           !s->failed && staging->pending && 2 * staged <= staging->slots && !(s->emptying && staged))
        pthread_cond_wait(&s->changed, &s->lock);
    staging->confirmed = atomic_load(&s->confirmed);
    staging->done = s->done;
    staging->nanoseconds = s->nanoseconds;
    staging->last = s->next ? s->given[(s->next - 1) % GIVEN].number : 0;
    staging->first = (int32_t)(s->taken % staging->slots);
    staging->count = (int32_t)staged;
    s->told = s->staged;
    int status = s->failed;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->busy, 0);
    nvdec_begin_turn();
    return status;
}

/* Make the running call, or the next one, fail at the next packet. Any thread may call it. */
API void nvdec_stop(nvdec_session *s) {
    atomic_store(&s->stop, 1);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The session's error message. */
API const char *nvdec_error(const nvdec_session *s) {
    return s->error;
}

/* Counts: decoders opened, reconfigurations; then of the open decoder: surfaces, largest width and height. */
API void nvdec_counts(const nvdec_session *s, int64_t counts[5]) {
    const int64_t found[5] = {s->opened, s->reconfigured, s->surfaces, s->max_width, s->max_height};
    memcpy(counts, found, sizeof found);
}

/* Free a session. Returns 0, or NVDEC_CALLER if another thread is in a call. */
API int nvdec_close(nvdec_session *s) {
    if (atomic_exchange(&s->busy, 1)) return NVDEC_CALLER;
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    atomic_store(&s->stop, 1);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->started) pthread_join(s->thread, NULL);
    if (s->context) {
        int current = enter(s);
        if (s->parser) CALL(s, cuvidDestroyVideoParser, s->parser);
        free_memory(s);
        close_decoder(s);
        if (s->copied) CALL(s, cuEventDestroy, s->copied);
        if (s->module) CALL(s, cuModuleUnload, s->module);
        if (current) leave(s);
        CALL(s, cuDevicePrimaryCtxRelease, s->device);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->packet);
    free(s);
    return 0;
}

/* Open a session. Returns NULL, with a message in `error`, if that fails. The first stream opens the decoder. */
API nvdec_session *nvdec_open(const nvdec_options *options, char *error, int32_t size) {
    nvdec_session *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(error, (size_t)size, "out of memory");
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->options = *options;
    if (options->staging->slots < 1 || options->staging->slots > SLOTS) fail(s, NVDEC_CALLER, "there are 1 to 128 slots");
    s->empty = 1;
    s->last = -1;
    s->begin = s->end = s->oldest = 1;
    /* Options have displayed sizes, decoders are opened for coded sizes: multiples of 16 for H.264 and HEVC. Sessions
     * of other codecs are for one size only; VP9 decodes wrongly if the decoder is opened for a larger one. */
    int block = options->codec == cudaVideoCodec_H264 || options->codec == cudaVideoCodec_HEVC ? 16 : 1;
    s->max_width = (options->max_width + block - 1) / block * block;
    s->max_height = (options->max_height + block - 1) / block * block;
    CUVIDPARSERPARAMS params = {
        .CodecType = options->codec,
        .ulMaxNumDecodeSurfaces = 1, /* `on_sequence` returns the number */
        .ulClockRate = 1000,
        .ulMaxDisplayDelay = (unsigned)options->delay,
        .pUserData = s,
        .pfnSequenceCallback = on_sequence,
        .pfnDecodePicture = on_decode,
        .pfnDisplayPicture = on_display,
    };
    if (!s->status && get_context(s, options->device) && enter(s)) {
        if (CALL(s, cuModuleLoadData, &s->module, COPY_LINES) &&
            CALL(s, cuModuleGetFunction, &s->copy_lines, s->module, "copy_lines"))
            CALL(s, cuvidCreateVideoParser, &s->parser, &params);
        leave(s);
    }
    if (!s->status) return s;
    snprintf(error, (size_t)size, "%s", s->error);
    nvdec_close(s);
    return NULL;
}

/* The chip's capabilities for a codec in 4:2:0: whether it is supported, number of engines, smallest width and height,
 * largest width and height. Returns 0, or an error status with a message in `error`. */
API int nvdec_caps(int32_t device, int32_t codec, int32_t bit_depth, int32_t found[6], char *error, int32_t size) {
    nvdec_session s = {0};
    CUVIDDECODECAPS caps = {
        .eCodecType = codec, .eChromaFormat = cudaVideoChromaFormat_420, .nBitDepthMinus8 = (unsigned)bit_depth - 8};
    if (get_context(&s, device)) {
        if (enter(&s)) {
            CALL(&s, cuvidGetDecoderCaps, &caps);
            leave(&s);
        }
        CALL(&s, cuDevicePrimaryCtxRelease, s.device);
    }
    const int32_t values[6] = {caps.bIsSupported,  caps.nNumNVDECs,     caps.nMinWidth,
                               caps.nMinHeight, (int32_t)caps.nMaxWidth, (int32_t)caps.nMaxHeight};
    memcpy(found, values, sizeof values);
    if (s.status) snprintf(error, (size_t)size, "%s", s.error);
    return s.status;
}
