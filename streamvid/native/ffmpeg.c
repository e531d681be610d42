/* Decodes with FFmpeg, without Python: takes packets of a stream and returns the wanted pictures.
 *
 * FFmpeg's functions are looked up at run time in the libraries that PyAV has loaded. Of FFmpeg's structures only the
 * fields declared here are used: public fields do not move within a major version, and other versions are refused.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { AVUTIL = 60, AVCODEC = 62, AVFORMAT = 62 };
enum { AGAIN = -11, NO_MEMORY = -12, ENDED = -0x20464F45, INVALID = -0x41444E49, CORRUPT_FLAG = 1 };

typedef struct {
    void *buf;
    int64_t pts, dts;
    uint8_t *data;
} packet;

typedef struct {
    uint8_t *data[8];
    int32_t linesize[8];
    uint8_t **extended_data;
    int32_t width, height, nb_samples, format, pict_type, sample_aspect_ratio[2];
    int64_t pts, pkt_dts;
    int32_t time_base[2], quality;
    void *opaque;
    int32_t repeat_pict, sample_rate;
    void *buf[8], **extended_buf;
    int32_t nb_extended_buf;
    void **side_data;
    int32_t nb_side_data, flags, color[5];
    int64_t best_effort_timestamp;
    void *metadata;
    int32_t decode_error_flags;
} frame;

typedef struct {
    int32_t codec_type, codec_id;
} parameters;

typedef struct {
    const void *av_class;
    int32_t index, id;
    parameters *codecpar;
} stream;

typedef struct {
    const void *av_class, *iformat, *oformat;
    void *priv_data, *pb;
    int32_t ctx_flags;
    uint32_t nb_streams;
    stream **streams;
} container;

static struct {
    unsigned (*avutil_version)(void), (*avcodec_version)(void), (*avformat_version)(void);
    const void *(*av_find_input_format)(const char *);
    int (*avformat_open_input)(container **, const char *, const void *, void **);
    int (*avformat_find_stream_info)(container *, void **);
    void (*avformat_close_input)(container **);
    const void *(*avcodec_find_decoder)(int);
    const char *(*avcodec_get_name)(int);
    void *(*avcodec_alloc_context3)(const void *);
    int (*avcodec_parameters_to_context)(void *, const parameters *);
    int (*av_opt_set)(void *, const char *, const char *, int);
    int (*avcodec_open2)(void *, const void *, void **);
    void (*avcodec_free_context)(void **);
    void (*avcodec_flush_buffers)(void *);
    int (*avcodec_send_packet)(void *, const packet *);
    int (*avcodec_receive_frame)(void *, frame *);
    packet *(*av_packet_alloc)(void);
    int (*av_new_packet)(packet *, int);
    void (*av_packet_unref)(packet *);
    void (*av_packet_free)(packet **);
    frame *(*av_frame_alloc)(void);
    void (*av_frame_unref)(frame *);
    void (*av_frame_free)(frame **);
    const char *(*av_get_pix_fmt_name)(int);
} ff;

typedef struct {
    void *context;
    packet *packet;
    frame *frame, *next; /* the last frame is kept until the next one is decoded, as in PyAV, so that damaged streams
                            decode alike: their pictures may show what is left in reused memory */
    char name[32];       /* of the codec */
} sv_stream;

/* `sv_plane` of pixels.c, whose `sv_picture` begins with three of them. */
typedef struct {
    const uint8_t *data;
    int64_t stride;
    int32_t step, wide;
} plane;

/* Packets to decode, and the wanted picture that was returned last, which is valid until the next call. */
typedef struct {
    const uint8_t *data;
    const int64_t *sizes, *ranks; /* per packet, in decode order: bytes; rank in display order, which is set as pts */
    uint8_t *wanted, *shown;      /* [count], index rank - first. wanted: 1; then 0 once returned, or 2 once rendered */
    int64_t *counter;             /* incremented for each packet; other threads may read it */
    int64_t packets, first, count, taken, made; /* `made`: pictures since the last packet; at first -1 */
    const uint8_t *planes[3];
    int64_t strides[3], rank;
    int32_t width, height, format, drained;
    /* `sv_render`, called for wanted pictures of the format and size of the one returned last; NULL: all are
     * returned. */
    void (*render)(const void *picture, float *scratch);
    plane *picture;     /* an `sv_picture`, whose planes and output address `sv_next` fills in */
    float *scratch;
    uint8_t **outputs;  /* [count], index rank - first; NULL: the picture is returned */
    int64_t output_at;  /* offset of the output's address in `picture`, in bytes */
} sv_run;

/* Version of this interface, which streamvid/video/native_decoder.py compares: it may find an older build. */
int32_t sv_ffmpeg_version(void) { return 2; }

/* Find FFmpeg's functions in a loaded library or its dependencies. Returns 0, or -1: then nothing else may be
 * called. */
