//! Tensor memory: 128 lanes × 512 columns of 32 bits beside each CTA, allocated by columns.
//!
//! An address has the lane in its upper and the column in its lower 16 bits (PTX ISA 9.7.16.1).

use crate::tensor_fault::TensorFault;

/// Lanes (rows).
pub const LANES: usize = 128;
/// Columns.
pub const COLUMNS: usize = 512;
/// Columns are allocated in units of this many.
const UNIT: usize = 32;

/// A CTA's tensor memory with its allocations and a record of what has been written.
#[derive(Clone)]
pub struct TensorMemory {
    words: Vec<u32>,
    written: Vec<bool>,
    /// Length, in units, of the allocation that begins at a unit; 0 elsewhere.
    allocations: [u8; COLUMNS / UNIT],
    /// One bit a unit: whether it is allocated.
    taken: u16,
    permit: bool,
}

/// A cell's lane and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Lane, 0–127 within the memory.
    pub lane: usize,
    /// Column, 0–511 within the memory.
    pub column: usize,
}

impl Cell {
    /// The cell that an address names. The two top bits, in which scale-factor addresses carry a byte offset, are left out.
    pub fn from_address(address: u32) -> Self {
        Self { lane: (address >> 16 & 0x3fff) as usize, column: (address & 0xffff) as usize }
    }

    /// The cell so many lanes and columns further.
    pub fn offset(self, lanes: usize, columns: usize) -> Self {
        Self { lane: self.lane + lanes, column: self.column + columns }
    }
}

impl Default for TensorMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl TensorMemory {
    /// Tensor memory with nothing allocated and nothing written.
    pub fn new() -> Self {
        Self {
            words: vec![0; LANES * COLUMNS],
            written: vec![false; LANES * COLUMNS],
            allocations: [0; COLUMNS / UNIT],
            taken: 0,
            permit: true,
        }
    }

    /// Allocates `columns` columns: the address of the first, or `None` if no run of them is free, when `tcgen05.alloc` waits.
    ///
    /// # Errors
    /// A number of columns that is no power of two from 32 to 512, or an allocation after the permit was relinquished.
    pub fn allocate(&mut self, columns: u32) -> Result<Option<u32>, TensorFault> {
        let units = units(columns)?;
        if !self.permit {
            return Err(TensorFault::TensorMemory(
                "tcgen05.alloc after tcgen05.relinquish_alloc_permit in the same CTA".into(),
            ));
        }
        let Some(first) = (0..=COLUMNS / UNIT - units).find(|&first| self.taken & unit_mask(first, units) == 0)
        else {
            return Ok(None);
        };
        self.allocations[first] = units as u8;
        self.taken |= unit_mask(first, units);
        Ok(Some((first * UNIT) as u32))
    }

    /// Frees the allocation of `columns` columns at `address`; its cells count as unwritten from then on.
    ///
    /// # Errors
    /// No allocation of that length begins there.
    pub fn deallocate(&mut self, address: u32, columns: u32) -> Result<(), TensorFault> {
        let units = units(columns)?;
        let cell = Cell::from_address(address);
        let first = cell.column / UNIT;
        let found = self.allocations.get(first).copied().unwrap_or(0) as usize;
        if cell.lane != 0 || !cell.column.is_multiple_of(UNIT) || found != units {
            let found = if found == 0 { "none".into() } else { format!("one of {} columns", found * UNIT) };
            return Err(TensorFault::TensorMemory(format!(
                "tcgen05.dealloc of {columns} columns at {address:#010x}: the allocation that begins there is {found}"
            )));
        }
        self.allocations[first] = 0;
        self.taken &= !unit_mask(first, units);
        for lane in 0..LANES {
            let begin = lane * COLUMNS + cell.column;
            self.written[begin..begin + columns as usize].fill(false);
        }
        Ok(())
    }

    /// Gives up the right to allocate (`tcgen05.relinquish_alloc_permit`).
    pub fn relinquish_permit(&mut self) {
        self.permit = false;
    }

    /// Columns that are still allocated: a kernel must not end with any.
    pub fn allocated_columns(&self) -> u32 {
        self.allocations.iter().map(|&units| u32::from(units) * UNIT as u32).sum()
    }

    /// Checks that `columns` cells from `cell` on lie within one lane and on allocated columns.
    fn check(&self, cell: Cell, columns: usize) -> Result<usize, TensorFault> {
        let end = cell.column + columns;
        let inside = cell.lane < LANES && end <= COLUMNS;
        let first = cell.column / UNIT;
        if !inside || !self.taken & unit_mask(first, end.div_ceil(UNIT) - first) != 0 {
            return Err(TensorFault::TensorMemory(format!(
                "lane {}, columns {}..{end}: {}",
                cell.lane,
                cell.column,
                if inside { "not all of them are allocated" } else { "beyond 128 lanes and 512 columns" }
            )));
        }
        Ok(cell.lane * COLUMNS + cell.column)
    }

    /// The cells from `cell` on along its lane.
    ///
    /// # Errors
    /// They are outside what is allocated, or nothing wrote one of them.
    pub fn read(&self, cell: Cell, columns: usize) -> Result<&[u32], TensorFault> {
        let begin = self.check(cell, columns)?;
        if let Some(column) = self.written[begin..begin + columns].iter().position(|written| !written) {
            return Err(TensorFault::Uninitialised(format!(
                "tensor memory lane {}, column {}: nothing wrote it since it was allocated",
                cell.lane,
                cell.column + column
            )));
        }
        Ok(&self.words[begin..begin + columns])
    }

    /// Writes cells from `cell` on along its lane.
    ///
    /// # Errors
    /// They are outside what is allocated.
    pub fn write(&mut self, cell: Cell, words: &[u32]) -> Result<(), TensorFault> {
        let begin = self.check(cell, words.len())?;
        self.words[begin..begin + words.len()].copy_from_slice(words);
        self.written[begin..begin + words.len()].fill(true);
        Ok(())
    }

    /// Makes `columns` cells from `cell` on along its lane count as unwritten.
    ///
    /// # Errors
    /// They are outside what is allocated.
    pub fn forget(&mut self, cell: Cell, columns: usize) -> Result<(), TensorFault> {
        let begin = self.check(cell, columns)?;
        self.written[begin..begin + columns].fill(false);
        Ok(())
    }
}

/// The bits of `count` units from `first` on, all of them within the memory.
fn unit_mask(first: usize, count: usize) -> u16 {
    (((1u32 << count) - 1) << first) as u16
}

/// `columns` in allocation units.
fn units(columns: u32) -> Result<usize, TensorFault> {
    if !columns.is_power_of_two() || !(UNIT as u32..=COLUMNS as u32).contains(&columns) {
        return Err(TensorFault::TensorMemory(format!(
            "{columns} columns: it must be a power of two from 32 to 512"
        )));
    }
    Ok(columns as usize / UNIT)
}
