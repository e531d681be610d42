"""MP4 and MOV (ISO/IEC 14496-12): boxes, reading track tables, writing, edit lists."""
