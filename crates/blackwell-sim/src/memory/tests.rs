use super::*;

#[test]
fn bytes_come_back_at_any_alignment() {
    let memory = DeviceMemory::new(1 << 20);
    let base = memory.allocate(1000).unwrap();
    assert!(base.is_multiple_of(256));
    let data: Vec<u8> = (0..999).map(|i| (i * 7 % 251) as u8).collect();
    for (offset, length) in [(0, 1), (3, 5), (7, 9), (1, 999), (64, 64), (63, 130)] {
        memory.write(base + offset, &data[..length]).unwrap();
        let mut read = vec![0; length];
        memory.read(base + offset, &mut read).unwrap();
        assert_eq!(read, data[..length], "{offset} {length}");
        DeviceView::new(&memory).read(base + offset, &mut read).unwrap();
    }
    assert_eq!((memory.used(), memory.range(base + 999)), (1000, Some((base, 1000))));
    assert_eq!(memory.range(base + 1000), None);
}

#[test]
fn misuse_is_told_apart() {
    let memory = DeviceMemory::new(4096);
    let a = memory.allocate(100).unwrap();
    let b = memory.allocate(100).unwrap();
    let mut byte = [0];
    let kind = |result: Result<(), Cause>| result.unwrap_err().kind;
    assert_eq!(kind(memory.read(a + 100, &mut byte)), FaultKind::OutOfBounds);
    assert_eq!(kind(memory.read(0, &mut byte)), FaultKind::OutOfBounds);
    assert_eq!(kind(memory.write(a + 96, &[0; 8])), FaultKind::OutOfBounds);
    memory.free(a).unwrap();
    assert_eq!(kind(memory.write(a + 99, &byte)), FaultKind::UseAfterFree);
    assert_eq!(kind(memory.free(a)), FaultKind::UseAfterFree);
    assert_eq!(kind(memory.free(b + 4)), FaultKind::OutOfBounds);
    let mut view = DeviceView::new(&memory);
    memory.write(b, &[1; 70]).unwrap();
    view.read(b + 10, &mut [0; 60]).unwrap();
    let cause = view.read(b + 60, &mut [0; 16]).unwrap_err();
    assert!(cause.kind == FaultKind::Uninitialised && cause.message.contains("byte 70"), "{cause}");
    assert_eq!(memory.used(), 100);
    assert!(memory.allocate(4000).unwrap_err().message.contains("3996"));
    assert!(memory.allocate(0).is_err());
}

#[test]
fn atomics_add_up_over_threads() {
    let memory = DeviceMemory::new(4096);
    let base = memory.allocate(64).unwrap();
    memory.write(base, &[0; 64]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut view = DeviceView::new(&memory);
                for _ in 0..1000 {
                    view.update(base + 4, 4, &mut |old| old + 1).unwrap();
                    view.update(base + 16, 16, &mut |old| old + (1 << 100)).unwrap();
                }
            });
        }
    });
    let mut bytes = [0; 64];
    memory.read(base, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), 4000 << 32);
    assert_eq!(u128::from_le_bytes(bytes[16..32].try_into().unwrap()), 4000 << 100);
}

#[test]
fn host_memory_is_seen_at_its_own_address() {
    let memory = DeviceMemory::new(4096);
    let mut host = vec![3u8; 32];
    let pointer = host.as_mut_ptr();
    // SAFETY: `host` outlives the mapping and nobody else touches it meanwhile.
    unsafe { memory.map_host(pointer, 32) }.unwrap();
    let mut view = DeviceView::new(&memory);
    assert_eq!(view.update(pointer as u64 + 8, 4, &mut |old| old + 1).unwrap(), 0x0303_0303);
    view.write(pointer as u64, &[9]).unwrap();
    assert!(memory.free(pointer as u64).is_err());
    memory.unmap_host(pointer).unwrap();
    assert_eq!(memory.read(pointer as u64, &mut [0]).unwrap_err().kind, FaultKind::UseAfterFree);
    assert_eq!((host[0], host[8], host[9]), (9, 4, 3));
}
