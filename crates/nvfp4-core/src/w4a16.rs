//! The weight preparations of FlashInfer's BF16 × FP4 kernels.
