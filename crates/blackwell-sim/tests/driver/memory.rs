//! Allocating, copying, setting.

use cudarc::driver::{
    CudaContext, result,
    sys::{self, CUresult},
};
use std::ptr::null_mut;

pub(crate) const TESTS: &[crate::Test] = &[
    ("memory::copies_keep_bytes", copies_keep_bytes),
    ("memory::sets", sets),
    ("memory::rectangles", rectangles),
    ("memory::faults_of_copies", faults_of_copies),
    ("memory::figures_add_up", figures_add_up),
    ("memory::host_memory", host_memory),
    ("memory::pools", pools),
    ("memory::what_an_address_is", what_an_address_is),
];

/// A new allocation.
pub(crate) fn allocate(bytes: usize) -> u64 {
    // SAFETY: a plain allocation.
    unsafe { result::malloc_sync(bytes) }.unwrap()
}

/// Frees an allocation.
pub(crate) fn free(address: u64) {
    // SAFETY: the tests use no address after this, or mean to.
    unsafe { result::free_sync(address) }.unwrap();
}

/// The bytes at an address.
pub(crate) fn bytes_at(address: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    // SAFETY: the tests read what they have allocated.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
    bytes
}

fn copies_keep_bytes() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let bytes: Vec<u8> = (0..100_003u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let device = stream.clone_htod(&bytes).unwrap();
    let mut copy = stream.alloc_zeros::<u8>(bytes.len()).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), vec![0; bytes.len()]);
    stream.memcpy_dtod(&device, &mut copy).unwrap();
    assert!(stream.clone_dtoh(&copy).unwrap() == bytes);
    let part = stream.clone_dtoh(&copy.slice(1001..2003)).unwrap();
    assert_eq!(part, bytes[1001..2003]);
}

