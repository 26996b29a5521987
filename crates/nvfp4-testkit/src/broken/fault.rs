//! The faults that backends have had, and that the suite must catch.

/// Declares [`Fault`] and the list of all of them.
macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is wrong with a [`BrokenKernel`](super::BrokenKernel).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Fault {
            /// Nothing.
            None,
            $($(#[$doc])* $name,)*
        }

        /// Every fault, [`Fault::None`] aside.
        pub const FAULTS: &[Fault] = &[$(Fault::$name,)*];
    };
}

faults! {
    /// Reads the high nibble of weights first.
    NibbleOrder,
    /// Reads the high nibble of quantized activations first.
    ActivationNibbleOrder,
    /// Drops the sign of weights.
    UnsignedWeights,
    /// Divides by the weight's global scale where it must multiply.
    InvertedGlobalScale,
    /// Uses the first part's global scale for all rows of a fused weight.
    FirstGlobalScale,
    /// Uses the largest global scale for all rows of a fused weight.
    LargestGlobalScale,
    /// Uses the layer's input scale for activations that were quantized with another.
    LayerInputScale,
    /// Uses the first row's scale for all rows of activations with one for each.
    FirstTokenScale,
    /// Reads linear weight scales as if they were swizzled.
    SwizzledWeightScales,
    /// Reads swizzled activation scales as if they were linear.
    LinearActivationScales,
    /// Reads each row's scales from the row before.
    ScalesOfNeighbour,
    /// Reads block scales below 2⁻⁶ as zero.
    SubnormalScales,
    /// Quantizes no activation.
    ActivationsNotQuantized,
    /// Takes the amax of two rows together.
    SharedAmax,
    /// Ignores the bias.
    NoBias,
    /// Multiplies the bias by the global scale.
    BiasBeforeGlobalScale,
    /// Rounds before it adds the bias.
    RoundsBeforeBias,
    /// Rounds the sum to the output type before the global scale.
    RoundsBeforeGlobalScale,
    /// Sums in the output type.
    NarrowSum,
    /// Cuts the result off instead of rounding it.
    Truncates,
    /// Rounds ties away from zero.
    TiesAway,
    /// Clamps results that must be infinite.
    Clamps,
    /// Leaves out the last block when the number of blocks is odd.
    DropsTail,
    /// Pads `k` to 32 with whatever is in scratch memory.
    StalePadding,
    /// Adds to what the output held.
    Accumulates,
    /// Leaves the last row unwritten when their number is odd.
    SkipsLastRow,
    /// Writes past the columns of a row.
    WritesGaps,
    /// Reads x as dense.
    IgnoresRowStride,
    /// Numbers rows in 7 bits.
    RowsWrap,
    /// Numbers output features in 16 bits.
    ColumnsWrap,
    /// Sums in another order for more than 16 rows, but says that it is batch-invariant.
    BatchDependent,
    /// Gives other bits every second time.
    NotRepeatable,
    /// Fails for zero rows.
    NoEmptyBatch,
    /// Takes matrices of other shapes than the layer's.
    UncheckedShapes,
    /// Takes quantized activations with another key.
    UncheckedKey,
    /// Takes quantized activations whose buffers do not fit their shape.
    UncheckedBuffers,
    /// Takes weights of other kernels.
    UncheckedWeights,
    /// Prepares weights whose shape is not the configuration's.
    UncheckedConfiguration,
    /// Takes too little scratch memory.
    UncheckedWorkspace,
    /// Says that it runs on any device.
    EveryDevice,
    /// Says that it can run layers that cannot exist.
    EveryLayer,
    /// Prepares another layout than it promises.
    WrongLayout,
    /// Runs W4A16 layers although it says that it cannot.
    RunsWhatItRefuses,
}
