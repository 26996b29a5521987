//! What an address is: `cuPointerGetAttribute`.

use super::{
    boundary::{Failure, call},
    context::current,
    device::DEVICE,
    memory::{Allocation, Kind},
    pointer::{In, Out},
    state::driver,
    status::Status,
};

/// `CUmemorytype`.
const HOST: u32 = 1;
const ON_DEVICE: u32 = 2;

super::entries! { cuPointerGetAttribute, cuPointerGetAttributes, cuPointerSetAttribute }

/// A value, by its width.
enum Value {
    Byte(bool),
    Word(u32),
    Long(u64),
}

impl Value {
    fn put(self, place: Out<u64>) -> Result<(), Failure> {
        match self {
            Self::Byte(value) => place.cast::<u8>().set("data", u8::from(value)),
            Self::Word(value) => place.cast::<u32>().set("data", value),
            Self::Long(value) => place.set("data", value),
        }
    }
}

/// The value of an attribute (`CUpointer_attribute`) of an address in an allocation that starts at `base`. `None`: it has none.
fn value(attribute: u32, address: u64, base: u64, allocation: &Allocation) -> Option<Value> {
    let host = matches!(allocation.kind, Kind::Host { .. } | Kind::Registered);
    let managed = matches!(allocation.kind, Kind::Host { managed: true, .. });
    let pool = if let Kind::Pool(pool) = allocation.kind { pool } else { 0 };
    Some(match attribute {
        1 => Value::Long(allocation.context as u64),
        // Managed memory counts as the device's.
        2 => Value::Word(if host && !managed { HOST } else { ON_DEVICE }),
        3 => Value::Long(address),
        4 if host => Value::Long(address),
        6 => Value::Word(0),
        7 => Value::Long(allocation.id),
        8 => Value::Byte(managed),
        9 => Value::Word(DEVICE as u32),
        10 => Value::Byte(false),
        11 | 19 => Value::Long(base),
        12 | 18 => Value::Long(allocation.bytes),
        13 => Value::Byte(true),
        14 => Value::Long(0),
        15 => Value::Byte(false),
        // Read and write.
        16 => Value::Word(3),
        17 => Value::Long(pool as u64),
        20 => Value::Long(allocation.id),
        21 => Value::Byte(false),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: Out<u64>, attribute: u32, address: u64) -> Status {
    call("cuPointerGetAttribute", || {
        current()?;
        // Programs ask this of any pointer, to find out whether it is the driver's.
        let unknown = Failure::quiet(Status::INVALID_VALUE);
        let (base, allocation) = driver()?.allocations.holding(address).ok_or(unknown.clone())?;
        value(attribute, address, base, &allocation).ok_or(unknown)?.put(data)
    })
}

/// Several attributes at once; those that the address does not have become zero.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<Out<u64>>, address: u64) -> Status {
    call("cuPointerGetAttributes", || {
        current()?;
        let found = driver()?.allocations.holding(address);
        let attributes = attributes.array("attributes", count as usize)?;
        for (attribute, place) in attributes.into_iter().zip(data.array("data", count as usize)?) {
            let known = found.as_ref().and_then(|(base, allocation)| value(attribute, address, *base, allocation));
            let zero = || match attribute {
                2 | 6 | 16 => Value::Word(0),
                8 | 10 | 13 | 15 | 21 => Value::Byte(false),
                // The device of memory that is not the driver's.
                9 => Value::Word(-2i32 as u32),
                _ => Value::Long(0),
            };
            known.unwrap_or_else(zero).put(place)?;
        }
        Ok(())
    })
}

/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` can be set and changes nothing: copies always are synchronous.
#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(value: In<u32>, attribute: u32, address: u64) -> Status {
    const SYNC_MEMOPS: u32 = 6;
    call("cuPointerSetAttribute", || {
        current()?;
        value.read("value")?;
        let known = driver()?.allocations.holding(address).is_some();
        if known && attribute == SYNC_MEMOPS { Ok(()) } else { Err(Failure::quiet(Status::INVALID_VALUE)) }
    })
}
