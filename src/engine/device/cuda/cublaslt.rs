//! cuBLASLt: its handle, its descriptions of products, and the algorithms it proposes.

use super::libraries::Nvidia;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::device::gpu::{Addend, DevicePtr, Product, ProductShape};
use crate::device::{DType, ProductPrecision};
use crate::error::{Error, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::ffi::c_void;

/// Size of the workspace in bytes: NVIDIA's recommendation for Hopper, more than older GPUs need.
pub const WORKSPACE: usize = 32 << 20;

/// Largest number of algorithms that the library proposes for a product.
const CANDIDATES: usize = 24;

/// An open library, closed when dropped.
#[derive(Debug)]
pub(super) struct Cublaslt {
    handle: sys::cublasLtHandle_t,
    /// [`WORKSPACE`] bytes for algorithms to use.
    workspace: DeviceBuffer,
}

// SAFETY: the library may be called from every thread with the same handle.
unsafe impl Send for Cublaslt {}
// SAFETY: see `Send`.
unsafe impl Sync for Cublaslt {}

/// The library's descriptions of a product and its matrices. They are kept until the process ends, because
/// there are few.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    kind: OperationKind,
    /// The operation without scales.
    operation: sys::cublasLtMatmulDesc_t,
    /// The library's A, B, C, which are our B, A, C, because it is column-major.
    matrices: [sys::cublasLtMatrixLayout_t; 3],
    /// True for a batch of products.
    batched: bool,
}

/// What the library computes, apart from its matrices.
#[derive(Clone, Copy, Debug)]
struct OperationKind {
    compute: sys::cublasComputeType_t,
    /// Whether the library's A and B are stored transposed.
    transposed: [bool; 2],
}

impl OperationKind {
    /// Creates the library's description. `scales` are the addresses of the numbers by which the library's A
    /// and B are multiplied.
    ///
    /// 8-bit floats are summed with the library's accurate accumulation, which is on unless the description
    /// says otherwise.
    fn describe(self, scales: Option<[DevicePtr; 2]>) -> Result<sys::cublasLtMatmulDesc_t> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let operation = result::create_matmul_desc(self.compute, sys::cudaDataType_t::CUDA_R_32F);
        let operation = checked(operation, "describe a product")?;
        let set = |which, (value, size)| {
            // SAFETY: the attributes are integers and addresses of these types.
            let set = unsafe { result::set_matmul_desc_attribute(operation, which, value, size) };
            checked(set, "describe a product")
        };
        // cublasOperation_t: 0 means as stored, 1 transposed.
        let [a, b] = self.transposed.map(i32::from);
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, attribute(&a))?;
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, attribute(&b))?;
        if let Some([a, b]) = scales {
            set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, attribute(&a))?;
            set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, attribute(&b))?;
        }
        Ok(operation)
    }
}

// SAFETY: descriptions are only read after their creation.
unsafe impl Send for Layout {}
// SAFETY: see `Send`.
unsafe impl Sync for Layout {}

impl Cublaslt {
    /// Opens the library with a workspace of [`WORKSPACE`] bytes.
    pub(super) fn new(workspace: DeviceBuffer) -> Result<Self> {
        assert_eq!(workspace.len(), WORKSPACE);
        let handle = checked(result::create_handle(), "open cuBLASLt")?;
        Ok(Self { handle, workspace })
    }

    /// Puts a product into a stream, and returns whether the library took it.
    ///
    /// # Errors
    /// If the product cannot be described to the library.
    pub(super) fn multiply(
        &self,
        stream: &Stream,
        product: &Product,
        layout: &Layout,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<cublasStatus_t> {
        // The addresses of scales are part of the operation's description, so it is made for this product.
        let scaled = product.scales.map(|[a, b]| layout.kind.describe(Some([b, a]))).transpose()?;
        let operation = scaled.unwrap_or(layout.operation);
        // With a factor of 0 the library does not read the addend.
        let addend = product.addend.unwrap_or(Addend { address: product.c, factor: 0.0 });
        let (alpha, beta) = (product.factor, addend.factor);
        let pointer = |address: DevicePtr| address as *const c_void;
        let [a, b, c] = layout.matrices;
        // SAFETY: the layouts describe the memory at the addresses, which the executor keeps alive for the
        // node; the scalars are read before the call returns (host pointer mode).
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                operation,
                (&raw const alpha).cast(),
                pointer(product.b),
                a,
                pointer(product.a),
                b,
                (&raw const beta).cast(),
                pointer(addend.address),
                c,
                product.c as *mut c_void,
                c,
                algorithm,
                self.workspace.address() as *mut c_void,
                WORKSPACE,
                stream.raw.cast(),
            )
        };
        if let Some(operation) = scaled {
            // SAFETY: created above; the library has read it.
            let destroyed = unsafe { result::destroy_matmul_desc(operation) };
            checked(destroyed, "forget a product")?;
        }
        Ok(status)
    }

    /// Returns the algorithms that the library proposes, best guess first. Excludes algorithms that split the
    /// summed dimension and add the parts in no fixed order. For batches it excludes all splits: batches
    /// share an algorithm whatever their number of products, and the workspace of a split grows with it.
    pub(super) fn candidates(&self, layout: &Layout) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let [a, b, c] = layout.matrices;
        let preference = checked(result::create_matmul_pref(), "describe a search")?;
        // SAFETY: zeros are valid for this plain struct of the library.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // Bits of cublasLtReductionScheme_t: partial sums in the compute type. In-place sums would use
        // atomics.
        let schemes = if layout.batched { 0u32 } else { 2 };
        // SAFETY: attributes are set from integers of their types; the buffer has room for CANDIDATES
        // results.
        unsafe {
            let set = |which, (value, size)| {
                let set = result::set_matmul_pref_attribute(preference, which, value, size);
                checked(set, "describe a search")
            };
            set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, attribute(&WORKSPACE))?;
            set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, attribute(&schemes))?;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                layout.operation,
                a,
                b,
                c,
                c,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &raw mut count,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            if status == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                return Ok(Vec::new());
            }
            check(status, "search algorithms")?;
        }
        Ok(found[..count as usize].to_vec())
    }
}

