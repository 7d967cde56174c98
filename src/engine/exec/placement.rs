//! Allocators for transient memory. All follow the lifetimes of the memory plan, so results are
//! bit-identical.

use crate::device::{Device, Memory};
use crate::error::Result;
use std::collections::{BTreeMap, HashMap};

/// Allocates memory for blocks of the memory plan during their lifetimes.
pub trait BlockAllocator: std::fmt::Debug + Send {
    /// Allocates a block.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn begin(&mut self, block: usize, bytes: usize, offset: usize) -> Result<()>;
    /// Returns the address of an allocated block.
    fn address(&self, block: usize) -> *mut u8;
    /// Fills an allocated block with a pattern that reads as NaN in every floating-point format.
    ///
    /// # Errors
    /// If the device reports an error.
    fn poison(&mut self, block: usize, bytes: usize) -> Result<()>;
    /// Frees a block.
    fn end(&mut self, block: usize);
    /// Returns the largest number of bytes reserved from the system at any time so far.
    fn reserved_bytes(&self) -> usize;
    /// Returns the number of allocations made from the system.
    fn system_allocations(&self) -> usize;
}

/// All bits set: NaN in every floating-point format.
const POISON: u8 = 0xff;

/// One buffer, in which blocks lie at their planned offsets.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    offsets: HashMap<usize, usize>,
}

impl Arena {
    /// Allocates the arena.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let memory = device.allocate(bytes).map_err(|e| e.context("the arena of transient tensors"))?;
        Ok(Self { memory, offsets: HashMap::new() })
    }
}

impl BlockAllocator for Arena {
    fn begin(&mut self, block: usize, bytes: usize, offset: usize) -> Result<()> {
        assert!(offset + bytes <= self.memory.len(), "the arena was sized by the largest section");
        self.offsets.insert(block, offset);
        Ok(())
    }

    fn address(&self, block: usize) -> *mut u8 {
        self.memory.address().wrapping_add(self.offsets[&block])
    }

    fn poison(&mut self, block: usize, bytes: usize) -> Result<()> {
        self.memory.fill(self.offsets[&block], POISON, bytes)
    }

    fn end(&mut self, block: usize) {
        self.offsets.remove(&block);
    }

    fn reserved_bytes(&self) -> usize {
        self.memory.len()
    }

    fn system_allocations(&self) -> usize {
        1
    }
}

/// Rounds up to a size class of [`FreeLists`]: each power of two is divided in four.
fn size_class(bytes: usize) -> usize {
    let power = bytes.max(512).next_power_of_two();
    let quarter = power / 8;
    bytes.max(512).next_multiple_of(quarter.max(256))
}

/// Lists of freed blocks for reuse, by size class. `M` is a real buffer, or `()` to predict how much memory
/// would be reserved.
#[derive(Debug)]
pub struct FreeLists<M> {
    free: BTreeMap<usize, Vec<M>>,
    reserved: usize,
}

impl<M> Default for FreeLists<M> {
    fn default() -> Self {
        Self { free: BTreeMap::new(), reserved: 0 }
    }
}

impl<M> FreeLists<M> {
    /// Returns memory for a block of `bytes`: a freed block of the same size class, or else a new one from
    /// `allocate`.
    ///
    /// # Errors
    /// If `allocate` fails.
    pub fn take<E>(&mut self, bytes: usize, allocate: impl FnOnce(usize) -> Result<M, E>) -> Result<M, E> {
        let class = size_class(bytes);
        if let Some(memory) = self.free.get_mut(&class).and_then(Vec::pop) {
            return Ok(memory);
        }
        let memory = allocate(class)?;
        self.reserved += class;
        Ok(memory)
    }

    /// Puts the memory of a freed block on its list. `bytes` is the size of the block or of its class.
    pub fn give_back(&mut self, bytes: usize, memory: M) {
        self.free.entry(size_class(bytes)).or_default().push(memory);
    }

    /// Returns the total bytes allocated; none are returned to the system.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved
    }
}

/// Allocates blocks one by one.
#[derive(Debug)]
pub struct Separate {
    device: Device,
    alive: HashMap<usize, Memory>,
    /// Freed blocks; `None` if they are returned to the system.
    kept: Option<FreeLists<Memory>>,
    /// Bytes held from the system now, and at most.
    held: usize,
    peak: usize,
    allocations: usize,
}

impl Separate {
    /// Creates an allocator that keeps freed blocks for reuse.
    pub fn caching(device: Device) -> Self {
        Self { kept: Some(FreeLists::default()), ..Self::naive(device) }
    }

    /// Creates an allocator that returns every block to the system when its lifetime ends.
    pub fn naive(device: Device) -> Self {
        Self { device, alive: HashMap::new(), kept: None, held: 0, peak: 0, allocations: 0 }
    }
}

impl BlockAllocator for Separate {
    fn begin(&mut self, block: usize, bytes: usize, _offset: usize) -> Result<()> {
        let mut allocate = |bytes| {
            let memory = self.device.allocate(bytes)?;
            self.held += bytes;
            self.peak = self.peak.max(self.held);
            self.allocations += 1;
            Ok(memory)
        };
        let memory = match &mut self.kept {
            Some(lists) => lists.take(bytes, allocate)?,
            None => allocate(bytes)?,
        };
        self.alive.insert(block, memory);
        Ok(())
    }

    fn address(&self, block: usize) -> *mut u8 {
        self.alive[&block].address()
    }

    fn poison(&mut self, block: usize, bytes: usize) -> Result<()> {
        self.alive.get_mut(&block).map_or(Ok(()), |memory| memory.fill(0, POISON, bytes))
    }

    fn end(&mut self, block: usize) {
        let Some(memory) = self.alive.remove(&block) else { return };
        match &mut self.kept {
            Some(lists) => lists.give_back(memory.len(), memory),
            None => self.held -= memory.len(),
        }
    }

    fn reserved_bytes(&self) -> usize {
        self.peak
    }

    fn system_allocations(&self) -> usize {
        self.allocations
    }
}