fn sets() {
    let _context = CudaContext::new(0).unwrap();
    let at = allocate(64);
    // SAFETY: all of it lies within the allocation.
    unsafe {
        sys::cuMemsetD8_v2(at, 1, 64).result().unwrap();
        sys::cuMemsetD16_v2(at + 2, 0x0302, 3).result().unwrap();
        sys::cuMemsetD32_v2(at + 16, 0x0706_0504, 2).result().unwrap();
        sys::cuMemsetD2D8_v2(at + 32, 8, 9, 3, 4).result().unwrap();
        assert_eq!(sys::cuMemsetD32_v2(at + 2, 0, 1), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemsetD8_v2(at, 0, 65), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut expected = [1u8; 64];
    (2..8).for_each(|i| expected[i] = [2, 3][i % 2]);
    (16..24).for_each(|i| expected[i] = 4 + (i % 4) as u8);
    (0..4).for_each(|row| (0..3).for_each(|column| expected[32 + 8 * row + column] = 9));
    // The write that reached past the end may have changed what lies before it.
    assert_eq!(bytes_at(at, 32)[8..], expected[8..32]);
    assert_eq!(bytes_at(at + 32, 32), expected[32..]);
    free(at);
}

fn rectangles() {
    let _context = CudaContext::new(0).unwrap();
    let at = allocate(16 * 10);
    let source: Vec<u8> = (0..60).collect();
    // SAFETY: the rectangle lies within source and allocation.
    unsafe {
        sys::cuMemsetD8_v2(at, 0xff, 160).result().unwrap();
        let mut copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 2,
            srcY: 1,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: source.as_ptr().cast(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: 10,
            dstXInBytes: 3,
            dstY: 2,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: at,
            dstArray: null_mut(),
            dstPitch: 16,
            WidthInBytes: 5,
            Height: 4,
        };
        sys::cuMemcpy2D_v2(&copy).result().unwrap();
        copy.srcPitch = 6;
        assert_eq!(sys::cuMemcpy2D_v2(&copy), CUresult::CUDA_ERROR_INVALID_VALUE);
        copy.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_ARRAY;
        assert_eq!(sys::cuMemcpy2D_v2(&copy), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let mut expected = vec![0xff; 160];
    for row in 0..4 {
        let (to, from) = ((row + 2) * 16 + 3, (row + 1) * 10 + 2);
        expected[to..to + 5].copy_from_slice(&source[from..from + 5]);
    }
    assert_eq!(bytes_at(at, 160), expected);
    free(at);
}

/// A copy past the end, and one to freed memory, fail at once and are told with figures.
fn faults_of_copies() {
    let _context = CudaContext::new(0).unwrap();
    let at = allocate(100);
    let mut bytes = [0u8; 101];
    // SAFETY: the simulator checks the device's side; the host's side is there.
    let read = |address: u64, bytes: &mut [u8]| unsafe { result::memcpy_dtoh_sync(bytes, address) };
    assert_eq!(read(at, &mut bytes).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(crate::fault::log().contains("the source of the copy"), "{}", crate::fault::log());
    assert!(read(at, &mut bytes[..100]).is_ok(), "the context is not spoiled");
    free(at);
    assert_eq!(read(at, &mut bytes[..1]).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: the simulator looks addresses up.
    let again = unsafe { result::free_sync(at) };
    assert_eq!(again.unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(crate::fault::log().contains("is no allocation, or one that was freed"), "{}", crate::fault::log());
}

fn figures_add_up() {
    let context = CudaContext::new(0).unwrap();
    let (free_before, total) = context.mem_get_info().unwrap();
    let at = allocate(1 << 20);
    assert!(free_before - context.mem_get_info().unwrap().0 >= 1 << 20);
    // SAFETY: a plain allocation, and it fails.
    let too_much = unsafe { result::malloc_sync(total + 1) };
    assert_eq!(too_much.unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let (mut base, mut size) = (0, 0);
    // SAFETY: the pointers are valid for writes.
    unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, at + 777) }.result().unwrap();
    assert_eq!((base, size), (at, 1 << 20));
    free(at);
    assert_eq!(context.mem_get_info().unwrap().0, free_before);
}

fn host_memory() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: the memory is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u32>(1000) }.unwrap();
    pinned.as_mut_slice().unwrap().iter_mut().enumerate().for_each(|(i, value)| *value = i as u32);
    let device = stream.clone_htod(&pinned).unwrap();
    assert_eq!(stream.clone_dtoh(&device).unwrap(), (0..1000).collect::<Vec<u32>>());
    let mut own = vec![0u64; 512];
    let pointer = own.as_mut_ptr().cast();
    let mut address = 0;
    // SAFETY: the vector outlives its registration; the pointers are valid for writes.
    unsafe {
        sys::cuMemHostRegister_v2(pointer, 4096, 0).result().unwrap();
        let again = sys::cuMemHostRegister_v2(pointer, 8, 0);
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        sys::cuMemHostGetDevicePointer_v2(&mut address, pointer, 0).result().unwrap();
        sys::cuMemsetD8_v2(address, 7, 4096).result().unwrap();
        sys::cuMemHostUnregister(pointer).result().unwrap();
        assert_eq!(sys::cuMemHostUnregister(pointer), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    assert_eq!(own, [0x0707_0707_0707_0707; 512]);
}

fn pools() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (mut pool, mut used, mut address) = (null_mut(), 0u64, 0);
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    // SAFETY: the pointers are valid for writes of the attribute's type; the memory is freed once.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, 0).result().unwrap();
        let mut used = || {
            sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut used).cast()).result().unwrap();
            used
        };
        let before = used();
        sys::cuMemAllocAsync(&mut address, 5000, stream.cu_stream()).result().unwrap();
        assert_eq!(used() - before, 5000);
        sys::cuMemsetD8Async(address, 3, 5000, stream.cu_stream()).result().unwrap();
        assert_eq!(bytes_at(address, 5000), [3; 5000]);
        sys::cuMemFreeAsync(address, stream.cu_stream()).result().unwrap();
        assert_eq!(used(), before);
    }
}

fn what_an_address_is() {
    use sys::CUpointer_attribute as Attribute;
    let context = CudaContext::new(0).unwrap();
    let at = allocate(256);
    let attribute = |attribute: Attribute, address: u64| {
        let mut value = 0u64;
        // SAFETY: no attribute is wider than eight bytes.
        let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        code.result().map(|()| value)
    };
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 255).unwrap(), 2);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 255).unwrap(), at);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, at).unwrap(), context.cu_ctx() as u64);
    let host = &raw const context as u64;
    let unknown = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host).unwrap_err();
    assert_eq!(unknown.0, CUresult::CUDA_ERROR_INVALID_VALUE);
    free(at);
}
