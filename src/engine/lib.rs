//! The engine: programs of ops and the devices that execute them, and what a training reads and saves. It
//! knows no recipes.

pub mod atomic;
pub mod check;
pub mod checkpoint;
pub mod data;
pub mod device;
pub mod error;
pub mod evaluation;
pub mod exec;
pub mod expression;
pub mod format;
pub mod gguf;
pub mod hugging_face;
pub mod interrupts;
pub mod ir;
pub mod liveness;
pub mod lock;
pub mod machine;
pub mod metrics;
pub mod model_text;
pub mod ops;
pub mod optim;
pub mod passes;
pub mod policy;
pub mod regular;
pub mod statistics;
pub mod suggest;
pub mod tasks;
pub mod threads;

pub use error::{Error, Result};
