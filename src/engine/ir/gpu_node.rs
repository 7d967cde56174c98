//! A node as its op sees it on a GPU.

use super::{GpuNode, Mode, Spec};
use crate::device::ProductPrecision;
use crate::device::gpu::{Addend, DevicePtr, Operand, Product, ProductShape};
use crate::error::Result;

impl<'a> GpuNode<'a> {
    /// Returns the spec of input `i`.
    pub fn input_spec(&self, i: usize) -> &'a Spec {
        self.program.spec(self.node.inputs[i])
    }

    /// Returns the spec of output `i`.
    pub fn output_spec(&self, i: usize) -> &'a Spec {
        self.program.spec(self.node.outputs[i])
    }

    /// Returns true if output `i` is added to rather than overwritten.
    pub fn adds(&self, i: usize) -> bool {
        self.node.modes[i] == Mode::Add
    }

    /// Returns the address of input `i`.
    pub fn input(&self, i: usize) -> DevicePtr {
        self.inputs[i]
    }

    /// Returns the address of output `i`.
    pub fn output(&self, i: usize) -> DevicePtr {
        self.outputs[i]
    }

    /// Enqueues a product into `output`: `C[m, n] (+)= A[m, k]·B[k, n]`, in the formats of input 0 and of the
    /// output.
    ///
    /// # Errors
    /// If the library rejects the product.
    pub fn product(
        &self,
        sizes: (usize, usize, usize),
        a: Operand,
        b: Operand,
        output: usize,
        precision: ProductPrecision,
    ) -> Result<()> {
        let shape = self.product_shape(sizes, [a, b], (output, self.adds(output)), precision);
        self.queue.product(&Product::new(shape, a.address, b.address, self.output(output)))
    }

    /// Enqueues a product into output 0, which adds another matrix like the output:
    /// `C[m, n] = A[m, k]·B[k, n] + addend[m, n]`. The addend may be the output.
    ///
    /// # Errors
    /// If the library rejects the product.
    pub fn product_plus(
        &self,
        sizes: (usize, usize, usize),
        a: Operand,
        b: Operand,
        addend: DevicePtr,
        precision: ProductPrecision,
    ) -> Result<()> {
        let shape = self.product_shape(sizes, [a, b], (0, true), precision);
        let addend = Some(Addend { address: addend, factor: 1.0 });
        self.queue.product(&Product { addend, ..Product::new(shape, a.address, b.address, self.output(0)) })
    }

    /// Returns the shape of a product into an output, to which it may add, of factors in the format of input
    /// 0.
    pub fn product_shape(
        &self,
        (m, n, k): (usize, usize, usize),
        [a, b]: [Operand; 2],
        (output, accumulate): (usize, bool),
        precision: ProductPrecision,
    ) -> ProductShape {
        ProductShape {
            batch: None,
            m,
            n,
            k,
            a_transposed: a.transposed,
            b_transposed: b.transposed,
            inputs: [self.input_spec(0).dtype; 2],
            output: self.output_spec(output).dtype,
            accumulate,
            precision,
        }
    }
}
