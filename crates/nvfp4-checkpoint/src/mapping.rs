//! Memory mapping: the crate's only `unsafe`.

use memmap2::Mmap;
use std::fs::File;

/// Maps a file, to read.
#[expect(unsafe_code, reason = "mapping a file is unsafe by nature; it is kept in this one place")]
pub(crate) fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read, through `&[u8]`. The file must not be truncated or written while it is mapped; that is
    // outside this process's control and documented on `Source`. All lengths come from the map, never from the file again.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_what_was_written() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"nvfp4").unwrap();
        assert_eq!(&map(&file).unwrap()[..], b"nvfp4");
    }
}
