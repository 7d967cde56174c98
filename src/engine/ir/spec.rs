//! Static description of a tensor: shape, padded shape, element format.

use crate::device::DType;
use crate::device::cpu::buffer::ALIGNMENT;
use std::fmt;

/// Shape, allocated shape and format of a tensor.
///
/// `alloc` is `shape` with some dimensions rounded up to sizes that the hardware prefers (the vocabulary, the
/// FFN width). Padding always holds zeros. Checkpoints, parameter counts and losses use `shape`; memory and
/// products use `alloc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Logical dimensions, without padding.
    pub shape: Vec<usize>,
    /// The dimensions in memory, row-major and contiguous.
    pub alloc: Vec<usize>,
    /// The element format.
    pub dtype: DType,
}

impl Spec {
    /// Describes an unpadded tensor.
    pub fn new(shape: impl Into<Vec<usize>>, dtype: DType) -> Self {
        let shape = shape.into();
        Self { alloc: shape.clone(), shape, dtype }
    }

    /// Describes a tensor whose allocated shape is larger than its shape. Both have the same number of
    /// dimensions.
    pub fn padded(shape: impl Into<Vec<usize>>, alloc: impl Into<Vec<usize>>, dtype: DType) -> Self {
        let (shape, alloc) = (shape.into(), alloc.into());
        debug_assert_eq!(shape.len(), alloc.len());
        Self { shape, alloc, dtype }
    }

    /// Returns the same shape in another format.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// Returns the spec of the first `rows` entries along the first dimension, which share the tensor's start
    /// in memory; the whole tensor if it has no more than that.
    #[must_use]
    pub fn first_rows(&self, rows: usize) -> Self {
        let mut part = self.clone();
        if let (Some(shape), Some(alloc)) = (part.shape.first_mut(), part.alloc.first_mut())
            && rows < *shape
        {
            (*shape, *alloc) = (rows, rows);
        }
        part
    }

    /// Returns the number of elements in memory, padding included. Plans check that the product does not
    /// overflow.
    pub fn elements(&self) -> usize {
        self.alloc.iter().product()
    }

    /// Returns the number of elements without padding.
    pub fn logical_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size in memory in bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Returns the size in memory in bytes, rounded up to the alignment of tensors.
    pub fn aligned_bytes(&self) -> usize {
        self.bytes().next_multiple_of(ALIGNMENT)
    }

    /// Returns the contiguous ranges of memory that hold the logical elements, in row-major order, each as
    /// (first logical element, first element in memory, length).
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let len = self.shape.last().copied().unwrap_or(1);
        let leading = self.shape.len().saturating_sub(1);
        let count: usize = self.shape[..leading].iter().product();
        (0..count).map(move |run| {
            let (mut rest, mut at, mut stride) = (run, 0, self.width());
            for (&shape, &alloc) in self.shape[..leading].iter().zip(&self.alloc[..leading]).rev() {
                at += rest % shape * stride;
                rest /= shape;
                stride *= alloc;
            }
            (run * len, at, len)
        })
    }

    /// Returns the index in memory of every logical element, in row-major order.
    pub fn logical_indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs().flat_map(|(_, at, len)| at..at + len)
    }

    /// Returns the last dimension in memory (1 for a scalar).
    pub fn width(&self) -> usize {
        self.alloc.last().copied().unwrap_or(1)
    }

    /// Returns the product of all dimensions in memory except the last.
    pub fn rows(&self) -> usize {
        self.alloc.iter().rev().skip(1).product()
    }
}

impl fmt::Display for Spec {
    /// `bf16[4096,2730→2752]`: padded dimensions show both sizes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, (shape, alloc)) in self.shape.iter().zip(&self.alloc).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            if shape == alloc {
                write!(f, "{comma}{shape}")?;
            } else {
                write!(f, "{comma}{shape}→{alloc}")?;
            }
        }
        f.write_str("]")
    }
}
