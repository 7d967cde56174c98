//! Three allocators for transient memory. All follow the lifetimes of the memory plan, so results are
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

/// Rounds up to a size class of the caching allocator: each power of two is divided in four.
pub fn size_class(bytes: usize) -> usize {
    let power = bytes.max(512).next_power_of_two();
    let quarter = power / 8;
    bytes.max(512).next_multiple_of(quarter.max(256))
}

/// The free lists of [`Caching`]. `M` is a real buffer, or `()` to predict how much memory would be reserved.
#[derive(Debug)]
pub struct FreeLists<M> {
    free: BTreeMap<usize, Vec<M>>,
    reserved: usize,
    allocations: usize,
}

impl<M> Default for FreeLists<M> {
    fn default() -> Self {
        Self { free: BTreeMap::new(), reserved: 0, allocations: 0 }
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
        self.allocations += 1;
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

/// Keeps freed blocks for reuse, by size class.
#[derive(Debug)]
pub struct Caching {
    device: Device,
    alive: HashMap<usize, Memory>,
    lists: FreeLists<Memory>,
}

impl Caching {
    /// Creates the allocator without any memory.
    pub fn new(device: Device) -> Self {
        Self { device, alive: HashMap::new(), lists: FreeLists::default() }
    }
}

impl BlockAllocator for Caching {
    fn begin(&mut self, block: usize, bytes: usize, _offset: usize) -> Result<()> {
        let buffer = self.lists.take(bytes, |bytes| self.device.allocate(bytes))?;
        self.alive.insert(block, buffer);
        Ok(())
    }

    fn address(&self, block: usize) -> *mut u8 {
        self.alive[&block].address()
    }

    fn poison(&mut self, block: usize, bytes: usize) -> Result<()> {
        self.alive.get_mut(&block).map_or(Ok(()), |memory| memory.fill(0, POISON, bytes))
    }

    fn end(&mut self, block: usize) {
        if let Some(buffer) = self.alive.remove(&block) {
            self.lists.give_back(buffer.len(), buffer);
        }
    }

    fn reserved_bytes(&self) -> usize {
        self.lists.reserved_bytes()
    }

    fn system_allocations(&self) -> usize {
        self.lists.allocations
    }
}

/// Allocates every block from the system, and frees it when its lifetime ends.
#[derive(Debug)]
pub struct Naive {
    device: Device,
    alive: HashMap<usize, Memory>,
    allocated: usize,
    peak: usize,
    allocations: usize,
}

impl Naive {
    /// Creates the allocator without any memory.
    pub fn new(device: Device) -> Self {
        Self { device, alive: HashMap::new(), allocated: 0, peak: 0, allocations: 0 }
    }
}

impl BlockAllocator for Naive {
    fn begin(&mut self, block: usize, bytes: usize, _offset: usize) -> Result<()> {
        self.alive.insert(block, self.device.allocate(bytes)?);
        self.allocations += 1;
        self.allocated += bytes;
        self.peak = self.peak.max(self.allocated);
        Ok(())
    }

    fn address(&self, block: usize) -> *mut u8 {
        self.alive[&block].address()
    }

    fn poison(&mut self, block: usize, bytes: usize) -> Result<()> {
        self.alive.get_mut(&block).map_or(Ok(()), |memory| memory.fill(0, POISON, bytes))
    }

    fn end(&mut self, block: usize) {
        self.allocated -= self.alive.remove(&block).map_or(0, |buffer| buffer.len());
    }

    fn reserved_bytes(&self) -> usize {
        self.peak
    }

    fn system_allocations(&self) -> usize {
        self.allocations
    }
}
