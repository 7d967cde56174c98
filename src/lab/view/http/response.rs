//! Responses. All of them, errors too, have the headers that keep other pages and caches out.

use std::borrow::Cow;
use std::fmt::Write;

/// The policy of everything served: only the page's own scripts, styles and requests, and no frame around it.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response besides the policy. Documents change while runs go on, and are private, so
/// caches must not keep them.
const HEADERS: &str = "Cache-Control: no-store\r\n\
                       X-Content-Type-Options: nosniff\r\n\
                       X-Frame-Options: DENY\r\n\
                       Referrer-Policy: no-referrer\r\n\
                       Cross-Origin-Resource-Policy: same-origin\r\n\
                       Cross-Origin-Opener-Policy: same-origin\r\n\
                       Connection: close\r\n";

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The response with its body.
    Get,
    /// Only the headers.
    Head,
}

/// What the body of a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The page.
    Html,
    /// A script of the page.
    Script,
    /// A style sheet of the page.
    Style,
    /// A document.
    Json,
}

impl Content {
    fn media_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Script => "text/javascript; charset=utf-8",
            Self::Style => "text/css; charset=utf-8",
            Self::Json => "application/json",
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// What the body is.
    pub content: Content,
    /// The body.
    pub body: Cow<'static, [u8]>,
    /// Where to redirect the browser, with a cookie to set.
    pub redirect: Option<Redirect>,
}

/// Where to redirect a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The address, relative to the requested one.
    pub location: &'static str,
    /// The cookie to set.
    pub cookie: String,
}

impl Response {
    /// Creates a response with a body.
    pub fn new(content: Content, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { status: 200, content, body: body.into(), redirect: None }
    }

    /// Creates a redirect that sets a cookie.
    pub fn redirect(location: &'static str, cookie: String) -> Self {
        let redirect = Some(Redirect { location, cookie });
        Self { status: 303, redirect, ..Self::new(Content::Html, &b""[..]) }
    }

    /// Returns the bytes of the response to a request with this method.
    pub fn to_bytes(&self, method: Method) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        // Writing to a String cannot fail.
        let _ = write!(
            head,
            "Content-Type: {}\r\nContent-Length: {}\r\nContent-Security-Policy: {POLICY}\r\n{HEADERS}",
            self.content.media_type(),
            self.body.len()
        );
        if self.status == 405 {
            head += "Allow: GET, HEAD\r\n";
        }
        if let Some(Redirect { location, cookie }) = &self.redirect {
            let _ = write!(head, "Location: {location}\r\nSet-Cookie: {cookie}\r\n");
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        if method == Method::Get {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// Returns the reason phrase of a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}
