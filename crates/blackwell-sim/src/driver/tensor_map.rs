//! Encoding tensor maps.

use super::{
    boundary::{Failure, call},
    pointer::{In, Out},
    state::driver,
    status::Status,
};
use crate::tensor_map::{Generation, Interleave, Swizzle, TENSOR_MAP_BYTES, TensorElement, TiledParameters};

super::entries! { cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2colWide, cuTensorMapReplaceAddress }

/// The generation of the device.
fn generation() -> Result<Generation, Failure> {
    Ok(if driver()?.profile.capability.0 < 10 { Generation::Hopper } else { Generation::Blackwell })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the API's")]
extern "C" fn cuTensorMapEncodeTiled(
    map: Out<[u8; TENSOR_MAP_BYTES]>,
    element: u32,
    rank: u32,
    address: u64,
    dims: In<u64>,
    strides: In<u64>,
    box_dims: In<u32>,
    element_strides: In<u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> Status {
    call("cuTensorMapEncodeTiled", || {
        let generation = generation()?;
        let bad = |message: String| Failure::loud(Status::INVALID_VALUE, message);
        let rank = rank as usize;
        if !(1..=5).contains(&rank) {
            return Err(bad(format!("tensorRank is {rank}; it must be 1 to 5")));
        }
        let unknown = |what: &str, value: u32| bad(format!("{what} {value} does not exist, or is not modelled"));
        let parameters = TiledParameters {
            element: TensorElement::from_driver(element).ok_or_else(|| unknown("tensorDataType", element))?,
            address,
            dims: dims.array("globalDim", rank)?,
            strides: strides.array("globalStrides", rank - 1)?,
            box_dims: box_dims.array("boxDim", rank)?,
            element_strides: element_strides.array("elementStrides", rank)?,
            interleave: Interleave::from_driver(interleave).ok_or_else(|| unknown("interleave", interleave))?,
            swizzle: Swizzle::from_driver(swizzle).ok_or_else(|| unknown("swizzle", swizzle))?,
            l2_promotion,
            nan_fill: match fill {
                0 => false,
                1 => true,
                _ => return Err(unknown("oobFill", fill)),
            },
        };
        map.set("tensorMap", parameters.encode(generation).map_err(|fault| bad(fault.to_string()))?)
    })
}

/// Maps of images are not modelled.
#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2col() -> Status {
    call("cuTensorMapEncodeIm2col", || {
        driver()?;
        Err(Failure::loud(Status::NOT_SUPPORTED, "maps that unfold images (im2col) are not modelled"))
    })
}

/// Maps of images are not modelled.
#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2colWide() -> Status {
    call("cuTensorMapEncodeIm2colWide", || {
        driver()?;
        Err(Failure::loud(Status::NOT_SUPPORTED, "maps that unfold images (im2col) are not modelled"))
    })
}

/// The address is the first eight bytes of a map.
#[unsafe(no_mangle)]
extern "C" fn cuTensorMapReplaceAddress(map: Out<[u8; TENSOR_MAP_BYTES]>, address: u64) -> Status {
    const ALIGNMENT: u64 = 16;
    call("cuTensorMapReplaceAddress", || {
        driver()?;
        if address == 0 || !address.is_multiple_of(ALIGNMENT) {
            let message = format!("globalAddress {address:#x} must be a multiple of {ALIGNMENT} and not null");
            return Err(Failure::loud(Status::INVALID_VALUE, message));
        }
        let mut bytes = map.get("tensorMap")?;
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        map.set("tensorMap", bytes)
    })
}
