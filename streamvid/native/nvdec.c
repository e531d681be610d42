/* Decode sessions of NVDEC: packets of whole jobs in, copies of the wanted pictures out, no interpreter between.
 *
 * streamvid/decode/native_session.py calls it through ctypes, which lets go of the GIL. The driver's libraries are opened
 * at run time. A session belongs to one thread at a time; only `nvdec_stop` may be called by another. Each packet has a
 * timestamp of ours, by which the pictures are known that come out: none is taken for another, and one that is lost or
 * comes twice is noticed. Timestamps count in the order of presentation: NVIDIA's parser takes those that rise from
 * packet to packet for times of decoding, and deals them out anew. A session that failed stays failed, and is to be
 * closed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvcuvid.h"

#define API __attribute__((visibility("default")))

enum {
    NVDEC_DRIVER = 1, /* the driver refused a call */
    NVDEC_STREAM,     /* the stream is not what its job says */
    NVDEC_PICTURES,   /* pictures are lost, or come twice */
    NVDEC_STOPPED,    /* `nvdec_stop` was called, or `full` failed */
    NVDEC_CALLER,     /* arguments that make no sense */
};
enum {
    WAITING = 1 << 8, /* pictures in a decoder at a time, at most; a power of two */
    TIME_BITS = 16,   /* the parser invents times by adding milliseconds to ours: they are told apart by these bits */
    NOT_WANTED = -1,
    NOT_SHOWN = -2,
    SLOTS = 64,
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
    X(cuda, cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *, CUstream))                \
    X(cuda, cuEventCreate, "cuEventCreate", (CUevent *, unsigned))                                   \
    X(cuda, cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                     \
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

/* Copies of wanted pictures, and what became of the jobs. The caller's, who may read it between calls and in `full`. */
typedef struct {
    int64_t confirmed;       /* all wanted pictures of jobs with a lower number were handed over or wait for it */
    int64_t packets;         /* given until now; others may look at it during a call */
    int32_t slots, count;    /* pictures to hold before `full` is called, and how many there are */
    int64_t jobs[SLOTS];
    uint64_t places[SLOTS];   /* device addresses of what is shown */
    int64_t chroma_at[SLOTS]; /* bytes from there to its chroma */
    int32_t rows[SLOTS];      /* as of the job */
    int32_t columns[SLOTS];   /* samples from a line to the next */
} nvdec_staging;

typedef struct {
    int32_t device, codec, bit_depth; /* codec: cudaVideoCodec */
    int32_t max_width, max_height;    /* of pictures to come, for which memory is taken at the start */
    int32_t surfaces;                 /* decode surfaces beyond those that the first stream needs */
    int32_t delay;                    /* pictures that the parser holds back, so that nobody waits for the chip */
    int32_t flags;                    /* more CUVID_PKT_* of each packet */
    CUstream stream;                  /* in whose order copies are made, and read */
    nvdec_staging *staging;
    int32_t (*full)(void); /* has queued on `stream` all work on the staged pictures; not 0: could not */
} nvdec_options;

typedef struct {
    int64_t number;        /* rises from job to job */
    int32_t width, height; /* of its pictures, as shown */
    int32_t packets;
    int32_t alone;               /* what is in the decoder comes out first */
    int32_t lenient;             /* only wanted pictures have to come out; nothing else is in the decoder meanwhile */
    int32_t untimed;             /* pictures are told by their order, as the parser deals timestamps out anew */
    const uint8_t *const *data;  /* of each packet */
    const int64_t *sizes;        /* of each packet, in bytes */
    const int32_t *rows;         /* of the picture of each packet: where it goes, NOT_WANTED or NOT_SHOWN */
    const int32_t *order;        /* of the picture of each packet: its place among those of the job as they are shown */
} nvdec_job;

typedef struct {
    uint64_t number; /* as they are shown, through all jobs, from 1 */
    int64_t job;
    int32_t row, done;
} picture;

typedef struct {
    nvdec_options options;
    CUdevice device;
    CUcontext context;
    CUvideoparser parser;
    CUvideodecoder decoder;
    CUVIDEOFORMAT format;         /* that the decoder is set to */
    int max_width, max_height;    /* that it was opened for */
    int surfaces;                 /* likewise */
    int32_t width, height;        /* of the jobs in it */
    int lenient, untimed;         /* as the job in it */
    int last;                     /* decode surface of the last picture that was given to the decoder, or -1 */
    int empty, inside;            /* no picture was decoded, or packet given, since it was emptied */
    uint64_t begin, end, oldest;  /* numbers of the pictures of the last job; the first that is not out */
    int64_t job;                  /* its number */
    uint64_t fed;                 /* packets, since the opening */
    picture waiting[WAITING];
    CUdeviceptr memory;           /* of the staged pictures, one behind another */
    size_t slot;                  /* bytes of each, at most */
    CUevent copied;               /* after the last copy */
    int64_t opened, reconfigured;
    atomic_int stop, busy;
    int status;
    char error[400];
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

/* Of this interface: the caller refuses a module that was built for another. */
API int nvdec_version(void) {
    return 3;
}

/* Open the driver's libraries, once in a process. NULL, or why it cannot be done. */
API const char *nvdec_load(const char *cuda_name, const char *cuvid_name) {
    static char error[400];
    pthread_mutex_lock(&driver.lock);
    const char *missing = NULL;
    if (!driver.loaded) {
        /* They stay open: threads of the driver outlive whoever opened it. */
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

/* ---- what the parser calls ---- */

/* Their memory is used again in the order of the stream. */
static int hand_over(nvdec_session *s) {
    if (!s->options.staging->count) return 1;
    if (s->options.full()) return fail(s, NVDEC_STOPPED, "decoded pictures could not be handed over");
    s->options.staging->count = 0;
    return 1;
}

static void close_decoder(nvdec_session *s) {
    if (!s->decoder) return;
    CALL(s, cuvidDestroyDecoder, s->decoder);
    s->decoder = NULL;
}

static void free_memory(nvdec_session *s) {
    if (!s->memory) return;
    /* It may still be read, and the decoder's last picture laid out. */
    CALL(s, cuStreamSynchronize, s->options.stream);
    CALL(s, cuMemFree, s->memory);
    s->memory = 0;
}

static int larger(int a, int b) {
    return a > b ? a : b;
}

static int even(int a) {
    return (a + 1) / 2 * 2;
}

/* Nothing is cropped or scaled by the chip: `copy` leaves out what is not shown. */
static CUVIDSHORTRECT whole(const CUVIDEOFORMAT *format) {
    return (CUVIDSHORTRECT){0, 0, (short)format->coded_width, (short)format->coded_height};
}

static int open_decoder(nvdec_session *s, const CUVIDEOFORMAT *format) {
    free_memory(s);
    close_decoder(s);
    s->max_width = larger(s->max_width, (int)format->coded_width);
    s->max_height = larger(s->max_height, (int)format->coded_height);
    s->slot = (size_t)even(s->max_width) * (size_t)even(s->max_height) * (s->options.bit_depth > 8 ? 2 : 1) * 3 / 2;
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

/* Mapping a picture waits until it is decoded; it was the last, so all are. Nobody may have wanted it, and the driver
 * does not wait for it where it gives its memory to pictures of another size. */
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

/* Before the first picture, and where the format changes: number of surfaces, 0 for an error. */
static int on_sequence(void *user, CUVIDEOFORMAT *format) {
    nvdec_session *s = user;
    if (s->status) return 0;
    const CUVIDRECT *shown = &format->display_area;
    int width = shown->right - shown->left, height = shown->bottom - shown->top;
    int depth = 8 + larger(format->bit_depth_luma_minus8, format->bit_depth_chroma_minus8);
    if (format->codec != s->options.codec || format->chroma_format != cudaVideoChromaFormat_420 ||
        depth != s->options.bit_depth)
        return fail(s, NVDEC_STREAM, "decodes to %d bits, chroma format %d, its dataset says %d bits and 4:2:0", depth,
                    format->chroma_format, s->options.bit_depth);
    if (width != s->width || height != s->height || shown->left < 0 || shown->top < 0 ||
        shown->right > (int)format->coded_width || shown->bottom > (int)format->coded_height || shown->left % 2 ||
        shown->top % 2)
        return fail(s, NVDEC_STREAM, "decodes to %dx%d, its dataset says %dx%d", width, height, s->width, s->height);
    int need = format->min_num_decode_surfaces + s->options.surfaces;
    int fits = s->decoder && need <= s->surfaces && (int)format->coded_width <= s->max_width &&
               (int)format->coded_height <= s->max_height;
    int same = s->format.coded_width == format->coded_width && s->format.coded_height == format->coded_height &&
               !memcmp(&s->format.display_area, shown, sizeof *shown);
    if (!fits || !same) {
        if (!s->empty) return fail(s, NVDEC_STREAM, "changes its format between two key frames");
        s->surfaces = larger(s->surfaces, need);
        if (!fits && !hand_over(s)) return 0;
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
    s->empty = 0;
    s->last = coded->CurrPicIdx;
    return CALL(s, cuvidDecodePicture, s->decoder, coded);
}

/* Copy a picture to the next slot: all lines that are coded, as far as they are shown, as one copy of both planes costs
 * less than two of fewer lines. The copy is waited for: nothing says that the driver decodes another picture to its
 * place, or makes one in that memory, in the order of the stream, and on a busy GPU it does not. More than one that stays
 * mapped while others are decoded came out wrong, too. */
static int copy(nvdec_session *s, const CUVIDPARSERDISPINFO *shown, const picture *wanted) {
    nvdec_staging *staging = s->options.staging;
    int32_t n = staging->count;
    size_t sample = s->options.bit_depth > 8 ? 2 : 1, columns = (size_t)even(s->width), line = columns * sample,
           lines = (size_t)even((int)s->format.coded_height), top = (size_t)s->format.display_area.top;
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
    CUDA_MEMCPY2D planes = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = mapped,
        .srcXInBytes = (size_t)s->format.display_area.left * sample,
        .srcPitch = pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = place,
        .dstPitch = line,
        .WidthInBytes = line,
        .Height = lines * 3 / 2,
    };
    int copied = CALL(s, cuMemcpy2DAsync, &planes, s->options.stream) &&
                 (s->copied || CALL(s, cuEventCreate, &s->copied, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) &&
                 CALL(s, cuEventRecord, s->copied, s->options.stream) && CALL(s, cuEventSynchronize, s->copied);
    if (!CALL(s, cuvidUnmapVideoFrame, s->decoder, mapped) || !copied) return 0;
    staging->jobs[n] = wanted->job;
    staging->rows[n] = wanted->row;
    staging->places[n] = place + top * line;
    staging->chroma_at[n] = (int64_t)((lines - top + top / 2) * line);
    staging->columns[n] = (int32_t)columns;
    staging->count++;
    return staging->count < staging->slots || hand_over(s);
}

static void settle(nvdec_session *s) {
    const picture *one;
    while (one = &s->waiting[s->oldest % WAITING], one->number == s->oldest && one->done) s->oldest++;
    s->options.staging->confirmed = s->oldest < s->begin ? one->job : s->job + (s->oldest == s->end);
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

/* ---- what the caller calls ---- */

static int parse(nvdec_session *s, const uint8_t *data, int64_t size, uint64_t number) {
    CUVIDSOURCEDATAPACKET packet = {
        .flags = data ? CUVID_PKT_TIMESTAMP | (unsigned long)s->options.flags : CUVID_PKT_ENDOFSTREAM,
        .payload = data,
        .payload_size = (unsigned long)size,
        .timestamp = (long long)(number << TIME_BITS),
    };
    /* A callback that failed has said why, better than the parser. */
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

static int feed(nvdec_session *s, const nvdec_job *job) {
    if ((job->alone || job->width != s->width || job->height != s->height) && !drain(s)) return 0;
    s->width = job->width;
    s->height = job->height;
    s->lenient = job->lenient;
    s->untimed = job->untimed;
    s->job = job->number;
    s->begin = s->end;
    s->end += (uint64_t)job->packets;
    for (int32_t n = 0; n < job->packets; n++) {
        if (atomic_load(&s->stop)) return fail(s, NVDEC_STOPPED, "the session was given up");
        uint64_t number = s->begin + (uint64_t)job->order[n];
        if (number - s->oldest >= WAITING) return fail(s, NVDEC_PICTURES, "pictures do not come out of the decoder");
        int32_t row = job->rows[n];
        int done = row == NOT_SHOWN || (row == NOT_WANTED && job->lenient);
        s->waiting[number % WAITING] = (picture){number, job->number, row, done};
        s->inside = 1;
        __atomic_store_n(&s->options.staging->packets, (int64_t)++s->fed, __ATOMIC_RELAXED);
        settle(s);
        if (!parse(s, job->data[n], job->sizes[n], number)) return 0;
    }
    settle(s);
    return 1;
}

/* Whether the session is free and works; then `end` is to be called. */
static int begin(nvdec_session *s, int *status) {
    if (atomic_exchange(&s->busy, 1)) {
        *status = NVDEC_CALLER;
        return 0;
    }
    int works = !s->status && enter(s);
    *status = s->status;
    if (!works) atomic_store(&s->busy, 0);
    return works;
}

static int end(nvdec_session *s) {
    int status = leave(s);
    atomic_store(&s->busy, 0);
    return status;
}

/* Decode a job, as the continuation of those before. 0, or NVDEC_*. Pictures may be left in the decoder. */
API int nvdec_decode(nvdec_session *s, const nvdec_job *job) {
    int status;
    if (!begin(s, &status)) return status;
    feed(s, job);
    return end(s);
}

/* Have `full` take the staged pictures. 0, or NVDEC_*. */
API int nvdec_hand_over(nvdec_session *s) {
    int status;
    if (!begin(s, &status)) return status;
    hand_over(s);
    return end(s);
}

/* Take what is left in the decoder, and hand over all. 0, or NVDEC_*. */
API int nvdec_flush(nvdec_session *s) {
    int status;
    if (!begin(s, &status)) return status;
    if (drain(s)) hand_over(s);
    return end(s);
}

/* Let a call that is under way, or the next one, end at the next packet. Any thread may call it. */
API void nvdec_stop(nvdec_session *s) {
    atomic_store(&s->stop, 1);
}

/* What the status is about. */
API const char *nvdec_error(const nvdec_session *s) {
    return s->error;
}

/* Decoders that were opened, or switched to another size, so far; surfaces and largest size of the one that is open. */
API void nvdec_counts(const nvdec_session *s, int64_t counts[5]) {
    const int64_t found[5] = {s->opened, s->reconfigured, s->surfaces, s->max_width, s->max_height};
    memcpy(counts, found, sizeof found);
}

/* Free a session. 0, or NVDEC_CALLER while a call is under way. */
API int nvdec_close(nvdec_session *s) {
    if (atomic_exchange(&s->busy, 1)) return NVDEC_CALLER;
    if (s->context) {
        int current = enter(s);
        if (s->parser) CALL(s, cuvidDestroyVideoParser, s->parser);
        free_memory(s);
        close_decoder(s);
        if (s->copied) CALL(s, cuEventDestroy, s->copied);
        if (current) leave(s);
        CALL(s, cuDevicePrimaryCtxRelease, s->device);
    }
    free(s);
    return 0;
}

/* A session, or NULL and why in `error`. The decoder itself is opened when the first stream says what it needs. */
API nvdec_session *nvdec_open(const nvdec_options *options, char *error, int32_t size) {
    nvdec_session *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(error, (size_t)size, "out of memory");
        return NULL;
    }
    s->options = *options;
    if (options->staging->slots < 1 || options->staging->slots > SLOTS) fail(s, NVDEC_CALLER, "there are 1 to 64 slots");
    s->empty = 1;
    s->last = -1;
    s->begin = s->end = s->oldest = 1;
    /* Coded sizes are those shown, rounded up to blocks; not so of VP9, which memory for more makes predict wrongly.
     * Sessions of other codecs than H.264 and HEVC are for one size, that of their first stream. */
    int block = options->codec == cudaVideoCodec_H264 || options->codec == cudaVideoCodec_HEVC ? 16 : 1;
    s->max_width = (options->max_width + block - 1) / block * block;
    s->max_height = (options->max_height + block - 1) / block * block;
    CUVIDPARSERPARAMS params = {
        .CodecType = options->codec,
        .ulMaxNumDecodeSurfaces = 1, /* the sequence callback says how many */
        .ulClockRate = 1000,
        .ulMaxDisplayDelay = (unsigned)options->delay,
        .pUserData = s,
        .pfnSequenceCallback = on_sequence,
        .pfnDecodePicture = on_decode,
        .pfnDisplayPicture = on_display,
    };
    if (!s->status && get_context(s, options->device) && enter(s)) {
        CALL(s, cuvidCreateVideoParser, &s->parser, &params);
        leave(s);
    }
    if (!s->status) return s;
    snprintf(error, (size_t)size, "%s", s->error);
    nvdec_close(s);
    return NULL;
}

/* What the chip decodes of a codec in 4:2:0: whether it does, engines, least and largest width and height, and whether
 * it can say so. 0, or NVDEC_DRIVER and why in `error`. */
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
