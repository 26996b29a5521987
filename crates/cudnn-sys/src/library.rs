//! The library and its functions.

use crate::types::{Attribute, AttributeType, DescriptorType, Status};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    path::{Path, PathBuf},
};

/// `cudnnHandle_t`.
pub type Handle = *mut c_void;
/// `cudnnBackendDescriptor_t`.
pub type Descriptor = *mut c_void;

/// Why cuDNN is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cuDNN 9 was not found; tried {}; install it (pip: nvidia-cudnn-cu13), or name its file or folder in NVFP4_CUDNN",
    tried.iter().map(|(path, reason)| format!("{} ({reason})", path.display())).collect::<Vec<_>>().join(", ")
)]
pub struct LoadError {
    /// What was tried, and what the system's loader said.
    pub tried: Vec<(PathBuf, String)>,
}

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// cuDNN's functions, by their C names without the prefix `cudnn`. Each is as unsafe as in C.
        #[derive(Clone, Copy)]
        #[non_exhaustive]
        pub struct Functions {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Resolves every function.
            ///
            /// # Safety
            /// `library` is cuDNN 9, and stays loaded for as long as a function is called.
            unsafe fn resolve(library: &libloading::Library) -> Result<Self, String> {
                // SAFETY: cuDNN 9's functions of these names have these types.
                unsafe { Ok(Self { $($field: *library.get($symbol).map_err(|e| missing($symbol, &e))?,)* }) }
            }
        }
    };
}

/// A function that the library lacks.
fn missing(symbol: &[u8], error: &libloading::Error) -> String {
    format!("no function {}: {}", String::from_utf8_lossy(symbol), said(error))
}

/// What the system's loader said, which libloading keeps as the source of its own error.
fn said(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

functions! {
    /// Version, e.g. 92801 for 9.28.1.
    get_version = b"cudnnGetVersion": fn() -> usize;
    /// Version of the CUDA runtime that it was built with, e.g. 13000.
    get_cudart_version = b"cudnnGetCudartVersion": fn() -> usize;
    /// Name of a status.
    get_error_string = b"cudnnGetErrorString": fn(Status) -> *const c_char;
    /// Copies the calling thread's last message, at most so many bytes with the final zero.
    get_last_error_string = b"cudnnGetLastErrorString": fn(*mut c_char, usize) -> ();
    /// Makes a handle for the current context.
    create = b"cudnnCreate": fn(*mut Handle) -> Status;
    /// Destroys a handle.
    destroy = b"cudnnDestroy": fn(Handle) -> Status;
    /// Sets the stream of a handle.
    set_stream = b"cudnnSetStream": fn(Handle, *mut c_void) -> Status;
    /// Makes a descriptor.
    backend_create_descriptor = b"cudnnBackendCreateDescriptor": fn(DescriptorType, *mut Descriptor) -> Status;
    /// Destroys a descriptor.
    backend_destroy_descriptor = b"cudnnBackendDestroyDescriptor": fn(Descriptor) -> Status;
    /// Sets an attribute: type, number of elements, elements.
    backend_set_attribute = b"cudnnBackendSetAttribute": fn(Descriptor, Attribute, AttributeType, i64, *const c_void) -> Status;
    /// Reads an attribute: type, room for elements, elements there are, elements.
    backend_get_attribute = b"cudnnBackendGetAttribute":
        fn(Descriptor, Attribute, AttributeType, i64, *mut i64, *mut c_void) -> Status;
    /// Ends the setting of attributes and checks them.
    backend_finalize = b"cudnnBackendFinalize": fn(Descriptor) -> Status;
    /// Enqueues a plan with a variant pack on the handle's stream.
    backend_execute = b"cudnnBackendExecute": fn(Handle, Descriptor, Descriptor) -> Status;
}

const _: () = assert!(std::mem::size_of::<Status>() == std::mem::size_of::<c_int>());

/// cuDNN, loaded. It stays loaded for the life of the process: its kernels and threads do not take being unloaded.
pub struct Library {
    functions: Functions,
    path: PathBuf,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuDNN {} ({})", self.version(), self.path.display())
    }
}

impl Library {
    /// Loads the first of [`search_path`](crate::search_path) that there is.
    pub fn load() -> Result<Self, LoadError> {
        Self::load_from(&crate::search_path())
    }

    /// Loads the first of these files and names that there is.
    pub fn load_from(candidates: &[PathBuf]) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for candidate in candidates {
            match Self::open(candidate) {
                Ok(library) => return Ok(library),
                Err(reason) => tried.push((candidate.clone(), reason)),
            }
        }
        Err(LoadError { tried })
    }

    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: loading cuDNN runs its initializers, which need nothing; a file of that name that is something else is the
        // risk of whoever put it there.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| said(&e))?;
        // SAFETY: by its name it is cuDNN 9; it is never unloaded (below).
        let functions = unsafe { Functions::resolve(&library) }?;
        std::mem::forget(library);
        Ok(Self { functions, path: path.into() })
    }

    /// The functions.
    pub const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// What was loaded: a file, or the name that the system's loader knew.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version, e.g. 92801 for 9.28.1.
    pub fn version(&self) -> usize {
        // SAFETY: it takes nothing and needs no device.
        unsafe { (self.functions.get_version)() }
    }

    /// Version of the CUDA runtime that it was built with, e.g. 13000.
    pub fn cudart_version(&self) -> usize {
        // SAFETY: as above.
        unsafe { (self.functions.get_cudart_version)() }
    }

    /// Name of a status and the calling thread's last message.
    pub fn describe(&self, status: Status) -> String {
        // SAFETY: it returns a static text, or null.
        let name = unsafe { (self.functions.get_error_string)(status) };
        // SAFETY: a text of cuDNN's ends with a zero and is never freed.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer has room for what is said to fit, the final zero included.
        unsafe { (self.functions.get_last_error_string)(buffer.as_mut_ptr().cast(), buffer.len()) };
        let message = CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().trim().to_string());
        let name = name.unwrap_or_else(|| format!("status {}", status.0));
        match message {
            Ok(message) if !message.is_empty() => format!("{name}: {message}"),
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("libcudnn.so.9");
        let broken = folder.path().join("broken.so");
        std::fs::write(&broken, b"no library").unwrap();
        let error = Library::load_from(&[absent.clone(), broken.clone()]).unwrap_err();
        assert_eq!(error.tried.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&absent, &broken]);
        let text = error.to_string();
        for part in [&absent.display().to_string(), &broken.display().to_string(), "NVFP4_CUDNN"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// A library that is not cuDNN lacks its functions.
    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_is_refused() {
        let error = Library::load_from(&[PathBuf::from("libc.so.6")]).unwrap_err();
        assert!(error.tried[0].1.contains("cudnnGetVersion"), "{error}");
    }
}
