//! The methods of requests.

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The response with its body.
    Get,
    /// Only the headers.
    Head,
}
