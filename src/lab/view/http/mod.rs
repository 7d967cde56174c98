//! The part of HTTP/1.1 that a page on one machine needs: requests without a body, read within limits, and
//! responses with all headers that keep other sites and caches out. A connection serves one request.

mod connection;
mod request;
mod response;
mod target;

pub use connection::{Limits, answer, reject};
pub use request::{Refusal, Request};
pub use response::{Content, Response};

#[cfg(test)]
mod tests;
