/* What nvdec.c needs of NVDECODE, from cuviddec.h and nvcuvid.h of NVIDIA's Video Codec SDK 11.1 (by way of FFmpeg's
 * nv-codec-headers). Names are NVIDIA's; what is not used is left out or opaque, and sizes are asserted.
 *
 * Copyright (c) 2010-2021 NVIDIA Corporation
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the software, and to permit
 * persons to whom the software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
#ifndef STREAMVID_NVCUVID_H
#define STREAMVID_NVCUVID_H

#include <stddef.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void *CUvideodecoder, *CUvideoparser;

enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { cudaVideoCodec_H264 = 4, cudaVideoCodec_HEVC = 8 };
enum { cudaVideoChromaFormat_420 = 1 };
enum { cudaVideoSurfaceFormat_NV12 = 0, cudaVideoSurfaceFormat_P016 = 1 };
enum { cudaVideoCreate_PreferCUVID = 4 };
enum { CUVID_PKT_ENDOFSTREAM = 1, CUVID_PKT_TIMESTAMP = 2 };

typedef struct {
    int left, top, right, bottom;
} CUVIDRECT;

typedef struct {
    short left, top, right, bottom;
} CUVIDSHORTRECT;

typedef struct {
    int eCodecType, eChromaFormat;
    unsigned int nBitDepthMinus8, reserved1[3];
    unsigned char bIsSupported, nNumNVDECs;
    unsigned short nOutputFormatMask;
    unsigned int nMaxWidth, nMaxHeight, nMaxMBCount;
    unsigned short nMinWidth, nMinHeight;
    unsigned char bIsHistogramSupported, nCounterBitDepth;
    unsigned short nMaxHistogramBins;
    unsigned int reserved3[10];
} CUVIDDECODECAPS;

typedef struct {
    unsigned long ulWidth, ulHeight, ulNumDecodeSurfaces;
    int CodecType, ChromaFormat;
    unsigned long ulCreationFlags, bitDepthMinus8, ulIntraDecodeOnly, ulMaxWidth, ulMaxHeight, Reserved1;
    CUVIDSHORTRECT display_area;
    int OutputFormat, DeinterlaceMode;
    unsigned long ulTargetWidth, ulTargetHeight, ulNumOutputSurfaces;
    void *vidLock;
    CUVIDSHORTRECT target_rect;
    unsigned long enableHistogram, Reserved2[4];
} CUVIDDECODECREATEINFO;

typedef struct {
    unsigned int ulWidth, ulHeight, ulTargetWidth, ulTargetHeight, ulNumDecodeSurfaces, reserved1[12];
    CUVIDSHORTRECT display_area, target_rect;
    unsigned int reserved2[11];
} CUVIDRECONFIGUREDECODERINFO;

/* The parser makes it, the decoder takes it: no more is read than the surface that the picture goes to. */
typedef struct {
    int PicWidthInMbs, FrameHeightInMbs, CurrPicIdx;
} CUVIDPICPARAMS;

typedef struct {
    int progressive_frame, second_field, top_field_first, unpaired_field;
    unsigned int reserved_flags, reserved_zero;
    unsigned long long raw_input_dptr;
    unsigned int raw_input_pitch, raw_input_format;
    unsigned long long raw_output_dptr;
    unsigned int raw_output_pitch, Reserved1;
    CUstream output_stream;
    unsigned int Reserved[46];
    unsigned long long *histogram_dptr;
    void *Reserved2[1];
} CUVIDPROCPARAMS;

typedef struct {
    int codec;
    struct {
        unsigned int numerator, denominator;
    } frame_rate;
    unsigned char progressive_sequence, bit_depth_luma_minus8, bit_depth_chroma_minus8, min_num_decode_surfaces;
    unsigned int coded_width, coded_height;
    CUVIDRECT display_area;
    int chroma_format;
    unsigned int bitrate;
    struct {
        int x, y;
    } display_aspect_ratio;
    unsigned char video_signal_description[4];
    unsigned int seqhdr_data_length;
} CUVIDEOFORMAT;

typedef struct {
    unsigned long flags, payload_size;
    const unsigned char *payload;
    long long timestamp;
} CUVIDSOURCEDATAPACKET;

typedef struct {
    int picture_index, progressive_frame, top_field_first, repeat_first_field;
    long long timestamp;
} CUVIDPARSERDISPINFO;

typedef struct {
    int CodecType;
    unsigned int ulMaxNumDecodeSurfaces, ulClockRate, ulErrorThreshold, ulMaxDisplayDelay, bAnnexb, uReserved1[4];
    void *pUserData;
    int (*pfnSequenceCallback)(void *, CUVIDEOFORMAT *);
    int (*pfnDecodePicture)(void *, CUVIDPICPARAMS *);
    int (*pfnDisplayPicture)(void *, CUVIDPARSERDISPINFO *);
    void *pvReserved2[8]; /* operating points of AV1, and more; pExtVideoInfo is the last */
} CUVIDPARSERPARAMS;

_Static_assert(sizeof(CUVIDDECODECAPS) == 88, "CUVIDDECODECAPS");
_Static_assert(sizeof(CUVIDDECODECREATEINFO) == 176, "CUVIDDECODECREATEINFO");
_Static_assert(sizeof(CUVIDRECONFIGUREDECODERINFO) == 128, "CUVIDRECONFIGUREDECODERINFO");
_Static_assert(sizeof(CUVIDPROCPARAMS) == 264, "CUVIDPROCPARAMS");
_Static_assert(sizeof(CUVIDEOFORMAT) == 64, "CUVIDEOFORMAT");
_Static_assert(sizeof(CUVIDSOURCEDATAPACKET) == 32, "CUVIDSOURCEDATAPACKET");
_Static_assert(sizeof(CUVIDPARSERDISPINFO) == 24, "CUVIDPARSERDISPINFO");
_Static_assert(sizeof(CUVIDPARSERPARAMS) == 136, "CUVIDPARSERPARAMS");

#endif
