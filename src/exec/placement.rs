//! Three ways to hold transient memory. All follow the same births and deaths, so all give the same bits.

use crate::device::{Device, Memory};
use crate::error::Result;
use std::collections::{BTreeMap, HashMap};

/// Gives memory to blocks between their birth and their death.
pub trait BlockAllocator: std::fmt::Debug + Send {
    /// A block is born.
    ///
    /// # Errors
    /// When the system refuses.
    fn begin(&mut self, block: usize, bytes: usize, offset: usize) -> Result<()>;
    /// Where a living block is.
    fn address(&self, block: usize) -> *mut u8;
    /// Fills a living block with a pattern that reads as NaN in every float format.
    ///
    /// # Errors
    /// When the device refuses.
    fn poison(&mut self, block: usize, bytes: usize) -> Result<()>;
    /// A block dies.
    fn end(&mut self, block: usize);
    /// The most bytes held from the system at once, so far.
    fn reserved_bytes(&self) -> usize;
    /// How often the system was asked for memory.
    fn system_allocations(&self) -> usize;
}

/// All bits set: NaN in every float format.
const POISON: u8 = 0xff;

/// One buffer; blocks lie at planned offsets.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    offsets: HashMap<usize, usize>,
}

impl Arena {
    /// Allocates the arena.
    ///
    /// # Errors
    /// When the system refuses.
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

/// The size that the caching placement rounds a block to: powers of two, each split in four.
pub fn size_class(bytes: usize) -> usize {
    let power = bytes.max(512).next_power_of_two();
    let quarter = power / 8;
    bytes.max(512).next_multiple_of(quarter.max(256))
}

/// The free lists of [`Caching`] over memory `M`: real buffers, or nothing, to learn what would be reserved.
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
    /// Memory for a block of `bytes`: a dead block of its size class, else what `allocate` makes of that class.
    ///
    /// # Errors
    /// That of `allocate`.
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

    /// The memory of a dead block of `bytes`, or of its size class.
    pub fn give_back(&mut self, bytes: usize, memory: M) {
        self.free.entry(size_class(bytes)).or_default().push(memory);
    }

    /// Bytes of all memory that was ever allocated: none is returned.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved
    }
}

/// Keeps dead blocks by size class.
#[derive(Debug)]
pub struct Caching {
    device: Device,
    alive: HashMap<usize, Memory>,
    lists: FreeLists<Memory>,
}

impl Caching {
    /// Without memory yet.
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

/// Asks the system for every block.
#[derive(Debug)]
pub struct Naive {
    device: Device,
    alive: HashMap<usize, Memory>,
    held: usize,
    most: usize,
    allocations: usize,
}

impl Naive {
    /// Without memory yet.
    pub fn new(device: Device) -> Self {
        Self { device, alive: HashMap::new(), held: 0, most: 0, allocations: 0 }
    }
}

impl BlockAllocator for Naive {
    fn begin(&mut self, block: usize, bytes: usize, _offset: usize) -> Result<()> {
        self.alive.insert(block, self.device.allocate(bytes)?);
        self.allocations += 1;
        self.held += bytes;
        self.most = self.most.max(self.held);
        Ok(())
    }

    fn address(&self, block: usize) -> *mut u8 {
        self.alive[&block].address()
    }

    fn poison(&mut self, block: usize, bytes: usize) -> Result<()> {
        self.alive.get_mut(&block).map_or(Ok(()), |memory| memory.fill(0, POISON, bytes))
    }

    fn end(&mut self, block: usize) {
        self.held -= self.alive.remove(&block).map_or(0, |buffer| buffer.len());
    }

    fn reserved_bytes(&self) -> usize {
        self.most
    }

    fn system_allocations(&self) -> usize {
        self.allocations
    }
}
