//! What C callers hand over: pointers to results, to structs, to arrays, to text.
//!
//! These types have the representation of a pointer and, but for null and arrays of this library, no constructor: a value comes from the
//! parameters of an exported function. Whoever calls one from C promises, as the driver API demands, that a pointer is null or valid for the access that the function
//! documents. All unsafe code that relies on this promise is here.

use super::{boundary::Failure, status::Status};
use std::{
    ffi::{CStr, c_char},
    marker::PhantomData,
};

fn null(name: &str) -> Failure {
    Failure::loud(Status::INVALID_VALUE, format!("`{name}` is null"))
}

/// A pointer through which one value, or an array whose length the function knows, is written or updated.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a result that must be wanted.
    pub(super) fn set(self, name: &str, value: T) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes a result that may not be wanted.
    pub(super) fn set_if_wanted(self, value: T) {
        self.set_at(0, value);
    }

    /// Writes element `index` of an array; nothing if the array is not wanted. The function documents how long the array is.
    pub(super) fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: by the caller's promise the pointer is valid for writes as far as the function documents.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    /// The value that is there, to be updated.
    pub(super) fn get(self, name: &str) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: by the caller's promise the pointer is valid for a read of what the function is to update.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Element `index` of an array that is there; the function documents how long the array is, and has checked that it is not null.
    pub(super) fn get_at(self, index: usize) -> T {
        // SAFETY: by the caller's promise the pointer is valid for reads as far as the function documents.
        unsafe { self.0.add(index).read_unaligned() }
    }

    /// The same place as another type, where the function documents that an argument selects the type.
    pub(super) const fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<usize> {
    /// A pointer to bytes that stands in element `index` of an array of options' values.
    pub(super) fn pointer_at(self, index: usize) -> Out<u8> {
        Out(self.get_at(index) as *mut u8)
    }
}

/// A pointer to a value or an array that is read.
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value.
    pub(super) fn read(self, name: &str) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        Ok(self.at(0))
    }

    /// `count` values.
    pub(super) fn array(self, name: &str, count: usize) -> Result<Vec<T>, Failure> {
        if count > 0 && self.0.is_null() {
            return Err(null(name));
        }
        Ok((0..count).map(|index| self.at(index)).collect())
    }

    /// Element `index` of an array that is there; the function documents how long the array is, and has checked that it is not null.
    pub(super) fn at(self, index: usize) -> T {
        // SAFETY: by the caller's promise the pointer is valid for reads as far as the function documents.
        unsafe { self.0.add(index).read_unaligned() }
    }

    /// No array.
    pub(super) const fn null() -> Self {
        Self(std::ptr::null())
    }
}

impl In<Host> {
    /// An array of addresses, to hand out.
    pub(super) const fn of_addresses(addresses: &[usize]) -> Self {
        Self(addresses.as_ptr().cast())
    }
}

/// Text that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text<'a>(*const c_char, PhantomData<&'a ()>);

impl<'a> Text<'a> {
    /// The text; not UTF-8 is an error, since no name is.
    pub(super) fn read(self, name: &str) -> Result<&'a str, Failure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: by the caller's promise the pointer leads to text with a zero byte that outlives the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Failure::loud(Status::INVALID_VALUE, format!("`{name}` is not UTF-8: {text:?}")))
    }
}

/// Host memory that a copy, a launch or a callback uses: a number until it is used.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host(pub(super) usize);

impl Host {
    /// `count` bytes of it, read.
    pub(super) fn read(self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        // SAFETY: a copy's caller promises that the source holds that many bytes until the copy is done; the destination is new.
        unsafe { std::ptr::copy_nonoverlapping(self.0 as *const u8, bytes.as_mut_ptr(), count) };
        bytes
    }

    /// Writes bytes to it.
    pub(super) fn write(self, bytes: &[u8]) {
        // SAFETY: a copy's caller promises that the destination holds that many bytes until the copy is done; it is not `bytes`,
        // which is memory of this library.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0 as *mut u8, bytes.len()) };
    }
}

/// Bytes that lie at an address of the caller and whose length only they themselves tell.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Bytes(*const u8);

impl Bytes {
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The first `N` bytes; those from a zero byte on are zero, and not read.
    pub(super) fn start<const N: usize>(self) -> [u8; N] {
        let mut start = [0; N];
        for (index, byte) in start.iter_mut().enumerate() {
            // SAFETY: by the caller's promise these are the bytes of an image, which has no zero byte before its end among its first ones.
            *byte = unsafe { self.0.add(index).read() };
            if *byte == 0 {
                break;
            }
        }
        start
    }

    /// `length` bytes of it.
    pub(super) fn take(self, length: usize) -> Vec<u8> {
        Host(self.0 as usize).read(length)
    }

    /// The bytes before the first zero.
    pub(super) fn text(self) -> Vec<u8> {
        // SAFETY: by the caller's promise these bytes are text that ends with a zero byte.
        unsafe { CStr::from_ptr(self.0.cast()) }.to_bytes().to_vec()
    }

    /// Another address that was found in the bytes.
    pub(super) const fn at(address: usize) -> Self {
        Self(address as *const u8)
    }
}
