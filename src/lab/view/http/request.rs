//! Requests, and why they are refused.

use super::response::{Content, Method, Response};
use super::target::{self, Parameters};
use serde_json::json;

/// The longest request line, in bytes.
pub const MAX_LINE: usize = 8 << 10;

/// The longest head of a request: its line and all headers, in bytes.
pub const MAX_HEAD: usize = 16 << 10;

/// The most headers of a request.
const MAX_HEADERS: usize = 64;

/// A request. It has no body.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is asked for.
    pub method: Method,
    /// The decoded segments of the path. `/` has one empty segment.
    pub path: Vec<String>,
    /// The decoded parameters of the query.
    pub query: Parameters,
    /// The headers, in order.
    headers: Vec<(String, String)>,
}

/// Why a request gets no document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the response.
    pub status: u16,
    /// A sentence for a person.
    pub why: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(status: u16, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    /// Returns the response that reports the refusal.
    pub fn response(&self) -> Response {
        let body = json!({"error": self.why}).to_string();
        Response { status: self.status, ..Response::new(Content::Json, body.into_bytes()) }
    }
}

impl Request {
    /// Parses the head of a request. Returns `None` if it is not complete yet.
    ///
    /// # Errors
    /// Refuses a head that is too long, is not HTTP/1, has another method than GET and HEAD, or announces a
    /// body.
    pub fn parse(head: &[u8]) -> Result<Option<Self>, Refusal> {
        if head.iter().take(MAX_LINE).all(|byte| *byte != b'\n') && head.len() >= MAX_LINE {
            return Err(Refusal::new(414, format!("the address is longer than {MAX_LINE} bytes")));
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if head.len() >= MAX_HEAD => {
                return Err(Refusal::new(431, format!("the headers are longer than {MAX_HEAD} bytes")));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal::new(431, format!("there are more than {MAX_HEADERS} headers")));
            }
            Err(e) => return Err(Refusal::new(400, format!("this is not an HTTP/1.1 request: {e}"))),
        }
        let method = match parsed.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => return Err(Refusal::new(405, "xrun view only reads: use GET or HEAD")),
        };
        let mut named = Vec::with_capacity(parsed.headers.len());
        for header in parsed.headers.iter() {
            let value = str::from_utf8(header.value)
                .map_err(|_| Refusal::new(400, format!("the header {} is not UTF-8", header.name)))?;
            named.push((header.name.to_owned(), value.to_owned()));
        }
        let (path, query) = parsed
            .path
            .and_then(target::parse)
            .ok_or_else(|| Refusal::new(400, "the address is not a path, or its escapes are not UTF-8"))?;
        let request = Self { method, path, query, headers: named };
        let has_length = request.headers("content-length").any(|length| length.trim() != "0");
        if has_length || request.headers("transfer-encoding").next().is_some() {
            return Err(Refusal::new(400, "a request to read must not have a body"));
        }
        Ok(Some(request))
    }

    /// Returns the values of a header. `name` is in lower case.
    pub fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let is_named = move |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.headers.iter().filter(is_named).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header that occurs once.
    pub fn header<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let mut values = self.headers(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Returns the first value of a query parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a query parameter.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}
