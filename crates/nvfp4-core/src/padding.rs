//! Padding of weights and activations to what the kernels' tiles need, and slicing of their output.
