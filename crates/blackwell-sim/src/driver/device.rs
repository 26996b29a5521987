//! Starting the driver, and the one device that it shows.

use super::{
    boundary::{Failure, call},
    pointer::{Out, Text},
    state::{driver, initialize},
    status::Status,
};

/// Version of the CUDA driver API that is presented: 13.0.
const VERSION: i32 = 13000;
/// Number of the device.
pub(super) const DEVICE: i32 = 0;
/// Where the device says it sits: domain, bus, device.
pub(super) const PCI: (i32, i32, i32) = (0, 1, 0);

super::entries! {
    cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceGetUuid, cuDeviceGetUuid_v2,
    cuDeviceTotalMem_v2, cuDeviceComputeCapability, cuDeviceGetPCIBusId, cuDeviceGetByPCIBusId, cuDeviceCanAccessPeer,
    cuDeviceGetP2PAttribute, cuDeviceGetExecAffinitySupport, cuFlushGPUDirectRDMAWrites, cuProfilerStart, cuProfilerStop,
}

/// Fails unless `device` is the one device.
pub(super) fn check(device: i32) -> Result<(), Failure> {
    if device == DEVICE { Ok(()) } else { Err(Failure::quiet(Status::INVALID_DEVICE)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> Status {
    call("cuInit", || {
        if flags != 0 {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        initialize().map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Status {
    call("cuDriverGetVersion", || version.set("driverVersion", VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<i32>) -> Status {
    call("cuDeviceGetCount", || {
        let driver = driver();
        count.set("count", i32::from(driver.is_ok()))?;
        driver.map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<i32>, ordinal: i32) -> Status {
    call("cuDeviceGet", || {
        driver()?;
        check(ordinal)?;
        device.set("device", DEVICE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<u8>, length: i32, device: i32) -> Status {
    call("cuDeviceGetName", || {
        let driver = driver()?;
        check(device)?;
        put_text(name, length, driver.profile.name)
    })
}

/// Writes text and its zero byte, cut to what fits.
fn put_text(place: Out<u8>, length: i32, text: &str) -> Result<(), Failure> {
    let room = usize::try_from(length).ok().filter(|&room| room > 0 && !place.is_null());
    let room = room.ok_or(Failure::quiet(Status::INVALID_VALUE))?;
    for (index, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        place.set_at(index, byte);
    }
    Ok(())
}

/// 16 bytes that differ from device to device: what is presented, as text.
fn put_uuid(name: &'static str, uuid: Out<[u8; 16]>, device: i32) -> Status {
    call(name, || {
        let driver = driver()?;
        check(device)?;
        let mut bytes = *b"blackwell-sim...";
        for (to, from) in bytes.iter_mut().rev().zip(driver.profile.target.bytes().rev()) {
            *to = from;
        }
        uuid.set("uuid", bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) -> Status {
    put_uuid("cuDeviceGetUuid", uuid, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) -> Status {
    put_uuid("cuDeviceGetUuid_v2", uuid, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) -> Status {
    call("cuDeviceTotalMem_v2", || {
        let driver = driver()?;
        check(device)?;
        bytes.set("bytes", driver.profile.memory_bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) -> Status {
    call("cuDeviceComputeCapability", || {
        let driver = driver()?;
        check(device)?;
        let (high, low) = driver.profile.capability;
        major.set("major", high as i32)?;
        minor.set("minor", low as i32)
    })
}

fn pci_text() -> String {
    let (domain, bus, device) = PCI;
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) -> Status {
    call("cuDeviceGetPCIBusId", || {
        driver()?;
        check(device)?;
        put_text(text, length, &pci_text())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text<'_>) -> Status {
    call("cuDeviceGetByPCIBusId", || {
        driver()?;
        match text.read("pciBusId")?.eq_ignore_ascii_case(&pci_text()) {
            true => device.set("dev", DEVICE),
            false => Err(Failure::quiet(Status::INVALID_DEVICE)),
        }
    })
}

/// There is one device, and a device is no peer of itself.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(answer: Out<i32>, device: i32, peer: i32) -> Status {
    call("cuDeviceCanAccessPeer", || {
        driver()?;
        check(device)?;
        check(peer)?;
        answer.set("canAccessPeer", 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(value: Out<i32>, _attribute: i32, from: i32, to: i32) -> Status {
    call("cuDeviceGetP2PAttribute", || {
        driver()?;
        check(from)?;
        check(to)?;
        value.set("value", 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetExecAffinitySupport(value: Out<i32>, _kind: i32, device: i32) -> Status {
    call("cuDeviceGetExecAffinitySupport", || {
        driver()?;
        check(device)?;
        value.set("pi", 0)
    })
}

/// Nothing writes to the device's memory from outside.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(_target: i32, _scope: i32) -> Status {
    call("cuFlushGPUDirectRDMAWrites", || driver().map(drop))
}

/// No profiler is ever attached.
#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> Status {
    call("cuProfilerStart", || driver().map(drop))
}

/// As [`cuProfilerStart`].
#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> Status {
    call("cuProfilerStop", || driver().map(drop))
}
