"""Headers of H.264, HEVC, AV1, VP8, VP9, MPEG-4 and JPEG bitstreams, without containers."""
