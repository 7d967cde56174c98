//! Recipes from the outside: through the library, and through the binary.

mod binary;
mod documents;
mod files;
mod garbled;
mod hashes;
mod idle;
mod reference;
mod wrong;