int32_t sv_bind(const char *path) {
    void *library = dlopen(path, RTLD_LAZY);
    if (!library) return -1;
#define FIND(name) \
    if (!(*(void **)&ff.name = dlsym(library, #name))) return -1;
    FIND(avutil_version) FIND(avcodec_version) FIND(avformat_version) FIND(av_find_input_format)
    FIND(avformat_open_input) FIND(avformat_find_stream_info) FIND(avformat_close_input) FIND(avcodec_find_decoder)
    FIND(avcodec_get_name) FIND(avcodec_alloc_context3) FIND(avcodec_parameters_to_context) FIND(av_opt_set)
    FIND(avcodec_open2) FIND(avcodec_free_context) FIND(avcodec_flush_buffers) FIND(avcodec_send_packet)
    FIND(avcodec_receive_frame) FIND(av_packet_alloc) FIND(av_new_packet) FIND(av_packet_unref) FIND(av_packet_free)
    FIND(av_frame_alloc) FIND(av_frame_unref) FIND(av_frame_free) FIND(av_get_pix_fmt_name)
    return ff.avutil_version() >> 16 == AVUTIL && ff.avcodec_version() >> 16 == AVCODEC &&
                   ff.avformat_version() >> 16 == AVFORMAT ? 0 : -1;
}

void sv_close(sv_stream *s) {
    if (!s) return;
    if (s->context) ff.avcodec_free_context(&s->context);
    if (s->packet) ff.av_packet_free(&s->packet);
    if (s->frame) ff.av_frame_free(&s->frame);
    if (s->next) ff.av_frame_free(&s->next);
    free(s);
}

/* Open a decoder with the parameters of an MP4's first track. Returns NULL, with FFmpeg's error code in `error`, if
 * that fails. */
sv_stream *sv_open(const char *mp4, const char *max_pixels, int32_t *error) {
    container *c = NULL;
    sv_stream *s = calloc(1, sizeof *s);
    *error = s ? ff.avformat_open_input(&c, mp4, ff.av_find_input_format("mp4"), NULL) : NO_MEMORY;
    if (*error >= 0) *error = ff.avformat_find_stream_info(c, NULL);
    if (*error >= 0 && !c->nb_streams) *error = INVALID;
    if (*error >= 0) {
        const parameters *p = c->streams[0]->codecpar;
        const void *codec = ff.avcodec_find_decoder(p->codec_id);
        strncpy(s->name, ff.avcodec_get_name(p->codec_id), sizeof s->name - 1);
        if (!codec)
            *error = INVALID;
        else if (!(s->context = ff.avcodec_alloc_context3(codec)) || !(s->packet = ff.av_packet_alloc()) ||
                 !(s->frame = ff.av_frame_alloc()) || !(s->next = ff.av_frame_alloc()))
            *error = NO_MEMORY;
        else if ((*error = ff.avcodec_parameters_to_context(s->context, p)) >= 0 &&
                 (*error = ff.av_opt_set(s->context, "threads", "1", 0)) >= 0 &&
                 (*error = ff.av_opt_set(s->context, "max_pixels", max_pixels, 0)) >= 0)
            *error = ff.avcodec_open2(s->context, codec, NULL);
    }
    if (c) ff.avformat_close_input(&c);
    if (*error >= 0) return s;
    sv_close(s);
    return NULL;
}

const char *sv_name(const sv_stream *s) { return s->name; }
const char *sv_format(int32_t format) { return ff.av_get_pix_fmt_name(format); }
void sv_flush_buffers(sv_stream *s) { ff.avcodec_flush_buffers(s->context); }

/* Decode up to the next wanted picture that is to be returned; render those before it. Returns 1: it is in `run`; 0:
 * there is none; 2: FFmpeg marks a picture as damaged; negative: FFmpeg's error code. */
int32_t sv_next(sv_stream *s, sv_run *run) {
    for (;;) {
        int32_t result = run->made < 0 ? AGAIN : ff.avcodec_receive_frame(s->context, s->next);
        if (result == ENDED || (result == AGAIN && run->drained)) return 0;
        /* As in PyAV, an error is ignored if the packet has already given a picture. */
        if (result == AGAIN || (result == INVALID && run->made > 0)) {
            if (run->drained) return 0;
            run->made = 0;
            if (run->taken == run->packets) {
                run->drained = 1;
                result = ff.avcodec_send_packet(s->context, NULL);
            } else {
                int64_t size = run->sizes[run->taken];
                if (size > INT32_MAX - 64 || ff.av_new_packet(s->packet, (int)size) < 0) return NO_MEMORY;
                memcpy(s->packet->data, run->data, size);
                s->packet->pts = run->ranks[run->taken];
                run->data += size;
                run->taken++, ++*run->counter; /* before it is decoded, because the decoder may hang */
                result = ff.avcodec_send_packet(s->context, s->packet);
                ff.av_packet_unref(s->packet);
            }
            if (result < 0) return result;
            continue;
        }
        if (result < 0) return result;
        run->made++;
        frame *f = s->next;
        s->next = s->frame, s->frame = f;
        ff.av_frame_unref(s->next);
        if (f->decode_error_flags || f->flags & CORRUPT_FLAG) return 2;
        int64_t n = f->pts < run->first ? -1 : f->pts - run->first;
        if (n < 0 || n >= run->count) continue;
        run->shown[n] = 1;
        if (run->wanted[n] != 1) continue;
        if (run->render && run->outputs[n] && f->format == run->format && f->width == run->width &&
            f->height == run->height) {
            for (int i = 0; i < 3; i++) run->picture[i].data = f->data[i], run->picture[i].stride = f->linesize[i];
            memcpy((uint8_t *)run->picture + run->output_at, &run->outputs[n], sizeof *run->outputs);
            run->render(run->picture, run->scratch);
            run->wanted[n] = 2;
            continue;
        }
        run->wanted[n] = 0, run->render = NULL;
        for (int i = 0; i < 3; i++) run->planes[i] = f->data[i], run->strides[i] = f->linesize[i];
        run->rank = f->pts, run->width = f->width, run->height = f->height, run->format = f->format;
        return 1;
    }
}
