//! The functions and constants that formulas may use.

/// The constants, with their values.
pub const CONSTANTS: [(&str, f64); 2] = [("pi", std::f64::consts::PI), ("e", std::f64::consts::E)];

/// Defines the enum of functions, with their names and what the manual says about each.
macro_rules! functions {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal($($argument:literal),+), $value:literal, $slope:literal;)+) => {
        /// A function that formulas may call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function {
            $($(#[doc = $doc])+ $variant),+
        }

        impl Function {
            /// Every function, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name that formulas call it by.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Returns the names of its arguments, as `value` and `slope` use them.
            pub const fn arguments(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($argument),+]),+
                }
            }

            /// Returns the function's value in mathematical notation.
            pub const fn value(self) -> &'static str {
                match self {
                    $(Self::$variant => $value),+
                }
            }

            /// Returns the function's slope with respect to its first argument, in mathematical notation.
            pub const fn slope(self) -> &'static str {
                match self {
                    $(Self::$variant => $slope),+
                }
            }
        }
    };
}

functions! {
    /// The exponential function.
    Exp = "exp"("u"), "e^u", "e^u";
    /// The natural logarithm.
    Log = "log"("u"), "ln u; NaN below 0", "1/u";
    /// The square root.
    Sqrt = "sqrt"("u"), "√u; NaN below 0", "1/(2·√u)";
    /// The absolute value.
    Abs = "abs"("u"), "|u|", "sign(u), and 0 at 0";
    /// The sign.
    Sign = "sign"("u"), "-1, 0 or 1", "0";
    /// The smaller of two.
    Min = "min"("u", "v"), "the smaller", "1 where u < v, else 0";
    /// The larger of two.
    Max = "max"("u", "v"), "the larger", "1 where u > v, else 0";
    /// The sine of an angle in radians.
    Sin = "sin"("u"), "sin u, in radians", "cos u";
    /// The cosine of an angle in radians.
    Cos = "cos"("u"), "cos u, in radians", "-sin u";
    /// The hyperbolic tangent.
    Tanh = "tanh"("u"), "tanh u", "1 - tanh² u";
    /// The logistic function.
    Sigmoid = "sigmoid"("u"), "σ(u) = 1/(1 + e^-u)", "σ(u)·(1 - σ(u))";
    /// The error function.
    Erf = "erf"("u"), "2/√π · ∫ e^-s² ds from 0 to u", "2/√π · e^-u²";
    /// The smooth `max(u, 0)`.
    Softplus = "softplus"("u"), "ln(1 + e^u)", "σ(u)";
    /// The positive part.
    Relu = "relu"("u"), "max(u, 0)", "1 where u > 0, else 0";
    /// The activation of Elfwing, Uchibe and Doya (2017).
    Silu = "silu"("u"), "u·σ(u)", "σ(u)·(1 + u·(1 - σ(u)))";
    /// The activation of Hendrycks and Gimpel (2016).
    Gelu = "gelu"("u"), "u·Φ(u), with the normal distribution function Φ", "Φ(u) + u·φ(u)";
    /// The approximation of GELU in the same paper.
    GeluTanh = "gelu_tanh"("u"), "u/2·(1 + tanh(√(2/π)·(u + 0.044715·u³)))", "by the rules";
}

impl Function {
    /// Returns the function with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|function| function.name() == name)
    }

    /// Returns a call of the function with its arguments' names, such as `max(u, v)`.
    pub fn call(self) -> String {
        format!("{}({})", self.name(), self.arguments().join(", "))
    }
}
