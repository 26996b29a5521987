//! The conformance suite through [`Linear`]: what a user calls, not the backend below it.
#![cfg(feature = "cpu")]

use nvfp4::{
    Error, Linear, LinearOptions, LoadError, MatrixMut, NvFp4LinearLayer, NvFp4LinearLayerConfig, Policy, QuantKey,
    Registry, Unsupported, host_device, select::SelectError,
};
use nvfp4_testkit::{Implementation, Input, LoadedLayer};

#[derive(Debug)]
struct Facade;

#[derive(Debug)]
struct Loaded(Linear);

impl Implementation for Facade {
    fn name(&self) -> String {
        "nvfp4::Linear".into()
    }

    fn can_run(&self, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        match Registry::installed().select(&host_device(), config, &Policy::default()) {
            Ok(_) => Ok(()),
            Err(SelectError::NoneEligible(reasons)) => {
                Err(reasons.into_iter().next().map_or(Unsupported::NotReleased, |(_, reason)| reason))
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn load(
        &self,
        layer: &NvFp4LinearLayer<'_>,
        config: &NvFp4LinearLayerConfig,
    ) -> Result<Box<dyn LoadedLayer + '_>, Error> {
        let options = LinearOptions::new()
            .with_policy(Policy::default())
            .with_dtypes(config.input_dtype, config.output_dtype)
            .with_batch_invariant(config.batch_invariant);
        match Linear::load(layer, &options) {
            Ok(linear) => Ok(Box::new(Loaded(linear))),
            Err(LoadError::Layer(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }
}

impl LoadedLayer for Loaded {
    fn input_quant_key(&self) -> Option<QuantKey> {
        self.0.input_quant_key()
    }

    fn run(&self, _planned: usize, x: Input<'_>, out: MatrixMut<'_>, _fill: u8) -> Result<(), Error> {
        match x {
            Input::Matrix(x) => self.0.forward(x, out),
            Input::Quantized(x) => self.0.forward_quantized(x, out),
        }
    }
}

nvfp4_testkit::conformance!(layers: Facade);