impl Drop for Cublaslt {
    fn drop(&mut self) {
        // SAFETY: opened in `new`; the owner has waited for the GPU's work.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// Returns the version of cuBLASLt, such as 130002; 0 if it is not installed.
pub fn library_version() -> u64 {
    if Nvidia::CublasLt.open().is_none() {
        return 0;
    }
    // SAFETY: the library is open, and the call only reads a constant.
    unsafe { sys::cublasLtGetVersion() as u64 }
}

impl Layout {
    /// Describes a product to the library. The library is column-major: a row-major `[r, c]` is its `c × r`.
    /// So `C = A·B` is requested as `Cᵀ = Bᵀ·Aᵀ`, and no data moves.
    pub(super) fn new(shape: &ProductShape) -> Result<Self> {
        let compute = match (shape.precision, shape.inputs[0]) {
            (ProductPrecision::Tf32, DType::F32) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let kind = OperationKind { compute, transposed: [shape.b_transposed, shape.a_transposed] };
        let matrix = |rows: usize, columns: usize, dtype: DType| -> Result<sys::cublasLtMatrixLayout_t> {
            let format = match dtype {
                DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
                DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
                DType::E4m3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
                DType::E5m2 => sys::cudaDataType_t::CUDA_R_8F_E5M2,
                other => return Err(Error::failed(format!("products of {other} do not run on a GPU"))),
            };
            let layout = result::create_matrix_layout(format, columns as u64, rows as u64, columns as i64);
            let layout = checked(layout, "describe a matrix")?;
            if let Some(count) = shape.batch {
                describe_batch(layout, count, rows * columns)?;
            }
            Ok(layout)
        };
        let stored = |rows, columns, transposed| if transposed { (columns, rows) } else { (rows, columns) };
        let (ar, ac) = stored(shape.m, shape.k, shape.a_transposed);
        let (br, bc) = stored(shape.k, shape.n, shape.b_transposed);
        Ok(Self {
            kind,
            operation: kind.describe(None)?,
            matrices: [
                matrix(br, bc, shape.inputs[1])?,
                matrix(ar, ac, shape.inputs[0])?,
                matrix(shape.m, shape.n, shape.output)?,
            ],
            batched: shape.batch.is_some(),
        })
    }
}

/// Turns a matrix into a batch of `count` matrices, `stride` elements apart.
fn describe_batch(layout: sys::cublasLtMatrixLayout_t, count: usize, stride: usize) -> Result<()> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let count = i32::try_from(count).map_err(|_| {
        Error::failed(format!("a batch of {count} products is larger than the library takes"))
    })?;
    let stride = stride as i64;
    let set = |which, (value, size)| {
        // SAFETY: the attributes are integers of these types.
        let set = unsafe { result::set_matrix_layout_attribute(layout, which, value, size) };
        checked(set, "describe a batch")
    };
    set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, attribute(&count))?;
    set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, attribute(&stride))
}

/// Returns the address and the size of an attribute's value.
fn attribute<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// Turns a library status into an error that says what failed.
pub(super) fn check(status: cublasStatus_t, doing: &str) -> Result<()> {
    checked(status.result(), doing)
}

fn checked<T>(result: Result<T, CublasError>, doing: &str) -> Result<T> {
    result.map_err(|CublasError(status)| Error::failed(format!("cannot {doing}: {status:?}")))
}
