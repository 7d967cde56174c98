//! How a function of rows and vectors reads its variables.

/// How the function reads one of its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Index of the tensor among the op's inputs.
    pub input: usize,
    /// The first element of the variable in a row of the tensor, or in a vector.
    pub from: usize,
    /// Every head has its own numbers; otherwise all heads have the same ones.
    pub per_head: bool,
    /// Every element of a head has its own number; otherwise all have the same one.
    pub per_element: bool,
}
