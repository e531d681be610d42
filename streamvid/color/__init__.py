"""YUV → RGB, on the CPU and on the GPU."""
