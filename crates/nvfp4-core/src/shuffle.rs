//! The row and scale shuffles of the TensorRT-LLM-gen kernels.
